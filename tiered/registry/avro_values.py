"""Values of Avro: from JSON to bytes and back, by the JSON encoding of Avro's specification.

A value of a union that is not null is an object with the name of its branch: `{"string": "a"}`. Bytes are texts whose
characters are the bytes. Logical types are written as the types below them. The library `avro` has the encodings of
single values; its own walk over a schema takes no JSON and guesses branches.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

from avro.errors import AvroException
from avro.io import BinaryDecoder, BinaryEncoder
from avro.schema import Schema as AvroSchema

DEPTH_MAX = 100
ITEMS_MAX = 100_000
"""Most items and fields of one value: those of some types take no bytes."""
_INTEGERS = {"int": 31, "long": 63}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ERRORS = (AvroException, TypeError, IndexError, OverflowError, UnicodeError)
"""Errors of the library for bytes that end early, and for numbers that do not fit."""


def encode(schema: AvroSchema, value: Any) -> bytes:
    """Returns the bytes of a parsed JSON value. Raises `ValueError` with its place if it is not of the schema."""
    out = io.BytesIO()
    try:
        _Writer(BinaryEncoder(out)).write(schema, value, "the value", 0)
    except _ERRORS as error:
        raise ValueError(str(error) or type(error).__name__) from None
    return out.getvalue()


def decode(schema: AvroSchema, data: bytes) -> Any:
    """Returns bytes as a value for JSON. Raises `ValueError` if they are not of the schema."""
    source = io.BytesIO(data)
    try:
        found = _Reader(BinaryDecoder(source)).read(schema, 0)
    except _ERRORS as error:
        raise ValueError(f"not of its Avro schema: {str(error) or type(error).__name__}") from None
    if source.tell() != len(data):
        raise ValueError("not of its Avro schema: bytes are left behind it")
    return found


def _branch_name(schema: Any) -> str:
    return str(getattr(schema, "fullname", "") or schema.type)


class _Writer:
    def __init__(self, out: BinaryEncoder) -> None:
        self._out = out
        self._kinds: dict[str, Callable[[Any, Any, str, int], None]] = {
            "null": self._write_null, "boolean": self._write_boolean, "int": self._write_integer,
            "long": self._write_integer, "float": self._write_number, "double": self._write_number,
            "string": self._write_string, "bytes": self._write_bytes, "fixed": self._write_fixed,
            "enum": self._write_enum, "array": self._write_array, "map": self._write_map,
            "union": self._write_union, "record": self._write_record, "error": self._write_record,
        }  # fmt: skip

    def write(self, schema: Any, value: Any, where: str, depth: int) -> None:
        """Writes a value. Raises `ValueError` if it is not of the schema."""
        if depth > DEPTH_MAX:
            raise ValueError(f"{where} is nested deeper than {DEPTH_MAX}")
        self._kinds[schema.type](schema, value, where, depth)

    def _write_null(self, schema: Any, value: Any, where: str, depth: int) -> None:
        _require(value is None, where, "null")

    def _write_boolean(self, schema: Any, value: Any, where: str, depth: int) -> None:
        _require(isinstance(value, bool), where, "true or false")
        self._out.write_boolean(value)

    def _write_integer(self, schema: Any, value: Any, where: str, depth: int) -> None:
        bits = _INTEGERS[schema.type]
        _require(type(value) is int and -(1 << bits) <= value < 1 << bits, where, f"an {bits + 1}-bit integer")
        self._out.write_long(value)

    def _write_number(self, schema: Any, value: Any, where: str, depth: int) -> None:
        number = _NOT_FINITE.get(value) if isinstance(value, str) else value
        _require(isinstance(number, int | float) and not isinstance(number, bool), where, "a number")
        write = self._out.write_float if schema.type == "float" else self._out.write_double
        write(float(number))  # type: ignore[arg-type]

    def _write_string(self, schema: Any, value: Any, where: str, depth: int) -> None:
        _require(isinstance(value, str), where, "a string")
        self._out.write_bytes(value.encode())

    def _write_bytes(self, schema: Any, value: Any, where: str, depth: int) -> None:
        self._out.write_bytes(_to_bytes(value, where))

    def _write_fixed(self, schema: Any, value: Any, where: str, depth: int) -> None:
        data = _to_bytes(value, where)
        _require(len(data) == schema.size, where, f"a string of {schema.size} bytes")
        self._out.write(data)

    def _write_enum(self, schema: Any, value: Any, where: str, depth: int) -> None:
        _require(value in schema.symbols, where, f"a symbol of {schema.fullname}")
        self._out.write_long(schema.symbols.index(value))

    def _write_array(self, schema: Any, value: Any, where: str, depth: int) -> None:
        _require(isinstance(value, list), where, "an array")
        if value:
            self._out.write_long(len(value))
        for number, each in enumerate(value):
            self.write(schema.items, each, f"{where}[{number}]", depth + 1)
        self._out.write_long(0)

    def _write_map(self, schema: Any, value: Any, where: str, depth: int) -> None:
        _require(isinstance(value, dict), where, "an object")
        if value:
            self._out.write_long(len(value))
        for name, each in value.items():
            self._out.write_bytes(name.encode())
            self.write(schema.values, each, f"{where}.{name}", depth + 1)
        self._out.write_long(0)

    def _write_union(self, schema: Any, value: Any, where: str, depth: int) -> None:
        names = [_branch_name(each) for each in schema.schemas]
        if value is None:
            name, inner = "null", None
        else:
            example = next((each for each in names if each != "null"), "null")
            _require(isinstance(value, dict) and len(value) == 1, where, f'written as {{"{example}": ...}}')
            [(name, inner)] = value.items()
        _require(name in names, where, f"one of {', '.join(names)}")
        self._out.write_long(names.index(name))
        self.write(schema.schemas[names.index(name)], inner, where, depth + 1)

    def _write_record(self, schema: Any, value: Any, where: str, depth: int) -> None:
        _require(isinstance(value, dict), where, "an object")
        names = {field.name for field in schema.fields}
        for name in value:
            if name not in names:
                raise ValueError(f"{where} has a field {name[:100]!r}, which {schema.fullname} does not have")
        for field in schema.fields:
            if field.name not in value:
                raise ValueError(f"{where} lacks the field {field.name!r} of {schema.fullname}")
            self.write(field.type, value[field.name], f"{where}.{field.name}", depth + 1)


def _require(is_right: bool, where: str, what: str) -> None:
    if not is_right:
        raise ValueError(f"{where} has to be {what}")


def _to_bytes(value: Any, where: str) -> bytes:
    try:
        return value.encode("latin-1")  # type: ignore[no-any-return]
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"{where} has to be a string of bytes, whose characters are U+0000 to U+00FF") from None


class _Reader:
    def __init__(self, source: BinaryDecoder) -> None:
        self._source = source
        self._left = ITEMS_MAX
        self._kinds: dict[str, Callable[[Any, int], Any]] = {
            "null": lambda schema, depth: None,
            "boolean": lambda schema, depth: source.read_boolean(),
            "int": lambda schema, depth: source.read_long(),
            "long": lambda schema, depth: source.read_long(),
            "float": lambda schema, depth: _show_number(source.read_float()),
            "double": lambda schema, depth: _show_number(source.read_double()),
            "string": lambda schema, depth: source.read_bytes().decode(),
            "bytes": lambda schema, depth: source.read_bytes().decode("latin-1"),
            "fixed": lambda schema, depth: source.read(schema.size).decode("latin-1"),
            "enum": self._read_enum, "array": self._read_array, "map": self._read_map, "union": self._read_union,
            "record": self._read_record, "error": self._read_record,
        }  # fmt: skip

    def read(self, schema: Any, depth: int) -> Any:
        """Returns a value of a schema."""
        self._left -= 1
        if depth > DEPTH_MAX or self._left < 0:
            raise ValueError(f"nested deeper than {DEPTH_MAX}, or of more than {ITEMS_MAX} items")
        return self._kinds[schema.type](schema, depth)

    def _read_enum(self, schema: Any, depth: int) -> Any:
        return schema.symbols[self._read_index()]

    def _read_index(self) -> int:
        index = self._source.read_long()
        if index < 0:
            raise IndexError("a negative index")
        return index

    def _read_blocks(self, read_one: Callable[[], None]) -> None:
        while count := self._source.read_long():
            if count < 0:
                count = -count
                self._source.read_long()  # the bytes of the block
            for _ in range(count):
                read_one()

    def _read_array(self, schema: Any, depth: int) -> list[Any]:
        found: list[Any] = []
        self._read_blocks(lambda: found.append(self.read(schema.items, depth + 1)))
        return found

    def _read_map(self, schema: Any, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def read_one() -> None:
            name = self._source.read_bytes().decode()
            found[name] = self.read(schema.values, depth + 1)

        self._read_blocks(read_one)
        return found

    def _read_union(self, schema: Any, depth: int) -> Any:
        branch = schema.schemas[self._read_index()]
        found = self.read(branch, depth + 1)
        return None if branch.type == "null" else {_branch_name(branch): found}

    def _read_record(self, schema: Any, depth: int) -> dict[str, Any]:
        return {field.name: self.read(field.type, depth + 1) for field in schema.fields}


def _show_number(number: float) -> float | str:
    """Returns a number, or the text of one that JSON does not have."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
