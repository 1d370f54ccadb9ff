"""Tests of false alarms: a broker that was fenced and is back soon was only slow, and gets more time."""

from __future__ import annotations

from dataclasses import replace

from tiered.controller.false_alarms import FORGET_NS, FalseAlarms
from tiered.metadata.parts.brokers import BrokerImage

SECOND = 1_000_000_000
BASE_MS, SESSION_MS = 2_000, 6_000
BROKER = BrokerImage(2, "i2", "d", "", "", True, 0)


class Seen:
    """The false alarms as a broker sees them that knows brokers 1 and 2."""

    def __init__(self) -> None:
        self.alarms = FalseAlarms()
        self.show(BROKER, 0)

    def show(self, broker: BrokerImage | None, at_ns: int) -> None:
        others = {1: BrokerImage(1, "i1", "d", "", "", True, 0)}
        self.alarms.on_brokers(others if broker is None else {**others, 2: broker}, SESSION_MS, at_ns)

    def fence(self, at_ns: int, back_ns: int, broker: BrokerImage = BROKER) -> None:
        """Fences broker 2, which is back later."""
        self.show(replace(BROKER, fenced=True), at_ns)
        self.show(broker, back_ns)

    def timeout_ms(self, at_ns: int, node_id: int = 2) -> int:
        return self.alarms.suspect_ms(node_id, BASE_MS, SESSION_MS, at_ns)


def test_each_false_alarm_doubles_the_timeout_up_to_the_session() -> None:
    seen = Seen()
    assert seen.timeout_ms(0) == BASE_MS
    found = []
    for at in (10 * SECOND, 30 * SECOND, 50 * SECOND):
        seen.fence(at, at + 2 * SECOND)
        found.append(seen.timeout_ms(at + 2 * SECOND))
    assert found == [2 * BASE_MS, SESSION_MS, SESSION_MS]
    assert seen.timeout_ms(60 * SECOND, node_id=1) == BASE_MS, "the other broker gave no alarm"


def test_broker_that_comes_back_late_did_hang() -> None:
    seen = Seen()
    seen.fence(0, 2 * SESSION_MS * 1_000_000 + 1)
    assert seen.timeout_ms(20 * SECOND) == BASE_MS
    seen.fence(20 * SECOND, 20 * SECOND + 2 * SESSION_MS * 1_000_000)
    assert seen.timeout_ms(40 * SECOND) == 2 * BASE_MS


def test_new_process_is_no_return() -> None:
    seen = Seen()
    seen.fence(0, SECOND, replace(BROKER, incarnation="later"))
    assert seen.timeout_ms(SECOND) == BASE_MS
    seen.fence(2 * SECOND, 3 * SECOND, replace(BROKER, alive=False, fenced=True))
    seen.show(BROKER, 4 * SECOND)
    assert seen.timeout_ms(4 * SECOND) == BASE_MS


def test_alarm_is_forgotten_after_an_hour() -> None:
    seen = Seen()
    seen.fence(0, SECOND)
    assert seen.timeout_ms(SECOND + FORGET_NS - 1) == 2 * BASE_MS
    assert seen.timeout_ms(SECOND + FORGET_NS) == BASE_MS
    seen.fence(2 * FORGET_NS, 2 * FORGET_NS + SECOND)
    assert seen.timeout_ms(2 * FORGET_NS + SECOND) == 2 * BASE_MS, "it counts from one again"


def test_broker_that_is_gone_from_the_cluster_is_forgotten() -> None:
    seen = Seen()
    seen.fence(0, SECOND)
    seen.show(None, 2 * SECOND)
    seen.show(BROKER, 3 * SECOND)
    assert seen.timeout_ms(3 * SECOND) == BASE_MS


def test_timeout_that_is_no_shorter_than_the_session_stays() -> None:
    seen = Seen()
    seen.fence(0, SECOND)
    assert seen.alarms.suspect_ms(2, SESSION_MS, SESSION_MS, SECOND) == SESSION_MS
