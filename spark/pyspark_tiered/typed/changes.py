"""Rules for fields whose values have another type than their column: these values are dropped, or moved. Pure.

`tiered table change` names a rule, and the properties of the typed table keep it. A rule goes by types of JSON, which a
column never changes: numbers, text, booleans, arrays, objects. So a rule treats a value the same at any time. Rules
change a parsed value before it meets the schema. Arrow's parser refuses each value that a rule would change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark_tiered.typed.evolve import Unfit, Value, check_storable
from pyspark_tiered.typed.kinds import ColumnType, ListOf, Scalar, StructOf
from tiered.errors import Code, Corrupt, Refused

CHANGES_MAX = 100
ITEMS = "[]"
"""Part of a path: the items of an array."""
NUMBER, TEXT, BOOLEAN, ARRAY, OBJECT = "number", "text", "boolean", "array", "object"
TYPES = {int: NUMBER, float: NUMBER, str: TEXT, bool: BOOLEAN, list: ARRAY, dict: OBJECT}
COLUMN_TYPES = {"int": NUMBER, "long": NUMBER, "double": NUMBER, "boolean": BOOLEAN}

_PART = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.\[\]]+))((?:\[\])*)(\.|$)")


class Change(NamedTuple):
    """A rule. `path` are names in JSON, and `[]` for the items of an array; it ends with a name.

    Values of another type than `stays` move to the field `to` of the same object; an empty `to` drops them.
    """

    path: tuple[str, ...]
    stays: str
    to: str = ""


def encode_changes(changes: Sequence[Change]) -> str:
    """Returns the form in which the properties of a table keep rules."""
    return json.dumps([list(each) for each in changes])


def decode_changes(text: str) -> tuple[Change, ...]:
    """Returns the rules that a table keeps. Raises `Corrupt`."""
    try:
        found = json.loads(text) if text else []
        changes = tuple(Change(tuple(map(str, path)), str(stays), str(to)) for path, stays, to in found)
    except (ValueError, TypeError) as fault:
        raise Corrupt(f"the rules of a typed table cannot be read: {fault!r}") from fault
    if not all(each.path and each.stays in TYPES.values() for each in changes):
        raise Corrupt("the rules of a typed table name no field, or no type")
    return changes


def parse_path(text: str) -> tuple[str, ...]:
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


def add_change(changes: Sequence[Change], schema: StructOf, path: tuple[str, ...], to: str) -> tuple[Change, ...]:
    """Returns the rules with another one. Raises `Refused` if the field has no column, or a rule."""
    named = ".".join(path).replace(".[]", "[]")
    kind: ColumnType | None = schema
    for part in path:
        match kind:
            case StructOf():
                field = kind.find(part)
                kind = None if field is None else field.kind
            case ListOf(element) if part == ITEMS:
                kind = element
            case _:
                kind = None
    if kind is None:
        raise Refused(Code.INVALID_REQUEST, f"the typed table has no field {named!a}")
    if any(each.path == path for each in changes):
        raise Refused(Code.INVALID_REQUEST, f"{named!a} has a rule already, and rows by it: a rule stays")
    if to == path[-1]:
        raise Refused(Code.INVALID_REQUEST, "values cannot move to the field that they are in")
    if len(changes) >= CHANGES_MAX:
        raise Refused(Code.INVALID_REQUEST, f"a typed table has {CHANGES_MAX} rules at most")
    return (*changes, Change(path, _column_type(kind), to))


def _column_type(kind: ColumnType) -> str:
    match kind:
        case Scalar(name):
            return COLUMN_TYPES.get(name, TEXT)
        case ListOf():
            return ARRAY
        case _:
            return OBJECT


def apply_changes(changes: Sequence[Change], value: Value) -> bool:
    """Changes a parsed value by all rules. Returns true if one changed it. Raises `Unfit`."""
    return sum(_apply(value, each.path, each) for each in changes) > 0


def _apply(value: Value, path: Sequence[str], change: Change) -> bool:
    name, *rest = path
    if name == ITEMS:
        return type(value) is list and sum(_apply(item, rest, change) for item in value) > 0
    if type(value) is not dict or value.get(name) is None:
        return False
    return _apply(value[name], rest, change) if rest else _change_field(value, name, change)


def _change_field(holder: dict[str, Any], name: str, change: Change) -> bool:
    if TYPES.get(type(holder[name])) == change.stays:
        return False
    moved = holder.pop(name)
    if not change.to:
        check_storable(moved, change.path)
    elif holder.get(change.to) is not None:
        raise Unfit(f"{name[:80]!a} has another type, and {change.to[:80]!a} is taken")
    else:
        holder[change.to] = moved
    return True
