"""Large JSON bodies for each route that takes JSON: values of every costly shape in each place of a valid body."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.e2e.http_bodies import BODIES, Body

HOLE = "\0"
"""Stands in a body for the place of a shape."""
Path = tuple[str | int, ...]

SHAPES: dict[str, Callable[[int], bytes]] = {
    "deep lists": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "deep objects": lambda size: b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6),
    "numbers": lambda size: b"[" + b"1," * (size // 2) + b"1]",
    "empty lists": lambda size: b"[" + b"[]," * (size // 3) + b"1]",
    "empty objects": lambda size: b"[" + b"{}," * (size // 3) + b"1]",
    "wide object": lambda size: b"{" + b",".join(b'"%x":1' % n for n in range(size // 10)) + b"}",
    "one name many times": lambda size: b"{" + b'"a":1,' * (size // 6) + b'"a":1}',
    "escaped names": lambda size: b"[" + b'{"\\u0061":1},' * (size // 13) + b"1]",
    "short texts": lambda size: b"[" + b'"ab",' * (size // 5) + b"1]",
    "long integer": lambda size: b"1" * size,
    "long fraction": lambda size: b"0." + b"1" * size,
    "many long fractions": lambda size: b"[" + b"0.%b," % (b"17" * 200) * (size // 403) + b"1]",
    "long text": lambda size: b'"' + b"a" * size + b'"',
    "text of wide letters": lambda size: b'"' + b"a" * size + "\N{GRINNING FACE}".encode() + b'"',
    "escapes": lambda size: b'"' + b"\\u0041" * (size // 6) + b'"',
    "escapes of wide letters": lambda size: b'"' + b"\\ud83d\\ude00" * (size // 12) + b'"',
    "no end": lambda size: b"[" * size,
}
"""JSON of about so many bytes."""


class Attack(NamedTuple):
    """A body for a route."""

    target: Body
    shape: str
    place: Path
    text: bytes


def attacks(size: int, shapes: tuple[str, ...] = (*SHAPES,)) -> Iterator[Attack]:
    """Yields each shape in a place of each body, another place for each, and in the deepest place that a user fills;
    then each body with each of its lists made long."""
    for column, shape in enumerate(shapes):
        value = SHAPES[shape](size)
        for row, target in enumerate(BODIES):
            places = list(find_places(target.body))
            for place in {places[(row + column) % len(places)], deepest_free(places)}:
                yield Attack(target, shape, place, fill(target.body, place, value))
    for target in BODIES:
        for place in find_places(target.body):
            entries = get(target.body, place)
            if isinstance(entries, list):
                entry = json.dumps(entries[0]).encode()
                many = b"[" + b",".join([entry] * (size // (len(entry) + 1))) + b"]"
                yield Attack(target, "many entries", place, fill(target.body, place, many))


def find_places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yields the path of a value and of each value inside it."""
    yield path
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from find_places(each, (*path, name))


def deepest_free(places: list[Path]) -> Path:
    """Returns the place of a value that may be any JSON, else that of the deepest one."""
    free = [place for place in places if place[-1:] in (("data",), ("value",))]
    return max(free or places, key=len)


def get(value: Any, path: Path) -> Any:
    """Returns the value at a path."""
    for name in path:
        value = value[name]
    return value


def fill(body: Any, path: Path, value: bytes) -> bytes:
    """Returns the JSON of a body with other JSON at a path."""
    return json.dumps(put(body, path)).encode().replace(json.dumps(HOLE).encode(), value)


def put(value: Any, path: Path) -> Any:
    """Returns a value with `HOLE` at a path."""
    if not path:
        return HOLE
    name, rest = path[0], path[1:]
    if isinstance(value, list):
        return [put(each, rest) if at == name else each for at, each in enumerate(value)]
    return {each: put(inner, rest) if each == name else inner for each, inner in value.items()}
