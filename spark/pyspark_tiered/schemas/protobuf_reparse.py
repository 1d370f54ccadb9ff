"""Messages of Protobuf by a reader of the wire format of its own: the other side of the proof of a table. Pure.

A load parses messages by the library (`protobuf_decode.py`). Here only messages that are JSON in the table are.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pyspark_tiered.schemas.avro_reparse import NoCell
from pyspark_tiered.schemas.protobuf_plan import FieldPlan, MessagePlan
from pyspark_tiered.typed.kinds import ColumnType, ListOf, MapOf, Scalar, StructOf

VARINT, FIXED64, BYTES, START, END, FIXED32 = range(6)
DEPTH_MAX = 100
Wire = dict[int, list[tuple[int, Any]]]
"""Wire types and raw values by the numbers of fields, and under 0 the numbers in the order in which they came."""
_FIXED = {"fixed32": "<I", "sfixed32": "<i", "float": "<f", "fixed64": "<Q", "sfixed64": "<q", "double": "<d"}
_WIRE_TYPES = {
    **dict.fromkeys(("fixed32", "sfixed32", "float"), FIXED32),
    **dict.fromkeys(("fixed64", "sfixed64", "double"), FIXED64),
    **dict.fromkeys(("string", "bytes", "message"), BYTES),
    "group": START,
}
_FIRST_SECOND, _END_SECOND = -62_135_596_800, 253_402_300_800


def read_message(plan: MessagePlan, data: bytes, kind: StructOf) -> dict[str, Any]:
    """Returns the cells of a message in columns of the table. Raises `NoCell`."""
    return _read_struct(plan, _split(data, 0), data, kind, 0)


def _read_struct(plan: MessagePlan, wire: Wire, data: bytes, kind: StructOf, depth: int) -> dict[str, Any]:
    if depth > DEPTH_MAX:
        raise NoCell("nested too deep")
    cells: dict[str, Any] = {field.column: None for field in kind.fields}
    last = _find_last_of_oneofs(plan, wire)
    for each in plan.fields:
        field = kind.find(each.name)
        found = wire.get(each.number, [])
        oneof = each.descriptor.containing_oneof
        if oneof is not None and last.get(oneof.name) != each.number:
            found = []
        if field is not None:
            cells[field.column] = _read_field(each, found, field.kind, depth)
        elif found and each.kind != StructOf():
            raise NoCell(f"{each.name!a} has no column")
    return cells


def _find_last_of_oneofs(plan: MessagePlan, wire: Wire) -> Mapping[str, int]:
    names = {each.number: each.descriptor.containing_oneof for each in plan.fields}
    return {names[number].name: number for number, _ in wire.get(0, []) if names.get(number) is not None}


def _read_field(plan: FieldPlan, found: list[tuple[int, Any]], kind: ColumnType, depth: int) -> Any:
    wanted = _WIRE_TYPES.get(plan.type_name, VARINT)
    if plan.form == "map":
        if not isinstance(kind, MapOf):
            raise NoCell("another type than that of the column")
        entries = [_read_entry(plan, data, kind.value, depth) for _, data in found]
        return [(_key_name(key), value) for key, value in sorted(dict(entries).items())]
    if plan.form == "repeated":
        if not isinstance(kind, ListOf):
            raise NoCell("another type than that of the column")
        raw = []
        for wire_type, value in found:
            if wire_type == BYTES != wanted:
                raw += _unpack(plan.type_name, value)
            elif wire_type == wanted:
                raw.append(value)
        if plan.type_name == "enum":
            raw = [each for each in raw if _is_known(plan, each)]
        return [_read_value(plan, [value], kind.element, depth) for value in raw]
    raw = [value for wire_type, value in found if wire_type == wanted]
    if plan.type_name == "enum":
        raw = [each for each in raw if _is_known(plan, each)]
    if not raw and plan.has_presence:
        return None
    return _read_value(plan, raw, kind, depth)


def _is_known(plan: FieldPlan, raw: int) -> bool:
    """True if a field takes a number of its enum: closed ones take none without a name."""
    enum = _value_descriptor(plan).enum_type
    return not enum.is_closed or _signed(raw, 32) in enum.values_by_number


def _value_descriptor(plan: FieldPlan) -> Any:
    return plan.descriptor.message_type.fields_by_name["value"] if plan.form == "map" else plan.descriptor


def _read_entry(plan: FieldPlan, data: bytes, kind: ColumnType, depth: int) -> tuple[Any, Any]:
    wire = _split(data, depth + 1)
    key = plan.descriptor.message_type.fields_by_name["key"]
    names = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool"}
    names |= {9: "string", 13: "uint32", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64"}
    type_name = names[key.type]
    keys = [value for wire_type, value in wire.get(1, []) if wire_type == _WIRE_TYPES.get(type_name, VARINT)]
    wanted = _WIRE_TYPES.get(plan.type_name, VARINT)
    values = [value for wire_type, value in wire.get(2, []) if wire_type == wanted]
    return _scalar(type_name, keys), _read_value(plan, values, kind, depth)


def _key_name(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _read_value(plan: FieldPlan, raw: list[Any], kind: ColumnType, depth: int) -> Any:
    """Returns the cell of a value: of the last raw one, or of all parts of a message together."""
    if plan.value == "scalar":
        return _fit(_read_scalar(plan, raw), kind)
    whole = b"".join(raw)
    match plan.value:
        case "message":
            assert plan.item is not None
            if not isinstance(kind, StructOf):
                raise NoCell("another type than that of the column")
            return _read_struct(plan.item, _split(whole, depth + 1), whole, kind, depth + 1)
        case "timestamp":
            wire = _split(whole, depth)
            seconds, nanos = (_scalar(name, _of(wire, at)) for at, name in ((1, "int64"), (2, "int32")))
            if not _FIRST_SECOND <= seconds < _END_SECOND or not 0 <= nanos < 10**9:
                raise NoCell("no timestamp")
            return _fit_time(seconds * 1_000_000 + nanos // 1000, kind)
        case "wrapper":
            inner = _value_descriptor(plan).message_type.fields_by_name["value"]
            names = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}
            type_name = {**names, 13: "uint32"}[inner.type]
            wanted = _WIRE_TYPES.get(type_name, VARINT)
            return _fit(_scalar(type_name, _of(_split(whole, depth), 1, wanted)), kind)
        case _:
            return _json(_value_descriptor(plan).message_type, whole)


def _of(wire: Wire, number: int, wanted: int = VARINT) -> list[Any]:
    return [value for wire_type, value in wire.get(number, []) if wire_type == wanted]


def _json(descriptor: Any, data: bytes) -> str:
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    from pyspark_tiered.schemas.protobuf_decode import json_text

    try:
        return json_text(GetMessageClass(descriptor).FromString(data))
    except (DecodeError, ValueError) as fault:
        raise NoCell(str(fault)) from None


def _fit(cell: Any, kind: ColumnType) -> Any:
    """Returns a cell in the type of a column, which may be wider than that of its field."""
    if not isinstance(kind, Scalar):
        raise NoCell("another type than that of the column")
    wanted = {"boolean": bool, "string": str, "binary": bytes}.get(kind.name)
    if wanted is not None and type(cell) is wanted:
        return cell
    if kind.name in ("int", "long") and type(cell) is int:
        return cell
    if kind.name == "double" and type(cell) in (int, float):
        return float(cell)
    if kind.decimal and type(cell) is int:
        return Decimal(cell)
    raise NoCell("another type than that of the column")


def _fit_time(us: int, kind: ColumnType) -> int:
    if kind != Scalar("timestamp"):
        raise NoCell("another type than that of the column")
    return us


def _read_scalar(plan: FieldPlan, raw: list[Any]) -> Any:
    if plan.type_name != "enum":
        return _scalar(plan.type_name, raw)
    enum = _value_descriptor(plan).enum_type
    number = _signed(raw[-1], 32) if raw else enum.values[0].number
    known = enum.values_by_number.get(number)
    return str(number) if known is None else known.name


def _scalar(type_name: str, raw: list[Any]) -> Any:
    """Returns the last of some raw values, or the default of the type."""
    if type_name in _FIXED:
        if not raw:
            return 0.0 if type_name in ("float", "double") else 0
        return struct.unpack(_FIXED[type_name], raw[-1])[0]
    if type_name == "bytes":
        return raw[-1] if raw else b""
    if type_name == "string":
        try:
            return raw[-1].decode() if raw else ""
        except UnicodeDecodeError:
            raise NoCell("a text is not UTF-8") from None
    number = raw[-1] if raw else 0
    match type_name:
        case "bool":
            return number != 0
        case "int32":
            return _signed(number, 32)
        case "int64":
            return _signed(number, 64)
        case "uint32":
            return number & 0xFFFFFFFF
        case "sint32":
            number &= 0xFFFFFFFF
            return (number >> 1) ^ -(number & 1)
        case "sint64":
            return (number >> 1) ^ -(number & 1)
        case _:
            return number


def _signed(number: int, bits: int) -> int:
    number &= (1 << bits) - 1
    return number - (1 << bits) if number >> (bits - 1) else number


def _unpack(type_name: str, data: bytes) -> list[Any]:
    """Returns the raw values of a packed field."""
    if type_name in _FIXED:
        width = struct.calcsize(_FIXED[type_name])
        if len(data) % width:
            raise NoCell("a packed field ends within a number")
        return [data[at : at + width] for at in range(0, len(data), width)]
    found, at = [], 0
    while at < len(data):
        number, at = _varint(data, at)
        found.append(number)
    return found


def _split(data: bytes, depth: int) -> Wire:
    """Returns the raw fields of a message. Raises `NoCell`."""
    found, at = _split_until(data, 0, 0, depth)
    if at != len(data):
        raise NoCell("a message ends within a field")
    return found


def _split_until(data: bytes, at: int, group: int, depth: int) -> tuple[Wire, int]:
    if depth > DEPTH_MAX:
        raise NoCell("nested too deep")
    found: Wire = {0: []}
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or tag >> 32:
            raise NoCell("a field has no number")
        value: Any
        match wire_type:
            case 0:
                value, at = _varint(data, at)
            case 1 | 5:
                width = 8 if wire_type == FIXED64 else 4
                value, at = _take(data, at, width)
            case 2:
                size, at = _varint(data, at)
                value, at = _take(data, at, size)
            case 3:
                start = at
                _, at = _split_until(data, at, number, depth + 1)
                value = data[start : at - _varint_size(number << 3 | END)]
            case 4 if number == group:
                return found, at
            case _:
                raise NoCell("a field has no type of the wire")
        found.setdefault(number, []).append((wire_type, value))
        found[0].append((number, None))
    if group:
        raise NoCell("a group has no end")
    return found, at


def _varint_size(number: int) -> int:
    return max((number.bit_length() + 6) // 7, 1)


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise NoCell("a message ends within a field")
    return data[at : at + size], at + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return found & ((1 << 64) - 1), at
    raise NoCell("a message ends within a number")
