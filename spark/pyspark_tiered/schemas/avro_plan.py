"""Columns for a schema of Avro, and how values are read into them. Pure.

A union with null is its other branch, and NULL. A union of several types is a struct with a field for each branch. What
no column can hold is text: a record within itself, and what lies deeper than a table may, as JSON; decimals of more
digits than Delta has as the digits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_tiered.schemas.unreadable import SCHEMA_BYTES_MAX, UnreadableSchema
from pyspark_tiered.typed.evolve import DEPTH_MAX, FIELDS_MAX
from pyspark_tiered.typed.kinds import (
    BOOLEAN,
    DATE,
    DECIMAL_DIGITS_MAX,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    VOID,
    ColumnType,
    Field,
    ListOf,
    MapOf,
    Scalar,
    StructOf,
    count_fields,
)
from pyspark_tiered.typed.names import VALUE, VALUE_COLUMN, choose_column, fold

Json = Any
BINARY = Scalar("binary")
PLAIN: Mapping[str, ColumnType] = {
    "null": VOID,
    "boolean": BOOLEAN,
    "int": INT,
    "long": LONG,
    "float": DOUBLE,
    "double": DOUBLE,
    "bytes": BINARY,
    "string": STRING,
}
MICROSECONDS = {"millis": 1000, "micros": 1}
TIMES = {f"{local}timestamp-{unit}": each for local in ("", "local-") for unit, each in MICROSECONDS.items()}
"""Logical types of a long that are times, and the microseconds of one. Local times count as UTC."""


@dataclass(frozen=True)
class Leaf:
    """A value without parts. `name` is its type in Avro; `logical` its logical type, "" if that changes nothing."""

    name: str
    kind: ColumnType
    logical: str = ""
    size: int = 0
    symbols: tuple[str, ...] = ()
    digits: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Record:
    """A record, with the fields of its column in the same order."""

    fields: tuple[Node, ...]
    kind: StructOf


@dataclass(frozen=True)
class Items:
    """An array."""

    item: Node
    kind: ColumnType


@dataclass(frozen=True)
class Entries:
    """A map."""

    value: Node
    kind: ColumnType


@dataclass(frozen=True)
class Union:
    """A union. `places` has the field of each branch in its struct, -1 for null. With one field in all, the column is
    that of its branch and no struct."""

    branches: tuple[Node, ...]
    places: tuple[int, ...]
    is_struct: bool
    kind: ColumnType


@dataclass(frozen=True)
class Text:
    """A value that is written as JSON: no column has its type."""

    schema: Json
    kind: ColumnType = STRING


Node = Leaf | Record | Items | Entries | Union | Text


@dataclass(frozen=True)
class AvroPlan:
    """How values of a schema are read. `columns` are those of the values: of a record its fields, else one."""

    root: Node
    columns: StructOf
    schema: Json
    names: Mapping[str, Json]


def plan_avro(text: str, references: Sequence[str]) -> AvroPlan:
    """Returns how values of a schema are read; `references` are the schemas that it refers to, in an order in which
    each comes after those that it needs. Raises `UnreadableSchema`."""
    from fastavro.schema import parse_schema

    if len(text) + sum(map(len, references)) > SCHEMA_BYTES_MAX:
        raise UnreadableSchema(f"it has more than {SCHEMA_BYTES_MAX} bytes")
    names: dict[str, Json] = {}
    try:
        for each in references:
            parse_schema(json.loads(each), names)
        schema = parse_schema(_load(text), names)
        _check_finite(schema, names)
        root = _Planner(names).plan(schema, 0, ())
    except RecursionError:
        raise UnreadableSchema("it is nested too deep") from None
    except UnreadableSchema:
        raise
    except (AttributeError, IndexError, LookupError, TypeError, ValueError) as fault:  # of hostile JSON in the library
        raise UnreadableSchema(str(fault)[:200] or type(fault).__name__) from None
    columns = root.kind if isinstance(root, Record) else StructOf((Field(VALUE, VALUE_COLUMN, root.kind),))
    if count_fields(columns) > FIELDS_MAX:
        raise UnreadableSchema(f"it has more than {FIELDS_MAX} fields")
    return AvroPlan(root, columns, schema, names)


def _load(text: str) -> Json:
    """Returns a schema. Confluent's registry also takes the name of a type without quotes."""
    return text.strip() if text.strip() in PLAIN else json.loads(text)


class _Planner:
    def __init__(self, names: Mapping[str, Json]) -> None:
        self._names = names
        self._left = FIELDS_MAX * 4

    def plan(self, schema: Json, depth: int, around: tuple[str, ...]) -> Node:
        """Returns the plan of a schema inside so many others; `around` are the records that it is in."""
        self._left -= 1
        if self._left < 0:
            raise UnreadableSchema(f"it has more than {FIELDS_MAX} fields")
        if isinstance(schema, str) and schema not in PLAIN:
            if schema in around or depth > DEPTH_MAX:
                return Text(schema)
            schema = self._names[schema]
        if isinstance(schema, list):
            return self._plan_union(schema, depth, around)
        name = schema if isinstance(schema, str) else schema["type"]
        if isinstance(name, dict | list):
            return self.plan(name, depth, around)
        if depth > DEPTH_MAX and name not in PLAIN:
            return Text(schema)
        match name:
            case "record" | "error":
                return self._plan_record(schema, depth, around)
            case "array":
                item = self.plan(schema["items"], depth + 1, around)
                return Items(item, ListOf(item.kind))
            case "map":
                value = self.plan(schema["values"], depth + 1, around)
                return Entries(value, MapOf(value.kind))
            case _:
                if isinstance(schema, dict) and name not in PLAIN and name not in ("enum", "fixed"):
                    return self.plan(name, depth, around)
                return plan_leaf(schema if isinstance(schema, dict) else {"type": name})

    def _plan_record(self, schema: Json, depth: int, around: tuple[str, ...]) -> Node:
        inside = (*around, schema["name"])
        parts = tuple(self.plan(field["type"], depth + 1, inside) for field in schema["fields"])
        named = [(field["name"], part.kind) for field, part in zip(schema["fields"], parts, strict=True)]
        return Record(parts, make_struct(named))

    def _plan_union(self, schema: Json, depth: int, around: tuple[str, ...]) -> Node:
        names = branch_fields(schema)
        fields = list(dict.fromkeys(filter(None, names)))
        is_struct = len(fields) > 1
        branches = tuple(self.plan(each, depth + is_struct, around) for each in schema)
        kinds: dict[str, ColumnType] = {}
        for name, branch in zip(names, branches, strict=True):
            if name:
                kinds[name] = _WIDE.get(name, branch.kind) if names.count(name) > 1 else branch.kind
        places = tuple(fields.index(name) if name else -1 for name in names)
        kind = make_struct(list(kinds.items())) if is_struct else next(iter(kinds.values()), VOID)
        return Union(branches, places, is_struct, kind)


_WIDE: Mapping[str, ColumnType] = {"long": LONG, "double": DOUBLE}


def branch_fields(schema: Json) -> list[str]:
    """Returns the field of each branch of a union, "" for null: the name of its type, without a namespace. An int
    shares that of a long, and a float that of a double. Raises `UnreadableSchema` for two branches of one name."""
    plain = {each for each in schema if isinstance(each, str)}
    wide = {narrow: to for narrow, to in (("int", "long"), ("float", "double")) if {narrow, to} <= plain}
    names = [_branch_name(each) for each in schema]
    if len(set(names)) < len(names):
        raise UnreadableSchema("a union has two branches of one name")
    for narrow, to in (("int", "long"), ("float", "double")):
        if {narrow, to} <= set(names) and narrow not in wide:
            raise UnreadableSchema(f"a union has {narrow} and {to}, one of them with a logical type")
    return ["" if name == "null" else wide.get(name, name) for name in names]


def _branch_name(schema: Json) -> str:
    if isinstance(schema, str):
        return schema.rpartition(".")[2]
    return _branch_name(schema.get("name") or schema["type"])


def make_struct(named: Sequence[tuple[str, ColumnType]]) -> StructOf:
    """Returns a struct with these fields, with columns of other names where two differ by case alone."""
    taken: set[str] = set()
    fields = []
    for name, kind in named:
        fields.append(Field(name, choose_column(name, taken), kind))
        taken.add(fold(fields[-1].column))
    return StructOf(tuple(fields))


def plan_leaf(schema: Mapping[str, Json]) -> Leaf:
    """Returns the plan of a type without parts. A logical type that its type does not have is none."""
    name, logical = schema["type"], schema.get("logicalType", "")
    size, symbols = int(schema.get("size", 0)), tuple(schema.get("symbols", ()))
    match name, logical:
        case "enum", _:
            return Leaf(name, STRING, symbols=symbols)
        case ("int", "date"):
            return Leaf(name, DATE, logical)
        case "long", _ if logical in TIMES:
            return Leaf(name, TIMESTAMP, logical)
        case ("fixed", "uuid") if size == 16:
            return Leaf(name, STRING, logical, size)
        case ("bytes" | "fixed", "decimal"):
            digits, behind = schema.get("precision", 0), schema.get("scale", 0)
            if type(digits) is type(behind) is int and digits > 0 and 0 <= behind <= digits:
                is_held = digits <= DECIMAL_DIGITS_MAX
                kind = Scalar(f"decimal({digits},{behind})") if is_held else STRING
                return Leaf(name, kind, logical, size, digits=(digits, behind))
    return Leaf(name, BINARY if name == "fixed" else PLAIN[name], "", size)


def _check_finite(schema: Json, names: Mapping[str, Json]) -> None:
    """Raises `UnreadableSchema` for a record that holds itself in every value: no value of it ends."""
    done: set[str] = set()

    def walk(each: Json, around: tuple[str, ...]) -> None:
        for name, record in _find_records(each, names):
            if name in around:
                raise UnreadableSchema(f"the record {name} holds itself without end")
            if name not in done:
                for field in record["fields"]:
                    walk(field["type"], (*around, name))
                done.add(name)

    for each in (schema, *names.values()):
        walk(each, ())


def _find_records(schema: Json, names: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """Yields the record that each value of a schema holds, if there is one."""
    while True:
        if isinstance(schema, str):
            if schema in PLAIN or schema not in names:
                return
            schema = names[schema]
        if isinstance(schema, list):
            if len(schema) != 1:
                return
            schema = schema[0]
        elif schema["type"] in ("record", "error"):
            yield schema["name"], schema
            return
        elif isinstance(schema["type"], dict | list) or schema["type"] in names:
            schema = schema["type"]
        else:
            return
