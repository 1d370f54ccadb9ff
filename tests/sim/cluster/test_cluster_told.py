"""What is judged when somebody is told: retries, log starts and records below them, offsets of groups; and what must go
on while a broker is missing. Each is red for a broker that breaks it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.cluster import lasting, retries
from tests.sim.cluster.expiry import Batch
from tests.sim.cluster.lasting import HOWS, TRIED, Bounds
from tests.sim.cluster.model_of_copies import Copies
from tests.sim.cluster.observer import Broken
from tests.sim.cluster.options import Options
from tests.sim.cluster.run import run
from tests.sim.cluster.test_cluster_stored import peace
from tests.sim.cluster.told import Told
from tiered.controller.heartbeats import BrokerHeartbeats
from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.errors import Code
from tiered.hot.producer_state import ProducerStateEntry
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.image import PartitionImage
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
LED = PartitionImage((1, 2), 1, 0, (1, 2), ())


def committed() -> Copies:
    """Ten records, a batch each, all committed; broker 1 leads, and has them from 4 on."""
    copies = Copies("t-0", lambda rule, what: None, lambda: 0)
    copies.state = LED
    copies.committed = {number: Batch(number, number, 0, 100 + number) for number in range(10)}
    copies.committed_end = 10
    copies.copy(1).replace(4, [copies.committed[number] for number in range(4, 10)])
    copies.leads(1, "a", LED.leader_epoch, 10)
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
def test_i11_a_retry_is_told_the_offset_of_its_first_try(
    node: int, first: int, crc: int, code: Code, offset: int, wrong: bool
) -> None:
    """But where its batch is not here any more and this process may not have seen it, or it is not the leader that
    answers, or another batch stands there."""
    assert [each.rule for each in retries.answered(committed(), node, first, crc, 0, code, offset)] == ["I11"] * wrong


def test_i11_a_log_that_began_behind_the_bucket_knows_all_that_the_bucket_does() -> None:
    def told(copies: Copies) -> int:
        return len([*retries.answered(copies, 1, 2, 102, 0, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)])

    copies = committed()
    copies.began_behind(1)
    assert told(copies) == 1
    copies.log_start = 3
    assert told(copies) == 0, "it has expired"
    copies.log_start = 0
    copies.opened(1, 4, copies.copy(1).batches)
    assert told(copies) == 0, "a start knows what its log holds"


class Listener:
    """What is told of partition `t-0`, judged."""

    def __init__(self, sole: int = 0) -> None:
        self.copies = committed()
        self.told = Told(lambda where: PID, lambda pid: self.copies, lambda where: sole)

    def starts(self, start: int, asked_ns: int, timestamp: int = EARLIEST) -> list[str]:
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])])
        answer = ListOffsetsResponse(
            topics=[ListOffsetsTopicResponse("t", [ListOffsetsPartitionResponse(0, 0, -1, start)])]
        )
        return [each.rule for each in self.told.heard(asked, answer, 1, {}, asked_ns)]

    def fetched(self, part: PartitionData, asked_ns: int, *, offset: int = 0, node: int = 1) -> list[str]:
        asked = FetchRequest(topics=[FetchTopic("t", "", [FetchPartition(partition=0, fetch_offset=offset)])])
        answer = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[part])])
        return [each.rule for each in self.told.heard(asked, answer, node, self.told.before(asked), asked_ns)]


def holds(base: int, count: int) -> bytes:
    """The head of a batch."""
    return base.to_bytes(8, "big") + bytes(15) + (count - 1).to_bytes(4, "big") + bytes(40)


def test_i22_below_what_was_told_to_be_deleted_nobody_is_shown_anything_who_asks_later() -> None:
    heard = Listener()
    heard.told.deleted(T, 50, 5)
    heard.told.deleted(T, 80, 7)
    assert heard.starts(5, 60) == heard.starts(4, 40) == heard.starts(7, 90) == heard.starts(0, 90, LATEST) == []
    assert heard.starts(4, 60) == heard.starts(6, 90) == ["I22"]
    good = PartitionData(0, 0, 10, log_start_offset=7, records=holds(6, 2))
    assert heard.fetched(good, 90) == []
    assert heard.fetched(PartitionData(0, 0, 10, log_start_offset=6, records=b""), 90) == ["I22"]
    assert heard.fetched(PartitionData(0, 0, 10, log_start_offset=7, records=holds(5, 2)), 90) == ["I22"]
    assert heard.fetched(PartitionData(0, 0, 10, log_start_offset=7, records=holds(5, 2)), 70) == []


@pytest.mark.parametrize(("sole", "cold_end", "after", "wrong"), [(0, 0, 0, 1), (-1, 0, 0, 0), (0, 1, 1, 1)])
def test_i22_who_is_elected_uncleanly_may_lack_a_deletion(sole: int, cold_end: int, after: int, wrong: int) -> None:
    """A deletion that the new leader answers itself holds, and so does a log start in a manifest."""
    heard = Listener(sole)
    heard.told.deleted(T, 50, 5)
    assert heard.starts(4, 60) == ["I22"]
    heard.copies.parted, heard.copies.cold_end = 1, cold_end
    assert heard.starts(4, 60) == ["I22"] * after
    heard.told.deleted(T, 80, 2)
    assert heard.starts(1, 90) == ["I22"] * wrong and heard.starts(2, 90) == ["I22"] * after


def test_i21_the_leader_sends_nobody_away_from_what_may_be_read() -> None:
    away = PartitionData(0, Code.OFFSET_OUT_OF_RANGE.number, -1)
    heard = Listener()
    assert heard.fetched(away, 0, offset=3) == heard.fetched(away, 0, offset=10) == ["I21"]
    assert heard.fetched(away, 0, offset=11) == heard.fetched(away, 0, offset=3, node=2) == []
    heard.copies.log_start = 4
    assert heard.fetched(away, 0, offset=3) == []
    heard = Listener()
    heard.copies.settled(PartitionImage((1, 2), 1, leader_epoch=9, isr=(1,)), (1,), {1: 1, 2: 1})
    assert heard.fetched(away, 0, offset=3) == [], "it follows yet, and sends to the leader before it"
    assert Listener(sole=-1).fetched(away, 0, offset=3) == []


def calm(drawn: Options) -> Options:
    return peace(drawn).but(in_flight=5, chaos_seconds=8.0)


def grouped(drawn: Options) -> Options:
    return calm(drawn).but(members=2, latency_seconds=0.05)


def last_only(original: Callable[..., Any]) -> Callable[..., Any]:
    def find(producer: ProducerStateEntry, first: int, last: int) -> Any:
        found = original(producer, first, last)
        return found if found is producer.batches[-1] else None

    return find


def seed_of(how: str) -> int:
    """One in which a broker that does not control goes missing so."""
    for seed in range(1_000):
        draw = random.Random(f"{seed}/lasting")
        if draw.random() < TRIED and draw.choice((1, 2, 3)) == 2 and draw.choice(HOWS) == how:
            return seed
    raise AssertionError(how)


@pytest.mark.parametrize(
    ("owner", "name", "make", "seed", "of", "rule"),
    [
        (ProducerStateEntry, "find", last_only, 3, calm, "I11"),
        (CoordinatorRuntime, "_idle", lambda original: lambda self: True, 1, grouped, "I18"),
        (BrokerHeartbeats, "expired", lambda original: lambda self, now_ns: [], seed_of("freeze"), calm, "I19"),
    ],
)
def test_a_broker_that_breaks_it_is_found(
    owner: type[Any],
    name: str,
    make: Callable[[Any], Any],
    seed: int,
    of: Callable[[Options], Options],
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did = run(seed, of).counts
    assert did["faults_lasted"] if rule == "I19" else did["retries"] if rule == "I11" else did["shown"]
    monkeypatch.setattr(owner, name, make(owner.__dict__[name]))
    with pytest.raises(Broken) as broken:
        run(seed, of)
    assert broken.value.rules[0] == rule


def test_bounds_leave_room_for_a_session_and_for_another_controllers() -> None:
    bounds = Bounds.of(3.0)
    assert 3.0 < bounds.replaced < bounds.fenced - 3.0 < bounds.led
    assert lasting.TAKEN_SECONDS > 5.0
