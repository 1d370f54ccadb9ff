"""The generator of encoder functions: one function for each version of each message.

The function is flat, like a decoder. Adjacent values of fixed size are packed together as one *run*, with the length of
the next value or the empty tag section of a struct. The parts are joined at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from struct import Struct
from typing import Any

from tiered_api.kafka.protocol.function_builder import FunctionBuilder
from tiered_api.kafka.protocol.primitives import (
    PIECE_ELEMENTS,
    STRING_MAX_BYTES,
    STRUCT_CODES,
    Malformed,
    NumberArrays,
    id_raw,
    varint,
)
from tiered_api.kafka.protocol.schema import FieldSpec, FieldType, Message, field_specs

Encoder = Callable[[Any], bytes]
PieceEncoder = Callable[[Any], Generator[None, None, bytes]]
"""An encoder that stops between pieces of a message."""

HEAD = "def encode(m):"
TAG_COUNT = "x"
"""The `struct` code of a zero byte without a value: an empty tag section."""


def compile_encoder(table: type[Message], version: int) -> Encoder:
    """Returns the encoder of one version of one message."""
    return _generate_encoder(table, version).function(HEAD, f"<{table.__name__} v{version} encode>")


def compile_piece_encoder(table: type[Message], version: int) -> PieceEncoder:
    """Returns the same as a generator, which stops after each piece of `PIECE_ELEMENTS`."""
    written = _generate_encoder(table, version, PIECE_ELEMENTS)
    return written.function(HEAD, f"<{table.__name__} v{version} encode in pieces>")


def _generate_encoder(table: type[Message], version: int, piece: int = 0) -> FunctionBuilder:
    out = FunctionBuilder(piece=piece, Malformed=Malformed, id_raw=id_raw, varint=varint)
    writer = _EncoderWriter(out, table.__name__, version, version in table.spec.flexible)
    out.line("parts, pieces = [], []" if piece else "parts = []")
    out.line("put = parts.append")
    writer.struct(table, "m")
    writer.flush()
    out.line('return b"".join(pieces + parts)' if piece else 'return b"".join(parts)')
    return out


class _EncoderWriter:
    def __init__(self, out: FunctionBuilder, message: str, version: int, flexible: bool) -> None:
        self.out, self.message, self.version, self.flexible = out, message, version, flexible
        self.values: list[str] = []
        self.codes: list[str] = []

    # Runs: adjacent values that are packed together.

    def add(self, value: str, code: str) -> None:
        """Adds a value to the run."""
        self.values.append(value)
        self.codes.append(code)

    def pack_expression(self, more: str = "", code: str = "") -> str:
        """Returns the expression that packs the current run, with one more value."""
        name = self.out.constant("pack", Struct(">" + "".join(self.codes) + code).pack)
        return f"{name}({', '.join(filter(None, [*self.values, more]))})"

    def flush(self) -> None:
        """Emits the packing of the run. Must come before any line that puts other bytes."""
        if self.codes:
            self.out.line(f"put({self.pack_expression()})")
        self.values, self.codes = [], []

    def length(self, size: str, code: str) -> None:
        """Emits the packing of the run and a length; -1 means null."""
        if not self.flexible:
            self.add(size, code)
            self.flush()
            return
        # A varint length counts from 1, so that null is 0. Below 128 it is one byte of the run.
        short = self.pack_expression(f"{size} + 1", "B")
        long = f"{self.pack_expression()} + varint({size} + 1)" if self.codes else f"varint({size} + 1)"
        self.out.line(f"put({short} if {size} < 127 else {long})")
        self.values, self.codes = [], []

    # Fields.

    def struct(self, table: type[Any], value: str) -> None:
        """Emits the fields of a struct. Its last run stays open for the next values."""
        tagged = []
        for row in field_specs(table):
            if self.version in row.tagged and self.flexible:
                tagged.append(row)
            elif self.version in row.versions:
                self.field(row, f"{value}.{row.name}")
        if tagged:
            self.write_tags(sorted(tagged, key=lambda row: row.tag), value)
        elif self.flexible:
            self.add("", TAG_COUNT)

    def field(self, row: FieldSpec, value: str) -> None:
        if row.is_array:
            self.array(row, value)
        elif row.kind is FieldType.STRUCT:
            self.one_struct(row, value)
        elif row.kind in STRUCT_CODES:
            self.add(self.value_expression(row, value), STRUCT_CODES[row.kind])
        else:
            self.buffer(row, value, self.version in row.nullable)

    def value_expression(self, row: FieldSpec, value: str) -> str:
        """Returns the expression of a fixed-size value for `struct`."""
        return f"id_raw({value})" if row.kind is FieldType.UUID else value

    def unless_null(self, row: FieldSpec, var: str, size: str) -> AbstractContextManager[None]:
        """Emits the check for null. Lines inside the block compute the size; null has the size -1."""
        if self.version not in row.nullable:
            return nullcontext()
        self.out.line(f"{size} = -1")
        return self.out.block(f"if {var} is not None:")

    def buffer(self, row: FieldSpec, value: str, nullable: bool) -> None:
        """Emits a STRING, BYTES or RECORDS field: a length and that many bytes."""
        var, size = self.out.local("var"), self.out.local("n")
        is_text = row.kind is FieldType.STRING
        self.out.line(f"{var} = {value}")
        with self.unless_null(row, var, size) if nullable else nullcontext():
            if is_text:
                self.out.line(f"{var} = {var}.encode()")
            self.out.line(f"{size} = len({var})")
        if is_text and self.flexible:
            with self.out.block(f"if {size} > {STRING_MAX_BYTES}:"):
                self.out.line(f'raise Malformed("{self.message}.{row.name}: a string that is too long")')
        self.length(size, "h" if is_text else "i")
        with self.out.block(f"if {size} > 0:"):
            self.out.line(f"put({var})")

    def one_struct(self, row: FieldSpec, value: str) -> None:
        assert row.of is not None
        if self.version not in row.nullable:
            var = self.out.local("m")
            self.out.line(f"{var} = {value}")
            self.struct(row.of, var)
            return
        assert self.version not in row.tagged, "a nullable tagged struct has another encoding (KIP-893)"
        var = self.out.local("m")
        self.out.line(f"{var} = {value}")
        self.add(f"-1 if {var} is None else 1", "b")
        self.flush()
        with self.out.block(f"if {var} is not None:"):
            self.struct(row.of, var)
            self.flush()

    def array(self, row: FieldSpec, value: str) -> None:
        var, size = self.out.local("var"), self.out.local("n")
        self.out.line(f"{var} = {value}")
        if row.kind in STRUCT_CODES and row.kind is not FieldType.UUID:
            self.number_array(row, var)
            return
        with self.unless_null(row, var, size):
            self.out.line(f"{size} = len({var})")
        self.length(size, "i")
        with self.out.block(f"if {size} > 0:"):
            self.elements(row, var)

    def number_array(self, row: FieldSpec, var: str) -> None:
        """Emits an array of numbers: one call packs the count and all elements."""
        self.flush()
        packs = self.out.constant("packs", NumberArrays(STRUCT_CODES[row.kind], self.flexible))
        line = f"put({packs}[len({var})](*{var}))"
        if self.version in row.nullable:
            null = bytes(1) if self.flexible else b"\xff" * 4
            with self.out.block(f"if {var} is None:"):
                self.out.line(f"put({null!r})")
            with self.out.block("else:"):
                self.out.line(line)
        else:
            self.out.line(line)

    def elements(self, row: FieldSpec, var: str) -> None:
        """Emits the loop over elements that are not plain numbers."""
        item = self.out.local("m")
        with self.out.block(f"for {item} in {var}:"):
            self.out.count_element('pieces.append(b"".join(parts))', "parts.clear()")
            before = len(self.out.lines)
            if row.kind is FieldType.STRUCT:
                assert row.of is not None
                self.struct(row.of, item)
            elif row.kind is FieldType.UUID:
                self.add(f"id_raw({item})", STRUCT_CODES[FieldType.UUID])
            else:
                self.buffer(row, item, nullable=False)
            is_run = self.codes and len(self.out.lines) == before and not self.out.piece
            run = self.pack_expression() if is_run else ""
            if not run:
                self.flush()
        if run:
            # Each element is exactly one run: a comprehension is faster than the loop.
            self.out.lines.pop()
            self.out.line(f'put(b"".join([{run} for {item} in {var}]))')
            self.values, self.codes = [], []

    def write_tags(self, tagged: list[FieldSpec], value: str) -> None:
        """Emits the tagged fields that differ from their defaults. Old clients fail on a tagged field with its
        default."""
        self.flush()
        count, fields, outer = self.out.local("tags"), self.out.local("fields"), self.out.local("put")
        self.out.line(f"{count} = 0")
        self.out.line(f"{fields} = []")
        for row in tagged:
            var = self.out.local("var")
            default = self.default(row)
            self.out.line(f"{var} = {value}.{row.name}")
            with self.out.block(f"if {var} != {default}:"):
                parts = self.out.local("parts")
                self.out.line(f"{count} += 1")
                self.out.line(f"{parts} = []")
                self.out.line(f"{outer}, put = put, {parts}.append")
                self.field(row, var)
                self.flush()
                self.out.line("put = " + outer)
                self.out.line(f'{parts} = b"".join({parts})')
                self.out.line(f"{fields} += varint({row.tag}), varint(len({parts})), {parts}")
        self.out.line(f"put(varint({count}))")
        with self.out.block(f"if {count}:"):
            self.out.line(f'put(b"".join({fields}))')

    def default(self, row: FieldSpec) -> str:
        """Returns the expression of a tagged field's default."""
        if row.kind is FieldType.STRUCT and not row.is_array and row.default is not None:
            assert row.of is not None
            return self.out.constant("default", row.of())
        return repr(row.default)
