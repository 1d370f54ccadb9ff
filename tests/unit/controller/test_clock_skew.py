"""Tests of the comparison of clocks: its bound, the beginning and end of a problem, and the sentences about it."""

from __future__ import annotations

import random

import pytest

from tiered.controller.clock_skew import (
    ROUNDING_MS,
    ClockSkew,
    compare_clocks,
    describe_clocks,
    describe_own_clock,
)
from tiered.peers import ClockComparison

MAX_MS = 5_000


def skew(ahead_ms: int, error_ms: int = 20) -> ClockSkew:
    state = ClockSkew()
    state.judge(ClockComparison(ahead_ms, error_ms), MAX_MS)
    return state


def test_true_difference_is_within_the_error_however_the_way_is_split() -> None:
    rng = random.Random(1)
    for _ in range(2_000):
        ahead, there, held, back = rng.uniform(-1e7, 1e7), rng.uniform(0, 500), rng.uniform(0, 3_000), rng.uniform(0, 9)
        began = 1.7e12 + rng.random()
        replied = began + there + held
        arrived = replied + back
        found = compare_clocks(int(arrived + ahead), int(replied), int(there + held + back), int(held))
        assert abs(found.ahead_ms - ahead) <= found.error_ms
        assert found.error_ms <= (there + back) / 2 + 2 * ROUNDING_MS, "the held time costs nothing"


def test_step_of_the_clock_during_a_round_trip_leaves_the_error_small() -> None:
    assert compare_clocks(9_000_000, 2_000_000, 1_010, 1_000) == ClockComparison(6_999_995, 6)


@pytest.mark.parametrize("side", [1, -1])
def test_problem_begins_and_ends_only_where_the_error_leaves_no_doubt(side: int) -> None:
    state = ClockSkew()
    changes = [
        state.judge(ClockComparison(side * distance, error), MAX_MS)
        for distance, error in (
            (4_000, 900), (5_100, 100), (5_101, 100), (6_000, 20), (6_000, 9_000), (4_950, 51), (4_950, 50), (0, 6_000),
        )
    ]  # fmt: skip
    assert changes == [False, False, True, False, False, False, True, False]


def test_own_clock_is_described_with_numbers_while_it_differs() -> None:
    assert describe_own_clock(skew(7_200_000), 2) == [
        "the clock of this broker is 7,200.0 s ahead of the controller's (broker 2); +-0.02 s"
    ]
    assert describe_own_clock(skew(-3_600_040, 1_500), 1) == [
        "the clock of this broker is 3,600.0 s behind the controller's (broker 1); +-1.50 s"
    ]
    assert describe_own_clock(skew(4_000), 1) == describe_own_clock(ClockSkew(), 1) == []


def test_controller_names_each_broker_whose_clock_differs() -> None:
    skews = {3: skew(7_200_000), 2: skew(10), 4: skew(-6_000), 5: ClockSkew()}
    assert describe_clocks(skews, MAX_MS) == (
        [],
        [
            "the clock of broker 3 is 7,200.0 s ahead of the controller's; +-0.02 s",
            "the clock of broker 4 is 6.0 s behind the controller's; +-0.02 s",
        ],
    )


def test_controller_whose_clock_differs_from_all_that_agree_names_itself() -> None:
    skews = {1: skew(-7_199_000), 3: skew(-7_200_500, 30)}
    assert describe_clocks(skews, MAX_MS) == (
        ["the clock of this broker, the controller, is 7,199.0 s ahead of those of all others; +-0.03 s"],
        [],
    )


@pytest.mark.parametrize(
    "skews", [{1: skew(7_200_000)}, {1: skew(7_200_000), 3: skew(-7_200_000)}, {1: skew(60_000), 3: skew(65_001)}]
)
def test_controller_blames_itself_only_if_two_others_agree(skews: dict[int, ClockSkew]) -> None:
    own, others = describe_clocks(skews, MAX_MS)
    assert own == [] and len(others) == len(skews)
