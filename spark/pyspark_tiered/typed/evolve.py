"""Decides what a JSON value does to a schema: it fits, it adds or widens columns, or it fits no more. Pure.

Fields are added, int becomes long, and both become double. Nothing else changes a column: a value of another type does
not fit. Each schema takes all values that an earlier one took, so the order of two steps of evolution matters for
their result only where they contradict each other.

A leaf is a boolean, a number or text. A value without a leaf (null, `[]`, `{}`, `[[]]`) is no evidence of a type: it
fits every column, and is NULL in one of another form. A field has a type from its first leaf on.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from pyspark_tiered.typed.kinds import (
    BOOLEAN,
    DATE,
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
    Variant,
    Void,
    count_fields,
    describe,
    has_column,
    has_form,
)
from pyspark_tiered.typed.names import (
    KEY,
    KEY_COLUMN,
    NAME_BYTES_MAX,
    RECORD_COLUMNS,
    RESERVED,
    VALUE,
    VALUE_COLUMN,
    choose_column,
    fold,
)
from pyspark_tiered.typed.variant import VARIANT_BYTES_MAX, encode_variant

Value = Any
"""A parsed JSON value: None, bool, int, float, str, list or dict."""
Path = tuple[str, ...]
"""Names in JSON, from the outside in, `[]` for the items of an array, and `{}` for the values of a map."""

MAP_VALUES = "{}"

FIELDS_MAX = 1000
"""Fields of a table at all depths. Records that would add more are dead letters."""
DEPTH_MAX = 32
"""Arrays and objects inside each other."""
VARIANT_DEPTH_MAX = 100
"""Arrays and objects inside each other in a variant."""
PATH_NAMED_MAX = 200
"""Characters of a path that a reason names."""

WIDENING = (INT, LONG, DOUBLE)
"""Numbers become the next type if one of them does not fit. A double rounds integers beyond 53 bits."""
TIMESTAMP_PATTERN = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?[0-5]\d)?)?"
"""The regular expression of a timestamp's text, for Python and for Arrow."""
_TIMESTAMP = re.compile(TIMESTAMP_PATTERN, re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


class Unfit(Exception):
    """A value or a type does not fit, and why. `field` has the path of a value of another type than its column."""

    def __init__(self, why: str, field: Path = ()) -> None:
        super().__init__(why)
        self.field = field


def evolve(schema: StructOf, value: Value) -> StructOf:
    """Returns the schema that takes this value too: the same object if `schema` takes it already.

    Raises `Unfit` with the reason if none does.
    """
    if type(value) is not dict:
        raise Unfit(f"{_describe_value(value)}, not an object")
    found = _absorb_object(schema, value, ())
    if found is not schema and count_fields(found) > FIELDS_MAX:
        raise Unfit(f"more than {FIELDS_MAX} fields in one table")
    return found


def merge(schema: StructOf, other: StructOf) -> StructOf:
    """Returns the schema that takes the values of both: the same object if `schema` takes those of `other`.

    Raises `Unfit` if none does.
    """
    found = _merge_structs(schema, other, ())
    if found is not schema and count_fields(found) > FIELDS_MAX:
        raise Unfit(f"more than {FIELDS_MAX} fields in one table")
    return found


def is_stored_as(written: ColumnType, schema: ColumnType) -> bool:
    """True if files with columns of one schema can stand in a table of another one: the latter only adds columns."""
    match written, schema:
        case Void(), _:
            return True
        case (Scalar(), Scalar()) | (Variant(), Variant()):
            return written == schema
        case ListOf(one), ListOf(other):
            return is_stored_as(one, other)
        case MapOf(one), MapOf(other):
            return is_stored_as(one, other)
        case StructOf(fields), StructOf():
            for field in fields:
                found = schema.find(field.json_name)
                if found is None or found.column != field.column or not is_stored_as(field.kind, found.kind):
                    return False
            return True
        case _:
            return False


def convert(kind: ColumnType, value: Value) -> Any:
    """Returns the value that a column of this type holds for a JSON value that fits."""
    if value is None or not has_form(kind, value):
        return None
    match kind:
        case Scalar("double"):
            return float(value)
        case Scalar("timestamp"):
            return parse_timestamp(value)
        case Scalar("date"):
            return date.fromisoformat(value)
        case Scalar() if kind.decimal:
            return Decimal(_write_number(value))
        case Scalar():
            return value
        case ListOf(element):
            return [convert(element, item) for item in value]
        case MapOf(inner):
            return [(name, convert(inner, item)) for name, item in value.items()]
        case Variant():
            return encode_variant(value)._asdict()
        case StructOf(fields):
            return {field.column: convert(field.kind, value.get(field.json_name)) for field in fields}
        case _:
            return None


def check_storable(value: Value, path: Path) -> None:
    """Raises `Unfit` if a value holds text or a number that a column of no type holds."""
    match value:
        case str():
            _check_text(value, path)
        case int() | float():
            _check_double(value, path)
        case list():
            for item in value:
                check_storable(item, (*path, "[]"))
        case dict():
            for name, item in value.items():
                _check_name(name, path)
                check_storable(item, (*path, name))


def check_time(kind: Scalar, text: str, path: Path) -> None:
    """Raises `Unfit` if a text is no date or no timestamp, whichever `kind` is."""
    try:
        if kind == DATE and _DATE.fullmatch(text):
            date.fromisoformat(text)
            return
        if kind == TIMESTAMP and _TIMESTAMP.fullmatch(text):
            parse_timestamp(text)
            return
    except (ValueError, OverflowError):
        pass
    raise Unfit(f"{_at(path)} is no {kind.name} in ISO 8601")


def check_decimal(kind: Scalar, value: Value, path: Path) -> None:
    """Raises `Unfit` if a value is neither text nor a number with the digits that a decimal has."""
    if type(value) not in (str, int, float):
        raise Unfit(str(_unfit(kind, value, path)))  # no rule moves values out of a decimal
    if type(value) is not str and not -(1 << 63) <= value < 1 << 63:
        raise Unfit(f"{_at(path)} is a number beyond 64 bits")
    if not re.fullmatch(decimal_pattern(kind), _write_number(value)):
        raise Unfit(f"{_at(path)} is no {kind.name}")


def decimal_pattern(kind: Scalar) -> str:
    """Returns the regular expression of a decimal's text, for Python and for Arrow."""
    assert kind.decimal is not None
    digits, behind = kind.decimal
    before = digits - behind
    whole = f"(?:0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
    return f"-?{whole}(?:\\.[0-9]{{1,{behind}}})?" if behind else f"-?{whole}"


def _write_number(value: str | float) -> str:
    """Returns the text of a decimal. A number behind a point is a double, and has the digits of its shortest text."""
    if type(value) is not float:
        return str(value)
    text = f"{Decimal(repr(value)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def parse_timestamp(text: str) -> datetime:
    """Returns the time that ISO 8601 text means; without a zone it is UTC."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)


def _absorb(kind: ColumnType, value: Value, path: Path) -> ColumnType:
    if value is None:
        return kind
    if not has_form(kind, value):
        if not _has_leaf(value, path):
            return kind
        if not has_column(kind):
            return _infer(value, path)
        raise _unfit(kind, value, path)
    match kind:
        case Scalar():
            return _absorb_scalar(kind, value, path)
        case StructOf():
            return _absorb_object(kind, value, path)
        case ListOf(element):
            inner = _absorb_items(element, value, path)
            return kind if inner is element else ListOf(inner)
        case MapOf(held):
            inner = _absorb_map(held, value, path)
            return kind if inner is held else MapOf(inner)
        case Variant():
            _check_variant(value, path)
            return kind
        case _:
            return _infer(value, path)


def _has_leaf(value: Value, path: Path) -> bool:
    """True if there is a boolean, a number or text in a value. Raises `Unfit` for a name that no text is."""
    match value:
        case None:
            return False
        case list():
            return max((_has_leaf(item, path) for item in value), default=False)  # all names are checked
        case dict():
            for name in value:
                _check_text(name, path)
            return max((_has_leaf(item, path) for item in value.values()), default=False)
        case _:
            return True


def _absorb_scalar(kind: Scalar, value: Value, path: Path) -> ColumnType:
    found = type(value)
    if kind.decimal:
        check_decimal(kind, value, path)
        return kind
    if found is str:
        if kind in (TIMESTAMP, DATE):
            check_time(kind, value, path)
        elif kind != STRING:
            raise _unfit(kind, value, path)
        _check_text(value, path)
        return kind
    if found is bool:
        if kind != BOOLEAN:
            raise _unfit(kind, value, path)
        return kind
    if found is int or found is float:
        if kind not in WIDENING:
            raise _unfit(kind, value, path)
        return kind if kind == DOUBLE and _check_double(value, path) else _widen(kind, value, path)
    raise _unfit(kind, value, path)


def _widen(kind: Scalar, value: float, path: Path) -> Scalar:
    """Returns the narrowest type from `kind` on that holds this number."""
    seen = _infer_number(value, path)
    if seen == LONG and kind == INT and value == _clamp(int(value), 31):
        return kind
    return WIDENING[max(WIDENING.index(kind), WIDENING.index(seen))] if seen != kind else kind


def _infer(value: Value, path: Path) -> ColumnType:
    if len(path) > DEPTH_MAX:
        raise Unfit(f"{_at(path)} is nested more than {DEPTH_MAX} deep")
    match value:
        case bool():
            return BOOLEAN
        case int() | float():
            return _infer_number(value, path)
        case str():
            _check_text(value, path)
            return STRING
        case list():
            return ListOf(_absorb_items(VOID, value, path))
        case _:
            return _absorb_object(StructOf(), value, path)


def _infer_number(value: float, path: Path) -> Scalar:
    if type(value) is int:
        if value != _clamp(value, 63):
            raise Unfit(f"{_at(path)} is a number beyond 64 bits")
        return LONG
    _check_double(value, path)
    return DOUBLE


def _clamp(value: int, bits: int) -> int:
    return min(max(value, -(1 << bits)), (1 << bits) - 1)


def _absorb_items(element: ColumnType, items: list[Value], path: Path) -> ColumnType:
    inside = (*path, "[]")
    for item in items:
        element = _absorb(element, item, inside)
    return element


def _absorb_map(held: ColumnType, value: dict[str, Value], path: Path) -> ColumnType:
    inside = (*path, MAP_VALUES)
    for name, item in value.items():
        _check_text(name, path)
        held = _absorb(held, item, inside)
    return held


def _check_variant(value: Value, path: Path) -> None:
    """Raises `Unfit` if a value is no variant."""
    if _measure_variant(value, path, 0) <= VARIANT_BYTES_MAX:
        return
    if max(map(len, encode_variant(value))) > VARIANT_BYTES_MAX:
        raise Unfit(f"{_at(path)} takes more than {VARIANT_BYTES_MAX} bytes as a variant")


def _measure_variant(value: Value, path: Path, depth: int) -> int:
    """Returns a bound of the bytes of each part of a variant, after a check of all numbers and texts."""
    if depth > VARIANT_DEPTH_MAX:
        raise Unfit(f"{_at(path)} is nested more than {VARIANT_DEPTH_MAX} deep")
    match value:
        case str():
            _check_text(value, path)
            return 4 * len(value) + 5
        case int() | float():
            _infer_number(value, path)
            return 9
        case list():
            return 9 + sum(4 + _measure_variant(item, path, depth + 1) for item in value)
        case dict():
            size = 13
            for name, item in value.items():
                _check_text(name, path)
                size += 12 + 4 * len(name) + _measure_variant(item, path, depth + 1)
            return size
        case _:
            return 1


def _absorb_object(kind: StructOf, value: dict[str, Value], path: Path) -> StructOf:
    places, fields = kind.places, kind.fields
    changed: dict[int, ColumnType] = {}
    added: list[tuple[str, Value]] = []
    for name, item in value.items():
        at = places.get(name)
        if at is None:
            added.append((name, item))
        elif item is not None:
            known = fields[at].kind
            found = _absorb(known, item, (*path, name))
            if found is not known:
                changed[at] = found
    if not changed and not added:
        return kind
    if len(fields) + len(added) > FIELDS_MAX:
        raise Unfit(f"more than {FIELDS_MAX} fields in one table")
    new = [replace(field, kind=changed.get(at, field.kind)) for at, field in enumerate(fields)]
    taken = _taken_names(fields, path)
    for name, item in added:
        _check_name(name, path)
        inner = VOID if item is None else _infer(item, (*path, name))
        new.append(_field(name, inner, taken))
    return StructOf(tuple(new))


def _merge(kind: ColumnType, other: ColumnType, path: Path) -> ColumnType:
    if kind == other or isinstance(other, Void):
        return kind
    match kind, other:
        case Void(), _:
            return other
        case Scalar(), Scalar() if kind in WIDENING and other in WIDENING:
            return WIDENING[max(WIDENING.index(kind), WIDENING.index(other))]
        case ListOf(one), ListOf(two):
            inner = _merge(one, two, (*path, "[]"))
            return kind if inner is one else ListOf(inner)
        case MapOf(one), MapOf(two):
            inner = _merge(one, two, (*path, MAP_VALUES))
            return kind if inner is one else MapOf(inner)
        case StructOf(), StructOf():
            return _merge_structs(kind, other, path)
        case _ if not has_column(other):
            return kind
        case _ if not has_column(kind):
            return other
        case _:
            raise Unfit(f"{_at(path)} is {describe(other)} where the column holds {describe(kind)}")


def _merge_structs(kind: StructOf, other: StructOf, path: Path) -> StructOf:
    new = list(kind.fields)
    taken = _taken_names(kind.fields, path)
    for field in other.fields:
        at = kind.places.get(field.json_name)
        if at is None:
            new.append(_field(field.json_name, field.kind, taken))
        else:
            known = kind.fields[at]
            merged = _merge(known.kind, field.kind, (*path, field.json_name))
            new[at] = known if merged is known.kind else replace(known, kind=merged)
    found = tuple(new)
    return kind if found == kind.fields else StructOf(found)


def _taken_names(fields: Collection[Field], path: Path) -> set[str]:
    reserved = RECORD_COLUMNS if not path else ()
    return {*(fold(name) for name in reserved), *(fold(field.column) for field in fields)}


_MARKED = {KEY: KEY_COLUMN, VALUE: VALUE_COLUMN}


def _field(json_name: str, kind: ColumnType, taken: set[str]) -> Field:
    column = choose_column(_MARKED.get(json_name, json_name), taken)
    taken.add(fold(column))
    return Field(json_name, column, kind)


def _check_name(name: str, path: Path) -> None:
    if len(name) > NAME_BYTES_MAX or len(name.encode(errors="surrogatepass")) > NAME_BYTES_MAX:
        raise Unfit(f"{_at(path)} has a name of more than {NAME_BYTES_MAX} bytes")
    if name in RESERVED:
        raise Unfit(f"{_at(path)} has the name {name!a}, which no field has")
    _check_text(name, path)


def _check_text(text: str, path: Path) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Unfit(f"{_at(path)} holds half of a surrogate pair") from None


def _check_double(value: float, path: Path) -> bool:
    try:
        if isfinite(value):
            return True
    except OverflowError:
        pass
    raise Unfit(f"{_at(path)} is a number beyond 64 bits")


def _unfit(kind: ColumnType, value: Value, path: Path) -> Unfit:
    held = describe(kind)[:PATH_NAMED_MAX]
    named = () if MAP_VALUES in path else path  # no rule names the values of a map
    return Unfit(f"{_at(path)} is {_describe_value(value)} where the column holds {held}", named)


def _at(path: Path) -> str:
    text = ".".join(path).replace(".[]", "[]").replace(f".{MAP_VALUES}", MAP_VALUES).replace(KEY, KEY_COLUMN, 1)
    text = text.replace(VALUE, VALUE_COLUMN, 1)
    named = text if len(text) <= PATH_NAMED_MAX else f"{text[:PATH_NAMED_MAX]}..."
    return named.encode(errors="replace").decode() or "the value"


def _describe_value(value: Value) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "an array"
        case _:
            return "an object"
