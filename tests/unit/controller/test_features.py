"""Tests of `tiered.metadata.version`: level 0 has no kind and no field that brokers of an earlier program refuse.

`earlier_program.py` has the strict reader of that program.
"""

from __future__ import annotations

import itertools
import json
import uuid
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
from tiered.config.settings import Settings
from tiered.controller import requests
from tiered.controller.controller import Controller
from tiered.controller.features import check_brokers
from tiered.controller.request_codec import decode_request, encode_reply, encode_request
from tiered.errors import Code, Refused
from tiered.ids import TopicId, encode_uuid
from tiered.metadata import changes as kinds
from tiered.metadata.changes import DISK_FULL
from tiered.metadata.features import FIELDS_SINCE, HIGHEST_METADATA_VERSION, METADATA_VERSION, TRANSACTION_VERSION
from tiered.metadata.image import from_json, to_json
from tiered.metadata.parts.features import FeaturesImage

RAISE = requests.UpdateFeatures((requests.FeatureUpdate(METADATA_VERSION, 1),))


def older_cluster(*nodes: int) -> Controller:
    """Returns the controller of a cluster that brokers of the earlier program made: no level is set."""
    shard = cluster(*nodes)
    ids = itertools.count(1)
    return Controller(
        replace(shard.image, features_image=FeaturesImage()), Settings(), lambda: encode_uuid(uuid.UUID(int=next(ids)))
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
    assert shard.image.topics["t"].creator == "User:a" and shard.image.full_disk_ids() == {1}
    [[loss]] = shard.image.losses.values()
    assert loss.newest_ms == 9 and from_json(json.loads(json.dumps(to_json(shard.image)))) == shard.image
    with pytest.raises(Refused, match="brokers of a lower one refuse"):
        shard.decide(requests.UpdateFeatures((requests.FeatureUpdate(METADATA_VERSION, 0, True),)), 0)


def test_new_cluster_has_the_highest_level() -> None:
    assert cluster(1).image.features == {METADATA_VERSION: HIGHEST_METADATA_VERSION}
    assert older_cluster(1).image.metadata_version == 0


def test_every_newer_kind_and_field_has_a_level() -> None:
    """A kind or field that is not in `level_0.json` needs a gate here and in `features.py`."""
    known = LEVEL_0["changes"]
    assert kinds.KINDS.keys() - known.keys() == {"broker_disk_reported"}
    for name, kind in kinds.KINDS.items():
        newer = set(kind.__dataclass_fields__) - {*known.get(name, kind.__dataclass_fields__)}
        assert newer == FIELDS_SINCE.get(kind.__name__, {}).keys()


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
    with pytest.raises(Refused, match=r"broker 2 .* level 0, .* level 2") as refused:
        cluster(1).decide(older, 0)
    assert refused.value.code is Code.UNSUPPORTED_VERSION
    for shard, sent in ((cluster(1), request), (older_cluster(1), older)):
        decide(shard, sent)
        assert shard.image.live_ids() == {1, 2}
