"""Compares one version of a table with the log: all rows by sums, and row by row only the ranges whose sums differ."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark_tiered.delta.delta_log import TableFile, TableSnapshot
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.plan import ColdTopic, Split, cleaned_ranges, group_parts, splits
from pyspark_tiered.proof import compare
from pyspark_tiered.proof.summing import SumRules, sum_batches, sum_file, sum_log
from pyspark_tiered.proof.sums import OffsetRange, PartSums, differing_ranges, join_runs, range_bits

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession

GROUPS_PER_TASK = 4
SECRET_BYTES = 16


class Comparison:
    """A comparison of the rows inside `bounds`: the log start, and the end up to which the table must equal the log.

    Rows of the log in the `erased` ranges of a partition must not be in the table.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: str,
        cold: ColdTopic,
        at: TableSnapshot,
        bounds: Mapping[int, Range],
        erased: Mapping[int, Sequence[Range]],
    ) -> None:
        self._spark = spark
        self._store = store
        self._cold = cold
        self._at = at
        self._bounds = bounds
        self.erased = erased
        bits = range_bits(bounds.values())
        self._rules = SumRules(os.urandom(SECRET_BYTES), bits, bounds, erased)
        self.log, self.table = PartSums(), PartSums()
        self._sum()
        self.ranges = differing_ranges(self.log, self.table, bits)
        self.runs, self._has_doubles = join_runs(self.table.runs)
        self._cleaned = cleaned_ranges(cold)

    @property
    def is_equal(self) -> bool:
        """True if the table has exactly the rows of the log in the bounds, and no rows outside."""
        return not self.ranges and not self.table.outside

    @property
    def is_sound(self) -> bool:
        """True if the table has exactly the rows of the log in the bounds, apart from cleaned parts, and no rows
        outside. The rows of cleaned parts are compared one by one (`differing_rows`)."""
        return not self.unexplained_ranges and not self.table.outside

    @property
    def unexplained_ranges(self) -> list[OffsetRange]:
        """Returns the ranges whose sums differ, without those that compaction has cleaned a part of: the table has
        records there that the log has lost since."""
        return [
            each
            for each in self.ranges
            if not any(low < each.end and each.start < high for low, high in self._cleaned.get(each.partition, ()))
        ]

    def differing_rows(self, *, only_equal: bool = False) -> DataFrame | None:
        """Returns one row (kind, partition, offset) for each offset at fault but erased ones. None: there is none.

        `only_equal` as in `compare_rows`.
        """
        if self.is_equal:
            return None
        bounds: dict[int, Range] = {}
        for number, start, end in self.ranges:
            low, high = self._bounds[number]
            first, last = bounds.get(number, (start, end))
            bounds[number] = max(min(first, start), low), min(max(last, end), high)
        conditions = [
            f"(partition = {number} AND offset >= {low} AND offset < {high})" for number, (low, high) in bounds.items()
        ]
        if self.table.outside:
            conditions += [f"(partition = {number} AND offset >= {end})" for number, (_, end) in self._bounds.items()]
        expected = compare.expected_rows(self._spark, self._store, self._cold, bounds)
        expected = compare.without_ranges(
            expected, {number: self.erased[number] for number in bounds if number in self.erased}
        )
        held = self._at.rows().where(" OR ".join(conditions))
        found = compare.compare_rows(expected, held, self._cleaned, only_equal=only_equal)
        return compare.without_ranges(found, self.erased) if self.table.erased else found

    def expired_duplicates(self, *, only_equal: bool = False) -> DataFrame | None:
        """Returns duplicate rows below the log start. None: there is none."""
        if not self.table.expired or (self.table.has_all_runs and not self._has_doubles):
            return None
        found = compare.find_expired_duplicates(self._at.rows(), self._cold, only_equal=only_equal)
        return compare.without_ranges(found, self.erased) if self.table.erased else found

    def unknown_rows(self) -> DataFrame | None:
        """Returns rows of partitions that the topic does not have, as faults. None: there is none."""
        return compare.find_unknown_rows(self._at.rows(), self._cold) if self.table.outside else None

    def erased_rows(self) -> DataFrame | None:
        """Returns rows that were erased and are in the table, as faults. None: there is none."""
        if not self.table.erased:
            return None
        return compare.find_erased_rows(self._at.rows(), self.erased)

    def _sum(self) -> None:
        tasks = self._spark.sparkContext.defaultParallelism
        bounds = {number: (low, high) for number, (low, high) in self._bounds.items() if low < high}
        plain, others = self._at.files()
        parts: list[Split | TableFile] = [*splits(self._cold, bounds, tasks), *plain]
        sizes = [part.log_bytes if isinstance(part, Split) else part.size for part in parts]
        groups = group_parts(parts, sizes, GROUPS_PER_TASK * tasks)
        if groups:
            run = _group_summer(self._store, self._at.url, self._rules)
            for log, table, unread in self._spark.sparkContext.parallelize(groups, len(groups)).map(run).collect():
                self.log.merge(log)
                self.table.merge(table)
                others += unread
        if others:
            rows = self._at.rows_in(others)
            for row in rows.mapInArrow(_arrow_summer(self._rules), "found binary").collect():
                self.table.merge(pickle.loads(row["found"]))


def union(faults: Iterable[DataFrame | None]) -> DataFrame | None:
    """Returns all faults together. None: there is none."""
    found = [each for each in faults if each is not None]
    return reduce(lambda one, other: one.unionByName(other), found) if found else None


def _group_summer(
    store: str, url: str, rules: SumRules
) -> Callable[[Sequence[Split | TableFile]], tuple[PartSums, PartSums, list[TableFile]]]:
    def run(parts: Sequence[Split | TableFile]) -> tuple[PartSums, PartSums, list[TableFile]]:
        log, table, unread = PartSums(), PartSums(), list[TableFile]()
        for part in parts:
            if isinstance(part, Split):
                log.merge(sum_log(store, part, rules))
            elif (found := sum_file(url, part, rules)) is None:
                unread.append(part)
            else:
                table.merge(found)
        return log, table, unread

    return run


def _arrow_summer(rules: SumRules) -> Callable[[Iterable[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    def run(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow as pa

        found = pickle.dumps(sum_batches(batches, rules))
        yield pa.RecordBatch.from_arrays([pa.array([found], pa.binary())], names=["found"])

    return run
