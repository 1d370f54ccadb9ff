"""The mean time of a change: that of the newest ones, and never more than a bound."""

from __future__ import annotations

from tiered.controller.change_time import CHANGES, MEAN_NS_MAX, ChangeTime


def test_mean_is_that_of_all_changes_and_0_before_the_first() -> None:
    time = ChangeTime()
    time.spend(900)
    assert time.mean_ns == 0
    time.count(1)
    time.count(2)
    assert time.mean_ns == 300


def test_older_changes_count_ever_less() -> None:
    time = ChangeTime()
    for _ in range(8 * CHANGES):
        time.spend(1_000_000)
        time.count(1)
    for _ in range(8 * CHANGES):
        time.spend(1_000)
        time.count(1)
    assert 1_000 <= time.mean_ns < 20_000


def test_image_of_a_snapshot_makes_no_change_dearer_than_the_bound() -> None:
    time = ChangeTime()
    time.spend(10**10)
    time.count(0)
    time.count(1)
    assert time.mean_ns == MEAN_NS_MAX
