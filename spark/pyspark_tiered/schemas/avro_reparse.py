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


_SINGLE = ("boolean", "long", "string", "binary")
"""Types of columns of which each cell has one type of Python."""
MakeCell = Callable[[Any], Any]


class NoCell(Exception):
    """A value does not fit its column, and why."""


class AvroReparser:
    """Reads values of one schema again."""

    def __init__(self, text: str, references: list[str]) -> None:
        from fastavro._read_py import schemaless_reader as read_in_python
        from fastavro.read import schemaless_reader
        from fastavro.schema import parse_schema

        self._names: dict[str, Json] = {}
        self._made_for: ColumnType | None = None
        self._make_cell: MakeCell = _refuse
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
            if kind is not self._made_for:
                self._make_cell, self._made_for = self._compile(self._schema, kind), kind
            return self._make_cell(value)
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

    def _compile(self, schema: Json, kind: ColumnType) -> MakeCell:
        """Returns the function that makes the cell of a value of the library, for a column of this type."""
        schema = self._resolve(schema)
        if isinstance(schema, list):
            return self._compile_union(schema, kind)
        name = schema if isinstance(schema, str) else schema["type"]
        match kind:
            case _ if kind == STRING and name in ("record", "error", "array", "map"):
                return _text
            case StructOf() if name in ("record", "error"):
                return self._compile_record(schema, kind)
            case ListOf(element) if name == "array":
                make_item = self._compile(schema["items"], element)
                return lambda value: [make_item(item) for item in value]
            case MapOf(inside) if name == "map":
                make_item = self._compile(schema["values"], inside)
                return lambda value: [(each, make_item(item)) for each, item in value.items()]
            case _:
                found = schema if isinstance(schema, dict) else {"type": schema}
                if name in ("string", "boolean", "long", "bytes", "enum") and not found.get("logicalType"):
                    (wanted,) = TYPES[kind.name] if isinstance(kind, Scalar) and kind.name in _SINGLE else (type(None),)
                    return lambda value: value if type(value) is wanted else _leaf(found, value, kind)
                return lambda value: _leaf(found, value, kind)

    def _compile_record(self, schema: Json, kind: StructOf) -> MakeCell:
        inner = {each["name"]: each["type"] for each in schema["fields"]}
        homeless = [name for name in inner if name not in kind.places]
        empty = {field.column: None for field in kind.fields}
        parts = [
            (field.json_name, field.column, self._compile(inner[field.json_name], field.kind))
            for field in kind.fields
            if field.json_name in inner
        ]

        def make(value: Any) -> Any:
            if isinstance(value, tuple):
                value = value[1]
            for name in homeless:
                if _has_leaf(value[name]):
                    raise NoCell("a field has no column")
            return {**empty, **{column: make_part(value[name]) for name, column, make_part in parts}}

        return make

    def _compile_union(self, schema: Json, kind: ColumnType) -> MakeCell:
        fields = branch_fields(schema)
        is_struct = len(set(filter(None, fields))) > 1
        if is_struct and kind == STRING:
            return lambda value: None if value is None else _text(value)
        if is_struct and not isinstance(kind, StructOf):
            return lambda value: None if value is None else _refuse(value)
        if not is_struct:
            makers = [self._compile(each, kind) if name else _refuse for each, name in zip(schema, fields, strict=True)]
            if sum(map(bool, fields)) == 1:
                make_only = next(make for make, name in zip(makers, fields, strict=True) if name)
                return lambda value: None if value is None else make_only(_bare(value))
            return lambda value: None if value is None else makers[self._find_branch(schema, value)](_bare(value))
        assert isinstance(kind, StructOf)
        empty = {field.column: None for field in kind.fields}
        branches = []
        for each, name in zip(schema, fields, strict=True):
            field = kind.find(name) if name else None
            branches.append(("", _refuse) if field is None else (field.column, self._compile(each, field.kind)))

        def make(value: Any) -> Any:
            if value is None:
                return None
            column, make_branch = branches[self._find_branch(schema, value)]
            return {**empty, column: make_branch(_bare(value))}

        return make

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


def _bare(value: Any) -> Any:
    """Returns a value without the name of its branch."""
    return value[1] if type(value) is tuple else value


def _text(value: Any) -> str:
    return json.dumps(_natural(value), ensure_ascii=False, separators=(",", ":"))


def _refuse(value: Any) -> Any:
    raise NoCell("another type than that of the column")


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
