"""The bounds of schemas that are JSON. All later steps are recursive, or take time for each value."""

from __future__ import annotations

from typing import Any

import orjson

from tiered.registry.refusals import SCHEMA_TOO_LARGE, RegistryRefused, invalid_schema

TEXT_BYTES_MAX = 1 << 20
"""Longest text of a schema. A record of `_schemas` may be about as large (`max.message.bytes`)."""
DEPTH_MAX = 60
VALUES_MAX = 20_000
"""Two Avro schemas of so many values take a second to be compared."""


def check_length(text: str) -> None:
    """Raises `RegistryRefused` if the text of a schema is too long."""
    if len(text) > TEXT_BYTES_MAX or len(text.encode()) > TEXT_BYTES_MAX:
        why = f"the schema has more than {TEXT_BYTES_MAX} bytes, which are the most"
        raise RegistryRefused(SCHEMA_TOO_LARGE, why)


def load_bounded(text: str) -> Any:
    """Parses the JSON of a schema. Raises `RegistryRefused` if it is none, too long, too deep, or has too many
    values."""
    check_length(text)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise invalid_schema(f"it is not JSON: {error}") from None
    left, level, values = [value], 0, 0
    while left:
        values += len(left)
        level += 1
        if level > DEPTH_MAX:
            raise invalid_schema(f"it is nested deeper than {DEPTH_MAX} levels")
        if values > VALUES_MAX:
            raise invalid_schema(f"it has more than {VALUES_MAX} values")
        left = [
            each
            for outer in left
            if isinstance(outer, dict | list)
            for each in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return value
