"""Record batches -> Arrow: the C decoder's buffers as columns. No Python per record."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tiered.errors import Code, Corrupt, Refused
from tiered.records.arrow import record_batch
from tiered.records.batch import open_sections
from tiered.records.model import CONTROL, TRANSACTIONAL, RecordSection, WalkedBatch

if TYPE_CHECKING:
    import pyarrow

GROUP_BYTES = 512 << 10
"""Log in one RecordBatch: below a quarter of this the fixed cost shows, above it the caches are too small."""
OPENED_BYTES = 16 << 20
"""What the batches of one group may become together; one that alone becomes more is a group of its own."""


BEYOND_US = (-(1 << 63), (1 << 63) - 1)
"""What the decoder gives for milliseconds that have no microseconds in 64 bits. No millisecond is one of the two."""


class RefusedAt(Refused):
    """A record that Spark cannot have: everything below its offset was handed out."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, why)
        self.offset = offset


class Decoded(NamedTuple):
    """Rows of some whole batches, perhaps none; the next batch begins at or above `next_offset`."""

    next_offset: int
    rows: pyarrow.RecordBatch


def arrow_batches(
    found: Iterable[tuple[memoryview, list[WalkedBatch]]],
    bounds: tuple[int, int],
    columns: Sequence[str],
    group_bytes: int = GROUP_BYTES,
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of `decoded` where there are any."""
    for group in decoded(found, bounds, columns, group_bytes):
        if group.rows.num_rows:
            yield group.rows


def decoded(
    found: Iterable[tuple[memoryview, list[WalkedBatch]]],
    bounds: tuple[int, int],
    columns: Sequence[str],
    group_bytes: int = GROUP_BYTES,
) -> Iterator[Decoded]:
    """The rows of whole batches with offsets in `[start, end)`, columns as `tiered.records.arrow.types` names them.
    Data begins with its first batch. Control batches are left out. A timestamp that microseconds cannot hold is NULL.

    `RefusedAt` for transactional batches: whether they were committed cannot be told yet, and a guess would be wrong.
    `Corrupt` for records that do not parse. All batches before these were handed out.
    """
    for data, batches in found:
        first = batches[0].position
        for group in _groups(batches, group_bytes):
            placed = [batch._replace(at=batch.position - first) for batch in group] if first else group
            yield from _decoded(data, placed, bounds, columns)


def same_int(value: int, rows: int) -> pyarrow.Array:
    """A column of int32 that is `value` in all rows.

    Not pa.repeat of a pa.scalar: making one from a Python value imports pandas, half a second in every worker.
    """
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(value.to_bytes(4, sys.byteorder) * rows)])


def same_text(value: str, rows: int) -> pyarrow.Array:
    """A column of strings that is `value` in all rows."""
    import pyarrow as pa

    data = value.encode()
    ends = b"".join(end.to_bytes(4, sys.byteorder) for end in (0, len(data)))
    one = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return one.take(same_int(0, rows))


def beyond_us(timestamps: pyarrow.Array) -> pyarrow.Array | None:
    """Where microseconds could not hold what the record says, as booleans; None where all are held: nearly always."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = timestamps.view(pa.int64())
    ends = pc.min_max(numbers)
    if ends["min"].as_py() != BEYOND_US[0] and ends["max"].as_py() != BEYOND_US[1]:
        return None
    return pc.is_in(numbers, pa.array(BEYOND_US, pa.int64()))


def _decoded(
    data: memoryview, group: list[WalkedBatch], bounds: tuple[int, int], columns: Sequence[str]
) -> Iterator[Decoded]:
    """A group in one go, or in as many as keep what is opened at once within `OPENED_BYTES`."""
    held: list[tuple[WalkedBatch, list[RecordSection]]] = []
    room = OPENED_BYTES
    for batch in group:
        try:
            found = open_sections(data, [batch])
        except Corrupt:
            yield from _rows_of(held, bounds, columns)
            raise
        size = sum(len(payload) for payload, *_ in found)
        if size > room and held:
            yield from _rows_of(held, bounds, columns)
            held, room = [], OPENED_BYTES
        room -= size
        held.append((batch, found))
    yield from _rows_of(held, bounds, columns)


def _rows_of(
    held: Sequence[tuple[WalkedBatch, list[RecordSection]]], bounds: tuple[int, int], columns: Sequence[str]
) -> Iterator[Decoded]:
    """Opened batches in one go; where one of them does not parse one by one, so that those before it are not lost."""
    if not held:
        return
    try:
        rows = record_batch([section for _, found in held for section in found], columns, *bounds)
    except Corrupt:
        if len(held) == 1:
            raise
        for each in held:
            yield from _rows_of([each], bounds, columns)
        return
    yield Decoded(held[-1][0].last_offset + 1, _without_beyond(rows))


def _without_beyond(rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    at = rows.schema.get_field_index("timestamp")
    beyond = beyond_us(rows.column(at)) if at >= 0 and rows.num_rows else None
    if beyond is None:
        return rows
    held = pc.if_else(beyond, pa.scalar(None, rows.schema.field(at).type), rows.column(at))
    return rows.set_column(at, rows.schema.field(at), held)


def _groups(batches: Iterable[WalkedBatch], group_bytes: int) -> Iterator[list[WalkedBatch]]:
    group: list[WalkedBatch] = []
    size = 0
    for batch in batches:
        if batch.attributes & TRANSACTIONAL and not batch.attributes & CONTROL:
            if group:
                yield group
            raise RefusedAt(batch.base_offset, f"offset {batch.base_offset} is of a transaction")
        if group and size + batch.size > group_bytes:
            yield group
            group, size = [], 0
        group.append(batch)
        size += batch.size
    if group:
        yield group
