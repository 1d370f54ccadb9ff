"""The rules of possible losses: what falls to where, by values alone (R1, R4, R5)."""

from __future__ import annotations

import pytest

from tiered.durability.loss_rules import (
    ANY_EPOCH,
    ANY_TIME,
    LedSinceLoss,
    OffsetLimit,
    find_limit,
    find_new_losses,
    find_renewal,
    is_overstated,
    is_unreported,
)
from tiered.metadata.parts.topics import Loss, PartitionImage, add_loss

OLD, NEW = Loss(3, 30, 1_000), Loss(5, 50, 2_000)
FROM_ZERO = Loss(4, 0, 1_500)
LED = LedSinceLoss(leader_epoch=5, epoch_start=55, log_end=90, led_since_slot=7)
"""This broker leads the partition since the second loss, and found less of it than the controller knew."""


@pytest.mark.parametrize(
    ("epoch", "limit"),
    [
        pytest.param(2, OffsetLimit(30, 3), id="the earlier of two losses"),
        pytest.param(3, OffsetLimit(50, 5), id="a loss of its own epoch is none"),
        pytest.param(5, None, id="no later loss"),
        pytest.param(-1, None, id="without an epoch an open loss tells nothing"),
    ],
)
def test_offset_with_an_epoch_falls_to_the_lowest_later_loss(epoch: int, limit: OffsetLimit | None) -> None:
    assert find_limit(epoch, (OLD, NEW), (), None) == limit
    assert find_limit(epoch, (OLD, FROM_ZERO, NEW), (), None) == limit, "a loss from 0 on sets no limit"


@pytest.mark.parametrize(
    ("new_losses", "limit"),
    [
        pytest.param((), None, id="none"),
        pytest.param((NEW,), OffsetLimit(50, 5), id="one, and an older one was known"),
        pytest.param((OLD, NEW), OffsetLimit(30, 3), id="two"),
        pytest.param((FROM_ZERO,), None, id="from 0 on"),
    ],
)
def test_offset_without_an_epoch_falls_to_the_losses_since(
    new_losses: tuple[Loss, ...], limit: OffsetLimit | None
) -> None:
    assert find_limit(-1, (OLD, NEW), new_losses, None) == limit
    assert find_limit(-1, (OLD, NEW), new_losses, None, loaded_before_slot=9) == limit


def test_leader_since_a_loss_goes_by_the_start_of_its_epoch() -> None:
    assert find_limit(4, (NEW,), (), LED) == find_limit(4, (), (NEW,), LED) == OffsetLimit(55, 5)
    assert find_limit(2, (OLD, NEW), (), LED) == OffsetLimit(30, 3)
    assert find_limit(-1, (), (NEW,), LED) == find_limit(-1, (), (FROM_ZERO,), LED) == OffsetLimit(55, 5)


@pytest.mark.parametrize(
    ("loaded_before_slot", "limit"),
    [
        pytest.param(None, None, id="not loaded: it may be one of the new records"),
        pytest.param(7, OffsetLimit(55, 5), id="committed before this broker led"),
        pytest.param(8, OffsetLimit(90, ANY_EPOCH), id="committed since, or before"),
    ],
)
def test_loaded_offset_without_an_epoch_falls_if_older_than_the_leader(
    loaded_before_slot: int | None, limit: OffsetLimit | None
) -> None:
    assert find_limit(-1, (NEW,), (), LED, loaded_before_slot) == limit
    assert find_limit(-1, (NEW,), (NEW,), LED, loaded_before_slot) == OffsetLimit(55, 5), "a new loss says more"


def test_losses_that_the_image_merges_are_no_new_loss() -> None:
    """Offsets without a leader epoch would go back to the oldest loss that nobody acknowledged."""
    known = tuple(Loss(epoch, 10 * epoch, epoch) for epoch in (3, 4, 5, 6))
    partition = PartitionImage((1,), 1, 7, (1,), ())
    newer = Loss(7, 90, 7)
    losses = add_loss(known, partition, newer)
    assert losses[0] == Loss(4, 30, 3) and find_new_losses(known, losses) == [newer]
    again = add_loss(losses, partition, Loss(8, 95, 8))
    assert find_new_losses(known, again) == [newer, Loss(8, 95, 8)]


def test_loss_is_new_if_it_is_later_or_has_another_offset() -> None:
    refined = Loss(5, 45, 2_000)
    assert find_new_losses((OLD, NEW), (OLD, refined)) == [refined]
    assert find_new_losses((OLD, NEW), (OLD, NEW._replace(at_ms=3_000))) == []
    assert find_new_losses((OLD, NEW), (NEW,)) == [], "an operator has acknowledged the other"
    assert find_new_losses((), (OLD, NEW)) == [OLD, NEW]


@pytest.mark.parametrize(
    ("loss", "is_part_lost", "is_renewed", "until_ms"),
    [
        pytest.param(None, False, False, None, id="no loss"),
        pytest.param(None, True, False, ANY_TIME, id="a snapshot is damaged"),
        pytest.param(NEW, False, False, ANY_TIME, id="the loss of this leader epoch"),
        pytest.param(NEW, False, True, 2_000, id="its producers are renewed"),
        pytest.param(OLD, False, False, 1_000, id="the loss of an earlier epoch"),
        pytest.param(None, True, True, None, id="a damaged snapshot, loaded again"),
    ],
)
def test_ids_that_may_be_older_than_a_loss_get_new_producers(
    loss: Loss | None, is_part_lost: bool, is_renewed: bool, until_ms: int | None
) -> None:
    assert find_renewal(loss, 5, is_part_lost=is_part_lost, is_renewed=is_renewed) == until_ms


def test_loss_is_reported_until_the_metadata_log_has_all_of_it() -> None:
    assert [is_unreported(each, 5, 50) for each in (None, OLD, NEW, NEW._replace(from_offset=51), FROM_ZERO)] == [
        True, True, False, True, True,
    ]  # fmt: skip
    assert not is_unreported(NEW._replace(from_offset=0), 5, 50), "more is recorded"


def test_loss_is_overstated_while_it_covers_records_in_the_bucket() -> None:
    assert [is_overstated(each, 5, 51) for each in (None, OLD, NEW, NEW._replace(from_offset=51))] == [
        False, False, True, False,
    ]  # fmt: skip
