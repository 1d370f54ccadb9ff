"""The hash of each row of a table as verify compares it, from Arrow columns. No Python per record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiered.records.model import ArrowColumn
from tiered.records.native import hash_rows
from tiered.records.pure_hash import HASH_BYTES

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray


def hash_columns(arrays: Sequence[pyarrow.Array], rows: int, secret: bytes) -> NDArray[np.uint64]:
    """Returns two numbers of 64 bits for each row. The arrays are those of `table_schema`, in its order."""
    import numpy as np

    *plain, headers = arrays
    items = headers.values
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
