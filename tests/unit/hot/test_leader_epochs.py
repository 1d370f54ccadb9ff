"""Tests of the lineage: the epoch that wrote each offset, and the offset at which two histories diverge."""

from __future__ import annotations

import pytest

from tiered.hot.leader_epochs import LeaderEpochs

LINEAGE = ((0, 0), (2, 10), (5, 30))


def test_offset_belongs_to_the_epoch_that_began_at_or_before_it() -> None:
    epochs = LeaderEpochs(LINEAGE)
    assert [epochs.epoch_at(offset) for offset in (0, 9, 10, 29, 30, 99)] == [0, 0, 2, 2, 5, 5]
    assert LeaderEpochs(((3, 7),)).epoch_at(6) == -1


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(5, (5, 40)), (4, (2, 30)), (2, (2, 30)), (1, (0, 10)), (0, (0, 10)), (6, (-1, -1)), (-1, (-1, 0))],
)
def test_epoch_ends_where_the_next_one_began(asked: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochs(LINEAGE).end_offset_for(asked, 40) == answer


def test_empty_lineage_has_no_epoch() -> None:
    assert LeaderEpochs().end_offset_for(0, 7) == (-1, -1)
    assert LeaderEpochs().latest == -1


def test_new_epoch_removes_entries_that_it_contradicts() -> None:
    epochs = LeaderEpochs(LINEAGE)
    assert epochs.assign(6, 20)
    assert epochs.lineage == ((0, 0), (2, 10), (6, 20))
    assert not epochs.assign(6, 25), "the same epoch, further on, says nothing new"
    assert epochs.assign(3, 15)
    assert epochs.lineage == ((0, 0), (2, 10), (3, 15))
    epochs.check()


def test_epoch_without_records_is_replaced_by_the_next() -> None:
    epochs = LeaderEpochs(((1, 5),))
    assert epochs.assign(2, 5)
    assert epochs.lineage == ((2, 5),)


def test_cut_of_the_end_removes_epochs_that_began_there_or_later() -> None:
    epochs = LeaderEpochs(LINEAGE)
    assert epochs.truncate_from(30)
    assert epochs.lineage == ((0, 0), (2, 10))
    assert epochs.latest == 2
    assert not epochs.truncate_from(30)


def test_cut_of_the_start_keeps_the_epoch_that_wrote_there() -> None:
    epochs = LeaderEpochs(LINEAGE)
    assert epochs.truncate_start(12)
    assert epochs.lineage == ((2, 12), (5, 30))
    assert not epochs.truncate_start(3)


def test_range_of_offsets_has_the_epochs_that_wrote_it() -> None:
    epochs = LeaderEpochs(LINEAGE)
    assert epochs.lineage_within(12, 30) == ((2, 12),)
    assert epochs.lineage_within(5, 31) == ((0, 5), (2, 10), (5, 30))
    assert epochs.lineage_within(0, 10) == ((0, 0),)
