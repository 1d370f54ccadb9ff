"""The rules for a JSON body: it has few values, and no object has a field twice, or one that is not known.

A field with a typo would otherwise count as missing: a value becomes null, which deletes its key in a compacted topic,
and a setting goes back to its default. One of two values of a field would otherwise be lost without a word.

The parser makes an object of each value. It holds the interpreter's lock all the time, and takes some 50 ns and 40
bytes for a value of two or three bytes. So bodies with many values are refused before they are parsed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Set
from typing import Any

import orjson

from tiered.ports import Buffer
from tiered.records.native import json_elements, json_repeated_name
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError

ELEMENTS_MAX = 100_000
"""Most values and names of one JSON text, `[]` and `{}` counted twice. They take the parser 2 to 6 ms and 4 MB."""
TEXT_BYTES = 16 << 20
"""Longest JSON text that is parsed at once. It takes the parser up to 40 ms, and five times its size if it has letters
of four bytes."""

V2_FREE = (b"key", b"value")
V3_FREE = (b"data",)
"""Fields of records whose values are JSON of the user, in which names may repeat as far as the parser allows."""


def check_text(data: Buffer, what: str = "the body") -> None:
    """Raises `HttpError` 413 if a JSON text is too long, or has too many values and names. `what` names the text."""
    if len(data) < ELEMENTS_MAX:  # each takes a byte at least
        return
    if len(data) > TEXT_BYTES:
        raise HttpError(413, f"{what} has {len(data)} bytes of JSON: {TEXT_BYTES} are the most")
    elements = json_elements(data)
    if elements > ELEMENTS_MAX:
        raise HttpError(413, f"{what} has {elements} JSON values and names: {ELEMENTS_MAX} are the most")


def load_json(data: Buffer, free: tuple[bytes, ...] = (), code: int = BAD_REQUEST) -> Any:
    """Parses a JSON text. Raises `orjson.JSONDecodeError` for other bytes, `HttpError` 413 for too many of them or for
    too many values and names, and `HttpError` with `code` for a field that an object has twice, except inside the
    values of `free` fields."""
    check_text(data)
    value = orjson.loads(data)
    repeated = json_repeated_name(data, free)
    if repeated is not None:
        raise HttpError(code, f"field {repeated[:80]!r} appears twice in one object")
    return value


def check_fields(given: Mapping[str, Any], allowed: Set[str], what: str, code: int = BAD_REQUEST) -> None:
    """Raises `HttpError` with `code` if the object `given` has a field that is not in `allowed`."""
    if given.keys() <= allowed:
        return
    unknown = next(name for name in given if name not in allowed)[:80]
    near = difflib.get_close_matches(unknown, allowed, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise HttpError(code, f"{what} has no field {unknown!r}{hint}; there are {', '.join(allowed)}")
