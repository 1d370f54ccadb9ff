"""Record batches -> Arrow: the C decoder's buffers as columns. No Python per record."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tiered.errors import Code, Refused
from tiered.records.arrow import record_batch
from tiered.records.batch import sections
from tiered.records.model import CONTROL, TRANSACTIONAL, Walked

if TYPE_CHECKING:
    import pyarrow

GROUP_BYTES = 512 << 10
"""Log in one RecordBatch: below a quarter of this the fixed cost shows, above it the caches are too small."""


def arrow_batches(
    found: Iterable[tuple[memoryview, list[Walked]]],
    bounds: tuple[int, int],
    columns: Sequence[str],
    group_bytes: int = GROUP_BYTES,
) -> Iterator[pyarrow.RecordBatch]:
    """The rows of whole batches with offsets in `[start, end)`, columns as `tiered.records.arrow.types` names them.
    Data begins with its first batch. Control batches are left out.

    `Refused` for transactional batches: whether they were committed cannot be told yet, and a guess would be wrong.
    """
    for data, batches in found:
        first = batches[0].at
        for group in _groups(batches, group_bytes):
            placed = [batch._replace(at=batch.at - first) for batch in group] if first else group
            rows = record_batch(sections(data, placed), columns, *bounds)
            if rows.num_rows:
                yield rows


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


def _groups(batches: Iterable[Walked], group_bytes: int) -> Iterator[list[Walked]]:
    group: list[Walked] = []
    size = 0
    for batch in batches:
        if batch.attributes & TRANSACTIONAL and not batch.attributes & CONTROL:
            raise Refused(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"offset {batch.base_offset} is of a transaction")
        if group and size + batch.size > group_bytes:
            yield group
            group, size = [], 0
        group.append(batch)
        size += batch.size
    if group:
        yield group
