"""Tests of the reference of cleans: silent for what the cleaner makes of a history, and each rule reported once it is
broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.sim.harness.compaction_rules import (
    CleanBounds,
    StoredBatch,
    check_final_state,
    check_indexes,
    judge_clean,
    read_stored,
)
from tests.unit.compaction.logs import NOW, RETENTION, Log, clean

HORIZON = NOW + RETENTION
Batches = list[StoredBatch]


@dataclass
class CleanedHistory:
    """A history, and what a clean made of it."""

    log: Log = field(default_factory=Log)

    def bounds(self, now_ms: int = NOW, **changes: int) -> CleanBounds:
        ends = {"high_watermark": self.log.end, "active_base": self.log.end, "newest_ms": 2**62} | changes
        return CleanBounds(now_ms=now_ms, delete_retention_ms=RETENTION, keeps_tombstones=False, **ends)

    def clean(self, data: bytes | None = None, now_ms: int = NOW) -> bytes:
        given = self.log.data if data is None else data
        return clean(
            given, self.log.end, aborted=self.log.aborted, last=self.log.last, now_ms=now_ms, upper_bound=self.log.end
        ).data  # fmt: skip

    def judge(self, after: Batches, before: bytes | None = None, bounds: CleanBounds | None = None) -> list[str]:
        whole = read_stored(self.log.data)
        old = whole if before is None else read_stored(before)
        return list(judge_clean(whole, old, after, self.log.end, bounds or self.bounds()))


def make_history() -> CleanedHistory:
    """A history with a tombstone, a producer, and transactions of both outcomes."""
    made = CleanedHistory()
    log = made.log
    log.add((b"a", b"1"), (b"b", b"1"))
    log.add((b"b", None))
    log.add((b"c", b"1"), producer=5)
    log.add((b"a", b"t"), producer=6, transactional=True)
    log.end_transaction(6, commit=True)
    log.add((b"c", b"aborted"), producer=7, transactional=True)
    log.end_transaction(7, commit=False)
    log.add((None, b"keyless"))
    log.add((b"d", b"1"))
    return made


def test_clean_of_the_cleaner_breaks_no_rule_now_and_after_the_horizon() -> None:
    made = make_history()
    once = made.clean()
    assert made.judge(read_stored(once)) == [] and len(once) < len(made.log.data)
    later = made.clean(once, HORIZON + 1)
    assert made.judge(read_stored(later), once, made.bounds(HORIZON + 1)) == [] and len(later) < len(once)


def without(base: int) -> Callable[[Batches], Batches]:
    return lambda after: [each for each in after if each.base != base]


def emptied(base: int) -> Callable[[Batches], Batches]:
    return lambda after: [each._replace(records=()) if each.base == base else each for each in after]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without(3), "it has the last sequence of producer 5"),
        (emptied(3), "the record at 3 is gone, it is the last one of b'c'"),
        (emptied(2), "the tombstone at 2 of b'b' is gone, its delete horizon is none"),
        (without(5), "the marker at 5 is gone, records of its transaction are at 4"),
        (without(9), "the last batch of the segment is gone"),
        (lambda after: after[::-1], "comes after"),
        (lambda after: [after[0]._replace(base=1), *after[1:]], "was not there"),
        (lambda after: [after[0]._replace(records=after[0].records * 2), *after[1:]], "has other records"),
        (
            lambda after: [each._replace(horizon_ms=NOW) if each.horizon_ms else each for each in after],
            f"is {RETENTION} ms too early",
        ),
    ],
)
def test_clean_that_breaks_a_rule_is_reported(change: Callable[[Batches], Batches], why: str) -> None:
    made = make_history()
    found = made.judge(change(read_stored(made.clean())))
    assert any(why in each for each in found), found


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        ({"high_watermark": 8}, "the high watermark is 8"),
        ({"active_base": 4}, "the active segment is 4"),
        ({"high_watermark": 7}, "the last stable offset is 6"),
    ],
)
def test_clean_that_goes_too_far_is_reported(bounds: dict[str, int], why: str) -> None:
    made = make_history()
    found = made.judge(read_stored(made.clean()), bounds=made.bounds(**bounds))
    assert any(why in each for each in found), found


def test_record_that_only_a_young_one_follows_stays() -> None:
    made = make_history()
    after = read_stored(made.clean())
    assert made.judge(after, bounds=made.bounds(newest_ms=NOW + 4)) == []
    found = made.judge(after, bounds=made.bounds(newest_ms=NOW + 3))
    assert found == ["the record at 0 is gone, it is the last one of b'a'"]


def test_horizon_of_a_batch_stays() -> None:
    made = make_history()
    once = made.clean()
    moved = [each._replace(horizon_ms=HORIZON + 9) if each.horizon_ms else each for each in read_stored(once)]
    assert any("moves from" in each for each in made.judge(moved, once))


def test_horizon_of_another_clean_counts_anew() -> None:
    made = make_history()
    once, late = made.clean(), HORIZON + 1
    moved = [each._replace(horizon_ms=late + RETENTION) if each.horizon_ms else each for each in read_stored(once)]
    anew = made.bounds(late, first_dirty=0)
    assert made.judge(moved, once, anew) == []
    early = [each._replace(horizon_ms=late + RETENTION - 1) if each.horizon_ms else each for each in moved]
    assert any("1 ms too early" in each for each in made.judge(early, once, anew))
    gone = read_stored(made.clean(once, late))
    assert made.judge(gone, once, made.bounds(late)) == []
    assert any("the tombstone at 2" in each for each in made.judge(gone, once, anew))
    unmarked = [each._replace(records=()) if each.is_control else each for each in moved]
    assert any("delete horizon is None" in each for each in made.judge(unmarked, once, anew))


def test_index_entry_that_is_not_about_its_segment_is_reported() -> None:
    batches = read_stored(make_history().log.data)
    second = batches[1]
    position = (2).to_bytes(4, "big") + second.position.to_bytes(4, "big")
    time = (NOW + 2).to_bytes(8, "big") + (2).to_bytes(4, "big")
    assert list(check_indexes(0, batches, position, time)) == []
    (wrong,) = check_indexes(0, batches, position[:4] + b"\0\0\0\1", b"")
    assert "offset index" in wrong
    (wrong,) = check_indexes(0, batches, b"", (NOW + 1).to_bytes(8, "big") + (2).to_bytes(4, "big"))
    assert "time index" in wrong


def test_reader_that_gets_an_older_state_is_reported() -> None:
    history = [(0, b"a", b"1"), (1, b"a", b"2"), (2, b"b", b"1"), (3, b"b", None), (4, b"a", b"3")]
    assert list(check_final_state(history, 2, [(4, b"a", b"3")])) == [], "a later record may have come between"
    assert list(check_final_state(history[:4], 4, [(1, b"a", b"2")])) == [], "a tombstone may have gone"
    (wrong,) = check_final_state(history[:4], 2, [(0, b"a", b"1")])
    assert "a reader from the start got 0" in wrong
    (wrong,) = check_final_state(history[:4], 2, [(1, b"a", b"2"), (0, b"a", b"1"), (1, b"a", b"2")])
    assert "comes after" in wrong


@pytest.mark.parametrize("earlier_epoch", [None, 0])
def test_marker_at_the_log_start_counts_unless_its_records_were_below(
    earlier_epoch: int | None,
) -> None:
    log = Log()
    log.add((b"a", b"t"), producer=6, transactional=True)
    log.end_transaction(6, commit=True)
    log.add((b"b", b"1"))
    before = [each._replace(horizon_ms=NOW) if each.is_control else each for each in read_stored(log.data)][1:]
    bounds = CleanBounds(log.end, log.end, NOW, RETENTION, log_start=1)
    earlier = {} if earlier_epoch is None else {6: earlier_epoch}
    found = list(judge_clean(before, before, before[1:], log.end, bounds, earlier_epochs=earlier))
    lost = "the batch at 1 is gone, it has the last sequence of producer 6"
    assert found == ([lost] if earlier_epoch is None else [])


@pytest.mark.parametrize("is_older_there", [True, False])
def test_tombstone_that_goes_before_an_older_record_of_its_key_is_reported(is_older_there: bool) -> None:
    made = CleanedHistory()
    made.log.add((b"a", b"1"))
    made.log.add((b"a", None))
    made.log.add((b"b", b"1"))
    first, _, last = read_stored(made.log.data)
    tombstone = next(each for each in read_stored(made.clean()) if each.base == 1)
    ahead = [first] if is_older_there else []
    bounds = made.bounds(HORIZON)
    found = list(judge_clean(read_stored(made.log.data), [tombstone, last], [last], 3, bounds, ahead))
    assert found == (["the tombstone at 1 of b'a' is gone, its key is at 0"] if is_older_there else [])
