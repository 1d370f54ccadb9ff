"""A condition on a value that is JSON: a path, and a comparison with what stands there.

    $.status                     something stands there
    $.items[*].sku == "A-17"     one of them is this text
    $['a name'].parts[-1] >= 10  the last one is a number of at least 10

Paths and comparisons are those of RFC 9535, without `..`, slices, filters and functions: a path visits each part of a
value once at most. A value without the path does not fit, whatever the comparison is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orjson

from tiered.records.native import json_elements
from tiered_api.http.exchange.fields import ELEMENTS_MAX
from tiered_api.http.partitions.reads import SHOWN_BYTES_MAX

STEPS_MAX = 32
"""Longest path."""
_STEP = re.compile(
    r"""\.(?P<name>[^\W\d][\w-]*) | \[(?P<index>-?\d{1,9})\] | (?P<all>\.\*|\[\*\])
    | \[(?P<quoted>"(?:[^"\\]|\\.)*" | '[^'\\]*')\]""",
    re.VERBOSE,
)
_COMPARISON = re.compile(r"\s*(==|!=|<=|>=|<|>)\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Step = str | int | None
"""The name of a member, the index of an element, or None for all of them."""


class TooLongToShow(ValueError):
    """A key or value that takes too long to be parsed and shown."""


def parse_json(data: bytes) -> Any:
    """Returns a JSON value. Raises `ValueError` if it is none, and `TooLongToShow` for a large one."""
    if len(data) > SHOWN_BYTES_MAX:
        raise TooLongToShow(f"it has {len(data)} bytes, more than {SHOWN_BYTES_MAX}")
    if len(data) >= ELEMENTS_MAX and (elements := json_elements(data)) > ELEMENTS_MAX:
        raise TooLongToShow(f"it has {elements} values and names, more than {ELEMENTS_MAX}")
    return orjson.loads(data)


class JsonCondition(NamedTuple):
    """`operator` and `literal` are empty if it is enough that the path exists."""

    steps: tuple[Step, ...]
    operator: str = ""
    literal: Any = None

    def is_met(self, value: Any) -> bool:
        """True if one of the places of the path fits."""
        return any(self._fits(found) for found in _places(value, self.steps, 0))

    def _fits(self, found: Any) -> bool:
        match self.operator:
            case "":
                return True
            case "==":
                return _is_equal(found, self.literal)
            case "!=":
                return not _is_equal(found, self.literal)
        return _kind(found) is _kind(self.literal) and _COMPARE[self.operator](found, self.literal)

    def texts(self) -> tuple[bytes, ...]:
        """Returns texts of which a JSON value that fits has one; none if such texts are not known."""
        if self.operator == "==" and isinstance(self.literal, str):
            sought = self.literal
        else:
            sought = next((each for each in reversed(self.steps) if isinstance(each, str)), "")
        return (sought.encode(), b"\\") if sought else ()


def parse_condition(text: str) -> JsonCondition:
    """Returns the condition. Raises `ValueError` with the place where it cannot be read."""
    at, steps = int(text.startswith("$")), list[Step]()
    while found := _STEP.match(text, at):
        steps.append(_step(found))
        at = found.end()
    if len(steps) > STEPS_MAX:
        raise ValueError(f"the path has {len(steps)} steps, {STEPS_MAX} are the most")
    if not text[at:].strip() and (steps or at):
        return JsonCondition(tuple(steps))
    compared = _COMPARISON.match(text, at)
    if compared is None or not (steps or at):
        raise ValueError(
            f"{text[at : at + 40]!r} at character {at + 1} is no step of a path (.name, [0], [*], ['a name']) and no "
            "comparison (== != < <= > >=)"
        )
    return JsonCondition(tuple(steps), compared[1], _literal(text[compared.end() :].strip()))


def _step(found: re.Match[str]) -> Step:
    if found["all"]:
        return None
    if found["index"]:
        return int(found["index"])
    return found["name"] or str(_literal(found["quoted"]))


def _literal(text: str) -> Any:
    if len(text) >= 2 and text[0] == text[-1] == "'" and not {"'", "\\"} & {*text[1:-1]}:
        return text[1:-1]
    try:
        value = orjson.loads(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is no JSON value: a text stands in double quotes") from None
    if isinstance(value, list | dict):
        raise ValueError("a place is compared with a number, a text, true, false or null")
    return value


def _places(value: Any, steps: tuple[Step, ...], at: int) -> Iterator[Any]:
    """Yields what stands at the places of `steps[at:]` in a value."""
    for depth in range(at, len(steps)):
        step = steps[depth]
        if step is None:
            inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            for each in inner:
                yield from _places(each, steps, depth + 1)
            return
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return
        elif not isinstance(value, list) or not -len(value) <= step < len(value):
            return
        value = value[step]
    yield value


def _kind(value: Any) -> type | None:
    """Returns the kind of values that have an order with each other; None for true, false, null, lists and objects."""
    if isinstance(value, str):
        return str
    return float if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_equal(one: Any, other: Any) -> bool:
    """True for equal JSON values: 1 is 1.0, and is not true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
