"""Which patterns of topics are taken: a broker's loop matches them, so none may try more than so many ways."""

from __future__ import annotations

import re
from re import _constants as words  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

NAME_CHARACTERS = 249
WAYS_MAX = 1 << 17
"""Of going through the longest name: two stars and a few alternatives, some ms of work."""
MANY: int = WAYS_MAX + 1
REPEATS = (words.MAX_REPEAT, words.MIN_REPEAT, words.POSSESSIVE_REPEAT)
REFUSED = (words.GROUPREF, words.GROUPREF_EXISTS, words.ASSERT, words.ASSERT_NOT)


def check(pattern: str) -> None:
    """ValueError with the reason when a pattern is none, or one that may take long."""
    if len(pattern) > NAME_CHARACTERS:
        raise ValueError(f"it has more than {NAME_CHARACTERS} characters")
    try:
        re.compile(pattern)
        ways = _ways(parser.parse(pattern))
    except (re.error, OverflowError, RecursionError):
        raise ValueError("it is no regular expression") from None
    if ways > WAYS_MAX:
        raise ValueError("there are too many ways to match it: two repetitions, none inside of another, are enough")


def _ways(sequence: Any) -> int:
    """How many ways there are at most to go through a name; `MANY` for more than may be."""
    product = 1
    for kind, given in sequence:
        product = min(product * _ways_of(kind, given), MANY)
    return product


def _ways_of(kind: Any, given: Any) -> int:
    if kind is words.BRANCH:
        return min(sum(map(_ways, given[1])), MANY)
    if kind is words.SUBPATTERN:
        return _ways(given[-1])
    if kind is words.ATOMIC_GROUP:
        return _ways(given)
    if kind in REPEATS:
        low, high = (min(int(count), NAME_CHARACTERS) for count in given[:2])
        ways = _ways(given[2])
        if ways > 1:
            total: int = sum(ways**count for count in range(low, high + 1))
            return min(total, MANY)
        return int(high - low + 1)
    return MANY if kind in REFUSED else 1
