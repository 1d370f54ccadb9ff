"""The leader's rules: what is committed (R3), who joins (R2) and leaves, and where a new leader begins (R5)."""

from __future__ import annotations

import pytest

from tiered.errors import Fenced
from tiered.replication.leader_state import ColdLog, KeepLocalLog, LeaderState, ProposedIsr, RestartAtColdEnd, reconcile

LAG = 10
LIVE = {1: 11, 2: 22, 3: 33}


def led(isr: list[int], replicas: list[int] | None = None, *, start: int = 0, epoch: int = 7) -> LeaderState:
    """Broker 1 leads, since time 0."""
    return LeaderState(1, 4, isr, replicas=replicas or isr, epoch_start=start, partition_epoch=epoch)


def fetched(
    partition: LeaderState, broker: int, offset: int, *, now: int = 0, min_isr: int = 1, end: int | None = None
) -> bool:
    """A fetch of the live incarnation."""
    log_end = partition.end if end is None else end
    return partition.record_fetch(broker, LIVE[broker], offset, log_end=log_end, now_ns=now, min_isr=min_isr)


def granted(partition: LeaderState, isr: list[int], min_isr: int = 1) -> bool:
    """The metadata log has this in-sync set."""
    return partition.apply_isr(isr, partition.replicas, partition.partition_epoch + 1, min_isr)


def asked(partition: LeaderState, now: int = 0) -> ProposedIsr:
    """What it wishes, on its way to the controller."""
    wish = partition.next_isr_change(now, LAG, LIVE)
    assert wish is not None
    partition.begin_isr_change(wish)
    return wish


def test_alone_what_is_written_is_committed() -> None:
    partition = led([1])
    assert partition.advance(10, 1)
    assert partition.high_watermark == 10
    assert not partition.advance(10, 1)
    partition.check()


def test_what_is_committed_is_on_every_in_sync_copy() -> None:
    partition = led([1, 2, 3])
    assert not partition.advance(10, 2)
    assert not fetched(partition, 2, 10, min_isr=2)
    assert fetched(partition, 3, 7, min_isr=2)
    assert partition.high_watermark == 7


def test_a_leader_goes_on_from_what_it_knows_to_be_committed() -> None:
    partition = LeaderState(1, 4, [1, 2], replicas=[1, 2], epoch_start=12, high_watermark=9)
    partition.advance(12, 1)
    assert partition.high_watermark == 9
    assert not fetched(partition, 2, 5)
    assert partition.high_watermark == 9
    assert fetched(partition, 2, 12)
    partition.check()


def test_nothing_is_committed_below_the_minimum_of_in_sync_copies() -> None:
    partition = led([1, 2], [1, 2, 3])
    fetched(partition, 2, 10, min_isr=2)
    partition.advance(10, 2)
    assert partition.high_watermark == 10
    granted(partition, [1], 2)
    assert not partition.has_min_isr(2)
    assert not partition.advance(20, 2)
    assert partition.high_watermark == 10


def test_a_minimum_above_the_copies_asks_for_all_of_them() -> None:
    partition = led([1])
    assert partition.has_min_isr(2)
    assert partition.advance(5, 2)


def test_a_proposed_member_counts_before_it_is_committed() -> None:
    partition = led([1], [1, 2])
    partition.advance(10, 1)
    fetched(partition, 2, 10)
    assert asked(partition) == ProposedIsr(7, ((1, 11), (2, 22)))
    assert not partition.advance(20, 1)
    assert fetched(partition, 2, 15)
    assert partition.high_watermark == 15
    partition.check()


def test_a_member_counts_until_its_leaving_is_committed() -> None:
    partition = led([1, 2])
    partition.advance(20, 1)
    fetched(partition, 2, 10)
    assert asked(partition, now=LAG + 1).isr == {1}
    assert partition.high_watermark == 10
    assert granted(partition, [1])
    assert partition.high_watermark == 20


def test_a_follower_joins_only_from_the_start_of_the_leaders_epoch() -> None:
    partition = LeaderState(1, 4, [1, 3], replicas=[1, 2, 3], epoch_start=50)
    partition.advance(50, 1)
    assert not partition.should_join_isr(2, 0, LAG)
    fetched(partition, 2, 49, end=49)
    assert not partition.should_join_isr(2, 0, LAG)
    fetched(partition, 2, 50)
    assert partition.should_join_isr(2, 0, LAG)


def test_a_follower_joins_only_with_all_that_is_committed() -> None:
    partition = led([1], [1, 2])
    partition.advance(50, 1)
    fetched(partition, 2, 49, end=49)
    assert not partition.should_join_isr(2, 0, LAG)
    assert partition.next_isr_change(0, LAG, LIVE) is None


def test_a_follower_that_would_leave_at_once_does_not_join() -> None:
    partition = led([1, 3], [1, 2, 3])
    partition.advance(90, 1)
    fetched(partition, 3, 50)
    fetched(partition, 2, 60)
    assert not partition.should_join_isr(2, LAG + 1, LAG)
    fetched(partition, 2, 90, now=LAG + 2)
    assert partition.should_join_isr(2, LAG + 2, LAG)


def test_a_follower_that_reads_all_there_was_is_in_sync_while_the_leader_writes_on() -> None:
    partition = led([1, 2])
    for now in range(0, 10 * LAG, LAG // 2):
        partition.advance(100 + now, 1)
        fetched(partition, 2, 100 + now - LAG // 2, now=now)
        assert not partition.is_lagging(2, now, LAG)
    assert partition.is_lagging(2, 11 * LAG, LAG)


def test_a_member_that_asks_again_at_the_end_has_caught_up_again() -> None:
    partition = led([1, 2], [1, 2, 3])
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


def test_a_follower_that_reads_but_never_gets_to_the_end_leaves() -> None:
    partition = led([1, 2])
    for now in range(LAG + 2):
        partition.advance(100 * (now + 1), 1)
        fetched(partition, 2, now, now=now)
    assert partition.is_lagging(2, LAG + 2, LAG)


def test_a_member_that_was_never_heard_has_its_time_from_when_the_leader_began() -> None:
    partition = led([1, 2])
    assert partition.next_isr_change(LAG, LAG, LIVE) is None
    wish = partition.next_isr_change(LAG + 1, LAG, LIVE)
    assert wish is not None and wish.isr == {1}


def test_who_has_everything_stays_however_long_it_is_silent() -> None:
    partition = led([1, 2])
    partition.advance(10, 1)
    fetched(partition, 2, 10)
    assert partition.next_isr_change(100 * LAG, LAG, LIVE) is None


def test_only_live_brokers_are_wished_for_by_the_incarnation_that_fetched() -> None:
    partition = led([1], [1, 2])
    fetched(partition, 2, 0)
    assert partition.next_isr_change(0, LAG, {1: 11}) is None
    assert partition.next_isr_change(0, LAG, {1: 11, 2: 99}) is None
    assert partition.next_isr_change(0, LAG, {2: 22}) is None
    assert partition.next_isr_change(0, LAG, LIVE) == ProposedIsr(7, ((1, 11), (2, 22)))


def test_one_wish_at_a_time_is_under_way() -> None:
    partition = led([1], [1, 2, 3])
    fetched(partition, 2, 0)
    asked(partition)
    fetched(partition, 3, 0)
    assert partition.next_isr_change(0, LAG, LIVE) is None
    granted(partition, [1, 2])
    assert asked(partition).isr == {1, 2, 3}


def test_a_refused_wish_counts_no_more() -> None:
    partition = led([1], [1, 2])
    fetched(partition, 2, 0)
    wish = asked(partition)
    assert not partition.advance(10, 1)
    assert partition.reject_isr_change(wish, 1)
    assert partition.high_watermark == 10
    partition.check()


def test_a_new_incarnation_does_not_join_by_what_the_one_before_had() -> None:
    """The question for broker 2 is never answered; broker 2 loses its power and comes back with less."""
    partition = led([1], [1, 2])
    partition.advance(10, 1)
    fetched(partition, 2, 10)
    wish = asked(partition)
    assert wish.isr == {1, 2}
    partition.isr_change_unknown(wish)
    later = {**LIVE, 2: 222}
    assert partition.next_isr_change(0, LAG, later) == ProposedIsr(7, ((1, 11),)), (
        "said again, for who may have been granted"
    )
    partition.record_fetch(2, 222, 6, log_end=10, now_ns=0, min_isr=1)
    assert partition.next_isr_change(0, LAG, later) == ProposedIsr(7, ((1, 11),))
    assert partition.high_watermark == 10
    partition.record_fetch(2, 222, 10, log_end=10, now_ns=0, min_isr=1)
    assert partition.next_isr_change(0, LAG, later) == ProposedIsr(7, ((1, 11), (2, 222)))


def test_a_wish_without_an_answer_counts_until_the_metadata_log_goes_on() -> None:
    partition = led([1], [1, 2, 3])
    fetched(partition, 2, 0)
    partition.isr_change_unknown(asked(partition))
    fetched(partition, 3, 0)
    second = asked(partition)
    assert second.isr == {1, 2, 3}
    partition.reject_isr_change(second, 1)
    assert not partition.advance(10, 1)
    partition.check()
    assert granted(partition, [1])
    assert partition.high_watermark == 10


def test_after_a_wish_without_an_answer_even_no_change_is_wished_for() -> None:
    partition = led([1], [1, 2])
    fetched(partition, 2, 0)
    partition.isr_change_unknown(asked(partition))
    assert partition.next_isr_change(0, LAG, {1: 11}) == ProposedIsr(7, ((1, 11),))


def test_an_answer_to_a_wish_that_is_over_changes_nothing() -> None:
    partition = led([1], [1, 2])
    fetched(partition, 2, 0)
    wish = asked(partition)
    granted(partition, [1])
    newer = asked(partition)
    assert not partition.reject_isr_change(wish, 1)
    partition.isr_change_unknown(wish)
    assert partition.next_isr_change(0, LAG, LIVE) is None
    assert not partition.advance(10, 1)
    assert newer.partition_epoch == 8


def test_what_is_known_of_a_replica_ends_when_it_is_none_any_more() -> None:
    """Added again it has an empty log."""
    partition = led([1, 2], [1, 2, 3])
    partition.advance(10, 1)
    fetched(partition, 3, 10)
    assert partition.can_join_isr(3)
    partition.apply_isr([1, 2], [1, 2], 8, 1)
    partition.apply_isr([1, 2], [1, 2, 3], 9, 1)
    assert not partition.can_join_isr(3)


def test_an_older_in_sync_set_is_no_news() -> None:
    partition = led([1, 2])
    assert not partition.apply_isr([1], [1, 2], 7, 1)
    assert partition.isr == {1, 2}


def test_another_incarnation_of_an_in_sync_follower_is_fenced() -> None:
    partition = led([1, 2])
    fetched(partition, 2, 5)
    with pytest.raises(Fenced):
        partition.record_fetch(2, 99, 0, log_end=5, now_ns=0, min_isr=1)
    granted(partition, [1])
    partition.record_fetch(2, 99, 0, log_end=5, now_ns=0, min_isr=1)
    assert partition.follower_offset(2) == 0


def test_who_is_no_other_replica_is_fenced() -> None:
    for broker in (1, 3):
        with pytest.raises(Fenced):
            fetched(led([1, 2]), broker, 5)


def test_a_position_never_goes_back() -> None:
    partition = led([1])
    partition.advance(10, 1)
    assert not partition.advance(7, 1)
    assert partition.high_watermark == 10
    partition.check()


LINEAGE = [(0, 0), (2, 100), (5, 250)]


def test_a_log_that_agrees_with_what_is_cold_is_kept() -> None:
    assert reconcile(80, 400, LINEAGE, ColdLog(0, 300, LINEAGE)) == KeepLocalLog()
    assert reconcile(260, 300, [(5, 260)], ColdLog(0, 300, LINEAGE)) == KeepLocalLog()


def test_a_lineage_that_was_cut_at_its_front_says_nothing_about_what_was_there() -> None:
    assert reconcile(80, 300, LINEAGE, ColdLog(0, 300, [(2, 120), (5, 250)])) == KeepLocalLog()
    assert reconcile(80, 300, [(2, 130), (5, 250)], ColdLog(0, 300, LINEAGE)) == KeepLocalLog()


def test_a_log_that_begins_at_the_cold_end_has_nothing_to_disagree_about() -> None:
    assert reconcile(300, 400, [(9, 300)], ColdLog(0, 300, LINEAGE)) == KeepLocalLog()


def test_an_empty_log_at_the_cold_end_knows_the_epochs_below_or_restarts() -> None:
    """A disk that was full in the middle of a start over left the epochs of what was there before: nobody who had those
    of the bucket could follow."""
    assert reconcile(300, 300, LINEAGE, ColdLog(0, 300, LINEAGE)) == KeepLocalLog()
    assert reconcile(0, 0, [], ColdLog(0, 0, [])) == KeepLocalLog()
    for lineage in ([(0, 0)], [(0, 0), (2, 100)]):
        found = reconcile(300, 300, lineage, ColdLog(0, 300, LINEAGE))
        assert isinstance(found, RestartAtColdEnd) and found.offset == 300, lineage
        assert found.empty, "no record goes by it"


def test_an_empty_log_is_not_asked_for_epochs_that_only_sub_manifests_know() -> None:
    newest = [(2, 180), (5, 250)]
    assert reconcile(300, 300, LINEAGE, ColdLog(0, 300, newest)) == KeepLocalLog()
    assert isinstance(reconcile(300, 300, [(0, 0), (4, 200)], ColdLog(0, 300, newest)), RestartAtColdEnd)


def test_a_log_that_ends_below_the_cold_end_restarts_there() -> None:
    found = reconcile(0, 0, [], ColdLog(0, 300, LINEAGE))
    assert isinstance(found, RestartAtColdEnd)
    assert found.offset == 300 and not found.empty


@pytest.mark.parametrize("lineage", [[(0, 0), (2, 100), (4, 250)], [(0, 0), (2, 90), (5, 250)], [(0, 0), (2, 100)]])
def test_a_log_of_another_history_gives_way_to_what_is_cold(lineage: list[tuple[int, int]]) -> None:
    found = reconcile(80, 400, lineage, ColdLog(0, 300, LINEAGE))
    assert isinstance(found, RestartAtColdEnd)
    assert found.offset == 300


def told_start(partition: LeaderState, broker: int, log_start: int, offset: int = 20) -> None:
    """A fetch of a follower whose log starts there."""
    partition.record_fetch(broker, LIVE[broker], offset, log_end=20, now_ns=0, min_isr=1, log_start=log_start)


def test_deletion_is_known_elsewhere_once_every_member_of_the_isr_said_so() -> None:
    partition = led([1, 2, 3])
    partition.advance(20, 1)
    told_start(partition, 2, 10)
    assert not partition.is_deleted_on_isr(10), "nobody heard broker 3"
    told_start(partition, 3, 9)
    assert not partition.is_deleted_on_isr(10)
    told_start(partition, 3, 12)
    assert partition.is_deleted_on_isr(10) and not partition.is_deleted_on_isr(11)


def test_deletion_waits_for_a_proposed_member_and_not_for_one_that_left() -> None:
    partition = led([1, 2], [1, 2, 3])
    partition.advance(20, 1)
    told_start(partition, 2, 10)
    told_start(partition, 3, 9)
    assert partition.is_deleted_on_isr(10), "broker 3 is not in sync"
    asked(partition)
    assert not partition.is_deleted_on_isr(10), "broker 3 may be in sync by now"
    granted(partition, [1])
    assert partition.is_deleted_on_isr(20), "nobody else is"


def test_follower_that_lacks_a_deletion_does_not_join_the_isr() -> None:
    partition = led([1], [1, 2])
    partition.advance(20, 1)
    partition.record_deletion(10)
    told_start(partition, 2, 9)
    assert partition.next_isr_change(0, LAG, LIVE) is None
    told_start(partition, 2, 10)
    assert asked(partition).isr == {1, 2}


def test_everybody_in_several_wishes_without_an_answer_counts() -> None:
    partition = led([1], [1, 2, 3])
    partition.begin_isr_change(ProposedIsr(7, ((1, 11), (2, 22))))
    partition.isr_change_unknown(ProposedIsr(7, ((1, 11), (2, 22))))
    partition.begin_isr_change(ProposedIsr(7, ((1, 11), (3, 33))))
    partition.advance(10, 1)
    assert not fetched(partition, 3, 10)
    assert partition.high_watermark == 0, "broker 2 may be in sync by then"
    assert fetched(partition, 2, 10)


def test_after_a_commit_nothing_is_wished_without_need() -> None:
    partition = led([1], [1, 2])
    partition.begin_isr_change(ProposedIsr(7, ((1, 11), (2, 22))))
    partition.isr_change_unknown(ProposedIsr(7, ((1, 11), (2, 22))))
    assert partition.next_isr_change(0, LAG, LIVE) is not None, (
        "only another change tells that the first is not granted any more"
    )
    granted(partition, [1])
    assert partition.next_isr_change(0, LAG, LIVE) is None


def test_who_is_about_to_stop_is_not_wished_for_and_stays_where_it_is_in_sync() -> None:
    partition = led([1, 2], [1, 2, 3])
    fetched(partition, 3, 0)
    fetched(partition, 2, 0)
    wish = partition.next_isr_change(0, LAG, LIVE)
    assert wish is not None and wish.isr == {1, 2, 3}
    assert partition.next_isr_change(0, LAG, LIVE, stopping=(2, 3)) is None


def test_a_log_that_ends_between_the_start_and_the_end_of_what_is_cold_goes_for_the_bucket() -> None:
    found = reconcile(0, 5, ((0, 0),), ColdLog(0, 10, ((0, 0),)))
    assert isinstance(found, RestartAtColdEnd) and found.offset == 10
