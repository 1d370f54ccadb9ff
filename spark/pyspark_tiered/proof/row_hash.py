"""The hash of each row of a table as verify compares it, from Arrow columns. No Python per record.

All tables have one hash: that of the record's columns. Only a raw table has the type of a timestamp. In a typed row the
digest of its cells stands in the place of the value (`typed/cell_digest.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiered.records.model import ArrowColumn
from tiered.records.native import hash_rows
from tiered.records.pure_hash import HASH_BYTES

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray


def hash_records(
    records: pyarrow.RecordBatch, value: pyarrow.Array, secret: bytes, *, has_timestamp_type: bool = False
) -> NDArray[np.uint64]:
    """Returns two numbers of 64 bits for each record, with these values in the place of its own."""
    import numpy as np
    import pyarrow as pa

    rows = records.num_rows
    partition, offset, timestamp, key, headers = (
        records[name] for name in ("partition", "offset", "timestamp", "key", "headers")
    )
    kind = records["timestamp_type"] if has_timestamp_type else pa.nulls(rows, pa.int8())
    items = headers.values
    plain = [partition, offset, timestamp, kind, key, value]
    columns = tuple(map(_column, [*plain, headers, items, items.field(0), items.field(1)]))
    return np.frombuffer(hash_rows(secret, rows, columns), dtype="<u8").reshape(rows, HASH_BYTES // 8)


def _column(array: pyarrow.Array) -> ArrowColumn:
    """Returns an array's own buffers, not those of its children."""
    import pyarrow.types as kinds

    valid, *others = array.buffers()
    if kinds.is_list(array.type):
        return array.offset, valid, others[0], None
    if kinds.is_struct(array.type):
        return array.offset, valid, None, None
    offsets = others[0] if len(others) == 2 else None
    return array.offset, valid, offsets, others[-1]
