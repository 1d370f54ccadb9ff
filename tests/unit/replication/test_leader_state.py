"""Tests of the leader's rules: what is committed (R3), which followers join the ISR (R2) or leave it, and the offset at
which a new leader starts (R5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiered.errors import Fenced
from tiered.replication.leader_state import (
    ColdLog,
    FollowerPosition,
    KeepLocalLog,
    LeaderState,
    ProposedIsr,
    RestartAtColdEnd,
    reconcile,
)

LAG = 10
LIVE = {1: 11, 2: 22, 3: 33}


def leader_state(isr: list[int], replicas: list[int] | None = None, *, start: int = 0, epoch: int = 7) -> LeaderState:
    """Returns the state of broker 1, which leads since time 0."""
    return LeaderState(1, 4, isr, replicas=replicas or isr, epoch_start=start, partition_epoch=epoch)


def fetch(
    partition: LeaderState, broker: int, offset: int, *, now: int = 0, min_isr: int = 1, end: int | None = None
) -> bool:
    """Records a fetch of the live incarnation."""
    log_end = partition.end if end is None else end
    return partition.record_fetch(broker, LIVE[broker], offset, log_end=log_end, now_ns=now, min_isr=min_isr)


def apply_isr(partition: LeaderState, isr: list[int], min_isr: int = 1) -> bool:
    """Applies an ISR from the metadata log."""
    return partition.apply_isr(isr, partition.replicas, partition.partition_epoch + 1, min_isr)


def begin_change(partition: LeaderState, now: int = 0) -> ProposedIsr:
    """Begins the next ISR change and returns it."""
    change = partition.next_isr_change(now, LAG, LIVE)
    assert change is not None
    partition.begin_isr_change(change)
    return change


def test_records_of_a_sole_member_are_committed_at_once() -> None:
    partition = leader_state([1])
    assert partition.advance(10, 1)
    assert partition.high_watermark == 10
    assert not partition.advance(10, 1)
    partition.check()


def test_committed_records_are_on_every_in_sync_replica() -> None:
    partition = leader_state([1, 2, 3])
    assert not partition.advance(10, 2)
    assert not fetch(partition, 2, 10, min_isr=2)
    assert fetch(partition, 3, 7, min_isr=2)
    assert partition.high_watermark == 7


def test_leader_starts_at_the_high_watermark_that_it_knows() -> None:
    partition = LeaderState(1, 4, [1, 2], replicas=[1, 2], epoch_start=12, high_watermark=9)
    partition.advance(12, 1)
    assert partition.high_watermark == 9
    assert not fetch(partition, 2, 5)
    assert partition.high_watermark == 9
    assert fetch(partition, 2, 12)
    partition.check()


def test_nothing_is_committed_while_the_isr_is_below_its_minimum() -> None:
    partition = leader_state([1, 2], [1, 2, 3])
    fetch(partition, 2, 10, min_isr=2)
    partition.advance(10, 2)
    assert partition.high_watermark == 10
    apply_isr(partition, [1], 2)
    assert not partition.has_min_isr(2)
    assert not partition.advance(20, 2)
    assert partition.high_watermark == 10


def test_minimum_above_the_replication_factor_means_all_replicas() -> None:
    partition = leader_state([1])
    assert partition.has_min_isr(2)
    assert partition.advance(5, 2)


def test_proposed_member_counts_before_it_is_committed() -> None:
    partition = leader_state([1], [1, 2])
    partition.advance(10, 1)
    fetch(partition, 2, 10)
    assert begin_change(partition) == ProposedIsr(7, ((1, 11), (2, 22)))
    assert not partition.advance(20, 1)
    assert fetch(partition, 2, 15)
    assert partition.high_watermark == 15
    partition.check()


def test_member_counts_until_its_removal_is_committed() -> None:
    partition = leader_state([1, 2])
    partition.advance(20, 1)
    fetch(partition, 2, 10)
    assert begin_change(partition, now=LAG + 1).isr == {1}
    assert partition.high_watermark == 10
    assert apply_isr(partition, [1])
    assert partition.high_watermark == 20


def test_followers_are_listed_with_their_times_also_before_a_fetch() -> None:
    state = LeaderState(1, 5, (1, 2), replicas=(3, 1, 2), epoch_start=0, began_ns=70)
    state.advance(10, 1)
    state.record_fetch(2, 20, 4, log_end=10, now_ns=100, min_isr=1)
    state.record_fetch(2, 20, 10, log_end=12, now_ns=200, min_isr=1)
    assert state.began_ns == 70
    assert state.list_followers() == [FollowerPosition(2, 10, 100, 200), FollowerPosition(3, 0)]


def test_follower_joins_isr_only_at_epoch_start() -> None:
    partition = LeaderState(1, 4, [1, 3], replicas=[1, 2, 3], epoch_start=50)
    partition.advance(50, 1)
    assert not partition.should_join_isr(2, 0, LAG)
    fetch(partition, 2, 49, end=49)
    assert not partition.should_join_isr(2, 0, LAG)
    fetch(partition, 2, 50)
    assert partition.should_join_isr(2, 0, LAG)


def test_follower_joins_isr_only_with_all_committed_records() -> None:
    partition = leader_state([1], [1, 2])
    partition.advance(50, 1)
    fetch(partition, 2, 49, end=49)
    assert not partition.should_join_isr(2, 0, LAG)
    assert partition.next_isr_change(0, LAG, LIVE) is None


def test_follower_that_would_leave_at_once_does_not_join() -> None:
    partition = leader_state([1, 3], [1, 2, 3])
    partition.advance(90, 1)
    fetch(partition, 3, 50)
    fetch(partition, 2, 60)
    assert not partition.should_join_isr(2, LAG + 1, LAG)
    fetch(partition, 2, 90, now=LAG + 2)
    assert partition.should_join_isr(2, LAG + 2, LAG)


def test_follower_that_reads_up_to_its_last_fetched_end_stays_in_sync() -> None:
    partition = leader_state([1, 2])
    for now in range(0, 10 * LAG, LAG // 2):
        partition.advance(100 + now, 1)
        fetch(partition, 2, 100 + now - LAG // 2, now=now)
        assert not partition.is_lagging(2, now, LAG)
    assert partition.is_lagging(2, 11 * LAG, LAG)


def test_member_that_repeats_its_fetch_at_the_end_is_caught_up() -> None:
    partition = leader_state([1, 2], [1, 2, 3])
    partition.advance(5, 1)
    assert not partition.record_repeated_fetch(2, 20, 5, 1), "it was never heard"
    for broker in (2, 3):
        partition.record_fetch(broker, 10 * broker, 5, log_end=5, now_ns=0, min_isr=1)
    assert not partition.record_repeated_fetch(2, 21, 5, 1), "another incarnation"
    assert not partition.record_repeated_fetch(2, 20, 4, 1), "another offset"
    assert not partition.record_repeated_fetch(3, 30, 5, 1), "it may join"
    assert partition.record_repeated_fetch(2, 20, 5, 90)
    partition.advance(6, 1)
    assert not partition.is_lagging(2, 100, 20) and partition.is_lagging(2, 111, 20)


def test_follower_that_reads_but_never_catches_up_leaves_the_isr() -> None:
    partition = leader_state([1, 2])
    for now in range(LAG + 2):
        partition.advance(100 * (now + 1), 1)
        fetch(partition, 2, now, now=now)
    assert partition.is_lagging(2, LAG + 2, LAG)


def test_lag_of_a_silent_member_counts_from_the_start_of_the_leader() -> None:
    partition = leader_state([1, 2])
    assert partition.next_isr_change(LAG, LAG, LIVE) is None
    change = partition.next_isr_change(LAG + 1, LAG, LIVE)
    assert change is not None and change.isr == {1}


def test_silent_member_that_has_everything_stays_in_the_isr() -> None:
    partition = leader_state([1, 2])
    partition.advance(10, 1)
    fetch(partition, 2, 10)
    assert partition.next_isr_change(100 * LAG, LAG, LIVE) is None


def test_isr_change_names_live_brokers_by_the_fetching_incarnation() -> None:
    partition = leader_state([1], [1, 2])
    fetch(partition, 2, 0)
    assert partition.next_isr_change(0, LAG, {1: 11}) is None
    assert partition.next_isr_change(0, LAG, {1: 11, 2: 99}) is None
    assert partition.next_isr_change(0, LAG, {2: 22}) is None
    assert partition.next_isr_change(0, LAG, LIVE) == ProposedIsr(7, ((1, 11), (2, 22)))


def test_one_isr_change_is_in_flight_at_a_time() -> None:
    partition = leader_state([1], [1, 2, 3])
    fetch(partition, 2, 0)
    begin_change(partition)
    fetch(partition, 3, 0)
    assert partition.next_isr_change(0, LAG, LIVE) is None
    apply_isr(partition, [1, 2])
    assert begin_change(partition).isr == {1, 2, 3}


def test_refused_isr_change_no_longer_counts() -> None:
    partition = leader_state([1], [1, 2])
    fetch(partition, 2, 0)
    change = begin_change(partition)
    assert not partition.advance(10, 1)
    assert partition.reject_isr_change(change, 1)
    assert partition.high_watermark == 10
    partition.check()


def test_new_incarnation_does_not_join_isr_by_the_old_ones_position() -> None:
    """The ISR change for broker 2 gets no reply. Broker 2 loses its power and comes back with fewer records."""
    partition = leader_state([1], [1, 2])
    partition.advance(10, 1)
    fetch(partition, 2, 10)
    change = begin_change(partition)
    assert change.isr == {1, 2}
    partition.isr_change_unknown(change)
    later = {**LIVE, 2: 222}
    assert partition.next_isr_change(0, LAG, later) == ProposedIsr(7, ((1, 11),)), (
        "said again, for who may have been granted"
    )
    partition.record_fetch(2, 222, 6, log_end=10, now_ns=0, min_isr=1)
    assert partition.next_isr_change(0, LAG, later) == ProposedIsr(7, ((1, 11),))
    assert partition.high_watermark == 10
    partition.record_fetch(2, 222, 10, log_end=10, now_ns=0, min_isr=1)
    assert partition.next_isr_change(0, LAG, later) == ProposedIsr(7, ((1, 11), (2, 222)))


def test_isr_change_of_unknown_outcome_counts_until_a_newer_epoch() -> None:
    partition = leader_state([1], [1, 2, 3])
    fetch(partition, 2, 0)
    partition.isr_change_unknown(begin_change(partition))
    fetch(partition, 3, 0)
    second = begin_change(partition)
    assert second.isr == {1, 2, 3}
    partition.reject_isr_change(second, 1)
    assert not partition.advance(10, 1)
    partition.check()
    assert apply_isr(partition, [1])
    assert partition.high_watermark == 10


def test_isr_change_of_unknown_outcome_is_followed_by_another() -> None:
    partition = leader_state([1], [1, 2])
    fetch(partition, 2, 0)
    partition.isr_change_unknown(begin_change(partition))
    assert partition.next_isr_change(0, LAG, {1: 11}) == ProposedIsr(7, ((1, 11),))


def test_late_reply_to_an_old_isr_change_changes_nothing() -> None:
    partition = leader_state([1], [1, 2])
    fetch(partition, 2, 0)
    change = begin_change(partition)
    apply_isr(partition, [1])
    newer = begin_change(partition)
    assert not partition.reject_isr_change(change, 1)
    partition.isr_change_unknown(change)
    assert partition.next_isr_change(0, LAG, LIVE) is None
    assert not partition.advance(10, 1)
    assert newer.partition_epoch == 8


def test_progress_of_a_removed_replica_is_forgotten() -> None:
    """A replica that is added again has an empty log."""
    partition = leader_state([1, 2], [1, 2, 3])
    partition.advance(10, 1)
    fetch(partition, 3, 10)
    assert partition.can_join_isr(3)
    partition.apply_isr([1, 2], [1, 2], 8, 1)
    partition.apply_isr([1, 2], [1, 2, 3], 9, 1)
    assert not partition.can_join_isr(3)


def test_isr_of_an_older_partition_epoch_is_ignored() -> None:
    partition = leader_state([1, 2])
    assert not partition.apply_isr([1], [1, 2], 7, 1)
    assert partition.isr == {1, 2}


def test_another_incarnation_of_an_in_sync_follower_is_fenced() -> None:
    partition = leader_state([1, 2])
    fetch(partition, 2, 5)
    with pytest.raises(Fenced):
        partition.record_fetch(2, 99, 0, log_end=5, now_ns=0, min_isr=1)
    apply_isr(partition, [1])
    partition.record_fetch(2, 99, 0, log_end=5, now_ns=0, min_isr=1)
    assert partition.follower_offset(2) == 0


def test_fetch_of_a_broker_that_is_not_a_replica_is_fenced() -> None:
    for broker in (1, 3):
        with pytest.raises(Fenced):
            fetch(leader_state([1, 2]), broker, 5)


def test_fetch_offset_of_a_follower_never_goes_back() -> None:
    partition = leader_state([1])
    partition.advance(10, 1)
    assert not partition.advance(7, 1)
    assert partition.high_watermark == 10
    partition.check()


LINEAGE = [(0, 0), (2, 100), (5, 250)]


def test_log_that_agrees_with_cold_segments_is_kept() -> None:
    assert reconcile(80, 400, LINEAGE, ColdLog(0, 300, LINEAGE)) == KeepLocalLog()
    assert reconcile(260, 300, [(5, 260)], ColdLog(0, 300, LINEAGE)) == KeepLocalLog()


def test_lineage_without_its_front_is_compared_from_its_start() -> None:
    assert reconcile(80, 300, LINEAGE, ColdLog(0, 300, [(2, 120), (5, 250)])) == KeepLocalLog()
    assert reconcile(80, 300, [(2, 130), (5, 250)], ColdLog(0, 300, LINEAGE)) == KeepLocalLog()


def test_log_that_starts_at_the_cold_end_is_kept() -> None:
    assert reconcile(300, 400, [(9, 300)], ColdLog(0, 300, LINEAGE)) == KeepLocalLog()


def test_empty_log_at_the_cold_end_restarts_without_the_epochs_below() -> None:
    """A restart that a full disk interrupted left the old leader epochs. A follower with the epochs of the bucket could
    not follow such a leader."""
    assert reconcile(300, 300, LINEAGE, ColdLog(0, 300, LINEAGE)) == KeepLocalLog()
    assert reconcile(0, 0, [], ColdLog(0, 0, [])) == KeepLocalLog()
    for lineage in ([(0, 0)], [(0, 0), (2, 100)]):
        found = reconcile(300, 300, lineage, ColdLog(0, 300, LINEAGE))
        assert isinstance(found, RestartAtColdEnd) and found.offset == 300, lineage
        assert found.empty, "no record goes by it"


def test_empty_log_needs_no_epochs_that_only_sub_manifests_have() -> None:
    newest = [(2, 180), (5, 250)]
    assert reconcile(300, 300, LINEAGE, ColdLog(0, 300, newest)) == KeepLocalLog()
    assert isinstance(reconcile(300, 300, [(0, 0), (4, 200)], ColdLog(0, 300, newest)), RestartAtColdEnd)


def test_log_that_ends_below_the_cold_end_restarts_there() -> None:
    found = reconcile(0, 0, [], ColdLog(0, 300, LINEAGE))
    assert isinstance(found, RestartAtColdEnd)
    assert found.offset == 300 and not found.empty


@pytest.mark.parametrize("lineage", [[(0, 0), (2, 100), (4, 250)], [(0, 0), (2, 90), (5, 250)], [(0, 0), (2, 100)]])
def test_log_of_another_history_restarts_at_the_cold_end(lineage: list[tuple[int, int]]) -> None:
    found = reconcile(80, 400, lineage, ColdLog(0, 300, LINEAGE))
    assert isinstance(found, RestartAtColdEnd)
    assert found.offset == 300


def gap_before(epoch: int) -> Callable[[int], int]:
    """Returns a look-up that finds `epoch` after every offset."""
    return lambda _: epoch


no_gap = gap_before(-1)


@pytest.mark.parametrize("cold", [[(0, 0), (2, 130), (5, 260)], [(0, 0), (5, 250)], [(0, 0), (5, 299)]])
def test_epochs_that_lost_batches_may_begin_elsewhere_in_the_bucket(cold: list[tuple[int, int]]) -> None:
    assert reconcile(80, 400, LINEAGE, ColdLog(0, 300, cold), no_gap) == KeepLocalLog()
    assert reconcile(80, 400, cold, ColdLog(0, 300, LINEAGE), no_gap) == KeepLocalLog()
    assert isinstance(reconcile(80, 400, LINEAGE, ColdLog(0, 300, cold)), RestartAtColdEnd), "none may be lost here"


@pytest.mark.parametrize("lineage", [[], [(0, 0), (2, 100), (4, 250)], [(0, 0), (2, 100)], [(0, 0), (6, 280)]])
def test_compacted_log_with_another_epoch_at_the_cold_end_restarts_there(lineage: list[tuple[int, int]]) -> None:
    found = reconcile(80, 400, lineage, ColdLog(0, 300, LINEAGE), no_gap)
    assert isinstance(found, RestartAtColdEnd) and found.offset == 300


def test_local_gap_at_the_cold_end_may_be_of_any_epoch_around_it() -> None:
    cold = ColdLog(0, 300, LINEAGE)
    for after in (5, 7):
        assert reconcile(80, 400, [(0, 0), (2, 100), (after, 310)], cold, gap_before(after)) == KeepLocalLog()
    for before, after in ((2, 4), (6, 7)):
        lineage = [(0, 0), (before, 100), (after, 310)]
        assert isinstance(reconcile(80, 400, lineage, cold, gap_before(after)), RestartAtColdEnd)


def fetch_with_log_start(partition: LeaderState, broker: int, log_start: int, offset: int = 20) -> None:
    """Records a fetch of a follower whose log starts at `log_start`."""
    partition.record_fetch(broker, LIVE[broker], offset, log_end=20, now_ns=0, min_isr=1, log_start=log_start)


def test_deletion_is_done_once_every_isr_member_fetched_with_it() -> None:
    partition = leader_state([1, 2, 3])
    partition.advance(20, 1)
    fetch_with_log_start(partition, 2, 10)
    assert not partition.is_deleted_on_isr(10), "nobody heard broker 3"
    fetch_with_log_start(partition, 3, 9)
    assert not partition.is_deleted_on_isr(10)
    fetch_with_log_start(partition, 3, 12)
    assert partition.is_deleted_on_isr(10) and not partition.is_deleted_on_isr(11)


def test_deletion_waits_for_a_proposed_member_and_not_for_one_that_left() -> None:
    partition = leader_state([1, 2], [1, 2, 3])
    partition.advance(20, 1)
    fetch_with_log_start(partition, 2, 10)
    fetch_with_log_start(partition, 3, 9)
    assert partition.is_deleted_on_isr(10), "broker 3 is not in sync"
    begin_change(partition)
    assert not partition.is_deleted_on_isr(10), "broker 3 may be in sync by now"
    apply_isr(partition, [1])
    assert partition.is_deleted_on_isr(20), "nobody else is"


def test_follower_that_lacks_a_deletion_does_not_join_the_isr() -> None:
    partition = leader_state([1], [1, 2])
    partition.advance(20, 1)
    partition.record_deletion(10)
    fetch_with_log_start(partition, 2, 9)
    assert partition.next_isr_change(0, LAG, LIVE) is None
    fetch_with_log_start(partition, 2, 10)
    assert begin_change(partition).isr == {1, 2}


def test_members_of_several_isr_changes_of_unknown_outcome_count() -> None:
    partition = leader_state([1], [1, 2, 3])
    partition.begin_isr_change(ProposedIsr(7, ((1, 11), (2, 22))))
    partition.isr_change_unknown(ProposedIsr(7, ((1, 11), (2, 22))))
    partition.begin_isr_change(ProposedIsr(7, ((1, 11), (3, 33))))
    partition.advance(10, 1)
    assert not fetch(partition, 3, 10)
    assert partition.high_watermark == 0, "broker 2 may be in sync by then"
    assert fetch(partition, 2, 10)


def test_no_isr_change_follows_an_applied_one_without_need() -> None:
    partition = leader_state([1], [1, 2])
    partition.begin_isr_change(ProposedIsr(7, ((1, 11), (2, 22))))
    partition.isr_change_unknown(ProposedIsr(7, ((1, 11), (2, 22))))
    assert partition.next_isr_change(0, LAG, LIVE) is not None, (
        "only another change tells that the first is not granted any more"
    )
    apply_isr(partition, [1])
    assert partition.next_isr_change(0, LAG, LIVE) is None


def test_stopping_broker_does_not_join_isr_and_stays_if_in_it() -> None:
    partition = leader_state([1, 2], [1, 2, 3])
    fetch(partition, 3, 0)
    fetch(partition, 2, 0)
    change = partition.next_isr_change(0, LAG, LIVE)
    assert change is not None and change.isr == {1, 2, 3}
    assert partition.next_isr_change(0, LAG, LIVE, barred=(2, 3)) is None


def test_log_that_ends_inside_the_cold_range_restarts_at_the_cold_end() -> None:
    found = reconcile(0, 5, ((0, 0),), ColdLog(0, 10, ((0, 0),)))
    assert isinstance(found, RestartAtColdEnd) and found.offset == 10
