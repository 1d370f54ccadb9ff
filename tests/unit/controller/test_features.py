"""Tests of `tiered.metadata.version`: level 0 has no kind and no field that brokers of an earlier program refuse.

`earlier_program.py` has the strict reader of that program.
"""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest

from tests.unit.controller.earlier_program import (
    LEVEL_0,
    unknown_in_change,
    unknown_in_message,
    unknown_in_snapshot,
)
from tests.unit.controller.test_controller import decide, refusal
from tests.unit.controller.test_leaders import cluster, incarnation, register, topic_id
from tiered.config.settings import Settings, topic_rows
from tiered.controller import requests
from tiered.controller.controller import Controller
from tiered.controller.features import check_brokers
from tiered.controller.request_codec import decode_request, encode_reply, encode_request
from tiered.errors import Code, Refused
from tiered.ids import TopicId, encode_uuid
from tiered.metadata import changes as kinds
from tiered.metadata.changes import DISK_FULL
from tiered.metadata.features import (
    CONSUMER_GROUPS,
    DELETED_NAMES,
    FIELDS_SINCE,
    GROUP_VERSION,
    HIGHEST_METADATA_VERSION,
    METADATA_VERSION,
    NAMES_SINCE,
    TRANSACTION_VERSION,
    has_consumer_groups,
)
from tiered.metadata.image import from_json, to_json
from tiered.metadata.parts.features import FeaturesImage
from tiered.metadata.stored_configs import stored_rows
from tiered.quotas import validation

RAISE = requests.UpdateFeatures((requests.FeatureUpdate(METADATA_VERSION, 1),))


def older_cluster(*nodes: int, settings: Settings | None = None) -> Controller:
    """Returns the controller of a cluster that brokers of the earlier program made: no level is set."""
    shard = cluster(*nodes)
    ids = itertools.count(1)
    return Controller(
        replace(shard.image, features_image=FeaturesImage()),
        settings or Settings(),
        lambda: encode_uuid(uuid.UUID(int=next(ids))),
    )


def test_older_cluster_writes_only_what_the_earlier_program_reads() -> None:
    shard = older_cluster(1, 2)
    written: list[kinds.Change] = []
    for request in (
        requests.CreateTopic("t", 2, 2, creator="User:a"),
        requests.CreateTopics((requests.CreateTopic("u", 1, 1, creator="User:a"),)),
    ):
        made = shard.decide(request, 7)
        written += made.changes
        assert not unknown_in_message(orjson.loads(encode_reply(made.reply, shard.image.metadata_version)))
        shard.apply(made.changes)
    lost = shard.decide(requests.ReportLoss(topic_id(shard), 0, 0, 5, newest_ms=9), 7)
    shard.apply(lost.changes)
    assert refusal(shard, requests.ReportDisk(1, incarnation(1), DISK_FULL)) is Code.UNSUPPORTED_VERSION
    for change in (*written, *lost.changes):
        assert not unknown_in_change(kinds.to_json(change))
    snapshot = to_json(shard.image)
    assert not unknown_in_snapshot(snapshot)
    assert shard.image.losses and shard.image.topics["t"].partitions[0].loss is not None
    assert from_json(json.loads(json.dumps(snapshot))) == shard.image


def test_requests_at_level_0_are_those_of_the_earlier_program() -> None:
    creation = requests.CreateTopic("t", creator="User:a")
    for request in (
        creation,
        requests.CreateTopics((creation,)),
        requests.RegisterBroker(1, "i", "d", ""),
        requests.ReportLoss(TopicId("x"), 0, 0, 5, newest_ms=9),
    ):
        assert not unknown_in_message(orjson.loads(encode_request(request, 0)))
        assert unknown_in_message(orjson.loads(encode_request(request)))
        assert decode_request(encode_request(request)) == request
    assert decode_request(encode_request(creation, 0)) == requests.CreateTopic("t")


def test_registration_of_a_process_names_its_machine_at_each_level() -> None:
    request = requests.RegisterBroker(1001, incarnation(1), "d", "", process=1)
    for level in range(HIGHEST_METADATA_VERSION + 1):
        assert decode_request(encode_request(request, level)) == request


def test_raised_level_has_all_fields_and_is_never_lowered() -> None:
    shard = older_cluster(1, 2)
    decide(shard, RAISE)
    decide(shard, requests.CreateTopic("t", 1, 2, creator="User:a"))
    decide(shard, requests.ReportDisk(1, incarnation(1), DISK_FULL))
    decide(shard, requests.ReportLoss(topic_id(shard), 0, 0, 5, newest_ms=9))
    assert shard.image.topics["t"].creator == "User:a" and shard.image.bad_disk_ids() == {1}
    [[loss]] = shard.image.losses.values()
    assert loss.newest_ms == 9 and from_json(json.loads(json.dumps(to_json(shard.image)))) == shard.image
    with pytest.raises(Refused, match="brokers of a lower one refuse"):
        shard.decide(requests.UpdateFeatures((requests.FeatureUpdate(METADATA_VERSION, 0, True),)), 0)


@pytest.mark.parametrize(("level", "name"), [(0, ""), (DELETED_NAMES, "t")])
def test_changes_that_end_a_topic_have_its_name_from_their_level_on(level: int, name: str) -> None:
    shard = older_cluster(1)
    if level:
        decide(shard, requests.UpdateFeatures((requests.FeatureUpdate(METADATA_VERSION, level),)))
    decide(shard, requests.CreateTopic("t", 1, 1))
    deleted = topic_id(shard)
    for request in (requests.DeleteTopic("t"), requests.ForgetTopic(deleted)):
        made = shard.decide(request, 7)
        shard.apply(made.changes)
        [change] = map(kinds.to_json, made.changes)
        assert (change["topic_id"], change.get("name", "")) == (deleted, name)
        assert bool(unknown_in_change(change)) == bool(name)
    assert not shard.image.deleted_topics
    assert shard.decide(requests.ForgetTopic(deleted), 8).changes == ()


def test_new_cluster_has_the_highest_level() -> None:
    assert cluster(1).image.features == {METADATA_VERSION: HIGHEST_METADATA_VERSION}
    assert older_cluster(1).image.metadata_version == 0


def test_every_newer_kind_and_field_has_a_level() -> None:
    """A kind or field that is not in `level_0.json` needs a gate here and in `features.py`."""
    known = LEVEL_0["changes"]
    assert kinds.KINDS.keys() - known.keys() == {"broker_disk_reported", "group_config_changed"}
    for name, kind in kinds.KINDS.items():
        newer = set(kind.__dataclass_fields__) - {*known.get(name, kind.__dataclass_fields__)}
        assert newer == FIELDS_SINCE.get(kind.__name__, {}).keys()


def test_every_newer_setting_and_quota_of_the_metadata_has_a_level() -> None:
    """A name that is not in `level_0.json` needs a level in `features.py`: a broker of an earlier program ends if the
    metadata log has the setting, and does not enforce the quota."""
    known = LEVEL_0["names"]
    changeable = {name for name, row in stored_rows().items() if row.dynamic}
    quotas = {*validation._USER_KEYS, *validation._IP_KEYS}
    newer = {*topic_rows()} - {*known["topic"]} | changeable - {*known["broker"]} | quotas - {*known["quota"]}
    assert newer == NAMES_SINCE.keys()


NEWER_SETTINGS = (
    lambda shard: requests.CreateTopic("u", 1, 1, configs={"internal.segment.bytes": "1048576"}),
    lambda shard: requests.AlterTopicConfigs("t", {"internal.segment.bytes": "1048576"}),
    lambda shard: requests.AlterBrokerConfigs(kinds.ALL_BROKERS, {"tiered.clock.skew.max.ms": "9000"}),
    lambda shard: requests.AlterBrokerConfigs(1, {"tiered.max.message.bytes.max": "9000000"}, validate_only=True),
)


@pytest.mark.parametrize("request_for", NEWER_SETTINGS)
def test_newer_setting_is_refused_below_its_level(request_for: Callable[[Controller], requests.Request]) -> None:
    shard = older_cluster(1, settings=Settings(tiered_internal_configs_enable=True))
    decide(shard, requests.CreateTopic("t", 1, 1))
    with pytest.raises(Refused, match=r"brokers of the earlier program do not know .*tiered.metadata.version=1") as why:
        shard.decide(request_for(shard), 7)
    assert why.value.code is Code.INVALID_CONFIG
    decide(shard, requests.AlterBrokerConfigs(kinds.ALL_BROKERS, {"tiered.clock.skew.max.ms": None}))
    decide(shard, RAISE)
    shard.decide(request_for(shard), 7)


def test_newer_quota_is_refused_below_its_level() -> None:
    shard, owner = older_cluster(1), (("user", "bob"),)
    rates = (("producer_byte_rate", 9.0), ("store_request_rate", 5.0))
    both = requests.AlterClientQuotas(tuple(requests.QuotaAlteration((("user", each[0]),), (each,)) for each in rates))
    done, refused = shard.decide(both, 7).reply
    assert done is None and isinstance(refused, Refused)
    assert (refused.code, "tiered.metadata.version=1" in refused.why) == (Code.INVALID_REQUEST, True)
    decide(shard, RAISE)
    decide(shard, requests.AlterClientQuotas((requests.QuotaAlteration(owner, rates),)))
    assert shard.image.quotas == {owner: dict(rates)}


@pytest.mark.parametrize("fenced", [False, True])
def test_raise_is_refused_while_a_registered_broker_is_older(fenced: bool) -> None:
    shard = older_cluster(1, 2, 3)
    if fenced:  # its process may run, and come back
        decide(shard, requests.FenceBroker(2, incarnation(2)))
    supported = {incarnation(1): 1, incarnation(2): 0, incarnation(3): 1}
    for older in (supported, {incarnation(1): 1, incarnation(3): 1}):
        with pytest.raises(Refused, match="broker 2 ") as refused:
            check_brokers(shard.image, RAISE, older)
        assert refused.value.code is Code.INVALID_UPDATE_VERSION
    check_brokers(shard.image, RAISE, {**supported, incarnation(2): 1})
    others = requests.FeatureUpdate(TRANSACTION_VERSION, 1, True), requests.FeatureUpdate(METADATA_VERSION, 0)
    check_brokers(shard.image, requests.UpdateFeatures(others), {})
    decide(shard, requests.StopBroker(2, incarnation(2)))
    check_brokers(shard.image, RAISE, supported)


def test_consumer_groups_wait_for_brokers_of_an_earlier_program() -> None:
    shard = older_cluster(1)
    assert not has_consumer_groups(shard.image.features)
    off = requests.UpdateFeatures((requests.FeatureUpdate(GROUP_VERSION, 0, True),))
    with pytest.raises(Refused, match=r"set it from tiered\.metadata\.version=2 on"):
        shard.decide(off, 7)
    decide(shard, requests.UpdateFeatures((requests.FeatureUpdate(METADATA_VERSION, CONSUMER_GROUPS),)))
    assert has_consumer_groups(shard.image.features)
    decide(shard, off)
    assert not has_consumer_groups(shard.image.features)


def test_level_of_an_earlier_incarnation_does_not_count() -> None:
    shard = older_cluster(1, 2)
    supported = {incarnation(1): 1, incarnation(2): 1}
    register(shard, 2, 1)
    with pytest.raises(Refused, match="broker 2 "):
        check_brokers(shard.image, RAISE, supported)


def test_broker_of_an_earlier_program_is_refused_at_a_higher_level() -> None:
    request = requests.RegisterBroker(2, incarnation(2), "d", "")
    older = decode_request(encode_request(request, 0))
    assert isinstance(older, requests.RegisterBroker)
    assert (older.metadata_version, request.metadata_version) == (0, HIGHEST_METADATA_VERSION)
    with pytest.raises(Refused, match=r"broker 2 .* level 0, .* level 6") as refused:
        cluster(1).decide(older, 0)
    assert refused.value.code is Code.UNSUPPORTED_VERSION
    for shard, sent in ((cluster(1), request), (older_cluster(1), older)):
        decide(shard, sent)
        assert shard.image.live_ids() == {1, 2}
