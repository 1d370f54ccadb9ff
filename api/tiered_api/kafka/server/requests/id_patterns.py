"""Patterns of transactional ids, matched in linear time: the part of RE2's syntax that names need (KIP-1152).

Kafka matches with RE2J, because a pattern comes from a client. The `re` module takes exponential time for some
patterns. Supported are characters, `.`, escapes, classes, groups, alternatives, and the quantifiers `*`, `+`, `?` and
`{m,n}`. A pattern has to match a whole id.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tiered.errors import Code, Refused

STATES_MAX = 256
"""Most states of a pattern: they bound the steps for each character of an id."""
PARTS_MAX = 4_096
"""Most parts that are built: an empty group that is repeated has no states."""
DEPTH_MAX = 32
"""Most groups within groups."""

_Test = Callable[[str], bool]
_CLASSES: dict[str, _Test] = {
    "d": lambda char: "0" <= char <= "9",
    "s": lambda char: char in "\t\n\f\r ",
    "w": lambda char: char == "_" or (char.isascii() and char.isalnum()),
}
_COUNTS = re.compile(r"\{(\d{1,3})(?:(,)(\d{1,3})?)?\}")


class _Node(NamedTuple):
    """A part of a pattern: `char` with a test, `all` or `any` of its parts, or one part between `low` and `high` times
    (-1: without limit)."""

    kind: str
    parts: tuple[_Node, ...] = ()
    test: _Test | None = None
    low: int = 0
    high: int = -1


class IdPattern:
    """A compiled pattern. Raises `Refused` (INVALID_REGULAR_EXPRESSION) if it is not valid or too large."""

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self._tests: list[_Test | None] = []
        self._next: list[tuple[int, ...]] = []
        self._parts_built = 0
        final = self._add_state(None, ())
        self._first = self._build(parser.parse(), final)
        self._final = final

    def matches(self, text: str) -> bool:
        """True if the pattern matches the whole text."""
        states = self._reach((self._first,))
        for char in text:
            states = self._reach(
                following
                for state in states
                if (test := self._tests[state]) is not None and test(char)
                for following in self._next[state]
            )
            if not states:
                return False
        return self._final in states

    def _reach(self, states: Iterable[int]) -> set[int]:
        """Returns these states and all that follow them without a character."""
        found, waiting = set[int](), list(states)
        while waiting:
            state = waiting.pop()
            if state not in found:
                found.add(state)
                if self._tests[state] is None:
                    waiting += self._next[state]
        return found

    def _add_state(self, test: _Test | None, following: tuple[int, ...]) -> int:
        if len(self._tests) == STATES_MAX:
            raise _refuse("it is too large")
        self._tests.append(test)
        self._next.append(following)
        return len(self._tests) - 1

    def _build(self, node: _Node, following: int) -> int:
        """Adds the states of a part that goes on with `following`; returns the first of them."""
        self._parts_built += 1
        if self._parts_built > PARTS_MAX:
            raise _refuse("it is too large")
        if node.kind == "char":
            return self._add_state(node.test, (following,))
        if node.kind == "any":
            return self._add_state(None, tuple(self._build(each, following) for each in node.parts))
        if node.kind == "all":
            for each in reversed(node.parts):
                following = self._build(each, following)
            return following
        (part,) = node.parts
        if node.high < 0:
            loop = self._add_state(None, ())
            self._next[loop] = (self._build(part, loop), following)
            following = loop
        for _ in range(max(node.high - node.low, 0)):
            following = self._add_state(None, (self._build(part, following), following))
        for _ in range(node.low):
            following = self._build(part, following)
        return following


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> _Node:
        node = self._read_alternatives()
        if self._at < len(self._text):
            raise _refuse(f"there is nothing for the {self._text[self._at]!r} at {self._at} to close")
        return node

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise _refuse("it ends too early")
        self._at += 1
        return char

    def _read_alternatives(self) -> _Node:
        parts = [self._read_sequence()]
        while self._peek() == "|":
            self._at += 1
            parts.append(self._read_sequence())
        return _Node("any", tuple(parts)) if len(parts) > 1 else parts[0]

    def _read_sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() and self._peek() not in "|)":
            is_start = self._peek() == "^" and not parts and not self._depth
            if is_start or (self._peek() == "$" and self._at == len(self._text) - 1):
                self._at += 1
            else:
                parts.append(self._read_quantified())
        return _Node("all", tuple(parts))

    def _read_quantified(self) -> _Node:
        node = self._read_one()
        char = self._peek()
        counts = _COUNTS.match(self._text, self._at) if char == "{" else None
        if char and char in "*+?":
            self._at += 1
            node = _Node("times", (node,), None, 1 if char == "+" else 0, 1 if char == "?" else -1)
        elif counts is not None:
            self._at = counts.end()
            low = int(counts[1])
            high = low if counts[2] is None else int(counts[3]) if counts[3] else -1
            if 0 <= high < low:
                raise _refuse(f"{counts[0]} has its limits in the wrong order")
            node = _Node("times", (node,), None, low, high)
        else:
            return node
        if self._peek() == "?":  # the shortest match first: the same for a match of all
            self._at += 1
        return node

    def _read_one(self) -> _Node:
        char = self._take()
        if char == "(":
            return self._read_group()
        if char == "[":
            return _Node("char", test=self._read_class())
        if char == ".":
            return _Node("char", test=lambda found: found != "\n")
        if char == "\\":
            return _Node("char", test=self._read_escape())
        if char in "*+?^$":
            raise _refuse(f"there is nothing for the {char!r} at {self._at - 1}")
        return _Node("char", test=char.__eq__)

    def _read_group(self) -> _Node:
        if self._text.startswith("?:", self._at):
            self._at += 2
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _refuse(f"it has more than {DEPTH_MAX} groups within groups")
        node = self._read_alternatives()
        self._depth -= 1
        if self._take() != ")":
            raise _refuse("a group is not closed")
        return node

    def _read_escape(self) -> _Test:
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char.lower() in _CLASSES:
            inner = _CLASSES[char.lower()]
            return lambda found: not inner(found)
        if char.isalnum():
            raise _refuse(f"the escape \\{char} is not known")
        return char.__eq__

    def _read_class(self) -> _Test:
        is_negated = self._peek() == "^"
        self._at += is_negated
        tests: list[_Test] = []
        while self._peek() != "]" or not tests:
            char = self._take()
            if char == "\\":
                tests.append(self._read_escape())
            elif self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._take()
                if last in "\\[" or last < char:
                    raise _refuse(f"{char}-{last} is no range")
                tests.append(_make_range(char, last))
            else:
                tests.append(char.__eq__)
        self._at += 1
        return lambda found: any(test(found) for test in tests) is not is_negated


def _make_range(first: str, last: str) -> _Test:
    return lambda found: first <= found <= last


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REGULAR_EXPRESSION, f"the pattern cannot be used: {why}")
