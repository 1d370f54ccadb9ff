"""Reads one value of Avro by itself: values that are slow to read with others, and those that become JSON. Pure."""

from __future__ import annotations

import json
import math
import struct
import uuid
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

from pyspark_tiered.schemas.avro_plan import PLAIN, TIMES, AvroPlan, Entries, Items, Leaf, Node, Record, Text, Union
from pyspark_tiered.typed.evolve import VARIANT_DEPTH_MAX
from pyspark_tiered.typed.fast import FIRST_DAY, LAST_DAY
from pyspark_tiered.typed.kinds import Scalar, StructOf

Json = Any
Found = tuple[Any, int]
"""A value, and the place behind it."""
DAY_US = 86_400_000_000
DIGITS = Context(prec=400_000)
DECIMAL_TEXT_BYTES_MAX = 1000
"""Bytes of a decimal that becomes text."""


class BadValue(Exception):
    """A value does not fit its schema, and why."""


def read_cell(plan: AvroPlan, node: Node, data: memoryview | bytes, at: int, end: int, depth: int) -> Found:
    """Returns the cell that a value becomes, as Arrow takes it from Python. Raises `BadValue`."""
    if depth > VARIANT_DEPTH_MAX:
        raise BadValue("nested too deep")
    match node:
        case Leaf():
            return _read_leaf(node, data, at, end)
        case Record(fields, kind):
            cells = {}
            for each, field in zip(fields, kind.fields, strict=True):
                cells[field.column], at = read_cell(plan, each, data, at, end, depth + 1)
            return cells, at
        case Union():
            return _read_union(plan, node, data, at, end, depth)
        case Items(item):
            found = []
            for count, start in (blocks := _Blocks(data, at, end)):
                at = start
                for _ in range(count):
                    cell, at = read_cell(plan, item, data, at, end, depth + 1)
                    found.append(cell)
                blocks.at = at
            return found, blocks.at
        case Entries(value):
            entries: dict[str, Any] = {}
            for count, start in (blocks := _Blocks(data, at, end)):
                at = start
                for _ in range(count):
                    name, at = _read_string(data, at, end)
                    cell, at = read_cell(plan, value, data, at, end, depth + 1)
                    if name in entries:
                        raise BadValue("a name twice in a map")
                    entries[name] = cell
                blocks.at = at
            return list(entries.items()), blocks.at
        case Text(schema):
            natural, at = _read_natural(plan, schema, data, at, end, depth)
            return json.dumps(natural, ensure_ascii=False, separators=(",", ":")), at


def _read_union(plan: AvroPlan, node: Union, data: memoryview | bytes, at: int, end: int, depth: int) -> Found:
    chosen, at = _read_long(data, at, end)
    if not 0 <= chosen < len(node.branches):
        raise BadValue("a union has no such branch")
    place = node.places[chosen]
    if place < 0:
        return None, at
    cell, at = read_cell(plan, node.branches[chosen], data, at, end, depth + 1)
    if not node.is_struct:
        return cell, at
    assert isinstance(node.kind, StructOf)
    return {field.column: cell if place == each else None for each, field in enumerate(node.kind.fields)}, at


def _read_leaf(node: Leaf, data: memoryview | bytes, at: int, end: int) -> Found:
    found: Any
    match node.name:
        case "enum":
            place, at = _read_long(data, at, end)
            if not 0 <= place < len(node.symbols):
                raise BadValue("an enum has no such symbol")
            return node.symbols[place], at
        case _:
            found, at = (
                _read_bytes(data, at, end, node.size) if node.name == "fixed" else _read_plain(node.name, data, at, end)
            )
    if node.name == "int" and not -(1 << 31) <= found < 1 << 31:
        raise BadValue("an int beyond 32 bits")
    if not node.logical:
        return found, at
    if node.logical == "date" or node.logical in TIMES:
        us = found * TIMES.get(node.logical, DAY_US)
        if not FIRST_DAY * DAY_US <= us < (LAST_DAY + 1) * DAY_US:
            raise BadValue("a time outside of the years 1 to 9999")
        return (us // DAY_US if node.logical == "date" else us), at
    if isinstance(node.kind, Scalar) and node.kind.decimal:
        number = int.from_bytes(found, signed=True)
        if abs(number) >= 10 ** node.digits[0]:
            raise BadValue(f"a decimal of more than {node.digits[0]} digits")
        return Decimal(number).scaleb(-node.digits[1], DIGITS), at
    return read_text(node, found), at


def read_text(node: Leaf, data: bytes) -> str:
    """Returns the text of a decimal that no column holds, or of an identifier. A longer decimal is cut, never wrong:
    it is written as its bytes in hexadecimal digits."""
    if node.logical == "uuid":
        return str(uuid.UUID(bytes=data)) if len(data) == 16 else data.hex()
    if len(data) > DECIMAL_TEXT_BYTES_MAX:
        return f"0x{data.hex()}"
    return f"{Decimal(int.from_bytes(data, signed=True)).scaleb(-node.digits[1], DIGITS):f}"


def _read_plain(name: str, data: memoryview | bytes, at: int, end: int) -> Found:
    match name:
        case "null":
            return None, at
        case "boolean":
            found, at = _read_bytes(data, at, end, 1)
            if found[0] > 1:
                raise BadValue("a boolean is neither 0 nor 1")
            return bool(found[0]), at
        case "int" | "long":
            return _read_long(data, at, end)
        case "float":
            found, at = _read_bytes(data, at, end, 4)
            return struct.unpack("<f", found)[0], at
        case "double":
            found, at = _read_bytes(data, at, end, 8)
            return struct.unpack("<d", found)[0], at
        case "string":
            return _read_string(data, at, end)
        case _:
            size, at = _read_long(data, at, end)
            return _read_bytes(data, at, end, size)


def _read_natural(plan: AvroPlan, schema: Json, data: memoryview | bytes, at: int, end: int, depth: int) -> Found:
    """Returns a value as JSON has it: bytes as a text of the same codes, and a union as the value of its branch."""
    if depth > VARIANT_DEPTH_MAX:
        raise BadValue("nested too deep")
    inside = depth + 1
    if isinstance(schema, list):
        chosen, at = _read_long(data, at, end)
        if not 0 <= chosen < len(schema):
            raise BadValue("a union has no such branch")
        return _read_natural(plan, schema[chosen], data, at, end, inside)
    if isinstance(schema, str) and schema not in PLAIN:
        schema = plan.names[schema]
    name = schema if isinstance(schema, str) else schema["type"]
    if isinstance(name, dict | list) or (name not in PLAIN and name in plan.names):
        return _read_natural(plan, name, data, at, end, inside)
    match name:
        case "record" | "error":
            fields = {}
            for field in schema["fields"]:
                fields[field["name"]], at = _read_natural(plan, field["type"], data, at, end, inside)
            return fields, at
        case "array":
            items = []
            for count, start in (blocks := _Blocks(data, at, end)):
                at = start
                for _ in range(count):
                    item, at = _read_natural(plan, schema["items"], data, at, end, inside)
                    items.append(item)
                blocks.at = at
            return items, blocks.at
        case "map":
            entries = {}
            for count, start in (blocks := _Blocks(data, at, end)):
                at = start
                for _ in range(count):
                    key, at = _read_string(data, at, end)
                    if key in entries:
                        raise BadValue("a name twice in a map")
                    entries[key], at = _read_natural(plan, schema["values"], data, at, end, inside)
                blocks.at = at
            return entries, blocks.at
        case "enum":
            place, at = _read_long(data, at, end)
            if not 0 <= place < len(schema["symbols"]):
                raise BadValue("an enum has no such symbol")
            return schema["symbols"][place], at
        case "fixed":
            found, at = _read_bytes(data, at, end, schema["size"])
        case _:
            found, at = _read_plain(name, data, at, end)
    return natural(found), at


def natural(found: Any) -> Any:
    """Returns what JSON has for a value without parts."""
    if isinstance(found, bytes):
        return found.decode("latin-1")
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    return found


class _Blocks:
    """The blocks of an array or a map. The reader of the items says where each ends."""

    def __init__(self, data: memoryview | bytes, at: int, end: int) -> None:
        self.at = at
        self._data = data
        self._end = end

    def __iter__(self) -> Iterator[tuple[int, int]]:
        while True:
            count, self.at = _read_long(self._data, self.at, self._end)
            if count == 0:
                return
            if count < 0:
                count = -count
                _, self.at = _read_long(self._data, self.at, self._end)
            if count > self._end - self.at:
                raise BadValue("an array has more items than bytes")
            yield count, self.at


def _read_string(data: memoryview | bytes, at: int, end: int) -> tuple[str, int]:
    size, at = _read_long(data, at, end)
    found, at = _read_bytes(data, at, end, size)
    try:
        return found.decode(), at
    except UnicodeDecodeError:
        raise BadValue("a text is not UTF-8") from None


def _read_bytes(data: memoryview | bytes, at: int, end: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > end:
        raise BadValue("the value ends within a field")
    return bytes(data[at : at + size]), at + size


def _read_long(data: memoryview | bytes, at: int, end: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        if at >= end:
            raise BadValue("the value ends within a field")
        if shift >= 64:
            raise BadValue("a number beyond 64 bits")
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            raw &= (1 << 64) - 1
            return (raw >> 1) ^ -(raw & 1), at
