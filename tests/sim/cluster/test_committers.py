"""Tests of the checker of groups without members, which knows what a loss may take of their offsets."""

from __future__ import annotations

import pytest

from tests.sim.cluster.committers import PLACE, CommitLoss, check_kept_commits, count_returns
from tests.sim.cluster.history import CommitAttempt, GroupOffsets
from tiered.errors import Code


def commit(offset: int, done: int, code: Code | None = Code.NONE) -> CommitAttempt:
    return CommitAttempt("g", PLACE, offset, done - 1, done, code)


def show(offset: int, at: int) -> tuple[GroupOffsets, bool]:
    return GroupOffsets("g", {PLACE: offset} if offset >= 0 else {}, at, at + 1), True


COMMITS = [commit(1, 10), commit(2, 20), commit(3, 30)]


@pytest.mark.parametrize(
    ("offset", "losses", "is_broken"),
    [
        (3, [], False),
        (2, [], True),
        (-1, [], True),
        (4, [], True),
        (2, [CommitLoss(35, 35, 25)], False),
        (1, [CommitLoss(35, 35, 25)], True),
        (1, [CommitLoss(35, 35, 15)], False),
        (-1, [CommitLoss(35, 35, -1)], False),
        (1, [CommitLoss(60, 60, -1)], True),
        (1, [CommitLoss(5, 5, -1)], True),
        (1, [CommitLoss(5, 40, -1)], False),
    ],
)
def test_i18_offset_that_no_loss_explains_is_reported(offset: int, losses: list[CommitLoss], is_broken: bool) -> None:
    """A loss takes what was acknowledged after its newest snapshot, and requested before it."""
    found = list(check_kept_commits(COMMITS, [show(offset, 50)], losses))
    assert [each.rule for each in found] == ["I18"] * is_broken


def test_i18_offset_that_was_shown_after_a_loss_stays() -> None:
    losses = [CommitLoss(35, 35, 15)]
    assert not list(check_kept_commits(COMMITS, [show(2, 50), show(2, 60)], losses))
    assert list(check_kept_commits(COMMITS, [show(2, 50), show(1, 60)], losses))


def test_commit_without_a_reply_may_arrive_late() -> None:
    commits = [commit(1, 10), commit(2, 20, None), commit(3, 30)]
    assert not list(check_kept_commits(commits, [show(2, 50)], []))
    assert list(check_kept_commits(commits, [show(1, 50)], []))


def test_reply_of_one_of_two_coordinators_proves_nothing() -> None:
    said, _ = show(1, 50)
    assert not list(check_kept_commits(COMMITS, [(said, False)], []))
    assert count_returns([show(3, 40), (said, False), show(2, 60), show(2, 70)]) == 1
