"""The seven compatibility levels. A level says which earlier versions a schema is compared with, and who has to read
what: BACKWARD means that the new schema reads data of the earlier one, FORWARD the other way round, FULL both.

The comparison itself belongs to the format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

Parsed = TypeVar("Parsed")

MESSAGES_MAX = 20
"""Most differences that a reply names."""


class Comparison(NamedTuple):
    """The versions that a schema is compared with, by their places in the list of live versions, and the directions."""

    places: tuple[int, ...]
    backward: bool
    forward: bool


def plan_comparison(level: str, count: int) -> Comparison:
    """Returns what a level asks for, if the subject has `count` live versions."""
    if level == "NONE" or not count:
        return Comparison((), False, False)
    places = tuple(range(count - 1, -1, -1)) if level.endswith("_TRANSITIVE") else (count - 1,)
    direction = level.removesuffix("_TRANSITIVE")
    return Comparison(places, direction in ("BACKWARD", "FULL"), direction in ("FORWARD", "FULL"))


def find_differences(
    new: Parsed,
    earlier: Sequence[tuple[int, Parsed]],
    comparison: Comparison,
    can_read: Callable[[Parsed, Parsed], list[str]],
) -> list[str]:
    """Returns why a schema is not compatible; empty if it is. `earlier` has versions and schemas to compare with.

    `can_read(reader, writer)` returns why a reader cannot read what a writer wrote.
    """
    found: list[str] = []
    for version, old in earlier:
        if comparison.backward:
            found += [f"new schema cannot read version {version}: {why}" for why in can_read(new, old)]
        if comparison.forward:
            found += [f"version {version} cannot read the new schema: {why}" for why in can_read(old, new)]
        if len(found) >= MESSAGES_MAX:
            break
    return found[:MESSAGES_MAX]
