"""Regular expressions with groups, matched in time that is linear in the length of the text.

Python's `re` backtracks: three `.*` take minutes for a long text. Here Python's parser reads the expression, and a list
of states walks through the text once. States are in the order in which a backtracking matcher tries them, so the groups
are those that it finds. References, assertions and atomic groups are not taken.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from re import _constants as words  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

PATTERN_MAX = 1_000
"""Most characters of an expression."""
STEPS_MAX = 1_000
"""Most steps of a program, after repetitions by number are expanded."""
TEXT_MAX = 1_000
"""Most characters of a text; a longer text does not match."""

Test = Callable[[str], bool]
Places = tuple[int, ...]
"""Begin and end of each group, -1 for a group that took no part."""
_CATEGORIES: dict[Any, Test] = {
    words.CATEGORY_DIGIT: lambda char: "0" <= char <= "9",
    words.CATEGORY_WORD: lambda char: char == "_" or (char.isascii() and char.isalnum()),
    words.CATEGORY_SPACE: lambda char: char in " \t\n\v\f\r",
}
_NEGATED = {
    words.CATEGORY_NOT_DIGIT: words.CATEGORY_DIGIT,
    words.CATEGORY_NOT_WORD: words.CATEGORY_WORD,
    words.CATEGORY_NOT_SPACE: words.CATEGORY_SPACE,
}
_BEGINNINGS = (words.AT_BEGINNING, words.AT_BEGINNING_STRING)
_ENDS = (words.AT_END, words.AT_END_STRING)


class _Step(NamedTuple):
    """One step: a character with a `test`, a `place` to note, `begin` or `end` of the text, or else the next steps, the
    preferred one first."""

    test: Test | None = None
    place: int = -1
    at: str = ""
    following: tuple[int, ...] = ()


class CapturingPattern:
    """One expression. Raises ValueError with the reason if it is malformed or not supported."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_MAX:
            raise ValueError(f"it has more than {PATTERN_MAX} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                parsed = parser.parse(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"it is no regular expression: {error}") from None
        self.groups: int = parsed.state.groups - 1
        self._steps: list[_Step] = []
        try:
            self._add_sequence(parsed, parsed.state.flags)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    def match(self, text: str) -> tuple[str | None, ...] | None:
        """Returns the groups if the expression matches the whole text, the text itself as the first."""
        if len(text) > TEXT_MAX:
            return None
        states = self._reach([(0, (-1,) * (2 * self.groups))], 0, text)
        for at, char in enumerate(text):
            states = self._reach(
                [
                    (step + 1, places)
                    for step, places in states
                    if step < len(self._steps) and (test := self._steps[step].test) is not None and test(char)
                ],
                at + 1,
                text,
            )
        for step, places in states:
            if step == len(self._steps):
                pairs = zip(places[::2], places[1::2], strict=True)
                return (text, *(text[begin:end] if end >= 0 else None for begin, end in pairs))
        return None

    def _reach(self, begun: list[tuple[int, Places]], at: int, text: str) -> list[tuple[int, Places]]:
        """Returns the states that wait for a character, or for the end of the program, in their order."""
        found = []
        seen = set[int]()
        waiting = begun[::-1]
        while waiting:
            number, places = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            step = self._steps[number] if number < len(self._steps) else None
            if step is None or step.test is not None:
                found.append((number, places))
            elif step.following:
                waiting += [(each, places) for each in reversed(step.following)]
            elif step.place >= 0:
                waiting.append((number + 1, (*places[: step.place], at, *places[step.place + 1 :])))
            elif at == (0 if step.at == "begin" else len(text)):
                waiting.append((number + 1, places))
        return found

    # -- construction -------------------------------------------------------------------------------------------------

    def _add(self, step: _Step) -> int:
        if len(self._steps) >= STEPS_MAX:
            raise ValueError(f"it comes to more than {STEPS_MAX} steps when its repetitions are written out")
        self._steps.append(step)
        return len(self._steps) - 1

    def _add_sequence(self, sequence: Any, flags: int) -> None:
        for kind, given in sequence:
            self._add_item(kind, given, flags)

    def _add_item(self, kind: Any, given: Any, flags: int) -> None:
        if kind is words.BRANCH:
            self._add_branches(given[1], flags)
        elif kind is words.SUBPATTERN:
            group, added, removed, inside = given
            if group is None:
                self._add_sequence(inside, (flags | added) & ~removed)
                return
            self._add(_Step(place=2 * group - 2))
            self._add_sequence(inside, (flags | added) & ~removed)
            self._add(_Step(place=2 * group - 1))
        elif kind in (words.MAX_REPEAT, words.MIN_REPEAT):
            self._add_repeat(given, flags, is_lazy=kind is words.MIN_REPEAT)
        elif kind is words.AT:
            if given not in (*_BEGINNINGS, *_ENDS):
                raise ValueError("of the anchors, only ^ and $ are taken")
            self._add(_Step(at="begin" if given in _BEGINNINGS else "end"))
        else:
            self._add(_Step(test=_make_test(kind, given, flags)))

    def _add_branches(self, branches: Any, flags: int) -> None:
        choice = self._add(_Step())
        starts, jumps = [], []
        for branch in branches:
            starts.append(len(self._steps))
            self._add_sequence(branch, flags)
            jumps.append(self._add(_Step()))
        self._steps[choice] = _Step(following=tuple(starts))
        for jump in jumps:
            self._steps[jump] = _Step(following=(len(self._steps),))

    def _add_repeat(self, given: Any, flags: int, *, is_lazy: bool) -> None:
        low, high, inside = given
        for _ in range(low):
            self._add(_Step(following=(len(self._steps) + 1,)))  # counts empty parts too
            self._add_sequence(inside, flags)
        if high is words.MAXREPEAT:
            loop = self._add(_Step())
            self._add_sequence(inside, flags)
            self._add(_Step(following=(loop,)))
            self._steps[loop] = _choose(loop + 1, len(self._steps), is_lazy)
            return
        choices = []
        for _ in range(high - low):
            choices.append(self._add(_Step()))
            self._add_sequence(inside, flags)
        for choice in choices:
            self._steps[choice] = _choose(choice + 1, len(self._steps), is_lazy)


def _choose(inside: int, after: int, is_lazy: bool) -> _Step:
    return _Step(following=(after, inside) if is_lazy else (inside, after))


def _make_test(kind: Any, given: Any, flags: int) -> Test:
    """Returns the test of one character."""
    if kind is words.ANY:
        return lambda char: char != "\n" or bool(flags & re.DOTALL)
    if kind is words.NOT_LITERAL:
        same = _make_test(words.LITERAL, given, flags)
        return lambda char: not same(char)
    if kind is words.LITERAL:
        wanted = _fold({chr(given)}, flags)
        return lambda char: char in wanted
    if kind is not words.IN:
        raise ValueError("references, assertions and atomic groups are not taken")
    tests: list[Test] = []
    is_negated = False
    for part, value in given:
        if part is words.NEGATE:
            is_negated = True
        elif part is words.LITERAL:
            tests.append(_make_test(words.LITERAL, value, flags))
        elif part is words.RANGE:
            tests.append(_make_range(value[0], value[1], flags))
        else:
            tests.append(_make_category(value))
    return lambda char: any(test(char) for test in tests) is not is_negated


def _make_range(low: int, high: int, flags: int) -> Test:
    return lambda char: any(low <= ord(each) <= high for each in _fold({char}, flags))


def _make_category(value: Any) -> Test:
    if value in _CATEGORIES:
        return _CATEGORIES[value]
    positive = _CATEGORIES[_NEGATED[value]]
    return lambda char: not positive(char)


def _fold(chars: set[str], flags: int) -> set[str]:
    if not flags & re.IGNORECASE:
        return chars
    return {form for char in chars for form in (char, char.lower(), char.upper()) if len(form) == 1}
