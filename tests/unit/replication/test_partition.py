"""The leader's rules: what is committed (R3), who joins (R2), and where a new leader begins (R5)."""

from __future__ import annotations

import pytest

from tiered.errors import Fenced
from tiered.replication.partition import Cold, Keep, Partition, Restart, reconcile


def test_alone_what_is_written_is_committed() -> None:
    partition = Partition(1, 4, [1], copies=1, epoch_start=0)
    assert partition.advance(10, 1)
    assert partition.high_watermark == 10
    assert not partition.advance(10, 1)
    partition.check()


def test_what_is_committed_is_on_every_in_sync_copy() -> None:
    partition = Partition(1, 4, [1, 2, 3], copies=3, epoch_start=0)
    assert not partition.advance(10, 2)
    assert not partition.fetched(2, "b", 10, 2)
    assert partition.fetched(3, "c", 7, 2)
    assert partition.high_watermark == 7


def test_nothing_is_committed_below_the_minimum_of_in_sync_copies() -> None:
    partition = Partition(1, 4, [1, 2], copies=3, epoch_start=0)
    partition.fetched(2, "b", 10, 2)
    partition.advance(10, 2)
    assert partition.high_watermark == 10
    partition.commit([1], 2)
    assert not partition.may_ack(2)
    assert not partition.advance(20, 2)
    assert partition.high_watermark == 10


def test_a_minimum_above_the_copies_asks_for_all_of_them() -> None:
    partition = Partition(1, 4, [1], copies=1, epoch_start=0)
    assert partition.may_ack(2)
    assert partition.advance(5, 2)


def test_a_proposed_member_counts_before_it_is_committed() -> None:
    partition = Partition(1, 4, [1], copies=2, epoch_start=0)
    partition.advance(10, 1)
    partition.fetched(2, "b", 10, 1)
    partition.propose([1, 2])
    assert not partition.advance(20, 1)
    assert partition.fetched(2, "b", 15, 1)
    assert partition.high_watermark == 15


def test_a_follower_joins_only_from_the_start_of_the_leaders_epoch() -> None:
    partition = Partition(1, 4, [1], copies=2, epoch_start=50)
    assert not partition.may_join(2)
    partition.fetched(2, "b", 49, 1)
    assert not partition.may_join(2)
    partition.fetched(2, "b", 50, 1)
    assert partition.may_join(2)


def test_another_incarnation_of_an_in_sync_follower_is_fenced() -> None:
    partition = Partition(1, 4, [1, 2], copies=2, epoch_start=0)
    partition.fetched(2, "b", 5, 1)
    with pytest.raises(Fenced):
        partition.fetched(2, "b2", 0, 1)


def test_a_position_never_goes_back() -> None:
    partition = Partition(1, 4, [1], copies=1, epoch_start=0)
    partition.advance(10, 1)
    assert not partition.advance(7, 1)
    assert partition.high_watermark == 10
    partition.check()


LINEAGE = [(0, 0), (2, 100), (5, 250)]


def test_a_log_that_agrees_with_what_is_cold_is_kept() -> None:
    assert reconcile(80, 400, LINEAGE, Cold(0, 300, LINEAGE)) == Keep()
    assert reconcile(260, 300, [(5, 260)], Cold(0, 300, LINEAGE)) == Keep()


def test_a_lineage_that_was_cut_at_its_front_says_nothing_about_what_was_there() -> None:
    assert reconcile(80, 300, LINEAGE, Cold(0, 300, [(2, 120), (5, 250)])) == Keep()
    assert reconcile(80, 300, [(2, 130), (5, 250)], Cold(0, 300, LINEAGE)) == Keep()


def test_a_log_that_begins_at_the_cold_end_has_nothing_to_disagree_about() -> None:
    assert reconcile(300, 400, [(9, 300)], Cold(0, 300, LINEAGE)) == Keep()


def test_a_log_that_ends_below_the_cold_end_restarts_there() -> None:
    found = reconcile(0, 0, [], Cold(0, 300, LINEAGE))
    assert isinstance(found, Restart)
    assert found.offset == 300


@pytest.mark.parametrize("lineage", [[(0, 0), (2, 100), (4, 250)], [(0, 0), (2, 90), (5, 250)], [(0, 0), (2, 100)]])
def test_a_log_of_another_history_gives_way_to_what_is_cold(lineage: list[tuple[int, int]]) -> None:
    found = reconcile(80, 400, lineage, Cold(0, 300, LINEAGE))
    assert isinstance(found, Restart)
    assert found.offset == 300
