"""Values of Avro by fastavro, one by one: the other side of the proof of a table. Pure.

A load reads values by code of the package (`avro_decode.py`). Nothing of it is used here, so a fault of it shows. The
library knows no logical types here: what they mean is written down a second time.
"""

from __future__ import annotations

import io
import json
import math
import uuid
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any

from pyspark_tiered.schemas.avro_plan import PLAIN, branch_fields
from pyspark_tiered.schemas.unreadable import UnreadableSchema
from pyspark_tiered.typed.kinds import STRING, ColumnType, ListOf, MapOf, Scalar, StructOf

Json = Any
FACTORS = {"timestamp-millis": 1000, "timestamp-micros": 1}
DAY_US = 86_400_000_000
FIRST_US, END_US = -62_135_596_800_000_000, 253_402_300_800_000_000
"""The years 1 to 9999, in microseconds since 1970."""
DIGITS = Context(prec=400_000)
HEX_BYTES_MIN = 1001
FAULTS = (AttributeError, EOFError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError)
"""Errors of the library for bytes that are no value of a schema."""


TYPES: Mapping[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "double": (int, float),
    "string": (str,),
    "binary": (bytes,),
}


class NoCell(Exception):
    """A value does not fit its column, and why."""


class AvroReparser:
    """Reads values of one schema again."""

    def __init__(self, text: str, references: list[str]) -> None:
        from fastavro._read_py import schemaless_reader as read_in_python
        from fastavro.read import schemaless_reader
        from fastavro.schema import parse_schema

        self._names: dict[str, Json] = {}
        try:
            for each in references:
                parse_schema(json.loads(each), self._names)
            self._schema = parse_schema(text.strip() if text.strip() in PLAIN else json.loads(text), self._names)
        except FAULTS as fault:
            raise UnreadableSchema(str(fault)) from None
        # A value of a recursive schema may be as deep as it is long. The library in C has no end for that.
        self._read: Callable[..., Any] = read_in_python if self._is_recursive(self._schema, ()) else schemaless_reader
        plain_names: dict[str, Json] = {}
        for each in references:
            parse_schema(_without_logical(json.loads(each)), plain_names)
        loaded = text.strip() if text.strip() in PLAIN else _without_logical(json.loads(text))
        self._plain = parse_schema(loaded, plain_names)

    @property
    def is_record(self) -> bool:
        """True if values are records, with a column for each field."""
        return self._kind_of(self._schema) in ("record", "error")

    def read(self, data: bytes, kind: ColumnType) -> Any:
        """Returns the cell of a value in a column of this type. Raises `NoCell`."""
        source = io.BytesIO(data)
        try:
            value = self._read(source, self._plain, return_named_type=True)
            if source.tell() != len(data):
                raise NoCell("bytes are left behind the value")
            return self._cell(self._schema, value, kind)
        except FAULTS as fault:
            raise NoCell(str(fault)[:200] or type(fault).__name__) from None

    def _resolve(self, schema: Json) -> Json:
        while True:
            if isinstance(schema, str) and schema not in PLAIN:
                schema = self._names[schema]
            elif isinstance(schema, dict) and isinstance(schema["type"], dict | list):
                schema = schema["type"]
            elif isinstance(schema, dict) and schema["type"] in self._names and "name" not in schema:
                schema = self._names[schema["type"]]
            else:
                return schema

    def _kind_of(self, schema: Json) -> str:
        schema = self._resolve(schema)
        if isinstance(schema, list):
            return "union"
        return str(schema if isinstance(schema, str) else schema["type"])

    def _is_recursive(self, schema: Json, around: tuple[str, ...]) -> bool:
        schema = self._resolve(schema)
        if isinstance(schema, list):
            return any(self._is_recursive(each, around) for each in schema)
        if isinstance(schema, str):
            return False
        if schema["type"] in ("record", "error"):
            if schema["name"] in around:
                return True
            return any(self._is_recursive(each["type"], (*around, schema["name"])) for each in schema["fields"])
        return any(self._is_recursive(schema[part], around) for part in ("items", "values") if part in schema)

    def _cell(self, schema: Json, value: Any, kind: ColumnType) -> Any:
        """Returns the cell of a value of the library."""
        schema = self._resolve(schema)
        if isinstance(schema, list):
            return self._union_cell(schema, value, kind)
        if isinstance(value, tuple):
            value = value[1]
        if isinstance(value, dict | list) and kind == STRING:
            return json.dumps(_natural(value), ensure_ascii=False, separators=(",", ":"))
        match kind:
            case StructOf(fields):
                inner = {each["name"]: each["type"] for each in schema["fields"]}
                if any(name not in kind.places and _has_leaf(value[name]) for name in inner):
                    raise NoCell("a field has no column")
                return {
                    field.column: self._cell(inner[field.json_name], value[field.json_name], field.kind)
                    if field.json_name in inner
                    else None
                    for field in fields
                }
            case ListOf(element):
                return [self._cell(schema["items"], item, element) for item in value]
            case MapOf(inside):
                return [(name, self._cell(schema["values"], item, inside)) for name, item in value.items()]
            case _:
                return _leaf(schema if isinstance(schema, dict) else {"type": schema}, value, kind)

    def _union_cell(self, schema: Json, value: Any, kind: ColumnType) -> Any:
        if value is None:
            return None
        fields = branch_fields(schema)
        at = self._find_branch(schema, value)
        if len(set(filter(None, fields))) < 2:
            return self._cell(schema[at], value, kind)
        if kind == STRING:
            if isinstance(value, tuple):
                value = value[1]
            return json.dumps(_natural(value), ensure_ascii=False, separators=(",", ":"))
        if not isinstance(kind, StructOf):
            raise NoCell("another type than that of the column")
        return {
            field.column: self._cell(schema[at], value, field.kind) if field.json_name == fields[at] else None
            for field in kind.fields
        }

    def _find_branch(self, schema: Json, value: Any) -> int:
        names = {bool: {"boolean"}, int: {"int", "long"}, float: {"float", "double"}, bytes: {"bytes"}, str: {"string"}}
        wanted = {**names, list: {"array"}, dict: {"map", "record", "error"}}.get(type(value), set())
        for at, each in enumerate(schema):
            found = self._resolve(each)
            name = found.get("name") if isinstance(found, dict) else None
            if isinstance(value, tuple):
                if name == value[0]:
                    return at
            elif self._kind_of(each) in wanted and not (self._kind_of(each) == "int" and not _has_32_bits(value)):
                return at
        raise NoCell("a union has no such branch")


def _has_32_bits(value: int) -> bool:
    return -(1 << 31) <= value < 1 << 31


def _without_logical(schema: Json) -> Json:
    if isinstance(schema, list):
        return [_without_logical(each) for each in schema]
    if isinstance(schema, dict):
        return {name: _without_logical(each) for name, each in schema.items() if name != "logicalType"}
    return schema


def _leaf(schema: Mapping[str, Json], value: Any, kind: ColumnType) -> Any:
    name, logical = schema["type"], schema.get("logicalType", "")
    if value is None:
        return None
    if name == "int" and not _has_32_bits(value):
        raise NoCell("no 32 bits")
    if kind == Scalar("date") and logical == "date":
        if not FIRST_US // DAY_US <= value < END_US // DAY_US:
            raise NoCell("no date")
        return value
    if kind == Scalar("timestamp") and logical.removeprefix("local-") in FACTORS:
        us = value * FACTORS[logical.removeprefix("local-")]
        if not FIRST_US <= us < END_US:
            raise NoCell("no timestamp")
        return us
    if isinstance(value, bytes) and isinstance(kind, Scalar) and kind.decimal:
        found = Decimal(int.from_bytes(value, signed=True)).scaleb(-schema.get("scale", 0), DIGITS)
        if abs(int.from_bytes(value, signed=True)) >= 10 ** kind.decimal[0]:
            raise NoCell(f"no {kind.name}")
        return found
    if isinstance(value, bytes) and kind == STRING and logical in ("decimal", "uuid"):
        if logical == "uuid":
            return str(uuid.UUID(bytes=value))
        if len(value) >= HEX_BYTES_MIN:
            return f"0x{value.hex()}"
        return f"{Decimal(int.from_bytes(value, signed=True)).scaleb(-schema.get('scale', 0), DIGITS):f}"
    if not isinstance(kind, Scalar) or type(value) not in TYPES.get(kind.name, ()):
        raise NoCell("another type than that of the column")
    return float(value) if kind.name == "double" else value


def _has_leaf(value: Any) -> bool:
    if isinstance(value, tuple):
        value = value[1]
    if isinstance(value, dict | list):
        return any(map(_has_leaf, value.values() if isinstance(value, dict) else value))
    return value is not None


def _natural(value: Any) -> Any:
    match value:
        case dict():
            return {name: _natural(each) for name, each in value.items()}
        case list():
            return [_natural(each) for each in value]
        case tuple():
            return _natural(value[1])
        case bytes():
            return value.decode("latin-1")
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value
