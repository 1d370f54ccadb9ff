"""Regular expressions of topic names, matched in time that is linear in the length of the name.

Python's `re` backtracks: two `.*` take 0.5 ms for a long name, more repetitions minutes. Here Python's parser reads the
expression, and an automaton of its positions (Glushkov) walks through the name once. A set of positions is the bits of
a number.
"""

from __future__ import annotations

import re
import string
import warnings
from collections.abc import Iterable
from re import _constants as words  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

NAME_CHARACTERS = 249
POSITIONS_MAX = 256
"""Most characters and classes of an expression, after repetitions by number are expanded."""
PARTS_MAX = 2_048
"""Most parts of all kinds after expansion: empty parts take time too."""
FOLLOWERS_CACHE_MAX = 1_000
"""Most sets of positions whose followers are cached; at this limit, the cache is cleared."""
ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
"""All characters that a topic's name may have."""
CATEGORIES = {
    words.CATEGORY_DIGIT: frozenset(string.digits),
    words.CATEGORY_WORD: ALPHABET - frozenset(".-"),
    words.CATEGORY_SPACE: frozenset(),
}
CATEGORIES |= {
    words.CATEGORY_NOT_DIGIT: ALPHABET - CATEGORIES[words.CATEGORY_DIGIT],
    words.CATEGORY_NOT_WORD: ALPHABET - CATEGORIES[words.CATEGORY_WORD],
    words.CATEGORY_NOT_SPACE: ALPHABET,
}
BEGINNINGS = (words.AT_BEGINNING, words.AT_BEGINNING_STRING)
ENDS = (words.AT_END, words.AT_END_STRING)


class _Part(NamedTuple):
    """A part of an expression: the positions that may come first and last in it, and whether it matches the empty
    string."""

    first: int
    last: int
    empty: bool


_NOTHING = _Part(0, 0, True)


class TopicPattern:
    """One expression. Raises ValueError with the reason if the expression is malformed or not supported."""

    def __init__(self, text: str) -> None:
        if len(text) > NAME_CHARACTERS:
            raise ValueError(f"it has more than {NAME_CHARACTERS} characters")
        try:
            with warnings.catch_warnings():
                # These warn of sets that a later Python may read otherwise. Operators can do nothing about it.
                warnings.simplefilter("ignore", FutureWarning)
                parsed = parser.parse(text)
        except (re.error, OverflowError, RecursionError):
            raise ValueError("it is no regular expression") from None
        self._follow: list[int] = []
        """By position, the positions that may come after it."""
        self._positions_by_char: dict[str, int] = dict.fromkeys(ALPHABET, 0)
        """By character, the positions that match it."""
        self._parts = 0
        try:
            whole = self._sequence(parsed, parsed.state.flags, True, True)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        self._first, self._last, self._empty = whole
        self._followers_cache: dict[int, int] = {}
        self.steps_per_char = max(len(self._follow), 1)
        """Most steps that one character of a name takes."""

    def matches(self, name: str) -> bool:
        """True if the expression matches the whole name."""
        if not name:
            return self._empty
        after, where = self._followers_cache, self._positions_by_char
        at = self._first & where.get(name[0], 0)
        for character in name[1:]:
            following = after.get(at)
            if following is None:
                following = self._followers(at)
            at = following & where.get(character, 0)
        return bool(at & self._last)

    def filter_names(self, names: Iterable[str]) -> list[str]:
        """Returns the names that the expression matches."""
        return [name for name in names if self.matches(name)]

    def _followers(self, at: int) -> int:
        """Returns the positions that may come after any position of `at`."""
        rest, following = at, 0
        while rest:
            low = rest & -rest
            following |= self._follow[low.bit_length() - 1]
            rest ^= low
        if len(self._followers_cache) >= FOLLOWERS_CACHE_MAX:
            self._followers_cache.clear()
        self._followers_cache[at] = following
        return following

    # -- construction -------------------------------------------------------------------------------------------------

    def _sequence(self, sequence: Any, flags: int, begins: bool, ends: bool) -> _Part:
        """Concatenates items. `begins`: no item of the expression comes before. `ends`: no item comes after."""
        items = list(sequence)
        made = _NOTHING
        for number, (kind, given) in enumerate(items):
            is_last = ends and all(each[0] is words.AT for each in items[number + 1 :])
            made = self._concatenate(made, self._item(kind, given, flags, begins, is_last))
            begins = begins and kind is words.AT
        return made

    def _concatenate(self, one: _Part, other: _Part) -> _Part:
        self._link(one.last, other.first)
        first = one.first | other.first if one.empty else one.first
        last = one.last | other.last if other.empty else other.last
        return _Part(first, last, one.empty and other.empty)

    def _link(self, sources: int, targets: int) -> None:
        while sources and targets:
            low = sources & -sources
            self._follow[low.bit_length() - 1] |= targets
            sources ^= low

    def _item(self, kind: Any, given: Any, flags: int, begins: bool, ends: bool) -> _Part:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise too_long_error()
        if kind is words.BRANCH:
            parts = [self._sequence(each, flags, begins, ends) for each in given[1]]
            first = last = 0
            for part in parts:
                first, last = first | part.first, last | part.last
            return _Part(first, last, any(part.empty for part in parts))
        if kind is words.SUBPATTERN:
            _, added, removed, inside = given
            return self._sequence(inside, (flags | added) & ~removed, begins, ends)
        if kind in (words.MAX_REPEAT, words.MIN_REPEAT):
            return self._repeat(given, flags)
        if kind is words.AT:
            if (given in BEGINNINGS and begins) or (given in ENDS and ends):
                return _NOTHING
            raise ValueError("^ is taken at its beginning only, $ at its end, \\b nowhere")
        return self._position(_characters(kind, given, flags))

    def _repeat(self, given: Any, flags: int) -> _Part:
        low, high, inside = given
        endless = high is words.MAXREPEAT
        made = _NOTHING
        for number in range(max(low, 1) if endless else high):
            self._parts += 1
            part = self._sequence(inside, flags, False, False)
            if endless and number == max(low, 1) - 1:
                self._link(part.last, part.first)
            made = self._concatenate(made, part._replace(empty=part.empty or number >= low))
        return made

    def _position(self, characters: frozenset[str]) -> _Part:
        number = len(self._follow)
        if number >= POSITIONS_MAX:
            raise too_long_error()
        self._follow.append(0)
        for character in characters:
            self._positions_by_char[character] |= 1 << number
        return _Part(1 << number, 1 << number, False)


def too_long_error() -> ValueError:
    """Returns the error for an expression that is too long: numbers of repetitions multiply."""
    return ValueError(f"it comes to more than {POSITIONS_MAX} characters when its repetitions are written out")


def _characters(kind: Any, given: Any, flags: int) -> frozenset[str]:
    """Returns the characters of names that one position matches."""
    if kind is words.ANY:
        return ALPHABET
    if kind is words.LITERAL:
        return _apply_case({chr(given)}, flags)
    if kind is words.NOT_LITERAL:
        return ALPHABET - _apply_case({chr(given)}, flags)
    if kind is not words.IN:
        raise ValueError("references, assertions and atomic groups are not taken")
    found: set[str] = set()
    negated = False
    for part, value in given:
        if part is words.NEGATE:
            negated = True
        elif part is words.LITERAL:
            found.add(chr(value))
        elif part is words.RANGE:
            found |= {character for character in ALPHABET if value[0] <= ord(character) <= value[1]}
        else:
            found |= CATEGORIES[value]
    taken = _apply_case(found, flags)
    return ALPHABET - taken if negated else taken


def _apply_case(characters: set[str], flags: int) -> frozenset[str]:
    if flags & re.IGNORECASE:
        characters = {form for each in characters for form in (each, each.lower(), each.upper())}
    return ALPHABET & characters
