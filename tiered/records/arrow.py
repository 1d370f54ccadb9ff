"""Records as pyarrow arrays, which wrap the decoder's buffers without a copy. No Python code runs per record.

pyarrow is imported on first use: a broker never needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tiered.records import native
from tiered.records.model import ArrowColumns, RecordSection

if TYPE_CHECKING:
    import pyarrow


@cache
def arrow_types() -> dict[str, pyarrow.DataType]:
    """Returns the Arrow type of each column. Names and types are those of Spark's Kafka source."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(header),
    }


def to_arrays(decoded: ArrowColumns) -> dict[str, pyarrow.Array]:
    """Returns one array for each decoded column."""
    return {name: _array(name, decoded) for name in decoded.columns}


def record_batch(
    sections: Sequence[RecordSection],
    columns: Collection[str],
    start: int = -(1 << 63),
    end: int = (1 << 63) - 1,
) -> pyarrow.RecordBatch:
    """Returns the records with `start <= offset < end` of decompressed batches as one RecordBatch, with `columns` in
    order."""
    import pyarrow as pa

    found = to_arrays(native.arrow(sections, columns, start, end))
    return pa.RecordBatch.from_arrays([found[name] for name in columns], names=list(columns))


def _array(name: str, decoded: ArrowColumns) -> pyarrow.Array:
    import pyarrow as pa

    kind = arrow_types()[name]
    buffers = [None if b is None else pa.py_buffer(b) for b in decoded.columns[name]]
    if name != "headers":
        return pa.Array.from_buffers(kind, decoded.rows, buffers)
    header = kind.value_type
    keys = pa.Array.from_buffers(pa.string(), decoded.headers, [None, *buffers[2:4]])
    values = pa.Array.from_buffers(pa.binary(), decoded.headers, buffers[4:7])
    pairs = pa.Array.from_buffers(header, decoded.headers, [None], children=[keys, values])
    return pa.Array.from_buffers(kind, decoded.rows, buffers[:2], children=[pairs])
