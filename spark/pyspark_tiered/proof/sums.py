"""Sums of row hashes by range of offsets, and the runs of offsets that rows have. Pure, without Python per row.

Two sides have the same rows in a range if count and sum are equal. A sum does not depend on the order of the rows, so
each part of the log and each file of a table is summed alone, however its rows lie. The hashes are keyed by a secret of
the run, and have 128 bits: rows that differ have the same sum with a probability of 2 to the -128.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta.table_form import Range

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

RANGE_BITS_MIN = 12
"""A range has at least 4,096 offsets: few ranges for each batch, and few rows to compare one by one after a fault."""
RANGES_MAX = 1 << 18
"""Ranges of a topic, about. More offsets make longer ranges, not more of them."""
RUNS_MAX = 4096
"""Runs of offsets that one part reports. A part with more reports that its runs are not all there."""
_WORD = (1 << 64) - 1


class OffsetRange(NamedTuple):
    """Offsets `[start, end)` of a partition."""

    partition: int
    start: int
    end: int


class RangeSum(NamedTuple):
    """Count of the rows of a range, and the sums of both halves of their hashes, modulo 2 to the 64."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def plus(self, other: RangeSum) -> RangeSum:
        """Returns the sum of the rows of both."""
        return RangeSum(
            self.rows + other.rows, (self.first + other.first) & _WORD, (self.second + other.second) & _WORD
        )


@dataclass(slots=True)
class PartSums:
    """Sums of a part of the log or of a table.

    `runs` are the runs of offsets in order of the rows, all of them only if `has_all_runs`. `outside` counts the rows
    without a place in the log: of no partition, of an unknown one, or at or above the end. `erased` counts rows in the
    erased ranges. `expired` counts rows below the log start, which have no sums.
    """

    sums: dict[tuple[int, int], RangeSum] = field(default_factory=dict)
    runs: list[OffsetRange] = field(default_factory=list)
    has_all_runs: bool = True
    outside: int = 0
    erased: int = 0
    expired: int = 0

    def merge(self, other: PartSums) -> None:
        """Adds the sums of another part. Runs are added as they are."""
        for key, each in other.sums.items():
            self.sums[key] = self.sums.get(key, RangeSum()).plus(each)
        self.runs += other.runs
        self.has_all_runs = self.has_all_runs and other.has_all_runs
        self.outside += other.outside
        self.erased += other.erased
        self.expired += other.expired

    @property
    def rows(self) -> int:
        """Returns the number of rows that have sums."""
        return sum(each.rows for each in self.sums.values())


def range_bits(bounds: Iterable[Range]) -> int:
    """Returns the binary logarithm of the length of a range, for a topic with these bounds."""
    offsets = sum(max(end - start, 0) for start, end in bounds)
    return max(RANGE_BITS_MIN, (offsets // RANGES_MAX).bit_length())


class RowSummer:
    """Sums rows whose offsets lie in the bounds of their partition: the log start, and the end of what is compared.

    `erased` are ranges in order by partition. Their rows are counted, and have no sums.
    """

    def __init__(
        self,
        bounds: Mapping[int, Range],
        bits: int,
        erased: Mapping[int, Sequence[Range]],
    ) -> None:
        self.found = PartSums()
        self._bounds = bounds
        self._bits = bits
        self._erased = erased

    def add(
        self, partitions: NDArray[np.int32], offsets: NDArray[np.int64], hashes: NDArray[np.uint64], unplaced: int = 0
    ) -> None:
        """Adds rows in any order. `unplaced` rows more have no partition or no offset."""
        import numpy as np

        self.found.outside += unplaced
        if not len(offsets):
            return
        same = partitions[1:] == partitions[:-1]
        if not (((partitions[1:] > partitions[:-1]) | (same & (offsets[1:] >= offsets[:-1]))).all()):
            order = np.lexsort((offsets, partitions))
            partitions, offsets, hashes = partitions[order], offsets[order], hashes[order]
            same = partitions[1:] == partitions[:-1]
        edges = [0, *(np.flatnonzero(~same) + 1).tolist(), len(offsets)]
        for low, high in pairwise(edges):
            self._add_partition(int(partitions[low]), offsets[low:high], hashes[low:high])

    def _add_partition(self, partition: int, offsets: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None:
        import numpy as np

        if partition not in self._bounds:
            self.found.outside += len(offsets)
            return
        start, end = self._bounds[partition]
        at, last = (int(found) for found in np.searchsorted(offsets, (start, end)))
        self.found.outside += len(offsets) - last
        self.found.expired += at
        self._add_runs(partition, offsets[:last])
        if partition in self._erased:
            is_erased = is_inside(offsets[:last], self._erased[partition])
            self.found.erased += int(is_erased.sum())
            offsets, hashes = offsets[:last][~is_erased], hashes[:last][~is_erased]
            at, last = int(np.searchsorted(offsets, start)), len(offsets)
        offsets, hashes = offsets[at:last], hashes[at:last]
        if len(offsets):
            self._add_sums(partition, offsets >> self._bits, hashes)

    def _add_sums(self, partition: int, numbers: NDArray[np.int64], hashes: NDArray[np.uint64]) -> None:
        import numpy as np

        firsts = np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))
        counts = np.diff(np.append(firsts, len(numbers)))
        totals = np.add.reduceat(hashes, firsts, axis=0)
        for number, count, (first, second) in zip(
            numbers[firsts].tolist(), counts.tolist(), totals.tolist(), strict=True
        ):
            key = partition, number
            self.found.sums[key] = self.found.sums.get(key, RangeSum()).plus(RangeSum(count, first, second))

    def _add_runs(self, partition: int, offsets: NDArray[np.int64]) -> None:
        import numpy as np

        if not len(offsets):
            return
        runs = self.found.runs
        if len(runs) + np.count_nonzero(np.diff(offsets) != 1) >= RUNS_MAX:
            self.found.has_all_runs = False
            return
        found = find_runs(partition, offsets)
        if runs and runs[-1].partition == partition and runs[-1].end == found[0].start:
            found[0] = found[0]._replace(start=runs.pop().start)
        runs += found


def find_runs(partition: int, offsets: NDArray[np.int64]) -> list[OffsetRange]:
    """Returns the runs of offsets, which are in order."""
    import numpy as np

    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1)
    starts = offsets[np.concatenate(([0], breaks + 1))].tolist()
    ends = (offsets[np.append(breaks, len(offsets) - 1)] + 1).tolist()
    return [OffsetRange(partition, low, high) for low, high in zip(starts, ends, strict=True)]


def is_inside(offsets: NDArray[np.int64], ranges: Sequence[Range]) -> NDArray[np.bool_]:
    """Returns true for each offset that lies in one of these ranges, which are in order and do not overlap."""
    import numpy as np

    if not ranges:
        return np.zeros(len(offsets), dtype=np.bool_)
    starts, ends = (np.array(side, dtype=np.int64) for side in zip(*ranges, strict=True))
    at = np.searchsorted(starts, offsets, side="right") - 1
    inside: NDArray[np.bool_] = (at >= 0) & (offsets < ends[at])
    return inside


def drop_erased(records: pyarrow.RecordBatch, erased: Sequence[Range]) -> pyarrow.RecordBatch:
    """Returns the records that are not erased."""
    import pyarrow as pa

    if not erased or not records.num_rows:
        return records
    return records.filter(pa.array(~is_inside(records.column("offset").to_numpy(), erased)))


def differing_ranges(log: PartSums, table: PartSums, bits: int) -> list[OffsetRange]:
    """Returns the ranges whose sums differ, in order. Neighbours are joined."""
    found: list[OffsetRange] = []
    for key in sorted(log.sums.keys() | table.sums.keys()):
        if log.sums.get(key) == table.sums.get(key):
            continue
        partition, number = key
        start, end = number << bits, (number + 1) << bits
        if found and found[-1].partition == partition and found[-1].end == start:
            start = found.pop().start
        found.append(OffsetRange(partition, start, end))
    return found


def join_runs(runs: Iterable[OffsetRange]) -> tuple[list[OffsetRange], bool]:
    """Returns the runs in order, neighbours joined, and whether any overlap: then an offset is there twice."""
    found: list[OffsetRange] = []
    overlap = False
    for run in sorted(runs):
        last = found[-1] if found else None
        if last is None or last.partition != run.partition or last.end < run.start:
            found.append(run)
            continue
        overlap = overlap or last.end > run.start
        found[-1] = last._replace(end=max(last.end, run.end))
    return found, overlap


def find_holes(runs: Sequence[OffsetRange], ends: Mapping[int, int]) -> list[OffsetRange]:
    """Returns the offsets below the end of each partition that no run holds. Runs are in order and do not touch."""
    found: list[OffsetRange] = []
    reached: dict[int, int] = {}
    for run in runs:
        last = reached.get(run.partition, 0)
        if last < run.start:
            found.append(OffsetRange(run.partition, last, run.start))
        reached[run.partition] = run.end
    found += [
        OffsetRange(number, reached.get(number, 0), end) for number, end in ends.items() if reached.get(number, 0) < end
    ]
    return sorted(found)
