"""The choice of an assignor."""

from __future__ import annotations

import pytest

from tiered.groups.consumer.assignors import ASSIGNORS, choose_assignor


@pytest.mark.parametrize(
    ("wishes", "chosen"),
    [
        ([], "uniform"),
        ([None, None, "range"], "range"),
        (["range", "uniform"], "uniform"),
        (["range", "uniform", "range"], "range"),
        (["gone", "gone", "range"], "range"),
    ],
)
def test_assignor_of_most_members_is_chosen(wishes: list[str | None], chosen: str) -> None:
    assert choose_assignor(wishes) == chosen


def test_assignors_stand_in_the_order_of_kafkas_setting() -> None:
    assert list(ASSIGNORS) == ["uniform", "range"]
