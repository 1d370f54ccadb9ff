"""The rules for the fields of a JSON body: no object has a field twice, or one that is not known.

A field with a typo would otherwise count as missing: a value becomes null, which deletes its key in a compacted topic,
and a setting goes back to its default. One of two values of a field would otherwise be lost without a word.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Set
from typing import Any

import orjson

from tiered.records.native import json_repeated_name
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError

V2_FREE = (b"key", b"value")
V3_FREE = (b"data",)
"""Fields of records whose values are JSON of the user, in which names may repeat as far as the parser allows."""


def load_json(data: bytes | bytearray, free: tuple[bytes, ...] = (), code: int = BAD_REQUEST) -> Any:
    """Parses a JSON body. Raises `orjson.JSONDecodeError` for other bytes, and `HttpError` with `code` for a field that
    an object has twice, except inside the values of `free` fields."""
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
