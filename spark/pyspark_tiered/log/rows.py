"""Decodes record batches to Arrow: the C decoder's buffers become columns. No Python per record."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tiered.errors import Corrupt
from tiered.records.arrow import record_batch
from tiered.records.batch import decode_header
from tiered.records.model import CONTROL, RecordSection, WalkedBatch
from tiered.records.pieces import open_pieces

if TYPE_CHECKING:
    import pyarrow

GROUP_BYTES = 512 << 10
"""Bytes of log in one RecordBatch. Below a quarter of this the fixed cost shows, above it the CPU caches are too small.
"""
DECOMPRESSED_BYTES_MAX = 16 << 20
"""Decompressed bytes of one group of batches. A batch that is larger alone is a group of its own."""


OUT_OF_RANGE_US = (-(1 << 63), (1 << 63) - 1)
"""The decoder's values for milliseconds whose microseconds exceed 64 bits. No millisecond is one of the two."""


class DecodedRows(NamedTuple):
    """Rows of some whole batches, perhaps none. The next batch starts at or above `next_offset`."""

    next_offset: int
    rows: pyarrow.RecordBatch


def arrow_batches(
    found: Iterable[tuple[memoryview, list[WalkedBatch]]],
    bounds: tuple[int, int],
    columns: Sequence[str],
    group_bytes: int = GROUP_BYTES,
) -> Iterator[pyarrow.RecordBatch]:
    """Yields the rows that `decode_rows` decodes, without empty batches."""
    for group in decode_rows(found, bounds, columns, group_bytes):
        if group.rows.num_rows:
            yield group.rows


def decode_rows(
    found: Iterable[tuple[memoryview, list[WalkedBatch]]],
    bounds: tuple[int, int],
    columns: Sequence[str],
    group_bytes: int = GROUP_BYTES,
) -> Iterator[DecodedRows]:
    """Decodes the rows of whole batches with offsets in `[start, end)`; `tiered.records.arrow.arrow_types` names the
    columns.

    The data begins with its first batch; batches may be left out of the list. Control batches are left out. A
    timestamp that microseconds cannot hold is NULL.

    Raises `Corrupt` for records that do not parse. All batches before these were yielded.
    """
    for data, batches in found:
        first = batches[0].position
        for group in _group_batches(batches, group_bytes):
            placed = [batch._replace(position=batch.position - first) for batch in group] if first else group
            yield from _decode_group(data, placed, bounds, columns)


def constant_int_column(value: int, rows: int) -> pyarrow.Array:
    """Returns a column of int32 that is `value` in all rows.

    Not pa.repeat of a pa.scalar: making one from a Python value imports pandas, half a second in every worker.
    """
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(value.to_bytes(4, sys.byteorder) * rows)])


def constant_text_column(value: str, rows: int) -> pyarrow.Array:
    """Returns a column of strings that is `value` in all rows."""
    import pyarrow as pa

    data = value.encode()
    ends = b"".join(end.to_bytes(4, sys.byteorder) for end in (0, len(data)))
    one = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return one.take(constant_int_column(0, rows))


def find_out_of_range(timestamps: pyarrow.Array) -> pyarrow.Array | None:
    """Returns booleans, true for timestamps that microseconds cannot hold. Returns None if there are none, as usual."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = timestamps.view(pa.int64())
    ends = pc.min_max(numbers)
    if ends["min"].as_py() != OUT_OF_RANGE_US[0] and ends["max"].as_py() != OUT_OF_RANGE_US[1]:
        return None
    return pc.is_in(numbers, pa.array(OUT_OF_RANGE_US, pa.int64()))


def _decode_group(
    data: memoryview, group: list[WalkedBatch], bounds: tuple[int, int], columns: Sequence[str]
) -> Iterator[DecodedRows]:
    """Decodes a group in one step, or in as many as keep the decompressed bytes within `DECOMPRESSED_BYTES_MAX`."""
    opened: list[_Opened] = []
    room = DECOMPRESSED_BYTES_MAX
    pieces = (piece for batch in group for piece in _open_batch(data, batch))
    while True:
        try:
            piece = next(pieces, None)
        except Corrupt:
            yield from _decode_opened(opened, bounds, columns)
            raise
        if piece is None:
            break
        size = len(piece.section[0]) if piece.section else 0
        if size > room and opened:
            yield from _decode_opened(opened, bounds, columns)
            opened, room = [], DECOMPRESSED_BYTES_MAX
        room -= size
        opened.append(piece)
    yield from _decode_opened(opened, bounds, columns)


class _Opened(NamedTuple):
    """Decompressed records of a batch, all of them or a piece, and the offset after them. A control batch has none."""

    next_offset: int
    section: RecordSection | None


def _open_batch(data: memoryview, batch: WalkedBatch) -> Iterator[_Opened]:
    if batch.attributes & CONTROL:
        yield _Opened(batch.last_offset + 1, None)
        return
    for piece in open_pieces(data, batch.position, decode_header(data, batch.position)):
        yield _Opened(piece.last_offset + 1, piece.section)


def _decode_opened(opened: Sequence[_Opened], bounds: tuple[int, int], columns: Sequence[str]) -> Iterator[DecodedRows]:
    """Decodes decompressed batches in one step.

    If one of them does not parse, decodes them one by one, so that those before it are not lost.
    """
    if not opened:
        return
    try:
        rows = record_batch([each.section for each in opened if each.section is not None], columns, *bounds)
    except Corrupt:
        if len(opened) == 1:
            raise
        for each in opened:
            yield from _decode_opened([each], bounds, columns)
        return
    yield DecodedRows(opened[-1].next_offset, _null_out_of_range(rows))


def _null_out_of_range(rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    at = rows.schema.get_field_index("timestamp")
    out_of_range = find_out_of_range(rows.column(at)) if at >= 0 and rows.num_rows else None
    if out_of_range is None:
        return rows
    replaced = pc.if_else(out_of_range, pa.scalar(None, rows.schema.field(at).type), rows.column(at))
    return rows.set_column(at, rows.schema.field(at), replaced)


def _group_batches(batches: Iterable[WalkedBatch], group_bytes: int) -> Iterator[list[WalkedBatch]]:
    group: list[WalkedBatch] = []
    size = 0
    for batch in batches:
        if group and size + batch.size > group_bytes:
            yield group
            group, size = [], 0
        group.append(batch)
        size += batch.size
    if group:
        yield group
