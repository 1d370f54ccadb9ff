"""The last record of each key. Pure.

The identity of a row is its key in its partition. Compaction keeps the last record of each key of a partition too, and
offsets of two partitions have no order. So a table in mode latest depends on the loaded offsets alone, and not on the
order in which partitions were loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

IDENTITY = ("partition", "key")


def keep_last(rows: pyarrow.Table) -> pyarrow.Table:
    """Returns the row with the highest offset of each key in a partition, in the order of partition and key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    order = [("partition", "ascending"), ("key", "ascending"), ("offset", "descending")]
    places = pc.sort_indices(rows.select(["partition", "key", "offset"]), order)
    sorted_rows = rows.take(places)
    return sorted_rows.filter(pa.array(starts_of_keys(sorted_rows)))


def starts_of_keys(rows: pyarrow.Table) -> NDArray[np.bool_]:
    """Returns which rows, in the order of partition and key, are the first of their key."""
    import numpy as np
    import pyarrow.compute as pc

    found = np.ones(rows.num_rows, dtype=np.bool_)
    for at, name in enumerate(IDENTITY if rows.num_rows > 1 else ()):
        column = rows[name].combine_chunks()
        differs = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
        found[1:] = differs if at == 0 else found[1:] | differs
    return found
