"""Regular expressions with groups, matched in time that is linear in the length of the text.

Python's `re` backtracks: three `.*` take minutes for a long text. Here Python's parser reads the expression, and a list
of states walks through the text once. States are in the order in which a backtracking matcher tries them, so the groups
are those that it finds. References, assertions and atomic groups are not taken.

The parser is a private part of Python. A version of Python with another one takes no expression, and only a broker that
has one in its settings notices it.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

PATTERN_MAX = 1_000
"""Most characters of an expression."""
STEPS_MAX = 1_000
"""Most steps of a program, after repetitions by number are expanded."""
TEXT_MAX = 1_000
"""Most characters of a text; a longer text does not match."""

UNKNOWN_PYTHON = "this version of Python has no parser that is known here: take one from 3.11 to 3.13"

Test = Callable[[str], bool]
Places = tuple[int, ...]
"""Begin and end of each group, -1 for a group that took no part."""
_CATEGORIES: dict[str, Test] = {
    "CATEGORY_DIGIT": lambda char: "0" <= char <= "9",
    "CATEGORY_WORD": lambda char: char == "_" or (char.isascii() and char.isalnum()),
    "CATEGORY_SPACE": lambda char: char in " \t\n\v\f\r",
}
_BEGINNINGS = ("AT_BEGINNING", "AT_BEGINNING_STRING")
_ENDS = ("AT_END", "AT_END_STRING")
MAX_REPEAT = "MAXREPEAT"


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
        parse = _find_parser()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                parsed = parse(text)
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
            self._add_item(str(kind), given, flags)

    def _add_item(self, kind: str, given: Any, flags: int) -> None:
        if kind == "BRANCH":
            self._add_branches(given[1], flags)
        elif kind == "SUBPATTERN":
            group, added, removed, inside = given
            if group is None:
                self._add_sequence(inside, (flags | added) & ~removed)
                return
            self._add(_Step(place=2 * group - 2))
            self._add_sequence(inside, (flags | added) & ~removed)
            self._add(_Step(place=2 * group - 1))
        elif kind in ("MAX_REPEAT", "MIN_REPEAT"):
            self._add_repeat(given, flags, is_lazy=kind == "MIN_REPEAT")
        elif kind == "AT":
            if str(given) not in (*_BEGINNINGS, *_ENDS):
                raise ValueError("of the anchors, only ^ and $ are taken")
            self._add(_Step(at="begin" if str(given) in _BEGINNINGS else "end"))
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
        if str(high) == MAX_REPEAT:
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


def _find_parser() -> Callable[[str], Any]:
    """Returns Python's parser. Raises ValueError if this Python has another one."""
    try:
        found: Callable[[str], Any] = importlib.import_module("re._parser").parse
        parsed = found("^[a-c]+?(b|.)")
        names = [str(kind) for kind, _ in parsed]
    except (ImportError, AttributeError, TypeError, ValueError):
        raise ValueError(UNKNOWN_PYTHON) from None
    if names != ["AT", "MIN_REPEAT", "SUBPATTERN"] or parsed.state.groups != 2:
        raise ValueError(UNKNOWN_PYTHON)
    return found


def _make_test(kind: str, given: Any, flags: int) -> Test:
    """Returns the test of one character."""
    if kind == "ANY":
        return lambda char: char != "\n" or bool(flags & re.DOTALL)
    if kind == "NOT_LITERAL":
        same = _make_test("LITERAL", given, flags)
        return lambda char: not same(char)
    if kind == "LITERAL":
        wanted = _fold({chr(given)}, flags)
        return lambda char: char in wanted
    if kind != "IN":
        raise ValueError("references, assertions and atomic groups are not taken")
    tests: list[Test] = []
    is_negated = False
    for part, value in given:
        if str(part) == "NEGATE":
            is_negated = True
        elif str(part) == "LITERAL":
            tests.append(_make_test("LITERAL", value, flags))
        elif str(part) == "RANGE":
            tests.append(_make_range(value[0], value[1], flags))
        else:
            tests.append(_make_category(str(value)))
    return lambda char: any(test(char) for test in tests) is not is_negated


def _make_range(low: int, high: int, flags: int) -> Test:
    return lambda char: any(low <= ord(each) <= high for each in _fold({char}, flags))


def _make_category(name: str) -> Test:
    if name in _CATEGORIES:
        return _CATEGORIES[name]
    positive = _CATEGORIES.get(name.replace("_NOT_", "_"))
    if positive is None:
        raise ValueError(f"characters by {name} are not taken")
    return lambda char: not positive(char)


def _fold(chars: set[str], flags: int) -> set[str]:
    if not flags & re.IGNORECASE:
        return chars
    return {form for char in chars for form in (char, char.lower(), char.upper()) if len(form) == 1}
