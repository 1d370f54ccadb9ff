"""Share partitions: members and the records that they hold, for how long, and what is persisted (I39)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tiered.errors import Code, Refused
from tiered.share.invariants import find_violations
from tiered.share.limits import ShareLimits
from tiered.share.partition import Acknowledgement, AcknowledgeType, AcquiredRecords, OffsetRange, SharePartition
from tiered.share.state import RecordState, ShareState, StateBatch

ACCEPT, RELEASE, REJECT, RENEW, GAP = (
    bytes((AcknowledgeType[each],)) for each in ("ACCEPT", "RELEASE", "REJECT", "RENEW", "GAP")
)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
LIMITS = ShareLimits(delivery_count_max=2, lock_ms=100, in_flight_max=20)


def partition(*batches: tuple[int, int, RecordState, int], start: int = 0) -> SharePartition:
    """Returns a share partition from a state of batches."""
    state = ShareState(start, 3, tuple(StateBatch(*each) for each in batches))
    return SharePartition(state, 7, LIMITS)


def acquire(
    share: SharePartition, member: str, *batches: tuple[int, int], most: int = 100, now: int = 0, strict: bool = False
) -> list[tuple[int, int, int]]:
    """Acquires from a fetch at the next fetch offset that finds `batches`."""
    ranges = [OffsetRange(*each) for each in batches]
    found = share.acquire(member, share.next_fetch_offset, ranges, most, now, is_strict=strict)
    assert not list(find_violations(share))
    return [(first, last, count) for first, last, count in found]


def acknowledge(
    share: SharePartition, member: str, first: int, last: int, types: bytes, now: int = 0
) -> Sequence[StateBatch]:
    """Acknowledges records, and has the write persisted. Returns its batches."""
    write = share.acknowledge(member, [Acknowledgement(first, last, types)], now)
    assert not list(find_violations(share))
    if write is None:
        return ()
    share.on_written(write.write_id)
    assert not list(find_violations(share))
    return write.batches


def refusal(share: SharePartition, member: str, *batches: tuple[int, int, bytes]) -> Code:
    """Returns the code of an acknowledgement that is refused, and checks that it changes nothing."""
    before = [(run.first_offset, run.last_offset, run.state, run.member_id) for run in share.in_flight.runs]
    with pytest.raises(Refused) as refused:
        share.acknowledge(member, [Acknowledgement(*each) for each in batches], 0)
    assert before == [(run.first_offset, run.last_offset, run.state, run.member_id) for run in share.in_flight.runs]
    return refused.value.code


# -- acquiring --------------------------------------------------------------------------------------------------------


def test_acquired_records_belong_to_one_member() -> None:
    share = partition()
    assert acquire(share, "a", (0, 4)) == [(0, 4, 1)]
    assert acquire(share, "b", (0, 4)) == []
    assert acquire(share, "b", (0, 4), (5, 6)) == [(5, 6, 1)]
    assert share.next_fetch_offset == 7


def test_batch_is_acquired_as_a_whole_unless_the_limit_is_strict() -> None:
    share = partition()
    assert acquire(share, "a", (0, 4), (5, 9), most=3) == [(0, 4, 1)]
    assert acquire(share, "a", (5, 9), most=3, strict=True) == [(5, 7, 1)]
    assert share.next_fetch_offset == 8


def test_in_flight_records_are_bounded_within_a_batch() -> None:
    share = partition()
    assert acquire(share, "a", (0, 99)) == [(0, 19, 1)]
    assert not share.can_acquire
    acknowledge(share, "a", 0, 4, ACCEPT)
    assert share.can_acquire
    assert acquire(share, "a", (0, 99)) == [(20, 24, 1)]


def test_bound_within_a_batch_skips_no_record_of_it() -> None:
    share = partition()
    assert acquire(share, "a", (0, 24), (25, 26)) == [(0, 19, 1)]
    assert (share.end_offset, share.next_fetch_offset) == (20, 20)


def test_record_in_the_middle_keeps_the_bound_until_it_is_done() -> None:
    share = partition()
    acquire(share, "a", (0, 19))
    acknowledge(share, "a", 1, 19, ACCEPT)
    assert (share.start_offset, share.can_acquire) == (0, False)
    acknowledge(share, "a", 0, 0, REJECT)
    assert (share.start_offset, share.end_offset, share.in_flight.runs) == (20, 20, [])


def test_offsets_that_compaction_removed_are_skipped() -> None:
    share = partition()
    assert acquire(share, "a", (3, 4), (8, 9)) == [(3, 4, 1), (8, 9, 1)]
    assert share.start_offset == 3
    assert acknowledge(share, "a", 3, 4, ACCEPT) == (StateBatch(3, 4, ACKNOWLEDGED, 1),)
    assert share.start_offset == 8


def test_gap_wider_than_the_bound_holds_nobody_up_for_ever() -> None:
    share = partition()
    acquire(share, "a", (0, 0))
    assert acquire(share, "b", (500, 501)) == []
    acknowledge(share, "a", 0, 0, ACCEPT)
    assert share.start_offset == 500
    assert acquire(share, "b", (500, 501)) == [(500, 501, 1)]


def test_released_record_that_is_compacted_away_is_skipped() -> None:
    share = partition()
    acquire(share, "a", (0, 2))
    acknowledge(share, "a", 0, 2, RELEASE)
    assert share.next_fetch_offset == 0
    assert acquire(share, "b", (2, 2)) == [(2, 2, 2)]
    assert share.start_offset == 2


# -- acknowledging ----------------------------------------------------------------------------------------------------


def test_each_record_has_its_own_acknowledgement() -> None:
    share = partition()
    acquire(share, "a", (0, 5))
    types = ACCEPT + RELEASE + ACCEPT + REJECT + GAP + RENEW
    assert acknowledge(share, "a", 0, 5, types, now=50) == (
        StateBatch(0, 0, ACKNOWLEDGED, 1),
        StateBatch(1, 1, AVAILABLE, 1),
        StateBatch(2, 2, ACKNOWLEDGED, 1),
        StateBatch(3, 4, ARCHIVED, 1),
    )
    assert (share.start_offset, share.next_fetch_offset) == (1, 1)
    assert acquire(share, "b", (0, 5)) == [(1, 1, 2)]


def test_record_stays_acquired_until_its_write_is_persisted() -> None:
    share = partition()
    acquire(share, "a", (0, 1))
    write = share.acknowledge("a", [Acknowledgement(0, 1, RELEASE)], 0)
    assert write is not None
    assert acquire(share, "b", (0, 1)) == []
    assert refusal(share, "a", (0, 1, ACCEPT)) is Code.INVALID_RECORD_STATE
    share.on_written(write.write_id)
    assert acquire(share, "b", (0, 1)) == [(0, 1, 2)]


def test_failed_write_leaves_the_records_with_their_member() -> None:
    share = partition()
    acquire(share, "a", (0, 1))
    write = share.acknowledge("a", [Acknowledgement(0, 1, ACCEPT)], 0)
    assert write is not None
    assert share.due(1_000) is None  # the write holds them
    share.on_write_failed(write.write_id)
    assert not list(find_violations(share))
    assert acknowledge(share, "a", 0, 0, ACCEPT)
    released = share.due(1_000)
    assert released is not None
    assert released.batches == (StateBatch(1, 1, AVAILABLE, 1),)


def test_write_has_epochs_start_offset_and_done_records() -> None:
    share = partition()
    acquire(share, "a", (0, 9))
    acknowledge(share, "a", 0, 1, ACCEPT)
    acknowledge(share, "a", 5, 6, ACCEPT)
    write = share.acknowledge("a", [Acknowledgement(3, 3, REJECT)], 0)
    assert write is not None
    assert write[1:] == (3, 7, 2, 3, (StateBatch(3, 3, ARCHIVED, 1),))


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([(0, 4, ACCEPT + ACCEPT)], Code.INVALID_REQUEST),
        ([(0, 4, b"\5")], Code.INVALID_REQUEST),
        ([(0, 1, b"\1\xff")], Code.INVALID_REQUEST),
        ([(0, 4, b"")], Code.INVALID_REQUEST),
        ([(3, 2, ACCEPT)], Code.INVALID_REQUEST),
        ([(-1, 2, ACCEPT)], Code.INVALID_REQUEST),
        ([(0, 3, ACCEPT), (3, 4, ACCEPT)], Code.INVALID_REQUEST),
        ([(0, 99, ACCEPT)], Code.INVALID_REQUEST),
        ([(0, 7, ACCEPT)], Code.INVALID_RECORD_STATE),
        ([(0, 1, ACCEPT), (6, 6, ACCEPT)], Code.INVALID_RECORD_STATE),
    ],
)
def test_bad_acknowledgement_changes_nothing(batches: list[tuple[int, int, bytes]], code: Code) -> None:
    share = partition()
    acquire(share, "a", (0, 5))
    acquire(share, "b", (0, 5), (6, 9))
    assert refusal(share, "a", *batches) is code


def test_second_acknowledgement_of_a_record_is_refused() -> None:
    share = partition()
    acquire(share, "a", (0, 5))
    acknowledge(share, "a", 2, 3, ACCEPT)
    assert refusal(share, "a", (3, 4, ACCEPT)) is Code.INVALID_RECORD_STATE


def test_records_below_the_start_of_the_log_are_skipped() -> None:
    share = partition()
    acquire(share, "a", (0, 5))
    share.on_log_start(3)
    assert acknowledge(share, "a", 0, 4, ACCEPT) == (StateBatch(3, 4, ACKNOWLEDGED, 1),)
    assert acknowledge(share, "a", 0, 1, ACCEPT) == ()
    share.on_log_start(50)
    assert (share.start_offset, share.end_offset, share.next_fetch_offset) == (50, 50, 50)


def test_start_of_the_log_moves_under_a_write() -> None:
    share = partition()
    acquire(share, "a", (0, 5))
    write = share.acknowledge("a", [Acknowledgement(0, 5, RELEASE)], 0)
    assert write is not None
    share.on_log_start(3)
    share.on_written(write.write_id)
    assert acquire(share, "b", (0, 5)) == [(3, 5, 2)]


# -- locks ------------------------------------------------------------------------------------------------------------


def test_lock_that_runs_out_frees_its_records_at_once() -> None:
    share = partition()
    acquire(share, "a", (0, 1), now=0)
    acquire(share, "b", (2, 3), now=50)
    assert share.next_due_ms == 100
    assert share.due(99) is None
    write = share.due(100)
    assert write is not None
    assert write.batches == (StateBatch(0, 1, AVAILABLE, 1),)
    assert share.next_due_ms == 150
    assert refusal(share, "a", (0, 1, ACCEPT)) is Code.INVALID_RECORD_STATE
    assert acquire(share, "b", (0, 3), now=100) == [(0, 1, 2)]


def test_renewed_lock_begins_again() -> None:
    share = partition()
    acquire(share, "a", (0, 1))
    assert acknowledge(share, "a", 1, 1, RENEW, now=90) == ()
    write = share.due(100)
    assert write is not None
    assert write.batches == (StateBatch(0, 0, AVAILABLE, 1),)
    assert share.next_due_ms == 190


def test_record_is_archived_after_its_last_delivery() -> None:
    share = partition()
    acquire(share, "a", (0, 2))
    acknowledge(share, "a", 0, 2, RELEASE)
    assert acquire(share, "a", (0, 2)) == [(0, 2, 2)]
    assert acknowledge(share, "a", 0, 0, RELEASE) == (StateBatch(0, 0, ARCHIVED, 2),)
    write = share.due(100)
    assert write is not None
    assert write.batches == (StateBatch(1, 2, ARCHIVED, 2),)
    assert share.start_offset == 3


def test_member_that_leaves_releases_its_records_only() -> None:
    share = partition()
    acquire(share, "a", (0, 1))
    acquire(share, "b", (2, 3))
    write = share.release_member("a")
    assert write is not None
    assert write.batches == (StateBatch(0, 1, AVAILABLE, 1),)
    share.on_written(write.write_id)
    assert share.release_member("a") is None
    assert acquire(share, "b", (0, 3)) == [(0, 1, 2)]


# -- the next leader --------------------------------------------------------------------------------------------------


def test_next_leader_gives_records_without_a_state_again() -> None:
    share = partition((2, 3, ACKNOWLEDGED, 1), (6, 6, AVAILABLE, 1), start=0)
    assert (share.start_offset, share.end_offset, share.next_fetch_offset) == (0, 7, 0)
    assert acquire(share, "a", (0, 9)) == [(0, 1, 1), (4, 5, 1), (6, 6, 2), (7, 9, 1)]


def test_next_leader_begins_behind_the_records_that_are_done() -> None:
    share = partition((5, 6, ACKNOWLEDGED, 1), (7, 7, ARCHIVED, 2), (8, 8, AVAILABLE, 1), start=5)
    assert (share.start_offset, share.delivery_complete_count) == (8, 0)


def test_acquired_records_have_the_form_of_the_reply() -> None:
    assert partition().acquire("a", 0, [OffsetRange(0, 1)], 1, 0) == (AcquiredRecords(0, 1, 1),)
