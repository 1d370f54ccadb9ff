"""Tests of which requests a broker keeps, for how long, and when it traces them."""

from __future__ import annotations

from tests.sim.harness.clock import SimRng
from tests.unit.hot.fixtures import FixedClock
from tiered.broker.request_traces import KEPT_PER_MINUTE, MINUTE_MS, MINUTES, OFF_MS, RequestTraces
from tiered.request_trace import PHASES_MAX, RequestTrace


def ended(clock: FixedClock, ms: int) -> RequestTrace:
    """Returns the trace of a request that took so long and ends now."""
    trace = RequestTrace(clock.mono_ns, clock.wall, "Produce", 9, 100, "app", "User:a", "10.0.0.1:1")
    trace.end_ns = trace.began_ns + ms * 1_000_000
    return trace


class Watched:
    def __init__(self, min_ms: int = OFF_MS) -> None:
        self.clock = FixedClock(1_000 * MINUTE_MS)
        self.traces = RequestTraces(self.clock, SimRng(1))
        self.changes: list[bool] = []
        self.traces.subscribe(lambda: self.changes.append(self.traces.is_on))
        self.traces.set_min_ms(min_ms)

    def add(self, *times_ms: int) -> None:
        for ms in times_ms:
            self.traces.add(ended(self.clock, ms))

    def kept_ms(self) -> list[int]:
        return [each.total_ns // 1_000_000 for each in self.traces.list()]


def test_requests_below_the_least_time_are_not_kept() -> None:
    seen = Watched(min_ms=10)
    seen.add(9, 10, 30, 20)
    assert seen.kept_ms() == [30, 20, 10]


def test_kept_request_has_an_id_of_its_own() -> None:
    seen = Watched(min_ms=10)
    seen.add(20, 30)
    ids = [each.trace_id for each in seen.traces.list()]
    assert len({*ids}) == 2 and all(len(each) == 32 and int(each, 16) for each in ids)
    fast = ended(seen.clock, 9)
    assert not seen.traces.add(fast) and fast.trace_id == ""


def test_wait_that_the_client_asked_for_is_not_slow() -> None:
    """A Fetch may wait half a second for records, again and again."""
    seen = Watched(min_ms=10)
    fetch = ended(seen.clock, 500)
    fetch.idle_ns = 499 * 1_000_000
    seen.traces.add(fetch)
    assert seen.kept_ms() == []
    with seen.traces.watch():
        seen.traces.add(fetch)
    seen.add(20)
    assert seen.kept_ms() == [20, 500]


def test_slowest_of_each_minute_are_kept_for_ten_minutes() -> None:
    seen = Watched(min_ms=0)
    seen.add(*range(2 * KEPT_PER_MINUTE))
    assert seen.kept_ms() == list(reversed(range(KEPT_PER_MINUTE, 2 * KEPT_PER_MINUTE)))
    seen.clock.wall += MINUTE_MS
    seen.add(1)
    assert seen.kept_ms()[-1] == 1, "a fast request of another minute stays"
    seen.clock.wall += (MINUTES - 1) * MINUTE_MS
    assert seen.kept_ms() == [1]
    seen.clock.wall += MINUTE_MS
    assert seen.kept_ms() == []


def test_exporter_gets_each_kept_request_once_and_none_that_has_aged_out() -> None:
    seen = Watched(min_ms=0)
    seen.add(30, 10, 20)
    first = seen.traces.list_after(-1)
    assert [each.trace.total_ns // 1_000_000 for each in first] == [30, 10, 20], "in the order in which they ended"
    seen.add(5)
    [later] = seen.traces.list_after(first[-1].number)
    assert later.trace.total_ns == 5_000_000 and seen.traces.list_after(later.number) == []
    seen.clock.wall += MINUTES * MINUTE_MS
    assert seen.traces.list_after(-1) == []


def test_watch_keeps_requests_of_any_time_and_ends() -> None:
    seen = Watched(min_ms=10)
    with seen.traces.watch(), seen.traces.watch():
        seen.add(1)
    seen.add(2)
    assert (seen.kept_ms(), seen.changes) == ([1], [True])
    seen.traces.set_min_ms(OFF_MS)
    with seen.traces.watch():
        assert seen.changes == [True, False, True]
    seen.add(3)
    assert (seen.kept_ms(), seen.traces.is_on, seen.changes[-1]) == ([1], False, False)


def test_request_with_very_many_phases_keeps_some() -> None:
    trace = ended(FixedClock(), 1)
    for _ in range(PHASES_MAX + 2):
        trace.add("bucket get", 0)
    assert (len(trace.phases), trace.left_out) == (PHASES_MAX, 2)
