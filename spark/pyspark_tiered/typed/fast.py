"""Thousands of JSON values to Arrow columns by one call of Arrow's JSON reader, without Python per record. Pure.

The values are joined with text around each, so that Arrow takes the whole only if each value is one JSON value by
itself: `{"v":` before it and `}` and a line end after it. A value that leaves an object open, closes one too many or
breaks a string by the line end is an error, and so are names that the schema lacks. Keys are joined alike, each as the
only field of an object. Where Arrow takes more than JSON allows (NaN, broken UTF-8), a check follows. Whatever fails
here is parsed again, value by value (`json_text.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.typed.changes import CHECKED, RETYPED, retype_cell
from pyspark_tiered.typed.evolve import MAP_VALUES, TIMESTAMP_PATTERN, decimal_pattern
from pyspark_tiered.typed.kinds import (
    MAP_KEYS,
    ColumnType,
    Field,
    ListOf,
    MapOf,
    Scalar,
    StructOf,
    Variant,
    Void,
    field_id,
    has_column,
)
from pyspark_tiered.typed.variant import EncodedVariant

if TYPE_CHECKING:
    import pyarrow


class Wrapping(NamedTuple):
    """The text before and after each value, and what stands for NULL."""

    before: bytes
    after: bytes
    absent: bytes


VALUES = Wrapping(b'{"v":', b"}\n", b"{}")
KEYS = Wrapping(b'{"v":{"\\u0000key":', b"}}\n", b"null")
JOINED_BYTES_MAX = 1 << 30
"""Bytes that Arrow's reader gets at once: its blocks have 32-bit sizes."""
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999 in days since 1970: those of Python, and of all readers of Delta."""
CELL_BY_CELL = RETYPED | CHECKED | {("date", "string")}
"""Changes of a column's type, from and to, that are made cell by cell."""
_ROW = re.compile(r" in row (\d+)$")


class ParsedValues(NamedTuple):
    """Values as one struct column, None if one of them does not fit; then `bad` is the place of the first, if known."""

    rows: pyarrow.StructArray | None
    bad: int | None = None


def parse_all(values: pyarrow.Array, schema: StructOf, wrapping: Wrapping = VALUES) -> ParsedValues:
    """Parses values (binary) to a struct column that has the types of `schema`, fields of nulls included.

    A NULL value is an empty object. With `KEYS`, `schema` has the key as its only field.
    """
    import pyarrow as pa
    from pyarrow import json

    size = (len(wrapping.before) + len(wrapping.after)) * len(values) + values.nbytes
    if size > JOINED_BYTES_MAX:
        return ParsedValues(None)
    filled = values.fill_null(wrapping.absent) if values.null_count else values
    joined = _join(filled, wrapping)
    parsing = json.ParseOptions(
        explicit_schema=pa.schema([("v", reading_type(schema))]), unexpected_field_behavior="error"
    )
    reading = json.ReadOptions(use_threads=False, block_size=len(joined) + 1)
    try:
        read = json.read_json(pa.BufferReader(joined), read_options=reading, parse_options=parsing)
        if read.num_rows != len(values):
            return ParsedValues(None)
        # Arrow gives arrays of nulls fewer items than their offsets say. That is found before the items are touched.
        read.validate(full=True)
        found = read.column(0).combine_chunks()
        found = found.chunk(0) if isinstance(found, pa.ChunkedArray) else found
        is_right = not found.null_count and _check(found, schema)
    except pa.ArrowInvalid as fault:
        named = _ROW.search(str(fault))
        return ParsedValues(None, int(named[1]) if named else None)
    return ParsedValues(found if is_right else None)


def _join(values: pyarrow.Array, wrapping: Wrapping) -> pyarrow.Buffer:
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pa.array([0, len(values)], pa.int32())
    lists = pa.ListArray.from_arrays(ends, values)
    (whole,) = pc.binary_join(lists, pa.scalar(wrapping.after + wrapping.before, values.type))
    return pa.py_buffer(b"".join((wrapping.before, whole.as_buffer(), wrapping.after)))


def _check(array: pyarrow.Array, kind: ColumnType) -> bool:
    """True if columns hold only what JSON has. Raises `pyarrow.ArrowInvalid` for text that is no date."""
    import pyarrow as pa
    import pyarrow.compute as pc

    match kind:
        case ListOf(element):
            return _check(array.values, element)
        case StructOf(fields):
            return all(_check(array.field(at), field.kind) for at, field in enumerate(fields))
        case Scalar("double"):
            return bool(pc.all(pc.is_finite(array)).as_py() is not False)
        case Scalar("date"):
            return _is_in_calendar(array.cast(pa.date32()).cast(pa.int32()), 1)
        case Scalar("timestamp"):
            if pc.all(pc.match_substring_regex(array, f"^(?:{TIMESTAMP_PATTERN})$")).as_py() is False:
                return False
            return _is_in_calendar(_cast_timestamps(array).cast(pa.int64()), 86_400_000_000)
        case Scalar() if kind.decimal:
            return bool(pc.all(pc.match_substring_regex(array, f"^(?:{decimal_pattern(kind)})$")).as_py() is not False)
        case _:
            return True


def _cast_timestamps(texts: pyarrow.Array) -> pyarrow.Array:
    """Returns the times that texts mean; without a zone they are UTC. Arrow casts texts only with a zone, or without.

    Raises `pyarrow.ArrowInvalid` for a text that is no time.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    utc, local = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
    zoned = pc.match_substring_regex(texts, r"(?:Z|[+-]\d\d:?\d\d)$")
    if pc.all(zoned).as_py() is not False:
        return texts.cast(utc)
    if not pc.any(zoned).as_py():
        return texts.cast(local).cast(utc)
    absent = pa.scalar(None, texts.type)
    of_zone, of_none = pc.if_else(zoned, texts, absent), pc.if_else(zoned, absent, texts)
    return pc.coalesce(of_zone.cast(utc), of_none.cast(local).cast(utc))


def _is_in_calendar(numbers: pyarrow.Array, day: int) -> bool:
    """True if all times are in the years 1 to 9999; `day` is the length of one."""
    import pyarrow.compute as pc

    ends = pc.min_max(numbers)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return low is None or FIRST_DAY * day <= low <= high < (LAST_DAY + 1) * day


def reading_type(kind: ColumnType) -> pyarrow.DataType:
    """Returns the Arrow type by which the JSON reader parses a column, with the names in JSON."""
    import pyarrow as pa

    match kind:
        case Void():
            return pa.null()
        case ListOf(element):
            return pa.list_(reading_type(element))
        case StructOf(fields):
            return pa.struct([(field.json_name, reading_type(field.kind)) for field in fields])
        case Scalar("date" | "timestamp"):
            return pa.string()
        case Scalar() if kind.decimal:
            return pa.string()
        case _:
            return _scalar_type(kind)


def column_type(kind: ColumnType, path: tuple[str, ...] = ()) -> pyarrow.DataType:
    """Returns the Arrow type of a column in a file, with the names of columns and the identifiers of fields."""
    import pyarrow as pa

    match kind:
        case ListOf(element):
            inside = (*path, "[]")
            return pa.list_(_with_id("element", column_type(element, inside), inside))
        case MapOf(value):
            inside = (*path, MAP_VALUES)
            key = _with_id("key", pa.string(), (*path, MAP_KEYS)).with_nullable(False)
            return pa.map_(key, _with_id("value", column_type(value, inside), inside))
        case StructOf(fields):
            return pa.struct([column_field(field, path) for field in fields])
        case Variant():
            return pa.struct([pa.field(name, pa.binary(), nullable=False) for name in EncodedVariant._fields])
        case _:
            return _scalar_type(kind)


def column_field(field: Field, path: tuple[str, ...] = ()) -> pyarrow.Field:
    """Returns the Arrow field of a column in a file."""
    here = (*path, field.json_name)
    return _with_id(field.column, column_type(field.kind, here), here)


def _with_id(name: str, kind: pyarrow.DataType, path: Sequence[str]) -> pyarrow.Field:
    import pyarrow as pa

    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id(path)).encode()})


def _scalar_type(kind: ColumnType) -> pyarrow.DataType:
    import pyarrow as pa

    assert isinstance(kind, Scalar)
    if kind.decimal:
        return pa.decimal128(*kind.decimal)
    return {
        "boolean": pa.bool_(),
        "int": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
    }[kind.name]


def shape(array: pyarrow.Array, kind: ColumnType, target: ColumnType, path: tuple[str, ...] = ()) -> pyarrow.Array:
    """Returns a column of type `kind` as one of type `target`, which has at least its fields.

    Names become those of columns, fields that `kind` lacks become NULL. An integer beyond 53 bits is rounded
    where the column became a double, as it is if it comes later. Raises `Unfit` for a cell that has no such form.
    """
    import pyarrow as pa

    wanted = column_type(target, path)
    match kind, target:
        case ListOf(element), ListOf(wanted_element):
            inner = shape(array.values, element, wanted_element, (*path, "[]"))
            mask = array.is_null() if array.null_count else None
            return pa.ListArray.from_arrays(array.offsets, inner, type=wanted, mask=mask)
        case MapOf(value), MapOf(wanted_value):
            inner = shape(array.items, value, wanted_value, (*path, MAP_VALUES))
            mask = array.is_null() if array.null_count else None
            return pa.MapArray.from_arrays(array.offsets, array.keys, inner, type=wanted, mask=mask)
        case StructOf(), StructOf(fields):
            parts = []
            for field in fields:
                at = kind.places.get(field.json_name)
                if at is None:
                    parts.append(pa.nulls(len(array), column_type(field.kind, (*path, field.json_name))))
                else:
                    inside = (*path, field.json_name)
                    parts.append(shape(array.field(at), kind.fields[at].kind, field.kind, inside))
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=mask)
        case Variant(), Variant():
            parts = [array.field(name) for name in EncodedVariant._fields]
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=mask)
        case _ if not has_column(kind):
            return pa.nulls(len(array), wanted)  # no leaf, so nothing that a column of another form holds
        case Scalar("timestamp"), Scalar("timestamp") if pa.types.is_string(array.type):
            return _cast_timestamps(array)
        case Scalar(before), Scalar(to) if (before, to) in CELL_BY_CELL:
            return pa.array([retype_cell(cell, before, to) for cell in array.to_pylist()], wanted)
        case _:
            return array if array.type == wanted else array.cast(wanted, safe=False)
