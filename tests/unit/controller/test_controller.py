"""Tests of the controller: its decisions, its refusals, and the effect of a restart on leaderships."""

from __future__ import annotations

import itertools
import uuid

import pytest

from tests.refusal import refuses
from tiered.config.settings import Settings, TopicConfig
from tiered.controller import requests
from tiered.controller.controller import Controller
from tiered.controller.requests import Request
from tiered.controller.topics import PARTITIONS_MAX
from tiered.errors import Code, Refused
from tiered.ids import TopicId, encode_uuid
from tiered.metadata.changes import (
    ALL_BROKERS,
    NO_LEADER,
    BrokerConfigChanged,
    Change,
    ListEdit,
    LossReported,
    PartitionChanged,
    TopicConfigChanged,
    TopicCreated,
)
from tiered.metadata.effective_config import broker_settings, topic_config
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage, TopicImage

THROTTLED = "leader.replication.throttled.replicas"
LONG = ",".join(f"{n}:1" for n in range(6_000))
"""Throttled replicas in more text than the metadata log keeps."""


def controller(*brokers: int, settings: Settings | None = None) -> Controller:
    ids = itertools.count(1)
    made = Controller(Image(), settings or Settings(), lambda: encode_uuid(uuid.UUID(int=next(ids))))
    for broker in brokers:
        decide(made, requests.RegisterBroker(broker, f"i{broker}", f"d{broker}", "127.0.0.1:1", whole=True))
    return made


def decide(shard: Controller, request: Request, now_ms: int = 1000) -> object:
    """Decides and applies one request; returns the reply."""
    decision = shard.decide(request, now_ms)
    shard.apply(decision.changes)
    return decision.reply


def refusal(shard: Controller, request: Request) -> Code:
    before = shard.image
    with pytest.raises(Refused) as refused:
        shard.decide(request, 1000)
    assert shard.image is before
    return refused.value.code


def test_topic_is_created_with_its_leaders() -> None:
    shard = controller(1)
    decision = shard.decide(requests.CreateTopic("t", 2, configs={"segment.bytes": "2097152"}), 1000)
    topic_id = encode_uuid(uuid.UUID(int=1))
    assert decision.changes == (
        TopicCreated("t", topic_id, ((1,), (1,)), {"segment.bytes": "2097152"}, 1000),
        PartitionChanged(topic_id, 0, 1, 0, (1,), ()),
        PartitionChanged(topic_id, 1, 1, 0, (1,), ()),
    )
    partition = PartitionImage((1,), 1, 0, (1,), partition_epoch=1)
    assert decision.reply == TopicImage("t", topic_id, (partition, partition), {"segment.bytes": "2097152"}, 1000)


def test_validation_only_changes_nothing() -> None:
    shard = controller(1)
    decision = shard.decide(requests.CreateTopic("t", validate_only=True), 1000)
    assert decision.changes == ()
    assert isinstance(decision.reply, TopicImage)


def test_defaults_come_from_the_brokers_settings() -> None:
    shard = Controller(Image(), Settings(num_partitions=3), lambda: TopicId("x"))
    decide(shard, requests.RegisterBroker(1, "i", "d", ""))
    topic = decide(shard, requests.CreateTopic("t"))
    assert isinstance(topic, TopicImage)
    assert len(topic.partitions) == 3


def test_internal_setting_is_taken_where_the_broker_allows_it() -> None:
    shard = controller(1, settings=Settings(tiered_internal_configs_enable=True))
    name = "internal.segment.bytes"
    made = decide(shard, requests.CreateTopic("t", configs={name: "1024"}))
    assert isinstance(made, TopicImage) and made.configs == {name: "1024"}
    assert topic_config(made, TopicConfig()).segment_size == 1024


def test_topic_keeps_an_internal_setting_and_may_lose_it() -> None:
    """The setting may be older than the broker that refuses new ones."""
    shard, name = controller(1), "internal.segment.bytes"
    decide(shard, requests.CreateTopic("t"))
    shard.apply((TopicConfigChanged(shard.image.topics["t"].topic_id, {name: "1024"}),))
    kept = decide(shard, requests.AlterTopicConfigs("t", {"retention.ms": "5"}))
    assert isinstance(kept, TopicImage) and kept.configs == {name: "1024", "retention.ms": "5"}
    lost = decide(shard, requests.AlterTopicConfigs("t", {name: None}))
    assert isinstance(lost, TopicImage) and lost.configs == {"retention.ms": "5"}


def test_smaller_segment_bytes_of_an_earlier_release_count_as_the_least() -> None:
    shard = controller(1)
    decide(shard, requests.CreateTopic("t"))
    shard.apply((TopicConfigChanged(shard.image.topics["t"].topic_id, {"segment.bytes": "1024"}),))
    shard.apply((BrokerConfigChanged(ALL_BROKERS, {"log.segment.bytes": "2048"}),))
    assert topic_config(shard.image.topics["t"], TopicConfig()).segment_size == 1 << 20
    assert broker_settings(shard.image, Settings(), 1).topic_defaults().segment_size == 1 << 20


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", "a\0", "ü", "x" * 250])
def test_illegal_names_and_paths_are_refused(name: str) -> None:
    assert refusal(controller(1), requests.CreateTopic(name)) is Code.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (requests.CreateTopic("t"), Code.TOPIC_ALREADY_EXISTS),
        (requests.CreateTopic("a.b"), Code.INVALID_TOPIC_EXCEPTION),
        (requests.CreateTopic("u", 0), Code.INVALID_PARTITIONS),
        (requests.CreateTopic("u", -2), Code.INVALID_PARTITIONS),
        (requests.CreateTopic("u", PARTITIONS_MAX + 1), Code.INVALID_PARTITIONS),
        (requests.CreateTopic("u", 1, 2), Code.INVALID_REPLICATION_FACTOR),
        (requests.CreateTopic("u", 1, 0), Code.INVALID_REPLICATION_FACTOR),
        (requests.CreateTopic("u", assignments=[[9]]), Code.INVALID_REPLICA_ASSIGNMENT),
        (requests.CreateTopic("u", assignments=[]), Code.INVALID_REPLICA_ASSIGNMENT),
        (requests.CreateTopic("u", 1, assignments=[[1]]), Code.INVALID_REQUEST),
        (requests.CreateTopic("u", configs={"segment.bytes": "none"}), Code.INVALID_CONFIG),
        (requests.CreateTopic("u", configs={"segment.bytes": "1048575"}), Code.INVALID_CONFIG),
        (requests.CreateTopic("u", configs={"internal.segment.bytes": "1048576"}), Code.INVALID_CONFIG),
        (requests.AlterTopicConfigs("t", {"segment.bytes": "1048575"}), Code.INVALID_CONFIG),
        (requests.AlterTopicConfigs("t", {"internal.segment.bytes": "1048576"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"log.segment.bytes": "1048575"}), Code.INVALID_CONFIG),
        (requests.CreateTopic("u", configs={"no.such": "1"}), Code.INVALID_CONFIG),
        (requests.CreateTopic("u", configs={"cleanup.policy": "shred"}), Code.INVALID_CONFIG),
        (requests.CreateTopic("u", configs={THROTTLED: LONG}), Code.INVALID_CONFIG),
        (requests.AlterTopicConfigs("t", {THROTTLED: LONG}), Code.INVALID_CONFIG),
        (requests.AlterTopicConfigs("t", {THROTTLED: ListEdit(tuple(LONG.split(",")), ())}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"log.retention.ms": " " * 40_000 + "1"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"x" * 40_000: "1"}), Code.INVALID_CONFIG),
        (requests.DeleteTopic("nope"), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (requests.CreatePartitions("nope", 2), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (requests.CreatePartitions("t", 1), Code.INVALID_PARTITIONS),
        (requests.AlterTopicConfigs("nope", {}), Code.UNKNOWN_TOPIC_OR_PARTITION),
        (requests.AlterTopicConfigs("t", {"retention.ms": "soon"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(9, {}), Code.BROKER_ID_NOT_REGISTERED),
        (requests.AlterBrokerConfigs(1, {"no.such": "1"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"listener.name.none.max.connections": "1"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"listener.name.plaintext.max.connections": "0"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"listener.name.plaintext.ssl.client.auth": "none"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"max.connections.per.ip": "0"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"max.connections.per.ip.overrides": "host:1"}), Code.INVALID_CONFIG),
        (requests.AlterBrokerConfigs(1, {"http": "127.0.0.1:9"}), Code.INVALID_CONFIG),
        (requests.StopBroker(1, "older"), Code.STALE_BROKER_EPOCH),
        (requests.AnnounceBroker(2, "i2", "x", {}), Code.STALE_BROKER_EPOCH),
    ],
)
def test_invalid_creation_is_refused(request_: Request, code: Code) -> None:
    shard = controller(1)
    decide(shard, requests.CreateTopic("t"))
    decide(shard, requests.CreateTopic("a_b"))
    assert refusal(shard, request_) is code


def test_refusal_of_a_long_name_or_value_is_short() -> None:
    shard = controller(1)
    for configs in ({"x" * 40_000: "1"}, {"retention.ms": "x" * 20_000}, {THROTTLED: "x" * 20_000}, {THROTTLED: LONG}):
        with pytest.raises(Refused) as caught:
            shard.decide(requests.CreateTopic("t", configs=configs), 1000)
        assert len(caught.value.why) < 400 and next(iter(configs))[:20] in caught.value.why
    fits = LONG[: LONG.rindex(",", 0, 32_767)]
    decide(shard, requests.CreateTopic("t", configs={THROTTLED: fits}))


def test_partitions_are_added_at_the_end() -> None:
    shard = controller(1, 2, 3)
    decide(shard, requests.CreateTopic("t", 2, 2))
    before = shard.image.topics["t"]
    after = decide(shard, requests.CreatePartitions("t", 4))
    assert isinstance(after, TopicImage)
    assert after.partitions[:2] == before.partitions
    assert [partition.leader for partition in after.partitions] == [1, 2, 3, 1]


def test_settings_change_and_return_to_the_default() -> None:
    shard = controller(1)
    decide(shard, requests.CreateTopic("t", configs={"segment.ms": "5"}))
    decision = shard.decide(requests.AlterTopicConfigs("t", {"segment.ms": None, "retention.ms": "-1"}), 1000)
    topic_id = shard.image.topics["t"].topic_id
    assert decision.changes == (TopicConfigChanged(topic_id, {"segment.ms": None, "retention.ms": "-1"}),)
    assert decision.reply.configs == {"retention.ms": "-1"}
    assert shard.decide(requests.AlterTopicConfigs("t", {"segment.ms": "5"}), 1000).changes == ()


def test_settings_are_stored_as_values_and_not_as_typed() -> None:
    shard = controller(1)
    typed = {"retention.ms": " +5 ", "preallocate": "TRUE", "cleanup.policy": "compact , delete,compact"}
    created = decide(shard, requests.CreateTopic("t", configs=typed))
    assert isinstance(created, TopicImage)
    assert created.configs == {"retention.ms": "5", "preallocate": "true", "cleanup.policy": "compact,delete"}
    edits: dict[str, str | ListEdit | None] = {"retention.ms": None, "cleanup.policy": ListEdit(removed=("delete",))}
    edits["min.cleanable.dirty.ratio"] = ".50"
    decision = shard.decide(requests.AlterTopicConfigs("t", edits), 1000)
    normal = {"min.cleanable.dirty.ratio": "0.5", "cleanup.policy": "compact", "retention.ms": None}
    assert decision.changes == (TopicConfigChanged(created.topic_id, normal),)
    for text in ("1_000", "\u00a05"):
        assert refusal(shard, requests.CreateTopic("u", configs={"retention.ms": text})) is Code.INVALID_CONFIG
        assert refusal(shard, requests.AlterTopicConfigs("t", {"retention.ms": text})) is Code.INVALID_CONFIG
        assert refusal(shard, requests.AlterBrokerConfigs(1, {"log.retention.ms": text})) is Code.INVALID_CONFIG
    for added in (("",), ("", "delete")):
        refused = requests.AlterTopicConfigs("t", {"cleanup.policy": ListEdit(added=added)})
        assert refusal(shard, refused) is Code.INVALID_CONFIG


def test_settings_of_brokers_are_stored_as_values_and_not_as_typed() -> None:
    shard = controller(1)
    typed = {"log.cleaner.threads": " +2 ", "listener.name.plaintext.max.connections": "+9", "log.level": " debug "}
    normal = {"log.cleaner.threads": "2", "listener.name.plaintext.max.connections": "9", "log.level": "debug"}
    decision = shard.decide(requests.AlterBrokerConfigs(1, typed), 1000)
    assert decision.changes == (BrokerConfigChanged(1, normal),)


def test_default_that_contradicts_an_existing_topic_is_refused() -> None:
    shard = controller(1)
    decide(shard, requests.CreateTopic("t", configs={"local.retention.bytes": "5000"}))
    assert (
        refusal(shard, requests.AlterBrokerConfigs(ALL_BROKERS, {"log.retention.bytes": "4000"})) is Code.INVALID_CONFIG
    )
    decision = shard.decide(requests.AlterBrokerConfigs(ALL_BROKERS, {"log.retention.bytes": "6000"}), 1000)
    assert decision.changes == (BrokerConfigChanged(ALL_BROKERS, {"log.retention.bytes": "6000"}),)


def test_setting_of_one_broker_wins_over_that_of_all() -> None:
    shard = controller(1)
    decide(shard, requests.AlterBrokerConfigs(ALL_BROKERS, {"log.segment.bytes": "4194304"}))
    decide(shard, requests.AlterBrokerConfigs(1, {"log.segment.bytes": "8388608"}))
    assert broker_settings(shard.image, Settings(), 1).log_segment_bytes == 8 << 20
    assert broker_settings(shard.image, Settings(), 2).log_segment_bytes == 4 << 20


CERTIFICATES = {
    "listeners": "SSL://10.0.0.1:9092",
    "http": "https://0.0.0.0:8082",
    "ssl.keystore.location": "/broker.pem",
    "ssl.client.auth": "required",
}
"""A broker that other machines reach, and whose only login is the certificate of a client."""


@pytest.mark.parametrize("node", [ALL_BROKERS, 1])
@pytest.mark.parametrize(
    ("edits", "where"),
    [
        ({"ssl.client.auth": "none"}, "listener SSL at 10.0.0.1:9092"),
        ({"ssl.client.auth": "requested"}, "listener SSL at 10.0.0.1:9092"),
        ({"ssl.client.auth": "none"}, "http at 0.0.0.0:8082"),
    ],
)
def test_change_that_opens_an_address_is_refused(node: int, edits: dict[str, str], where: str) -> None:
    own = {"listener.name.ssl.ssl.client.auth": "required"} if where.startswith("http") else {}
    shard = controller(1, settings=Settings.from_strings({**CERTIFICATES, **own}))
    with pytest.raises(Refused) as refused:
        shard.decide(requests.AlterBrokerConfigs(node, edits), 1000)
    assert refused.value.code is Code.INVALID_CONFIG
    assert refused.value.why.startswith(f"{where}: other machines reach it, and it has no login.")


def test_removal_of_the_setting_that_protects_an_address_is_refused() -> None:
    open_address = {**CERTIFICATES, "ssl.client.auth": "none", "http": "127.0.0.1:0"}
    shard = controller(1, settings=Settings.from_strings(open_address))
    decide(shard, requests.AlterBrokerConfigs(1, {"log.retention.ms": "5000"}))
    decide(shard, requests.AlterBrokerConfigs(1, {"ssl.client.auth": "required"}))
    assert refusal(shard, requests.AlterBrokerConfigs(1, {"ssl.client.auth": None})) is Code.INVALID_CONFIG


def test_address_that_is_insecure_on_purpose_may_be_opened() -> None:
    shard = controller(1, settings=Settings.from_strings({**CERTIFICATES, "tiered.insecure": "true"}))
    decide(shard, requests.AlterBrokerConfigs(1, {"ssl.client.auth": "none"}))
    assert broker_settings(shard.image, Settings(), 1).ssl_client_auth == "none"


# -- incarnations -----------------------------------------------------------------------------------------------------


def register(shard: Controller, broker: int, *, whole: bool) -> PartitionImage:
    decide(shard, requests.RegisterBroker(broker, f"again{broker}", "d", "", whole=whole))
    return shard.image.topics["t"].partitions[0]


@pytest.mark.parametrize("whole", [True, False])
def test_sole_replica_leads_again_under_a_new_epoch(whole: bool) -> None:
    shard = controller(1)
    decide(shard, requests.CreateTopic("t"))
    assert register(shard, 1, whole=whole) == PartitionImage((1,), 1, 1, (1,), partition_epoch=2)


def test_new_incarnation_loses_partitions_that_others_can_lead() -> None:
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    assert register(shard, 1, whole=False) == PartitionImage((1, 2), 2, 1, (2,), partition_epoch=2)


@pytest.mark.parametrize(("min_isr", "elr"), [("1", ()), ("2", (1,))])
def test_whole_broker_stays_eligible_while_isr_is_too_small(min_isr: str, elr: tuple[int, ...]) -> None:
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2, configs={"min.insync.replicas": min_isr}))
    assert register(shard, 1, whole=True) == PartitionImage((1, 2), 2, 1, (2,), elr, partition_epoch=2)


def test_partition_has_no_leader_before_its_eligible_replica_returns() -> None:
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    register(shard, 1, whole=False)
    decide(shard, requests.StopBroker(2, "i2"))
    decide(shard, requests.RegisterBroker(1, "third1", "d", ""))
    assert shard.image.topics["t"].partitions[0] == PartitionImage((1, 2), NO_LEADER, 1, (), (2,), partition_epoch=3)
    assert register(shard, 2, whole=True).leader == 2


@pytest.mark.parametrize(("node", "replaces", "is_granted"), [
    (1, None, True), (1, "i1", True), (1, "earlier", False), (1, "", False), (2, "", True), (2, "unregistered", False),
])  # fmt: skip
def test_incarnation_replaces_only_the_one_that_it_names(node: int, replaces: str | None, is_granted: bool) -> None:
    shard = controller(1)
    request = requests.RegisterBroker(node, "new", "d", "", replaces=replaces)
    if is_granted:
        decide(shard, request)
        assert shard.image.brokers[node].incarnation == "new"
        return
    with refuses(Code.DUPLICATE_BROKER_REGISTRATION):
        decide(shard, request)


def test_same_incarnation_registers_once() -> None:
    shard = controller(1)
    request = requests.RegisterBroker(1, "i1", "d1", "127.0.0.1:1")
    assert shard.decide(request, 1000).changes == ()


def test_stop_hands_leadership_to_an_isr_member() -> None:
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    decide(shard, requests.StopBroker(1, "i1"))
    assert shard.image.topics["t"].partitions[0] == PartitionImage((1, 2), 2, 1, (2,), partition_epoch=2)
    assert not shard.image.brokers[1].alive


def test_partition_on_brokers_not_live_has_no_leader() -> None:
    shard = controller(1, 2)
    decide(shard, requests.StopBroker(2, "i2"))
    decide(shard, requests.CreateTopic("t", assignments=[[2]]))
    assert shard.image.topics["t"].partitions[0] == PartitionImage((2,), NO_LEADER, 0, partition_epoch=1)


def test_loss_of_an_earlier_leader_counts_and_lowest_offset_stays() -> None:
    """A replica that joined the ISR of the leader that lost records has no more than that leader had."""
    shard = controller(1, 2)
    decide(shard, requests.CreateTopic("t", 1, 2))
    topic_id = shard.image.topics["t"].topic_id
    decide(shard, requests.HandOver(1, "i1"))
    assert shard.image.topics["t"].partitions[0].leader_epoch == 1

    def report_loss(epoch: int, offset: int) -> tuple[Change, ...]:
        found = shard.decide(requests.ReportLoss(topic_id, 0, epoch, offset), 1000).changes
        shard.apply(found, shard.image.slot + 1)
        return tuple(found)

    assert report_loss(2, 7) == (), "nobody has led under that epoch yet"
    assert report_loss(0, 7) == (LossReported(topic_id, 0, 0, 7, 1000),)
    assert report_loss(0, 7) == report_loss(0, 8) == ()
    assert report_loss(1, 9) == (LossReported(topic_id, 0, 1, 9, 1000),)
    assert report_loss(0, 5) == (LossReported(topic_id, 0, 1, 5, 1000),)


def test_collected_topic_is_forgotten_once() -> None:
    shard = controller(1)
    decide(shard, requests.CreateTopic("t"))
    topic_id = shard.image.topics["t"].topic_id
    decide(shard, requests.DeleteTopic("t"))
    decide(shard, requests.ForgetTopic(topic_id))
    assert shard.image.deleted_topics == {}
    assert shard.decide(requests.ForgetTopic(topic_id), 1000).changes == ()
