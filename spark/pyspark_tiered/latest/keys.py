"""The keys of a round, and the row groups of a file that may hold them. Pure.

The table is its own index. Each file has its rows in the order of partition and key, in row groups with the bounds of
their keys. A look-up skips the row groups without a key of the round, and reads only the keys of the others, one row
group after the other. So memory grows with the round and not with the table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    import pyarrow.parquet
    from numpy.typing import NDArray


class KeySet:
    """Keys by partition."""

    def __init__(self, keys: Mapping[int, pyarrow.Array]) -> None:
        """`keys` are those of each partition, in their order."""
        self._keys = dict(keys)
        self._sorted: dict[int, list[bytes]] = {}

    @classmethod
    def of(cls, rows: pyarrow.Table) -> KeySet:
        """Returns the keys of rows that are in the order of partition and key."""
        import numpy as np

        partitions = rows["partition"].to_numpy()
        numbers, starts = np.unique(partitions, return_index=True)
        ends = [*starts.tolist(), len(partitions)][1:] if len(partitions) else []
        column = rows["key"].combine_chunks()
        bounds = zip(numbers.tolist(), starts.tolist(), ends, strict=True)
        return cls({number: column.slice(start, end - start) for number, start, end in bounds})

    @property
    def partitions(self) -> frozenset[int]:
        """Returns the partitions that have a key here."""
        return frozenset(self._keys)

    def counts(self) -> list[int]:
        """Returns the number of keys of each partition, in the order of partitions."""
        return [len(self._keys[number]) for number in sorted(self._keys)]

    def match(self, partitions: pyarrow.Array, keys: pyarrow.Array) -> NDArray[np.bool_]:
        """Returns which rows have a key of this set in their partition."""
        import numpy as np
        import pyarrow.compute as pc

        found = np.zeros(len(keys), dtype=np.bool_)
        numbers = partitions.to_numpy(zero_copy_only=False)
        for number in np.unique(numbers).tolist():
            ends = pc.min_max(keys)
            low, high = ends["min"].as_py(), ends["max"].as_py()
            if number in self._keys and low is not None:
                sorted_keys = self._sort(number)
                first, end = bisect_left(sorted_keys, low), bisect_right(sorted_keys, high)
                wanted = self._keys[number].slice(first, end - first)  # a small set for rows in the order of keys
                is_in = pc.is_in(keys, value_set=wanted).to_numpy(zero_copy_only=False)
                found |= is_in & (numbers == number)
        return found

    def may_be_in(self, group: pyarrow.parquet.RowGroupMetaData, partition: str, key: str) -> bool:
        """True if a row group may hold a key of this set, by the statistics of its columns of these names."""
        bounds = _bounds(group, (partition, key))
        if partition in bounds:
            numbers = [number for number in self._keys if bounds[partition][0] <= number <= bounds[partition][1]]
        else:
            numbers = list(self._keys)
        if key not in bounds:
            return bool(numbers)
        return any(self._has_any(number, *bounds[key]) for number in numbers)

    def _has_any(self, number: int, low: bytes, high: bytes) -> bool:
        keys = self._sort(number)
        at = bisect_left(keys, low)
        return at < len(keys) and keys[at] <= high

    def _sort(self, number: int) -> list[bytes]:
        """Returns the keys of a partition as Python's bytes, in order."""
        if number not in self._sorted:
            self._sorted[number] = self._keys[number].to_pylist()
        return self._sorted[number]


def _bounds(group: pyarrow.parquet.RowGroupMetaData, names: tuple[str, str]) -> dict[str, tuple[Any, Any]]:
    """Returns the least and the greatest cell of each of these columns that has statistics."""
    found = {}
    for at in range(group.num_columns):
        column = group.column(at)
        held = column.statistics if column.path_in_schema in names else None
        if held is not None and held.has_min_max:
            found[column.path_in_schema] = (held.min, held.max)
    return found
