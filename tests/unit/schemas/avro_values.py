"""Schemas of Avro, with values that fastavro writes for them, for tests."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from fastavro.schema import parse_schema
from fastavro.write import schemaless_writer

EVERYTHING = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "n", "type": "int"},
        {"name": "id", "type": "long"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "s", "type": {"type": "string", "avro.java.string": "String"}},
        {"name": "raw", "type": "bytes"},
        {"name": "nothing", "type": "null"},
        {"name": "opt", "type": ["null", "long"]},
        {"name": "late", "type": ["string", "null"]},
        {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
        {"name": "other", "type": ["null", "Color"]},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {
            "name": "sum",
            "type": {"type": "fixed", "name": "Sum", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 9},
        },
        {"name": "huge", "type": {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 3}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "items", "type": {"type": "array", "items": {
            "type": "record", "name": "Item", "fields": [
                {"name": "sku", "type": "string"},
                {"name": "of", "type": {"type": "array", "items": ["null", "int"]}},
            ],
        }}},
        {"name": "attributes", "type": {"type": "map", "values": "double"}},
        {"name": "deep", "type": {"type": "map", "values": {"type": "array", "items": "Item"}}},
        {"name": "wide", "type": ["int", "null", "long"]},
        {"name": "any", "type": ["null", "string", "long", "Item", {"type": "array", "items": "int"}]},
        {"name": "tree", "type": ["null", {"type": "record", "name": "Tree", "fields": [
            {"name": "v", "type": "int"},
            {"name": "next", "type": ["null", "Tree"]},
            {"name": "kids", "type": {"type": "array", "items": "Tree"}},
        ]}]},
        {"name": "ID", "type": "string"},
    ],
}  # fmt: skip
"""A schema with each type."""


def draw_order(drawn: Random) -> dict[str, Any]:
    """Returns a value of `EVERYTHING`."""

    def text() -> str:
        return drawn.choice(["", "a", "Überraschung", "x" * drawn.randrange(300), "\N{GRINNING FACE}"])

    def item() -> dict[str, Any]:
        return {"sku": text(), "of": [drawn.choice([None, 1, -5]) for _ in range(drawn.randrange(4))]}

    def tree(depth: int) -> dict[str, Any]:
        kids = [] if depth > 3 else [tree(depth + 1) for _ in range(drawn.randrange(3))]
        return {"v": depth, "next": tree(depth + 1) if depth < 2 and drawn.random() < 0.5 else None, "kids": kids}

    many = 400 if drawn.random() < 0.02 else 4
    return {
        "flag": drawn.random() < 0.5,
        "n": drawn.choice([0, -1, 2**31 - 1, -(2**31), 77]),
        "id": drawn.choice([0, 2**63 - 1, -(2**63), 300]),
        "f": drawn.choice([0.5, -1.25, float("inf")]),
        "d": drawn.choice([0.1, -1e300]),
        "s": text(),
        "raw": drawn.randbytes(drawn.randrange(40)),
        "nothing": None,
        "opt": drawn.choice([None, 5, -(2**40)]),
        "late": drawn.choice([None, "t"]),
        "color": drawn.choice(["RED", "BLUE"]),
        "other": drawn.choice([None, "RED"]),
        "hash": drawn.randbytes(4),
        "day": date(1, 1, 1) if drawn.random() < 0.1 else date(2026, 11, drawn.randrange(1, 30)),
        "at": datetime(2026, 11, 30, 12, 0, drawn.randrange(60), 5000, tzinfo=UTC),
        "us": drawn.choice([None, datetime(1969, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
        "clock": time(12, 30),
        "price": drawn.choice([Decimal("1.25"), Decimal("-9999999.99"), Decimal(0)]),
        "sum": drawn.choice([Decimal("-1.5"), Decimal("12345678901234567890.123456789")]),
        "huge": drawn.choice([Decimal("-1.5"), Decimal("1" * 50)]),
        "uuid": UUID(int=drawn.randrange(2**128)),
        "tags": [text() for _ in range(drawn.randrange(many))],
        "items": [item() for _ in range(drawn.randrange(4))],
        "attributes": {name: drawn.random() for name in drawn.sample("abc", drawn.randrange(4))},
        "deep": {name: [item() for _ in range(drawn.randrange(3))] for name in drawn.sample("xyz", drawn.randrange(3))},
        "wide": drawn.choice([None, 1, 2**40]),
        "any": drawn.choice([None, "t", 5, item(), [1, 2]]),
        "tree": tree(0) if drawn.random() < 0.5 else None,
        "ID": text(),
    }


def write(schema: Any, values: Sequence[Any]) -> list[bytes]:
    """Returns the bytes of values, without frames."""
    parsed = parse_schema(json.loads(json.dumps(schema)))
    found = []
    for value in values:
        target = io.BytesIO()
        schemaless_writer(target, parsed, value)
        found.append(target.getvalue())
    return found


def frame(number: int, payload: bytes) -> bytes:
    """Returns a value with the frame of a schema's id in front."""
    return b"\0" + number.to_bytes(4) + payload
