"""One fact of an explanation: a code and values for programs, a sentence for people, and what mends a trouble."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

LISTED_MAX = 20
"""Most causes of one kind."""

T = TypeVar("T")


class Cause(NamedTuple):
    """A fact that explains. `mend` names the act or the setting that mends a trouble; "" for a state that needs
    nothing."""

    code: str
    sentence: str
    values: Mapping[str, Any]
    mend: str = ""

    def describe(self) -> str:
        """Returns the sentence, and after it what mends the trouble."""
        return " ".join(f"{each[0].upper()}{each[1:]}." for each in (self.sentence, self.mend) if each)


def describe_causes(causes: Iterable[Cause]) -> dict[str, Any]:
    """Returns the causes as JSON has them, the troubles first."""
    found = sorted(causes, key=lambda each: not each.mend)
    return {
        "facts": [
            {"code": each.code, "trouble": bool(each.mend), "values": dict(each.values), "mend": each.mend or None}
            for each in found
        ],
        "sentences": [each.describe() for each in found],
    }


def first_of(items: Sequence[T]) -> Sequence[T]:
    """Returns those of a kind that are listed."""
    return items[:LISTED_MAX]


def describe_rest(code: str, items: Sequence[object], what: str) -> Iterator[Cause]:
    """Yields how many more there are than those that are listed."""
    more = len(items) - LISTED_MAX
    if more > 0:
        yield Cause(code, f"and {more} more {what}", {"more": more})


def plural(count: int, word: str) -> str:
    """Returns a number of things in words."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def format_nodes(nodes: Sequence[int], word: str = "and") -> str:
    """Returns brokers by their numbers."""
    *first, last = map(str, nodes)
    return f"brokers {', '.join(first)} {word} {last}" if first else f"broker {last}"
