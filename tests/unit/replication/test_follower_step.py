"""Tests of the decisions of leader and follower on one fetch, and of logs that diverged and become equal again."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusal import refuses
from tests.unit.replication.follower_rig import TOPIC_ID, ModelReplica
from tiered.errors import Code
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.peers import DivergingEpoch, FetchedPartition, PartitionFetch
from tiered.records.batch import encode_batch
from tiered.records.pure_compact import empty_batch
from tiered.replication.divergence import LeaderLog, validate_offset_and_epoch
from tiered.replication.follower_step import (
    Append,
    CopyAgain,
    FollowerLog,
    FollowerStep,
    NoAction,
    RestartAtLogStart,
    RestoreFromBucket,
    Retry,
    Truncate,
    decide_step,
    next_high_watermark,
)

LINEAGE = [(0, 0), (2, 100), (5, 250)]


def fetch(offset: int, last_epoch: int = 5, leader_epoch: int = 6) -> PartitionFetch:
    return PartitionFetch(TOPIC_ID, 0, leader_epoch, offset, last_epoch, 0, 0)


def step(
    asked: PartitionFetch, held: FollowerLog, code: Code = Code.NONE, *, cold_end: int = 0, log_start: int = 0,
    base: int = -1, diverging: DivergingEpoch | None = None,
) -> FollowerStep:  # fmt: skip
    records = base.to_bytes(8, "big") + bytes(60) if base >= 0 else b""
    return decide_step(
        asked, FetchedPartition(TOPIC_ID, 0, code.number, 0, log_start, log_start, cold_end, diverging, records), held
    )


def follower(start: int, end: int, lineage: list[tuple[int, int]] | None = None) -> FollowerLog:
    return FollowerLog(start, end, LeaderEpochs(LINEAGE if lineage is None else lineage))


def leader(
    *, end: int = 300, log_start: int = 0, local_start: int = 0, epochs: list[tuple[int, int]] | None = None
) -> LeaderLog:
    return LeaderLog(6, log_start, local_start, end, LeaderEpochs(LINEAGE if epochs is None else epochs))


# -- the leader -------------------------------------------------------------------------------------------------------


def test_leader_without_leader_epochs_is_followed_from_its_end() -> None:
    bare = leader(end=300, local_start=300, epochs=[])
    assert validate_offset_and_epoch(fetch(300), bare) is Code.NONE
    diverging = validate_offset_and_epoch(fetch(310), bare)
    assert isinstance(diverging, DivergingEpoch)
    assert step(fetch(310), follower(0, 310), diverging=diverging) == Truncate(300)


def test_follower_with_the_same_history_continues() -> None:
    assert validate_offset_and_epoch(fetch(300), leader()) is Code.NONE
    assert validate_offset_and_epoch(fetch(260), leader()) is Code.NONE
    assert validate_offset_and_epoch(fetch(100, 0), leader()) is Code.NONE
    assert validate_offset_and_epoch(fetch(0, -1), leader()) is Code.NONE


@pytest.mark.parametrize(
    ("offset", "last_epoch", "parted"),
    [
        (301, 5, DivergingEpoch(5, 300)),
        (101, 0, DivergingEpoch(0, 100)),
        (200, 1, DivergingEpoch(0, 100)),
        (200, 3, DivergingEpoch(2, 250)),
        (300, 6, DivergingEpoch(5, 300)),
    ],
)
def test_follower_with_another_history_gets_the_diverging_epoch(
    offset: int, last_epoch: int, parted: DivergingEpoch
) -> None:
    assert validate_offset_and_epoch(fetch(offset, last_epoch), leader()) == parted


def test_offsets_outside_the_local_log_have_codes_of_their_own() -> None:
    assert validate_offset_and_epoch(fetch(9), leader(log_start=10, local_start=20)) is Code.OFFSET_OUT_OF_RANGE
    assert (
        validate_offset_and_epoch(fetch(10, 0), leader(log_start=10, local_start=20))
        is Code.OFFSET_MOVED_TO_TIERED_STORAGE
    )
    assert validate_offset_and_epoch(fetch(301, -1), leader()) is Code.OFFSET_OUT_OF_RANGE


def test_epoch_below_the_first_known_one_ends_where_that_starts() -> None:
    """The local log was restarted at the cold end: it cannot compare the follower's older epochs."""
    short = leader(local_start=280, epochs=[(5, 250)])
    assert validate_offset_and_epoch(fetch(290, 4), short) == DivergingEpoch(4, 250)


def test_epoch_below_a_gap_at_the_log_start_ends_at_the_log_start() -> None:
    """Compaction has removed all below the first batch. The follower's records there may never have been committed."""
    gapped = leader(epochs=[(5, 60)])
    assert validate_offset_and_epoch(fetch(50, 4), gapped) == DivergingEpoch(4, 0)
    assert step(fetch(50, 4), follower(0, 50, [(4, 0)]), diverging=DivergingEpoch(4, 0)) == Truncate(0)
    assert validate_offset_and_epoch(fetch(50, 4), leader(log_start=50, epochs=[(5, 60)])) is Code.NONE


@pytest.mark.parametrize(
    ("leader_epoch", "last_epoch", "code"),
    [(5, 5, Code.FENCED_LEADER_EPOCH), (7, 5, Code.UNKNOWN_LEADER_EPOCH), (6, 7, Code.UNKNOWN_LEADER_EPOCH)],
)
def test_leader_and_follower_mean_the_same_epoch(leader_epoch: int, last_epoch: int, code: Code) -> None:
    with refuses(code):
        validate_offset_and_epoch(fetch(300, last_epoch, leader_epoch), leader())


# -- the follower -----------------------------------------------------------------------------------------------------


def test_records_are_appended_at_the_log_end() -> None:
    assert step(fetch(300), follower(0, 300), base=300) == Append(300)
    assert step(fetch(300), follower(0, 300)) == NoAction()
    assert isinstance(step(fetch(300), follower(0, 300), base=301), Retry)
    assert isinstance(step(fetch(300), follower(0, 300), base=299), Retry)


@pytest.mark.parametrize(
    ("bases", "counts", "found"),
    [
        ((300, 301), (1, 1), Append(300)),
        ((301,), (1,), CopyAgain(290)),
        ((300, 302), (1, 1), CopyAgain(290)),
        ((300, 301), (1, 0), CopyAgain(290)),
        ((300,), (0,), CopyAgain(290)),
    ],
)
def test_open_transaction_is_copied_again_if_a_clean_took_later_records(
    bases: tuple[int, ...], counts: tuple[int, ...], found: FollowerStep
) -> None:
    """The marker may be among those records, and the next one of the producer may belong to a later transaction."""
    held = follower(0, 300)
    assert reply(bases, counts, held) == Append(bases[0])
    assert reply(bases, counts, held._replace(open_from=290)) == found
    assert reply(bases, counts, held._replace(open_from=290), may_have_gaps=False) != CopyAgain(290)
    below = held._replace(start=295, open_from=290)
    assert reply(bases, counts, below) == Append(bases[0])  # the first records are in the bucket only
    assert reply(bases, counts, held._replace(open_from=290, is_cut_begun=True)) == CopyAgain(290)


def reply(
    bases: tuple[int, ...], counts: tuple[int, ...], held: FollowerLog, *, may_have_gaps: bool = True
) -> FollowerStep:
    """Decides on batches of one record each, or of none, which a clean left."""
    data = bytearray()
    for base, count in zip(bases, counts, strict=True):
        batch = bytearray(encode_batch([(0, b"k", b"v", ())]))
        batch[:8] = base.to_bytes(8, "big")
        data += batch if count else empty_batch(batch, 0)
    part = FetchedPartition(TOPIC_ID, 0, Code.NONE.number, 310, 0, 0, 0, None, data, may_have_gaps)
    return decide_step(fetch(held.end), part, held)


def test_reply_to_an_earlier_fetch_is_ignored() -> None:
    assert step(fetch(299), follower(0, 300), base=299) == NoAction()
    assert step(fetch(299), follower(0, 300), diverging=DivergingEpoch(2, 5)) == NoAction()


def test_empty_log_begins_with_the_batch_at_the_leaders_log_start() -> None:
    assert step(fetch(40, -1), follower(40, 40, []), base=37) == Append(37)


@pytest.mark.parametrize(
    ("named", "end", "cut"),
    [(5, 280, 280), (2, 200, 200), (2, 260, 250), (3, 260, 250), (3, 220, 220), (-1, 30, 30), (0, 20, 20)],
)
def test_follower_truncates_at_the_lower_end_of_the_epoch(named: int, end: int, cut: int) -> None:
    assert step(fetch(300), follower(0, 300), diverging=DivergingEpoch(named, end)) == Truncate(cut)


def test_follower_never_truncates_beyond_its_end() -> None:
    assert isinstance(step(fetch(300), follower(0, 300), diverging=DivergingEpoch(5, 400)), Retry)
    assert isinstance(step(fetch(300), follower(0, 300), diverging=DivergingEpoch(9, 100)), Retry)


def test_records_only_in_the_bucket_are_restored_from_it() -> None:
    assert step(fetch(30), follower(0, 30), Code.OFFSET_MOVED_TO_TIERED_STORAGE, cold_end=90) == RestoreFromBucket(90)
    assert step(fetch(30), follower(0, 30), Code.OFFSET_OUT_OF_RANGE, cold_end=90, log_start=50) == RestoreFromBucket(
        90
    )


def test_new_follower_copies_only_records_above_the_cold_end() -> None:
    assert step(fetch(0, -1), follower(0, 0, []), cold_end=90, base=0) == RestoreFromBucket(90)
    assert step(fetch(0, -1), follower(0, 0, []), cold_end=0, base=0) == Append(0)
    assert step(fetch(90, 5), follower(90, 90, [(5, 80)]), cold_end=120, base=90) == Append(90)


def test_empty_log_without_epochs_is_restored_again_at_the_cold_end() -> None:
    assert step(fetch(90, -1), follower(90, 90, []), cold_end=90, base=90) == RestoreFromBucket(90)
    assert step(fetch(90, 5), follower(90, 90, [(5, 80)]), cold_end=90, base=90) == Append(90)
    assert step(fetch(90, -1), follower(90, 90, []), cold_end=80, base=90) == Append(90)
    assert step(fetch(90, -1), follower(90, 90, []), cold_end=90, log_start=90, base=90) == Append(90)


def test_log_below_the_leaders_log_start_restarts_there() -> None:
    assert step(fetch(30), follower(0, 30), Code.OFFSET_OUT_OF_RANGE, log_start=50) == RestartAtLogStart(50)
    assert step(fetch(30), follower(0, 30), Code.OFFSET_OUT_OF_RANGE, log_start=50, cold_end=50) == RestartAtLogStart(
        50
    )
    assert step(fetch(90, -1), follower(90, 90, []), Code.OFFSET_OUT_OF_RANGE, log_start=50) == RestartAtLogStart(50)
    assert isinstance(step(fetch(90), follower(0, 90), Code.OFFSET_OUT_OF_RANGE, log_start=50), Retry)


@pytest.mark.parametrize("code", [Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH, Code.KAFKA_STORAGE_ERROR])
def test_follower_retries_after_any_other_error_code(code: Code) -> None:
    found = step(fetch(300), follower(0, 300), code)
    assert isinstance(found, Retry)
    assert (found.code, found.why) == (code.number, f"the leader replied with {code.name}")


def test_unknown_error_code_is_named_by_its_number() -> None:
    strange = FetchedPartition(TOPIC_ID, 0, 999, 0, 0, 0, 0, None, b"")
    assert decide_step(fetch(300), strange, follower(0, 300)) == Retry(999, "the leader replied with error 999")


def test_followers_high_watermark_ends_at_its_log_and_never_goes_back() -> None:
    assert next_high_watermark(0, 10, 7) == 7
    assert next_high_watermark(7, 10, 12) == 10
    assert next_high_watermark(10, 4, 12) == 10


# -- both together ----------------------------------------------------------------------------------------------------

moves = st.lists(
    st.one_of(
        st.tuples(st.just("lead"), st.integers(0, 2)),
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("copy"), st.integers(0, 2)),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(moves)
def test_logs_converge_and_no_common_record_is_truncated(scenario: list[tuple[str, int]]) -> None:
    """Any replica may lead next, with any log, because a follower does not know which elections are possible."""
    copies, leader, epoch = [ModelReplica(), ModelReplica(), ModelReplica()], 0, 0
    for i, (verb, number) in enumerate([*scenario, ("copy", 0), ("copy", 1), ("copy", 2)]):
        if verb == "lead":
            leader, epoch = number, epoch + 1
        elif verb == "append":
            for j in range(number):
                copies[leader].append(epoch, f"{i}.{j}")
        elif number != leader:
            _copy_until_equal(copies[number], copies[leader], epoch)


def _copy_until_equal(copy: ModelReplica, leader: ModelReplica, epoch: int) -> None:
    copy.leader_epoch = leader.leader_epoch = epoch
    for _ in range(20):
        common = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(copy.records, leader.records, strict=False))
        )
        found = copy.fetch_from(leader)
        assert copy.end >= common
        if isinstance(found, Append):
            assert copy.records == leader.records
        if found == NoAction():
            break
    assert copy.records == leader.records
    assert copy.epochs.lineage == leader.epochs.lineage


def test_gap_before_records_is_copied_only_if_the_leader_reports_gaps() -> None:
    records = (320).to_bytes(8, "big") + bytes(60)
    for may_have_gaps in (False, True):
        part = FetchedPartition(TOPIC_ID, 0, 0, 0, 0, 0, 0, None, records, may_have_gaps)
        found = decide_step(fetch(300), part, follower(0, 300))
        assert found == Append(320) if may_have_gaps else isinstance(found, Retry)
    behind = FetchedPartition(TOPIC_ID, 0, 0, 0, 0, 0, 0, None, (290).to_bytes(8, "big") + bytes(60), True)
    assert isinstance(decide_step(fetch(300), behind, follower(0, 300)), Retry), "no gap goes back"
