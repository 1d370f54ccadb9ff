"""Rules for fields: values of another type than their column move or go, a field gets another type, or goes. Pure.

`tiered table change` names a rule, and the properties of the typed table keep it. A rule goes by types of JSON, which
nothing but a later rule changes: numbers, text, booleans, arrays, objects. So a rule treats a value the same at any
time. Rules change a parsed value, in their order, before it meets the schema. Arrow's parser refuses each value that a
rule would change. Rows from before a rule get the cells that it gives (`rewrite.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark_tiered.typed.evolve import Path, Unfit, Value, check_storable, check_time, convert
from pyspark_tiered.typed.kinds import (
    ColumnType,
    Field,
    ListOf,
    Scalar,
    StructOf,
    Variant,
    add_field,
    delta_type,
    describe,
    from_type,
    replace_field,
)
from pyspark_tiered.typed.names import KEY, KEY_COLUMN, RECORD_COLUMNS, VALUE, VALUE_COLUMN, choose_column, fold
from tiered.errors import Code, Corrupt, Refused

CHANGES_MAX = 100
BITS = {"int": 31, "long": 63}
ITEMS = "[]"
"""Part of a path: the items of an array."""
NUMBER, TEXT, BOOLEAN, ARRAY, OBJECT = "number", "text", "boolean", "array", "object"
TYPES = {int: NUMBER, float: NUMBER, str: TEXT, bool: BOOLEAN, list: ARRAY, dict: OBJECT}
COLUMN_TYPES = {"int": NUMBER, "long": NUMBER, "double": NUMBER, "boolean": BOOLEAN}

WRAPPED = {"schema", "payload"}
"""Names in a value of Kafka Connect with its schema."""
DEBEZIUM = "debezium"
"""Kind of values or keys that may have an envelope."""
RETYPE, DROP = "retype", "drop"
"""First words of the forms in which two kinds of rules are kept."""
WIDER = {("int", "long"), ("int", "double"), ("long", "double"), ("date", "string")}
"""Changes of a type, from and to, that need no rule."""
RETYPED = {
    *((name, "string") for name in ("int", "long", "double", "boolean")),
    *(("string", name) for name in ("int", "long", "double", "boolean")),
}
"""Changes of a type that need a rule, because the type in JSON changes too."""
CHECKED = {("string", "date"), ("string", "timestamp")}
"""Changes of a type that need no rule, and that not every text survives."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r"[^`.\[\]]+")
_PART = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.\[\]]+))((?:\[\])*)(\.|$)")


class Change(NamedTuple):
    """A rule. `path` are names in JSON, and `[]` for the items of an array; it ends with a name.

    Values of another type than `stays` move to the field `to` of the same object; an empty `to` drops them. If the
    field `to` has a value, arrays and objects without a leaf are dropped, and other values do not fit.
    """

    path: Path
    stays: str
    to: str = ""


class RetypedField(NamedTuple):
    """A rule: scalars of the field become those of the type `to`. The column had the type `before`."""

    path: Path
    before: str
    to: str


class DroppedField(NamedTuple):
    """A rule: the field has no column, and its values are left out. Its column had the type `kind`."""

    path: Path
    kind: ColumnType


class Envelope(NamedTuple):
    """A rule of the kind debezium: a value of Kafka Connect with its schema is what its payload is.

    With the path of the key it is for keys.
    """

    path: Path = ()


FieldRule = Change | RetypedField | DroppedField | Envelope


def envelope_rules(values: str, keys: str) -> tuple[FieldRule, ...]:
    """Returns the rules that follow from the kinds of values and keys."""
    return (*([Envelope()] if values == DEBEZIUM else []), *([Envelope((KEY,))] if keys == DEBEZIUM else []))


def encode_changes(changes: Sequence[FieldRule]) -> str:
    """Returns the form in which the properties of a table keep rules. An envelope follows from the kind of values."""
    return json.dumps([_encode_rule(each) for each in changes])


def _encode_rule(rule: FieldRule) -> list[Any]:
    match rule:
        case DroppedField(path, kind):
            return [DROP, path, delta_type(kind)]
        case RetypedField():
            return [RETYPE, *rule]
        case _:
            return list(rule)


def decode_changes(text: str) -> tuple[FieldRule, ...]:
    """Returns the rules that a table keeps. Raises `Corrupt`."""
    try:
        found = [list(each) for each in (json.loads(text) if text else [])]
        return tuple(_decode_rule(*each) for each in found)
    except (ValueError, TypeError, IndexError) as fault:
        raise Corrupt(f"the rules of a typed table cannot be read: {fault!r}") from fault


def _decode_rule(first: Any, *rest: Any) -> FieldRule:
    path = tuple(map(str, rest[0] if isinstance(first, str) else first))
    if not path or path[-1] == ITEMS:
        raise Corrupt("the rules of a typed table name no field")
    match first, *rest[isinstance(first, str) :]:
        case list(), stays, to if stays in TYPES.values():
            return Change(path, str(stays), str(to))
        case "retype", before, to if (before, to) in RETYPED:
            return RetypedField(path, before, to)
        case "drop", kind:
            return DroppedField(path, from_type(kind))
        case _:
            raise Corrupt("the rules of a typed table name no type")


def format_path(path: Path) -> str:
    """Returns the text from which `parse_path` makes these parts."""
    text = ""
    for part in path:
        if part == ITEMS:
            text += ITEMS
        else:
            named = {KEY: KEY_COLUMN, VALUE: VALUE_COLUMN}.get(part, part)
            name = named if _PLAIN.fullmatch(named) else f"`{named.replace('`', '``')}`"
            text += f".{name}" if text else name
    return text


def strip_items(path: Path) -> Path:
    """Returns the path of the field that holds an item, and other paths as they are."""
    end = len(path)
    while end and path[end - 1] == ITEMS:
        end -= 1
    return path[:end]


def parse_path(text: str) -> Path:
    """Returns the parts of a path: `items[].sku`, with other names in backticks. Raises `Refused`."""
    parts: list[str] = []
    at, goes_on = 0, True
    while goes_on:
        found = _PART.match(text, at)
        if found is None or found[1] == ITEMS:
            raise Refused(Code.INVALID_REQUEST, f"{text!a} is no path of a field: write items[].sku, or `a.b`.c")
        parts.append(found[1].replace("``", "`") if found[1] is not None else found[2])
        parts += [ITEMS] * (len(found[3]) // 2)
        at, goes_on = found.end(), found[4] == "."
    if parts[-1] == ITEMS:
        raise Refused(Code.INVALID_REQUEST, f"{text!a} has to end with the name of a field")
    return tuple(parts)


def add_change(changes: Sequence[FieldRule], schema: StructOf, path: Path, to: str) -> tuple[FieldRule, ...]:
    """Returns the rules with another one, by which values of another type move, or are dropped without `to`.

    Raises `Refused` if the field has no column, or such a rule.
    """
    path, field = find_field(schema, path)
    if isinstance(field.kind, Variant):
        raise _refuse(f"{format_path(path)!a} takes each value: there is none of another type")
    if to:
        _check_is_part(path, "its values cannot move")
    if any(isinstance(each, Change) and each.path == path for each in changes):
        raise _refuse(f"{format_path(path)!a} has a rule already, and rows by it: a rule stays")
    if isinstance(field.kind, Scalar) and field.kind.decimal:
        raise _refuse(
            f"{format_path(path)!a} is {field.kind.name}, which takes numbers and text: no rule moves one of them"
        )
    if to == path[-1]:
        raise _refuse("values cannot move to the field that they are in")
    if any(isinstance(each, DroppedField) and each.path == (*path[:-1], to) for each in changes):
        raise _refuse(f"values cannot move to {to!a}: this field was dropped, and a rule stays")
    return _with_rule(changes, Change(path, _column_type(field.kind), to))


def rename_field(schema: StructOf, path: Path, name: str) -> StructOf:
    """Returns the schema with another name for the column of a field, which keeps its name in JSON.

    Raises `Refused` if no column can have that name, or if another one has it.
    """
    path, field = find_field(schema, path)
    _check_is_part(path, "it keeps its name")
    around = find_fields(schema, path[:-1])
    taken = {fold(each.column) for each in around if each is not field}
    if len(path) == 1:
        taken |= {fold(column) for column in RECORD_COLUMNS}
    if name == field.column:
        raise _refuse(f"{format_path(path)!a} has that name already")
    if choose_column(name, taken) != name:
        raise _refuse(f"a column cannot have the name {name!a}, or another column has it: {choose_column(name, taken)}")
    found = replace_field(schema, path, Field(field.json_name, name, field.kind))
    assert isinstance(found, StructOf)
    return found


def retype_field(
    changes: Sequence[FieldRule], schema: StructOf, path: Path, to: str
) -> tuple[tuple[FieldRule, ...], StructOf]:
    """Returns the rules and the schema in which a field has the type `to`. Raises `Refused` if it cannot have it."""
    path, field = find_field(schema, path)
    before = field.kind.name if isinstance(field.kind, Scalar) else ""
    step = before, to
    if step not in WIDER | RETYPED | CHECKED:
        raise _refuse(f"{format_path(path)!a} cannot become {describe(Scalar(to))}: it is {describe(field.kind)[:200]}")
    if step in RETYPED:
        # After a rule that moves values by their type in JSON, Arrow would take the values that the rule moves.
        if any(each.path == path for each in changes):
            raise _refuse(f"{format_path(path)!a} has a rule already, and rows by it: a rule stays")
        changes = _with_rule(changes, RetypedField(path, before, to))
    found = replace_field(schema, path, Field(field.json_name, field.column, Scalar(to)))
    assert isinstance(found, StructOf)
    return tuple(changes), found


def drop_field(changes: Sequence[FieldRule], schema: StructOf, path: Path) -> tuple[tuple[FieldRule, ...], StructOf]:
    """Returns the rules and the schema without a field. Raises `Refused` if there is no such field."""
    path, field = find_field(schema, path)
    _check_is_part(path, "it stays")
    found = replace_field(schema, path, None)
    assert isinstance(found, StructOf)
    return _with_rule(changes, DroppedField(path, field.kind)), found


def add_dropped_fields(schema: StructOf, changes: Sequence[FieldRule]) -> StructOf:
    """Returns the schema by which Arrow reads: with the dropped fields whose objects have columns."""
    found: ColumnType = schema
    for each in changes:
        if isinstance(each, DroppedField):
            found = add_field(found, each.path[:-1], Field(each.path[-1], each.path[-1], each.kind))
    assert isinstance(found, StructOf)
    return found


def find_fields(schema: StructOf, path: Path) -> tuple[Field, ...]:
    """Returns the fields of the object at a path."""
    kind: ColumnType = schema
    for part in path:
        if part != ITEMS:
            assert isinstance(kind, StructOf)
            kind = kind.fields[kind.places[part]].kind
        elif isinstance(kind, ListOf):
            kind = kind.element
    assert isinstance(kind, StructOf)
    return kind.fields


def find_field(schema: StructOf, path: Path) -> tuple[Path, Field]:
    """Returns a field and its path in JSON. The path may name columns too. Raises `Refused` if there is none."""
    kind: ColumnType | None = schema
    field: Field | None = None
    found: list[str] = []
    if path[:1] == (KEY_COLUMN,) and KEY in schema.places:
        path = (KEY, *path[1:])
    for part in path:
        match kind:
            case StructOf(fields):
                field = kind.find(part) or next((each for each in fields if each.column == part), None)
                kind = None if field is None else field.kind
                found.append(part if field is None else field.json_name)
            case ListOf(element) if part == ITEMS:
                kind = element
                found.append(ITEMS)
            case _:
                kind = None
    if kind is None or field is None:
        raise _refuse(f"the typed table has no field {format_path(path)!a}")
    return tuple(found), field


def _with_rule(changes: Sequence[FieldRule], rule: FieldRule) -> tuple[FieldRule, ...]:
    if len(changes) >= CHANGES_MAX:
        raise _refuse(f"a typed table has {CHANGES_MAX} rules at most")
    return (*changes, rule)


def _check_is_part(path: Path, why: str) -> None:
    if path == (KEY,):
        raise _refuse(f"{KEY_COLUMN} is the whole key: {why}")
    if path == (VALUE,):
        raise _refuse(f"{VALUE_COLUMN} is the whole value: {why}")


def _refuse(why: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, why)


def _column_type(kind: ColumnType) -> str:
    match kind:
        case Scalar(name):
            return COLUMN_TYPES.get(name, TEXT)
        case ListOf():
            return ARRAY
        case _:
            return OBJECT


def apply_changes(changes: Sequence[FieldRule], value: Value) -> bool:
    """Changes a parsed value by all rules. Returns true if one changed it. Raises `Unfit`."""
    return sum(_apply(value, each.path, each) if each.path else _unwrap(value) for each in changes) > 0


def _unwrap(value: Value) -> bool:
    """Puts the fields of the payload in the place of an object that has schema and payload, and nothing else."""
    if type(value) is not dict or "payload" not in value:
        return False
    is_wrapped, payload = value.keys() == WRAPPED, value["payload"]
    if is_wrapped:
        if payload is not None and type(payload) is not dict:
            raise Unfit("the payload is no object")
        check_storable(value["schema"], ("schema",))
        value.clear()
        value.update(payload or {})
    # Without a column of that name, Arrow refuses each value with an envelope.
    if value.get("payload") is not None:
        raise Unfit("a change event has no field 'payload'")
    return is_wrapped


def _unwrap_key(holder: dict[str, Any]) -> bool:
    """Puts the payload in the place of a key that has schema and payload, and nothing else."""
    key = holder[KEY]
    if type(key) is not dict or "payload" not in key:
        return False
    if key.keys() == WRAPPED:
        check_storable(key["schema"], (KEY, "schema"))
        holder[KEY] = key["payload"]
    # Without a column of that name, Arrow refuses each key with an envelope.
    if type(holder[KEY]) is dict and "payload" in holder[KEY]:
        raise Unfit("the key of a change event has no field 'payload'")
    return True


def _apply(value: Value, path: Sequence[str], change: FieldRule) -> bool:
    name, *rest = path
    if name == ITEMS:
        return type(value) is list and sum(_apply(item, rest, change) for item in value) > 0
    if type(value) is not dict or name not in value:
        return False
    if rest:
        return _apply(value[name], rest, change)
    match change:
        case DroppedField():
            check_storable(value.pop(name), change.path)
            return True
        case RetypedField(_, before, to):
            found = retype_value(value[name], before, to)
            if found is value[name]:
                return False
            value[name] = found
            return True
        case Envelope():
            return _unwrap_key(value)
        case Change():
            return value[name] is not None and _move_value(value, name, change)


def _move_value(holder: dict[str, Any], name: str, change: Change) -> bool:
    if TYPES.get(type(holder[name])) == change.stays:
        return False
    moved = holder.pop(name)
    if not change.to:
        check_storable(moved, change.path)
    elif holder.get(change.to) is None:
        holder[change.to] = moved
    elif _has_leaf(moved):  # a value without a leaf may be in a row from before the column and the rule
        raise Unfit(f"{name[:80]!a} has another type, and {change.to[:80]!a} is taken")
    return True


def _has_leaf(value: Value) -> bool:
    match value:
        case dict():
            return any(map(_has_leaf, value.values()))
        case list():
            return any(map(_has_leaf, value))
        case _:
            return value is not None


def retype_value(value: Value, before: str, to: str) -> Value:
    """Returns a scalar as one of the type `to`, and the value itself if it is none: then it fits or not by itself.

    Text of a column that was double has the form of a double for integers too, as its rows had.
    """
    match to:
        case "string":
            return _write_scalar(value, before)
        case _ if type(value) is not str:
            return value
        case "int" | "long" if _INTEGER.fullmatch(value):
            return int(value)
        case "double" if _NUMBER.fullmatch(value):
            found = float(value)
            check_storable(found, ())
            return found
        case "boolean" if value in ("true", "false"):
            return value == "true"
        case _:
            return value


def _write_scalar(value: Value, before: str) -> Value:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int or type(value) is float:
        check_storable(value, ())
        if before == "double":
            return repr(float(value) + 0.0)
        if not -(1 << 63) <= value < 1 << 63:
            raise Unfit("a number beyond 64 bits")
        return repr(value if type(value) is int else value + 0.0)
    return value


def retype_cell(cell: Any, before: str, to: str) -> Any:
    """Returns a cell of a column in another type. Raises `Unfit` for text that is no such value."""
    if cell is None:
        return None
    if (before, to) == ("date", "string"):
        return cell.isoformat()
    if (before, to) in CHECKED:
        check_time(Scalar(to), cell, ())
        return convert(Scalar(to), cell)
    found = retype_value(cell, before, to)
    if to != "string" and type(found) is str:
        raise Unfit(f"{cell[:80]!a} is no {describe(Scalar(to))}")
    if to in ("int", "long") and not -(1 << BITS[to]) <= found < 1 << BITS[to]:
        raise Unfit(f"{cell[:80]!a} is a number beyond {BITS[to] + 1} bits")
    return found
