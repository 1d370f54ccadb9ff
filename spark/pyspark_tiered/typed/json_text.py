"""Parses the bytes of a record as strict JSON: UTF-8, no name twice in an object, no NaN. Pure.

This is the definition of what fits; the fast path (`fast.py`) takes only values that this parser takes, with the same
result.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark_tiered.typed.evolve import Unfit, Value

REGISTRY_BYTES = 5
"""A zero byte and the number of a schema, in front of the values of a serialiser with a schema registry."""
VALUE_BYTES_MAX = 64 << 20
"""Larger values are dead letters: a parsed value takes many times its bytes."""


def parse(data: bytes) -> Value:
    """Returns the JSON value. Raises `Unfit` with the reason."""
    if len(data) > VALUE_BYTES_MAX:
        raise Unfit(f"{len(data)} bytes are more than {VALUE_BYTES_MAX}")
    try:
        return _DECODER.decode(data.decode())
    except UnicodeDecodeError as fault:
        raise Unfit(f"not UTF-8 at byte {fault.start}{describe_prefix(data)}") from None
    except json.JSONDecodeError as fault:
        raise Unfit(f"not JSON at character {fault.pos}: {fault.msg}{describe_prefix(data)}") from None
    except RecursionError:
        raise Unfit("nested too deep") from None
    except ValueError as fault:  # an integer of more digits than Python converts
        raise Unfit("a number beyond 64 bits") from fault


def describe_prefix(data: bytes) -> str:
    """Returns what stands in front of the JSON, if its first bytes tell; else an empty text."""
    if data.startswith(b"\xef\xbb\xbf"):
        return " (a byte order mark is in front)"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return " (UTF-16, by its byte order mark)"
    if data.startswith(b"\0") and len(data) > REGISTRY_BYTES:
        return " (perhaps the five bytes of a schema registry are in front)"
    return ""


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise Unfit(f"the name {twice[:80]!a} twice in one object")
    return found


def _constant(name: str) -> Any:
    raise Unfit(f"not JSON: {name}")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
