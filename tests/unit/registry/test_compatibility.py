"""The seven levels: whom a schema is compared with, and who reads what."""

from __future__ import annotations

import pytest

from tiered.registry.compatibility import MESSAGES_MAX, find_differences, plan_comparison


@pytest.mark.parametrize(
    ("level", "places", "backward", "forward"),
    [
        ("NONE", (), False, False),
        ("BACKWARD", (2,), True, False),
        ("FORWARD", (2,), False, True),
        ("FULL", (2,), True, True),
        ("BACKWARD_TRANSITIVE", (2, 1, 0), True, False),
        ("FORWARD_TRANSITIVE", (2, 1, 0), False, True),
        ("FULL_TRANSITIVE", (2, 1, 0), True, True),
    ],
)
def test_level_says_which_versions_and_who_reads(
    level: str, places: tuple[int, ...], backward: bool, forward: bool
) -> None:
    assert plan_comparison(level, 3) == (places, backward, forward)
    assert plan_comparison(level, 0) == ((), False, False)


def test_differences_say_who_cannot_read_whom() -> None:
    def can_read(reader: int, writer: int) -> list[str]:
        return [] if reader >= writer else [f"{reader} is below {writer}"]

    found = find_differences(2, [(1, 3), (7, 1)], plan_comparison("FULL_TRANSITIVE", 2), can_read)
    assert found == [
        "new schema cannot read version 1: 2 is below 3",
        "version 7 cannot read the new schema: 1 is below 2",
    ]
    assert find_differences(2, [(1, 1)], plan_comparison("BACKWARD", 1), can_read) == []


def test_differences_are_bounded() -> None:
    versions = [(n, n) for n in range(100)]
    found = find_differences(0, versions, plan_comparison("FULL_TRANSITIVE", 100), lambda a, b: ["no"])
    assert len(found) == MESSAGES_MAX
