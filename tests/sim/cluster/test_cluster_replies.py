"""Tests of the checks of replies: retries, log starts and records below them, offsets of groups, and the service while
a broker is missing. Each check fails for a broker that breaks its rule."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.sim.cluster import failover_checker, retries
from tests.sim.cluster.expiry import LogBatch
from tests.sim.cluster.failover_checker import FAULT_KINDS, TRIAL_CHANCE, FailoverBounds
from tests.sim.cluster.model_of_copies import ModelOfCopies
from tests.sim.cluster.observer import BrokenRules
from tests.sim.cluster.options import BROKERS, ClusterOptions
from tests.sim.cluster.reply_checker import ReplyChecker
from tests.sim.cluster.reply_observer import ReplyObserver
from tests.sim.cluster.run import run
from tests.sim.cluster.shapes import draw_options
from tests.sim.cluster.test_cluster_stored import without_faults
from tiered.controller.heartbeats import BrokerHeartbeats
from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.errors import Code
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.parts.topics import PartitionImage
from tiered.producers.entry import ProducerStateEntry
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST
from tiered_api.kafka.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)

T, PID = TopicPartition("t", 0), PartitionId(TopicId("AAAAAAAAAAAAAAAAAAAAAA"), 0)
LED_PARTITION = PartitionImage((1, 2), 1, 0, (1, 2), ())


def make_committed() -> ModelOfCopies:
    """Returns a model of ten committed batches of one record; broker 1 leads, and has them from 4 on."""
    copies = ModelOfCopies("t-0", lambda rule, what: None, lambda: 0)
    copies.state = LED_PARTITION
    copies.committed = {number: LogBatch(number, number, 0, 100 + number) for number in range(10)}
    copies.committed_end = 10
    copies.copy(1).replace(4, [copies.committed[number] for number in range(4, 10)])
    copies.on_leader(1, "a", LED_PARTITION.leader_epoch, 10)
    return copies


@pytest.mark.parametrize(
    ("node", "first", "crc", "code", "offset", "wrong"),
    [
        (1, 7, 107, Code.NONE, 7, False),
        (1, 7, 107, Code.NONE, 10, True),
        (1, 2, 102, Code.NONE, 10, True),
        (1, 7, 107, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, True),
        (1, 2, 102, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, False),
        (2, 7, 107, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, False),
        (1, 7, 999, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1, False),
        (1, 12, 112, Code.NONE, 13, False),
    ],
)
def test_i11_retry_with_another_offset_is_reported(
    node: int, first: int, crc: int, code: Code, offset: int, wrong: bool
) -> None:
    """The check is silent if the batch is gone here and this process may never have seen it, if another broker than the
    leader replies, or if another batch has that offset."""
    assert [each.rule for each in retries.check_retry(make_committed(), node, first, crc, 0, code, offset)] == [
        "I11"
    ] * wrong


def test_i11_log_that_began_at_the_cold_end_knows_retries_of_the_bucket() -> None:
    def count_findings(copies: ModelOfCopies) -> int:
        return len([*retries.check_retry(copies, 1, 2, 102, 0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)])

    copies = make_committed()
    copies.on_begun_behind_cold(1)
    assert count_findings(copies) == 1
    copies.log_start = 3
    assert count_findings(copies) == 0, "it has expired"
    copies.log_start = 0
    copies.on_opened(1, 4, copies.copy(1).batches)
    assert count_findings(copies) == 0, "a start knows what its log holds"


class ReplyRig:
    """A checker of replies about partition `t-0`."""

    def __init__(self, sole: int = 0) -> None:
        self.copies = make_committed()
        self.cut_off: int | None = None
        self.checker = ReplyChecker(
            lambda tp: PID, lambda partition_id: self.copies, lambda tp: sole, lambda tp, node: node == self.cut_off
        )

    def check_start(self, start: int, asked_ns: int, timestamp: int = EARLIEST) -> list[str]:
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])])
        answer = ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse("t", [ListOffsetsPartitionResponse(0, 0, -1, start)])]
        )
        return [each.rule for each in self.checker.check_reply(asked, answer, 1, {}, asked_ns)]

    def check_fetch(self, part: PartitionData, asked_ns: int, *, offset: int = 0, node: int = 1) -> list[str]:
        asked = FetchRequest(topics=[FetchTopic("t", "", [FetchPartition(partition=0, fetch_offset=offset)])])
        answer = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
        return [
            each.rule
            for each in self.checker.check_reply(asked, answer, node, self.checker.note_request(asked), asked_ns)
        ]


def batch_head(base: int, count: int) -> bytes:
    """Returns the header of a batch."""
    return base.to_bytes(8, "big") + bytes(15) + (count - 1).to_bytes(4, "big") + bytes(40)


def test_i22_records_below_an_acknowledged_deletion_are_reported() -> None:
    rig = ReplyRig()
    rig.checker.on_records_deleted(T, 50, 5)
    rig.checker.on_records_deleted(T, 80, 7)
    assert (
        rig.check_start(5, 60)
        == rig.check_start(4, 40)
        == rig.check_start(7, 90)
        == rig.check_start(0, 90, LATEST)
        == []
    )
    assert rig.check_start(4, 60) == rig.check_start(6, 90) == ["I22"]
    good = PartitionData(0, 0, 10, log_start_offset=7, records=batch_head(6, 2))
    assert rig.check_fetch(good, 90) == []
    assert rig.check_fetch(PartitionData(0, 0, 10, log_start_offset=6, records=b""), 90) == ["I22"]
    assert rig.check_fetch(PartitionData(0, 0, 10, log_start_offset=7, records=batch_head(5, 2)), 90) == ["I22"]
    assert rig.check_fetch(PartitionData(0, 0, 10, log_start_offset=7, records=batch_head(5, 2)), 70) == []


def test_i22_deposed_leader_without_contact_may_show_the_log_as_it_was() -> None:
    rig = ReplyRig()
    rig.checker.on_records_deleted(T, 50, 5)
    shown = PartitionData(0, 0, 10, log_start_offset=4, records=batch_head(4, 1))
    assert rig.check_start(4, 60) == ["I22"] and rig.check_fetch(shown, 60) == ["I22", "I22"]
    rig.cut_off = 1
    assert rig.check_start(4, 60) == rig.check_fetch(shown, 60) == []
    assert rig.check_fetch(shown, 60, node=2) == ["I22", "I22"]


@pytest.mark.parametrize(
    ("has_contact", "controller_epoch", "leader_epoch", "is_cut_off"),
    [(True, None, 4, False), (False, None, 4, True), (True, 8, 4, True), (True, 9, 4, False), (True, 8, 5, False)],
)
def test_i22_leader_that_was_the_controller_may_not_know_its_successor(
    has_contact: bool, controller_epoch: int | None, leader_epoch: int, is_cut_off: bool
) -> None:
    """It is cut off from all brokers, and reads the log about once a second. The log has controller epoch 9."""
    active = SimpleNamespace(epoch=controller_epoch) if controller_epoch is not None else None
    node = SimpleNamespace(
        cluster=SimpleNamespace(has_controller_contact=has_contact, active_controller=active),
        leader_replicas=lambda: [SimpleNamespace(tp=T, leader_epoch=leader_epoch)],
    )
    topic = SimpleNamespace(partitions=(PartitionImage((1, 3), 1, 5, (1,), ()),))
    image = SimpleNamespace(controller_epoch=9, topics={T.topic: topic})
    run = SimpleNamespace(
        world=SimpleNamespace(hosts={3: SimpleNamespace(node=node)}),
        model=SimpleNamespace(image=image),
        partition_id=lambda tp: PID,
    )
    observer = cast(ReplyObserver, SimpleNamespace(_run=run))
    assert ReplyObserver._is_cut_off(observer, T, 3) is is_cut_off


@pytest.mark.parametrize(("sole", "is_cold", "after", "wrong"), [(0, False, 0, 1), (-1, False, 0, 0), (0, True, 1, 1)])
def test_i22_unclean_leader_may_lack_a_deletion(sole: int, is_cold: bool, after: int, wrong: int) -> None:
    """A deletion that the new leader acknowledges itself holds, and so does a log start in a manifest."""
    rig = ReplyRig(sole)
    rig.checker.on_records_deleted(T, 50, 5)
    assert rig.check_start(4, 60) == ["I22"]
    rig.copies.parted, rig.copies.parted_uncold = 1, -1 if is_cold else 1
    assert rig.check_start(4, 60) == ["I22"] * after
    rig.checker.on_records_deleted(T, 80, 2)
    assert rig.check_start(1, 90) == ["I22"] * wrong and rig.check_start(2, 90) == ["I22"] * after


def test_i21_out_of_range_for_a_readable_offset_is_reported() -> None:
    away = PartitionData(0, Code.OFFSET_OUT_OF_RANGE.number, -1)
    rig = ReplyRig()
    assert rig.check_fetch(away, 0, offset=3) == rig.check_fetch(away, 0, offset=10) == ["I21"]
    assert rig.check_fetch(away, 0, offset=11) == rig.check_fetch(away, 0, offset=3, node=2) == []
    rig.copies.log_start = 4
    assert rig.check_fetch(away, 0, offset=3) == []
    rig = ReplyRig()
    rig.copies.on_partition_change(PartitionImage((1, 2), 1, leader_epoch=9, isr=(1,)), (1,), {1: 1, 2: 1})
    assert rig.check_fetch(away, 0, offset=3) == [], "it follows yet, and sends to the leader before it"
    assert ReplyRig(sole=-1).check_fetch(away, 0, offset=3) == []


def short_run(drawn: ClusterOptions) -> ClusterOptions:
    return without_faults(drawn).with_changes(in_flight=5, chaos_seconds=8.0)


def with_group(drawn: ClusterOptions) -> ClusterOptions:
    return short_run(drawn).with_changes(members=2, latency_seconds=0.05)


def find_last_only(original: Callable[..., Any]) -> Callable[..., Any]:
    def find(producer: ProducerStateEntry, first: int, last: int, **options: bool) -> Any:
        found = original(producer, first, last, **options)
        return found if found is producer.batches[-1] else None

    return find


def find_seed(how: str) -> int:
    """Returns a seed in which a broker that is not the controller goes missing in this way."""
    for seed in range(1_000):
        rng = random.Random(f"{seed}/lasting")
        is_drawn = rng.random() < TRIAL_CHANCE and rng.choice((1, 2, 3)) == 2 and rng.choice(FAULT_KINDS) == how
        options = draw_options(seed)
        if is_drawn and options.brokers == BROKERS and options.processes == 1:
            return seed
    raise AssertionError(how)


AGAIN = pytest.mark.also("values")


@pytest.mark.parametrize(
    ("owner", "name", "make", "seed", "of", "rule"),
    [
        pytest.param(
            ProducerStateEntry, "find_batch", find_last_only, 3, short_run, "I11", marks=pytest.mark.also("values")
        ),
        pytest.param(
            CoordinatorRuntime,
            "_is_idle",
            lambda original: lambda self: True,
            1,
            with_group,
            "I18",
            marks=AGAIN,
        ),
        (
            BrokerHeartbeats,
            "expired_sessions",
            lambda original: lambda self, now_ns: [],
            find_seed("freeze"),
            short_run,
            "I19",
        ),
    ],
)
def test_broker_that_breaks_the_rule_is_found(
    owner: type[Any],
    name: str,
    make: Callable[[Any], Any],
    seed: int,
    of: Callable[[ClusterOptions], ClusterOptions],
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did = run(seed, of).counts
    assert did["faults_lasted"] if rule == "I19" else did["retries"] if rule == "I11" else did["shown"]
    monkeypatch.setattr(owner, name, make(owner.__dict__[name]))
    with pytest.raises(BrokenRules) as broken:
        run(seed, of)
    assert broken.value.rules[0] == rule


def test_failover_bounds_allow_a_session_and_that_of_a_new_controller() -> None:
    bounds = FailoverBounds.for_session(3.0)
    assert 3.0 < bounds.replaced < bounds.fenced - 3.0 < bounds.led
    assert failover_checker.COMMIT_SECONDS > 5.0
