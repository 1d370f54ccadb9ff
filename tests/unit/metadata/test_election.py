"""Tests of the epoch and slot of a candidate for controller."""

from __future__ import annotations

import pytest

from tiered.metadata.election import Candidate, SlotOutcome, new_candidate


def test_candidate_has_an_epoch_above_every_one_it_has_read() -> None:
    assert new_candidate(4, 17) == Candidate(5, 17)


def test_candidate_tries_the_next_slot_after_an_older_epoch() -> None:
    assert Candidate(5, 17).on_slot_lost(4) == (SlotOutcome.NEXT_SLOT, Candidate(5, 18))


@pytest.mark.parametrize("epoch", [5, 6])
def test_slot_lost_to_an_equal_or_higher_epoch_ends_the_candidacy(epoch: int) -> None:
    assert Candidate(5, 17).on_slot_lost(epoch) == (SlotOutcome.SUPERSEDED, Candidate(5, 17))
