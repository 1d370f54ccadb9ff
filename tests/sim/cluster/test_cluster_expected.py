"""What the administration may rely on: each answer a fact, no answer two possible states."""

from __future__ import annotations

from tests.sim.cluster.expected import Expected
from tiered.errors import Code
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.image import PartitionImage, TopicImage

OK, LATER = Code.NONE, Code.REQUEST_TIMED_OUT
SIZE = {"segment.bytes": "1024"}


class Log:
    """The metadata log, as far as it speaks of topic x."""

    def __init__(self) -> None:
        self.topic: TopicImage | None = None
        self.start = 0
        self.expected = Expected(lambda name: self.topic, lambda where: self.start)

    def has(self, partitions: int = 1, size: str = "1024") -> None:
        each = tuple(PartitionImage(replicas=(1,), leader=1, leader_epoch=0, isr=(1,)) for _ in range(partitions))
        self.topic = TopicImage("x", TopicId("x"), each, {"segment.bytes": size}, 0)

    def made(self) -> Expected:
        self.has()
        assert list(self.expected.created("x", 1, SIZE, OK)) == []
        return self.expected

    @property
    def rules(self) -> list[str]:
        return [finding.rule for finding in self.expected.check()]


def test_what_was_made_is_there_at_the_answer_and_later() -> None:
    log = Log()
    assert [each.rule for each in log.expected.created("x", 1, SIZE, OK)] == ["I24"], "it is not there"
    log.has()
    assert log.rules == []
    log.has(partitions=2)
    assert log.rules == ["I24"]
    log.has(size="2048")
    assert log.rules == ["I24"]


def test_what_was_refused_did_not_happen() -> None:
    log = Log()
    assert list(log.expected.created("x", 1, SIZE, Code.INVALID_REPLICATION_FACTOR)) == []
    assert log.rules == []
    log.has()
    assert log.rules == ["I24"]


def test_what_was_not_answered_may_have_happened_or_not_and_may_yet() -> None:
    for code in (None, LATER):
        log = Log()
        assert list(log.expected.created("x", 1, SIZE, code)) == []
        assert log.rules == []
        log.has()
        assert log.rules == []
        log.topic = None
        assert list(log.expected.deleted("x", OK)) == []
        log.has()
        assert log.rules == [], "the request that was not answered came late"


def test_each_change_is_there_from_its_answer_on() -> None:
    log = Log()
    expected = log.made()
    assert [each.rule for each in expected.grown("x", 2, OK)] == ["I24"]
    log.has(partitions=2)
    assert [each.rule for each in expected.altered("x", {"segment.bytes": "2048"}, OK)] == ["I24"]
    log.has(partitions=2, size="2048")
    assert log.rules == []
    assert [each.rule for each in expected.deleted("x", OK)] == ["I24"], "it is still there"
    log.topic = None
    assert log.rules == []


def test_a_change_without_answer_leaves_both_values_and_never_a_third() -> None:
    log = Log()
    assert list(log.made().altered("x", {"segment.bytes": "2048"}, None)) == []
    for size, rules in (("1024", []), ("2048", []), ("4096", ["I24"])):
        log.has(size=size)
        assert log.rules == rules


def test_m5_a_topic_that_was_made_is_known_to_whoever_answers_later() -> None:
    log = Log()
    expected = log.made()
    assert [each.rule for each in expected.altered("x", SIZE, Code.UNKNOWN_TOPIC_OR_PARTITION)] == ["M5"]
    assert list(expected.deleted("x", LATER)) == []
    assert list(expected.altered("x", SIZE, Code.UNKNOWN_TOPIC_OR_PARTITION)) == [], "by then it may be gone"


def test_a_second_try_finds_what_the_first_one_made() -> None:
    log = Log()
    assert list(log.expected.created("x", 1, SIZE, LATER)) == []
    log.has()
    assert list(log.expected.created("x", 1, SIZE, Code.TOPIC_ALREADY_EXISTS)) == []
    log.topic = None
    assert log.rules == ["I24"], "it was there once, and nobody deleted it"


def test_deleted_records_are_answered_for_when_the_manifest_says_so() -> None:
    log, where = Log(), TopicPartition("x", 0)
    log.start = 5
    assert list(log.expected.records_deleted(where, 5)) == []
    assert [each.rule for each in log.expected.records_deleted(where, 6)] == ["I22"]


def test_what_is_set_for_all_brokers_is_there_from_its_answer_on() -> None:
    said: dict[str, str] = {}
    expected = Expected(lambda name: None, for_all=lambda: said, began_with={"min.insync.replicas": "2"})
    assert list(expected.check()) == []
    assert [each.rule for each in expected.altered_for_all({"log.flush": "ack"}, OK)] == ["I24"]
    said["log.flush"] = "ack"
    assert list(expected.check()) == []
    assert list(expected.altered_for_all({"log.flush": "none"}, Code.INVALID_CONFIG)) == []
    said["log.flush"] = "none"
    assert [each.rule for each in expected.check()] == ["I24"], "it was refused"


def test_a_broker_that_registers_may_say_again_for_all_what_was_taken_away() -> None:
    said = {"min.insync.replicas": "1"}
    expected = Expected(lambda name: None, for_all=lambda: said, began_with={"min.insync.replicas": "2"})
    assert [each.rule for each in expected.altered_for_all({"min.insync.replicas": None}, OK)] == ["I24"]
    for now in ({}, {"min.insync.replicas": "2"}):
        said.clear()
        said.update(now)
        assert list(expected.check()) == []


def test_a_setting_of_a_topic_that_was_taken_away_is_not_there() -> None:
    log = Log()
    expected = log.made()
    log.has(partitions=1)
    assert [each.rule for each in expected.altered("x", {"segment.bytes": None}, OK)] == ["I24"]
