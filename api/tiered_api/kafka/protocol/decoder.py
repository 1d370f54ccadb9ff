"""The generator of decoder functions: one function for each version of each message.

The function is flat: structs and arrays become straight lines and loops. The function has no code for fields that the
version lacks. Adjacent fields of fixed size, and the length of the field after them, are unpacked together as one
*run*.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from struct import Struct
from typing import Any

from tiered_api.kafka.protocol.function_builder import FunctionBuilder
from tiered_api.kafka.protocol.primitives import (
    ELEMENTS_MAX,
    PIECE_ELEMENTS,
    STRING_MAX_BYTES,
    STRUCT_CODES,
    Buffer,
    Malformed,
    id_text,
    read_varint,
    skip_fields,
    tag_count,
    varint_rest,
)
from tiered_api.kafka.protocol.schema import FieldSpec, FieldType, Message, field_specs

Decoder = Callable[[Buffer, int, int], Any]
"""A function `(data, at, end)` that returns a message."""
PieceDecoder = Callable[[Buffer, int, int], Generator[None, None, Any]]
"""A decoder that stops between pieces of a message."""

HEAD = "def decode(data, at, end):"


def compile_decoder(table: type[Message], version: int) -> Decoder:
    """Returns the decoder of one version of one message."""
    return _generate_decoder(table, version).function(HEAD, f"<{table.__name__} v{version} decode>")


def compile_piece_decoder(table: type[Message], version: int) -> PieceDecoder:
    """Returns the same as a generator, which stops after each piece of `PIECE_ELEMENTS`."""
    read = _generate_decoder(table, version, PIECE_ELEMENTS)
    return read.function(HEAD, f"<{table.__name__} v{version} decode in pieces>")


def min_field_size(row: FieldSpec, version: int, flexible: bool) -> int:
    """Returns the fewest bytes that a field takes, or one element of it if it is an array."""
    if row.kind in STRUCT_CODES:
        return Struct(f">{STRUCT_CODES[row.kind]}").size
    if row.kind is FieldType.STRUCT:
        if version in row.nullable and not row.is_array:
            return 1
        return min_struct_size(row.of, version, flexible)
    if flexible:
        return 1
    return 2 if row.kind is FieldType.STRING else 4


def min_struct_size(table: type[Any] | None, version: int, flexible: bool) -> int:
    """Returns the fewest bytes that a struct takes, at least one.

    Kafka rejects arrays with more elements than bytes, even of empty structs.
    """
    size = int(flexible)
    for row in field_specs(table) if table else ():
        if version in row.versions and version not in row.tagged:
            size += (1 if flexible else 4) if row.is_array else min_field_size(row, version, flexible)
    return max(size, 1)


def _generate_decoder(table: type[Message], version: int, piece: int = 0) -> FunctionBuilder:
    out = FunctionBuilder(piece=piece, Malformed=Malformed, id_text=id_text, new=object.__new__)
    out.names |= {each.__name__: each for each in (read_varint, skip_fields, tag_count, varint_rest)}
    # Responses come from brokers, but any client that can connect sends requests: so only these have a bound on
    # elements.
    bounded = table.__name__.endswith("Request")
    if bounded:
        out.line(f"left = {ELEMENTS_MAX}")
    writer = _DecoderWriter(out, table.__name__, version, version in table.spec.flexible, bounded)
    made = writer.struct(table)
    # librdkafka 2.16 sends three bytes too many when it requests all topics. Kafka ignores trailing bytes of requests
    # too.
    if not bounded:
        with out.block("if at != end:"):
            out.line(f'raise Malformed("{table.__name__}: bytes after the end of the message")')
    out.line(f"return {made}")
    return out


class _DecoderWriter:
    def __init__(self, out: FunctionBuilder, message: str, version: int, flexible: bool, bounded: bool) -> None:
        self.out, self.message, self.version, self.flexible = out, message, version, flexible
        self.bounded = bounded
        self.targets: list[str] = []
        self.codes: list[str] = []
        self.ids: list[tuple[str, str]] = []

    # Runs: adjacent values that are unpacked together.

    def read(self, target: str, code: str) -> None:
        """Adds a value to the run."""
        self.targets.append(target)
        self.codes.append(code)

    def flush(self) -> None:
        """Emits the unpacking of the run. Must come before any line that uses `at` or a value of the run."""
        if self.codes:
            run = Struct(">" + "".join(self.codes))
            name = self.out.constant("run", run.unpack_from)
            self.out.line(f"{', '.join(self.targets)}, = {name}(data, at)")
            self.out.line(f"at += {run.size}")
        for target, raw in self.ids:
            self.out.line(f"{target} = id_text({raw})")
        self.targets, self.codes, self.ids = [], [], []

    def length(self, code: str) -> str:
        """Emits the reading of a length, as the end of the run.

        The length is -1 for null. A varint length counts from 1, so that 0 is null.
        """
        size = self.out.local("n")
        self.read(size, "B" if self.flexible else code)
        self.flush()
        if self.flexible:
            with self.out.block(f"if {size} > 127:"):
                self.out.line(f"{size}, at = varint_rest(data, at, {size})")
            self.out.line(f"{size} -= 1")
        return size

    def raise_if(self, condition: str, row: FieldSpec, why: str) -> None:
        with self.out.block(f"if {condition}:"):
            self.out.line(f'raise Malformed("{self.message}.{row.name}: {why}")')

    def count_elements(self, size: str) -> None:
        """Emits the check that the request stays within `ELEMENTS_MAX` elements."""
        if self.bounded:
            self.out.line(f"left -= {size}")
            with self.out.block("if left < 0:"):
                self.out.line(f'raise Malformed("{self.message}: more than {ELEMENTS_MAX} elements")')

    # Fields.

    def struct(self, table: type[Any]) -> str:
        """Emits the reading of a struct into a new local variable. Returns its name."""
        made = self.out.local("m")
        self.out.line(f"{made} = new({self.out.constant('Table', table)})")
        tagged = []
        for row in field_specs(table):
            target = f"{made}.{row.name}"
            if self.version in row.tagged and self.flexible:
                tagged.append(row)
            if self.version not in row.versions or row in tagged:
                self.out.line(f"{target} = {self.default(row)}")
            else:
                self.field(row, target)
        if self.flexible:
            self.read_tags(made, tagged)
        self.flush()
        return made

    def default(self, row: FieldSpec) -> str:
        """Returns the expression for a field that is not on the wire. Lists and structs are new objects."""
        if isinstance(row.default, list):
            return "[]"
        if row.kind is FieldType.STRUCT and not row.is_array and row.default is not None:
            return f"{self.out.constant('Table', row.of)}()"
        return repr(row.default)

    def field(self, row: FieldSpec, target: str) -> None:
        if row.is_array:
            self.array(row, target)
        elif row.kind is FieldType.STRUCT:
            self.one_struct(row, target)
        elif row.kind is FieldType.UUID:
            raw = self.out.local("raw")
            self.read(raw, STRUCT_CODES[row.kind])
            self.ids.append((target, raw))
        elif row.kind in STRUCT_CODES:
            self.read(target, STRUCT_CODES[row.kind])
        else:
            self.buffer(row, target, self.version in row.nullable)

    def buffer(self, row: FieldSpec, target: str, nullable: bool) -> None:
        """Emits the reading of a STRING, BYTES or RECORDS field: a length and that many bytes."""
        size = self.length("h" if row.kind is FieldType.STRING else "i")
        made = {FieldType.STRING: 'str(data[at:stop], "utf-8")', FieldType.BYTES: "bytes(data[at:stop])"}
        value = made.get(row.kind, "data[at:stop]")

        def take() -> None:
            self.out.line(f"stop = at + {size}")
            too_long = f" or {size} > {STRING_MAX_BYTES}" if row.kind is FieldType.STRING and self.flexible else ""
            self.raise_if(f"stop > end{too_long}", row, "longer than its frame")
            self.out.line(f"{target} = {value}")
            self.out.line("at = stop")

        self.unless_null(row, target, size, nullable, take)

    def unless_null(self, row: FieldSpec, target: str, size: str, nullable: bool, take: Callable[[], None]) -> None:
        """Emits the lines of `take` for a value that is not null. Any negative length means null, as in Kafka."""
        if not nullable:
            self.raise_if(f"{size} < 0", row, "null in a field that must not be null")
            take()
            return
        with self.out.block(f"if {size} < 0:"):
            self.out.line(f"{target} = None")
        with self.out.block("else:"):
            take()

    def one_struct(self, row: FieldSpec, target: str) -> None:
        assert row.of is not None
        if self.version not in row.nullable:
            self.flush()
            self.out.line(f"{target} = {self.struct(row.of)}")
            return
        assert self.version not in row.tagged, "a nullable tagged struct has another encoding (KIP-893)"
        marker = self.out.local("n")
        self.read(marker, "b")
        self.flush()
        with self.out.block(f"if {marker} < 0:"):
            self.out.line(f"{target} = None")
        with self.out.block("else:"):
            self.out.line(f"{target} = {self.struct(row.of)}")

    def array(self, row: FieldSpec, target: str) -> None:
        size = self.length("i")
        min_size = min_field_size(row, self.version, self.flexible)

        def take() -> None:
            self.raise_if(f"{size} * {min_size} > end - at", row, "more elements than its frame has room for")
            self.count_elements(size)
            if row.kind in STRUCT_CODES and row.kind is not FieldType.UUID:
                unpack = self.out.constant("unpack", _unpack_many(STRUCT_CODES[row.kind]))
                self.out.line(f"{target} = {unpack}({size}, data, at)")
                self.out.line(f"at += {size} * {min_size}")
            else:
                self.elements(row, target, size)

        self.unless_null(row, target, size, self.version in row.nullable, take)

    def elements(self, row: FieldSpec, target: str, size: str) -> None:
        """Emits the loop over elements that are not plain numbers."""
        items = self.out.local("items")
        self.out.line(f"{target} = {items} = []")
        with self.out.block(f"for _ in range({size}):"):
            self.out.count_element()
            if row.kind is FieldType.STRUCT:
                assert row.of is not None
                made = self.struct(row.of)
            elif row.kind is FieldType.UUID:
                made = "id_text(bytes(data[at:at + 16]))"
            else:
                made = self.out.local("item")
                self.buffer(row, made, nullable=False)
            self.out.line(f"{items}.append({made})")
            if row.kind is FieldType.UUID:
                self.out.line("at += 16")

    def read_tags(self, made: str, known: list[FieldSpec]) -> None:
        """Emits the reading of the tagged fields after a struct. Known tags may come in any order, as in Kafka; others
        are skipped."""
        count = self.out.local("tags")
        self.read(count, "B")
        self.flush()
        with self.out.block(f"if {count}:"):
            self.out.line(f"{count}, at = tag_count(data, at - 1)")
            self.count_elements(count)
            if not known:
                self.out.line(f"at = skip_fields(data, at, end, {count})")
                return
            with self.out.block(f"for _ in range({count}):"):
                tag, stop = self.out.local("tag"), self.out.local("stop")
                self.out.line(f"{tag}, at = read_varint(data, at)")
                self.out.line(f"{stop}, at = read_varint(data, at)")
                self.out.line(f"{stop} += at")
                for word, row in zip(["if"] + ["elif"] * len(known), known, strict=False):
                    with self.out.block(f"{word} {tag} == {row.tag}:"):
                        self.field(row, f"{made}.{row.name}")
                        self.flush()
                with self.out.block("else:"):
                    self.out.line(f"at = {stop}")
                with self.out.block(f"if at != {stop} or at > end:"):
                    self.out.line(f'raise Malformed("{self.message}: a tagged field does not have its stated size")')


def _unpack_many(code: str) -> Callable[[int, Buffer, int], list[Any]]:
    """Returns a function that reads an array of numbers."""
    runs = [Struct(f">{count}{code}").unpack_from for count in range(16)]

    def unpack(count: int, data: Buffer, at: int) -> list[Any]:
        run = runs[count] if count < 16 else Struct(f">{count}{code}").unpack_from
        return list(run(data, at))

    return unpack
