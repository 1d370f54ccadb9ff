"""Tests of the checker of look-ups by time."""

from __future__ import annotations

from tests.sim.cluster.history import Send, SendVerdict
from tests.sim.cluster.time_readers import MAX_TIMESTAMP, TimeLookup, check_lookups
from tests.sim.harness.clock import EPOCH_MS
from tiered.ids import TopicPartition

TP = TopicPartition("t0", 0)
MS = 1_000_000


def written(offset: int, at_ms: int) -> Send:
    """Returns an acknowledged batch of two records."""
    return Send(
        "s", 1, TP, (b"a", b"b"), -1, at_ms * MS, done_ns=(at_ms + 1) * MS, verdict=SendVerdict.OK, base_offset=offset
    )


def lookup(timestamp: int, offset: int, found: int, log_start: int = 0) -> TimeLookup:
    """Returns a look-up at 100 ms. Times are relative to the begin of the run."""
    asked = timestamp if timestamp == MAX_TIMESTAMP else EPOCH_MS + timestamp
    return TimeLookup(TP, asked, 100 * MS, 101 * MS, offset, EPOCH_MS + found, log_start)


def is_broken(one: TimeLookup, *, lost: bool = False, kept: set[int] | None = None) -> bool:
    """True if the checker reports the look-up, in a log with records of 10, 20 and 99 ms."""
    sends = (written(0, 10), written(2, 20), written(4, 99))
    cleaned = {} if kept is None else {TP: kept}
    return any(True for _ in check_lookups([one], sends, lambda *_: lost, cleaned))


def test_i33_record_that_is_passed_over_is_reported() -> None:
    assert not is_broken(lookup(15, 2, 20))
    assert is_broken(lookup(15, 3, 20))
    assert is_broken(lookup(15, -1, -1))
    assert is_broken(lookup(15, 0, 10)), "the answer is too early"
    assert not is_broken(lookup(30, -1, -1)), "the record of 99 ms was acknowledged when the look-up began"


def test_i33_record_that_is_gone_is_not_missed() -> None:
    assert not is_broken(lookup(15, 4, 99, log_start=4))
    assert is_broken(lookup(15, 4, 99, log_start=3))
    assert not is_broken(lookup(15, 4, 99), lost=True)
    assert not is_broken(lookup(15, 4, 99), kept={0, 1, 4, 5})
    assert is_broken(lookup(15, 4, 99), kept={0, 3, 4, 5})


def test_i33_largest_timestamp_is_that_of_the_first_such_record() -> None:
    assert not is_broken(lookup(MAX_TIMESTAMP, 2, 20))
    assert is_broken(lookup(MAX_TIMESTAMP, 3, 20))
    assert is_broken(lookup(MAX_TIMESTAMP, 1, 10))
