"""Tests of the expectations of the administration: each reply is a fact, and a missing reply leaves two possible
states."""

from __future__ import annotations

from tests.sim.cluster.expected import ExpectedTopics
from tiered.errors import Code
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.parts.topics import PartitionImage, TopicImage

OK, LATER = Code.NONE, Code.REQUEST_TIMED_OUT
SIZE = {"segment.bytes": "1024"}


class MetadataLogStub:
    """A metadata log with one topic x."""

    def __init__(self) -> None:
        self.topic: TopicImage | None = None
        self.start = 0
        self.expected = ExpectedTopics(lambda name: self.topic, lambda tp: self.start)

    def set_topic(self, partitions: int = 1, size: str = "1024") -> None:
        each = tuple(PartitionImage(replicas=(1,), leader=1, leader_epoch=0, isr=(1,)) for _ in range(partitions))
        self.topic = TopicImage("x", TopicId("x"), each, {"segment.bytes": size}, 0)

    def create_topic(self) -> ExpectedTopics:
        self.set_topic()
        assert list(self.expected.on_created("x", 1, SIZE, OK)) == []
        return self.expected

    @property
    def rules(self) -> list[str]:
        return [finding.rule for finding in self.expected.check()]


def test_created_topic_exists_from_the_reply_on() -> None:
    log = MetadataLogStub()
    assert [each.rule for each in log.expected.on_created("x", 1, SIZE, OK)] == ["I24"], "it is not there"
    log.set_topic()
    assert log.rules == []
    log.set_topic(partitions=2)
    assert log.rules == ["I24"]
    log.set_topic(size="2048")
    assert log.rules == ["I24"]


def test_refused_creation_leaves_no_topic() -> None:
    log = MetadataLogStub()
    assert list(log.expected.on_created("x", 1, SIZE, Code.INVALID_REPLICATION_FACTOR)) == []
    assert log.rules == []
    log.set_topic()
    assert log.rules == ["I24"]


def test_creation_without_a_reply_may_take_effect_at_any_time() -> None:
    for code in (None, LATER):
        log = MetadataLogStub()
        assert list(log.expected.on_created("x", 1, SIZE, code)) == []
        assert log.rules == []
        log.set_topic()
        assert log.rules == []
        log.topic = None
        assert list(log.expected.on_deleted("x", OK)) == []
        log.set_topic()
        assert log.rules == [], "the request that was not answered came late"


def test_each_change_is_in_force_from_its_reply_on() -> None:
    log = MetadataLogStub()
    expected = log.create_topic()
    assert [each.rule for each in expected.on_partitions_added("x", 2, OK)] == ["I24"]
    log.set_topic(partitions=2)
    assert [each.rule for each in expected.on_configs_altered("x", {"segment.bytes": "2048"}, OK)] == ["I24"]
    log.set_topic(partitions=2, size="2048")
    assert log.rules == []
    assert [each.rule for each in expected.on_deleted("x", OK)] == ["I24"], "it is still there"
    log.topic = None
    assert log.rules == []


def test_change_without_a_reply_leaves_two_possible_values() -> None:
    log = MetadataLogStub()
    assert list(log.create_topic().on_configs_altered("x", {"segment.bytes": "2048"}, None)) == []
    for size, rules in (("1024", []), ("2048", []), ("4096", ["I24"])):
        log.set_topic(size=size)
        assert log.rules == rules


def test_m5_created_topic_is_known_in_every_later_reply() -> None:
    log = MetadataLogStub()
    expected = log.create_topic()
    assert [each.rule for each in expected.on_configs_altered("x", SIZE, Code.UNKNOWN_TOPIC_OR_PARTITION)] == ["M5"]
    assert list(expected.on_deleted("x", LATER)) == []
    assert list(expected.on_configs_altered("x", SIZE, Code.UNKNOWN_TOPIC_OR_PARTITION)) == [], "by then it may be gone"


def test_second_try_may_find_the_topic_of_the_first() -> None:
    log = MetadataLogStub()
    assert list(log.expected.on_created("x", 1, SIZE, LATER)) == []
    log.set_topic()
    assert list(log.expected.on_created("x", 1, SIZE, Code.TOPIC_ALREADY_EXISTS)) == []
    log.topic = None
    assert log.rules == ["I24"], "it was there once, and nobody deleted it"


def test_deletion_is_acknowledged_once_the_manifest_has_it() -> None:
    log, tp = MetadataLogStub(), TopicPartition("x", 0)
    log.start = 5
    assert list(log.expected.on_records_deleted(tp, 5)) == []
    assert [each.rule for each in log.expected.on_records_deleted(tp, 6)] == ["I22"]


def test_setting_of_all_brokers_is_in_force_from_its_reply_on() -> None:
    said: dict[str, str] = {}
    expected = ExpectedTopics(
        lambda name: None, cluster_configs=lambda: said, initial_configs={"min.insync.replicas": "2"}
    )
    assert list(expected.check()) == []
    assert [each.rule for each in expected.on_cluster_configs_altered({"log.flush": "ack"}, OK)] == ["I24"]
    said["log.flush"] = "ack"
    assert list(expected.check()) == []
    assert list(expected.on_cluster_configs_altered({"log.flush": "none"}, Code.INVALID_CONFIG)) == []
    said["log.flush"] = "none"
    assert [each.rule for each in expected.check()] == ["I24"], "it was refused"


def test_registration_may_restore_a_removed_setting_of_all_brokers() -> None:
    said = {"min.insync.replicas": "1"}
    expected = ExpectedTopics(
        lambda name: None, cluster_configs=lambda: said, initial_configs={"min.insync.replicas": "2"}
    )
    assert [each.rule for each in expected.on_cluster_configs_altered({"min.insync.replicas": None}, OK)] == ["I24"]
    for now in ({}, {"min.insync.replicas": "2"}):
        said.clear()
        said.update(now)
        assert list(expected.check()) == []


def test_removed_setting_of_a_topic_is_gone() -> None:
    log = MetadataLogStub()
    expected = log.create_topic()
    log.set_topic(partitions=1)
    assert [each.rule for each in expected.on_configs_altered("x", {"segment.bytes": None}, OK)] == ["I24"]
