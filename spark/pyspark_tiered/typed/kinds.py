"""Types of the columns that JSON values become, in the forms of Delta's schema and of DDL. Pure.

A field keeps the name that it has in JSON and the name of its column, which may differ (`names.py`). The schema stands
in the table itself: Delta's schema, with the name in JSON in the metadata of a field if the two differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from zlib import crc32

from pyspark_tiered.typed.names import KEY, KEY_COLUMN, VALUE, VALUE_COLUMN

Json = dict[str, Any]

JSON_NAME = "tiered.name"
"""Key in the metadata of a Delta field: the name of the field in JSON."""
KEY_MARK = "tiered.key"
"""Key in the metadata of a Delta field: the column is that of the key, and of no field of the value."""
VALUE_MARK = "tiered.value"
"""The same for the column of the whole value."""
FIELD_IDS_START = 1000
"""The lowest identifier of a field in Parquet. The columns of the record have lower ones."""

MAP_KEYS = "{key}"
"""Stands for the keys of a map in the path of a field."""

_MARKS = {KEY: KEY_MARK, VALUE: VALUE_MARK}

SCALARS = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "double": "double",
    "string": "string",
    "date": "date",
    "timestamp": "timestamp",
    "binary": "binary",
}
"""Scalar types, and their names in Delta's schema."""


DECIMAL_DIGITS_MAX = 38
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


@dataclass(frozen=True)
class Void:
    """A field of which only nulls were seen. It has no column yet."""


@dataclass(frozen=True)
class Scalar:
    """A type without parts; `name` is a key of `SCALARS`, or decimal(10,2) with other numbers."""

    name: str

    @cached_property
    def decimal(self) -> tuple[int, int] | None:
        """Returns the digits of a decimal, and those of them behind the point; None for other types."""
        found = _DECIMAL.fullmatch(self.name)
        return None if found is None else (int(found[1]), int(found[2]))


@dataclass(frozen=True)
class ListOf:
    """An array."""

    element: ColumnType


@dataclass(frozen=True)
class MapOf:
    """An object whose names are data: a map from text to values of one type. It is declared, and never inferred."""

    value: ColumnType


@dataclass(frozen=True)
class Variant:
    """Any JSON value in one column. It is declared, and never inferred."""


@dataclass(frozen=True)
class Field:
    """A named part of an object: its name in JSON, its column, its type."""

    json_name: str
    column: str
    kind: ColumnType


@dataclass(frozen=True)
class StructOf:
    """An object with named fields, in the order of their columns."""

    fields: tuple[Field, ...] = ()

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Returns the place of each field by its name in JSON."""
        return {field.json_name: at for at, field in enumerate(self.fields)}

    def find(self, json_name: str) -> Field | None:
        """Returns the field of this name in JSON."""
        at = self.places.get(json_name)
        return None if at is None else self.fields[at]


ColumnType = Void | Scalar | ListOf | MapOf | Variant | StructOf

BOOLEAN, LONG, DOUBLE, STRING = (Scalar(name) for name in ("boolean", "long", "double", "string"))
INT, DATE, TIMESTAMP = (Scalar(name) for name in ("int", "date", "timestamp"))
VOID = Void()


def key_field(kind: ColumnType = VOID) -> Field:
    """Returns the field of the key, without a column as long as only nulls were seen."""
    return Field(KEY, KEY_COLUMN, kind)


def value_field() -> Field:
    """Returns the field of the whole value, of the kind variant."""
    return Field(VALUE, VALUE_COLUMN, Variant())


def key_part(schema: StructOf) -> StructOf:
    """Returns the schema of the key alone."""
    return StructOf(tuple(field for field in schema.fields if field.json_name == KEY))


def value_part(schema: StructOf) -> StructOf:
    """Returns the schema without the key: the same object if there is none."""
    if KEY not in schema.places:
        return schema
    return StructOf(tuple(field for field in schema.fields if field.json_name != KEY))


def select_columns(kind: StructOf) -> StructOf:
    """Returns the fields that have columns: of the others only nulls, empty arrays or empty objects were seen."""
    pruned = _prune(kind)
    return pruned if isinstance(pruned, StructOf) else StructOf()


def has_column(kind: ColumnType) -> bool:
    """True if a leaf of the field was seen. Nulls, empty arrays and empty objects are no evidence of a type."""
    return _prune(kind) != VOID


def has_form(kind: ColumnType, value: object) -> bool:
    """True if a JSON value, not null, is an array where the type is one, and likewise for objects and scalars."""
    match kind:
        case ListOf():
            return type(value) is list
        case StructOf() | MapOf():
            return type(value) is dict
        case Scalar():
            return type(value) is not list and type(value) is not dict
        case _:
            return True


def _prune(kind: ColumnType) -> ColumnType:
    match kind:
        case ListOf(element):
            inner = _prune(element)
            return VOID if inner == VOID else kind if inner is element else ListOf(inner)
        case MapOf(value):
            inner = _prune(value)
            return VOID if inner == VOID else kind if inner is value else MapOf(inner)
        case StructOf(fields):
            kinds = [_prune(field.kind) for field in fields]
            if fields and all(new is field.kind for new, field in zip(kinds, fields, strict=True)):
                return kind if VOID not in kinds else _keep(fields, kinds)
            return _keep(fields, kinds)
        case _:
            return kind


def _keep(fields: Sequence[Field], kinds: Sequence[ColumnType]) -> ColumnType:
    kept = tuple(replace(field, kind=kind) for field, kind in zip(fields, kinds, strict=True) if kind != VOID)
    return StructOf(kept) if kept else VOID


def add_field(kind: ColumnType, path: Sequence[str], field: Field) -> ColumnType:
    """Returns a type with one more field in the object at a path, and the same one if there is no such object."""
    match kind:
        case ListOf(element) if path:
            return ListOf(add_field(element, path[1:], field))
        case StructOf(fields) if not path:
            return kind if field.json_name in kind.places else StructOf((*fields, field))
        case StructOf(fields) if path[0] in kind.places:
            at = kind.places[path[0]]
            grown = replace(fields[at], kind=add_field(fields[at].kind, path[1:], field))
            return StructOf((*fields[:at], grown, *fields[at + 1 :]))
        case _:
            return kind


def replace_field(kind: ColumnType, path: Sequence[str], field: Field | None) -> ColumnType:
    """Returns a type with another field in the place of the one at a path of names in JSON; without it for None."""
    match kind:
        case ListOf(element):
            return ListOf(replace_field(element, path[1:], field))
        case StructOf(fields):
            at = kind.places[path[0]]
            if len(path) > 1:
                field = replace(fields[at], kind=replace_field(fields[at].kind, path[1:], field))
            return StructOf((*fields[:at], *([] if field is None else [field]), *fields[at + 1 :]))
        case _:
            raise ValueError("a scalar has no fields")


def count_fields(kind: ColumnType) -> int:
    """Returns the number of fields at all depths."""
    match kind:
        case ListOf(inner) | MapOf(inner):
            return count_fields(inner)
        case StructOf(fields):
            return len(fields) + sum(count_fields(field.kind) for field in fields)
        case _:
            return 0


def is_beyond_arrow(kind: ColumnType) -> bool:
    """True if there is a map or a variant at any depth: Arrow's JSON parser has none."""
    match kind:
        case MapOf() | Variant():
            return True
        case ListOf(element):
            return is_beyond_arrow(element)
        case StructOf(fields):
            return any(is_beyond_arrow(field.kind) for field in fields)
        case _:
            return False


def has_variant(kind: ColumnType) -> bool:
    """True if there is a variant at any depth."""
    match kind:
        case Variant():
            return True
        case ListOf(inner) | MapOf(inner):
            return has_variant(inner)
        case StructOf(fields):
            return any(has_variant(field.kind) for field in fields)
        case _:
            return False


def to_delta(kind: StructOf) -> list[Json]:
    """Returns the fields in the form of Delta's schema."""
    return [
        {
            "name": field.column,
            "type": delta_type(field.kind),
            "nullable": True,
            "metadata": _field_metadata(field),
        }
        for field in kind.fields
    ]


def _field_metadata(field: Field) -> Json:
    if field.json_name in _MARKS:
        return {_MARKS[field.json_name]: True}
    return {} if field.column == field.json_name else {JSON_NAME: field.json_name}


def delta_type(kind: ColumnType) -> str | Json:
    """Returns a type in the form of Delta's schema."""
    match kind:
        case Scalar(name):
            return SCALARS.get(name, name)
        case ListOf(element):
            return {"type": "array", "elementType": delta_type(element), "containsNull": True}
        case MapOf(value):
            return {"type": "map", "keyType": "string", "valueType": delta_type(value), "valueContainsNull": True}
        case StructOf():
            return {"type": "struct", "fields": to_delta(kind)}
        case Variant():
            return "variant"
        case _:
            raise ValueError("a field of nulls has no column")


def from_delta(fields: Sequence[Json]) -> StructOf:
    """Returns the type of a Delta schema's fields. Raises `ValueError` for a type that no JSON value becomes."""
    return StructOf(tuple(Field(_json_name(field), field["name"], from_type(field["type"])) for field in fields))


def _json_name(field: Json) -> str:
    metadata = field.get("metadata", {})
    marked = next((name for name, mark in _MARKS.items() if metadata.get(mark)), None)
    return marked or str(metadata.get(JSON_NAME, field["name"]))


def from_type(found: str | Json) -> ColumnType:
    """Returns the type that a form of Delta's schema means. Raises `ValueError` as `from_delta` does."""
    if isinstance(found, str):
        for name, delta_name in SCALARS.items():
            if delta_name == found:
                return Scalar(name)
        if found == "variant":
            return Variant()
        if (plain := Scalar(found.replace(" ", ""))).decimal:
            return plain
    elif found.get("type") == "array":
        return ListOf(from_type(found["elementType"]))
    elif found.get("type") == "map" and found["keyType"] == "string":
        return MapOf(from_type(found["valueType"]))
    elif found.get("type") == "struct":
        return from_delta(found["fields"])
    raise ValueError(f"a column has the type {found}, which no JSON value becomes")


def describe(kind: ColumnType) -> str:
    """Returns the type as DDL."""
    match kind:
        case Scalar(name):
            return {"long": "bigint"}.get(name, name)
        case ListOf(element):
            return f"array<{describe(element)}>"
        case MapOf(value):
            return f"map<string, {describe(value)}>"
        case Variant():
            return "variant"
        case StructOf():
            return f"struct<{', '.join(f'{name}: {of}' for name, of in _described_fields(kind))}>"
        case _:
            return "void"


def describe_columns(kind: StructOf) -> str:
    """Returns the fields as the DDL of a table's columns."""
    return ", ".join(f"{name} {of}" for name, of in _described_fields(kind))


def _described_fields(kind: StructOf) -> Iterator[tuple[str, str]]:
    for field in kind.fields:
        name = {KEY: KEY_COLUMN, VALUE: VALUE_COLUMN}.get(field.json_name, field.json_name)
        plain = name.isidentifier() and name.isascii()
        yield name if plain else f"`{name.replace('`', '``')}`", describe(field.kind)


def field_id(path: Sequence[str]) -> int:
    """Returns the identifier of a field in Parquet files: the same for the same path of names in every file."""
    return FIELD_IDS_START + crc32("\0".join(path).encode()) % ((1 << 31) - FIELD_IDS_START)
