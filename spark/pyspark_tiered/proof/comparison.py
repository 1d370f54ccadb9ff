"""Compares one version of a table with the log: all rows by sums, and row by row only the ranges whose sums differ.

Rows that are compared one by one are hashed with 128 bits (`row_hash.py`). Memory holds the hashes of some million rows
at once, however many rows differ.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.data_files import open_table_folder, read_form, read_places
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.bucket import cold_topic
from pyspark_tiered.log.plan import ColdTopic, Split, cleaned_ranges, group_parts, splits
from pyspark_tiered.proof.erasures import overlaps
from pyspark_tiered.proof.summing import ListedRows, PartsFound, SumRules, TableFile, read_parts
from pyspark_tiered.proof.sums import (
    OffsetRange,
    PartSums,
    differing_ranges,
    find_holes,
    find_runs,
    is_inside,
    join_runs,
    range_bits,
)
from pyspark_tiered.typed.verify import TaskRunner
from tiered.offline.bucket import open_bucket

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GROUPS_PER_TASK = 4
SECRET_BYTES = 16
COMPARED_AT_ONCE = 1 << 20
"""Offsets that are compared row by row at once."""
PLACES_AT_ONCE = 1 << 24
"""Offsets that a look for holes marks at once."""
OFFSET_END = (1 << 63) - 1
KEPT_ONCE = "kept once"
"""Fault of an offset with equal rows whose record compaction took: one of them stays, because the log has no other."""


class FaultyRange(NamedTuple):
    """A range of offsets `[start, end)` with the same fault. Rows without partition or offset have -1 there."""

    partition: int
    start: int
    end: int
    kind: str


def read_cold_topic(store: str, topic: str) -> ColdTopic:
    """Reads the cold part of a topic as it is now, with all segments."""

    async def read() -> ColdTopic:
        async with open_bucket(store) as bucket:
            return await cold_topic(bucket, topic)

    return asyncio.run(read())


class Comparison:
    """A comparison of the rows inside `bounds`: the log start, and the end up to which the table must equal the log.

    Rows of the log in the `erased` ranges of a partition must not be in the table.
    """

    def __init__(
        self,
        runner: TaskRunner,
        store: str,
        cold: ColdTopic,
        at: Snapshot,
        bounds: Mapping[int, Range],
        erased: Mapping[int, Sequence[Range]],
    ) -> None:
        self._runner = runner
        self._store = store
        self._cold = cold
        self._at = at
        self._files = table_files(at)
        self._bounds = bounds
        self.erased = erased
        bits = range_bits(bounds.values())
        self._rules = SumRules(os.urandom(SECRET_BYTES), bits, bounds, erased)
        self.log, self.table = PartSums(), PartSums()
        for found in self._read(self._rules, bounds, self._files):
            self.log.merge(found.log)
            self.table.merge(found.table)
        self.ranges = differing_ranges(self.log, self.table, bits)
        self.runs, self._has_doubles = join_runs(self.table.runs)
        self._cleaned = cleaned_ranges(cold)

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

    def faults(self, *, only_equal: bool = False) -> Iterator[FaultyRange]:
        """Yields all faults of the table. `only_equal` as in `compare_rows`."""
        yield from self.differing_rows(only_equal=only_equal)
        yield from self.other_faults(only_equal=only_equal)

    def other_faults(self, *, only_equal: bool = False) -> Iterator[FaultyRange]:
        """Yields the faults outside of the ranges that are compared: no row of them is missing."""
        yield from self._beyond_ends(only_equal=only_equal)
        yield from self._erased_rows()
        yield from self._expired_duplicates(only_equal=only_equal)
        yield from self._unknown_rows()

    def differing_rows(self, *, only_equal: bool = False) -> Iterator[FaultyRange]:
        """Yields the offsets at fault, but erased ones, in order of the ranges that differ."""
        for each in self.ranges:
            low, high = self._bounds[each.partition]
            for start, end in _windows(max(each.start, low), min(each.end, high)):
                yield from self._compare(each.partition, start, end, only_equal=only_equal)

    def _beyond_ends(self, *, only_equal: bool) -> Iterator[FaultyRange]:
        """Yields rows at or above the end of their partition."""
        if self.table.outside:
            for number, (_, end) in sorted(self._bounds.items()):
                yield from self._compare(number, end, OFFSET_END, only_equal=only_equal, has_log=False)

    def _compare(
        self, partition: int, start: int, end: int, *, only_equal: bool, has_log: bool = True
    ) -> Iterator[FaultyRange]:
        bounds = {partition: (start, end)} if has_log else {}
        log, table = self._list_rows({partition: [(start, end)]}, bounds)
        erased, cleaned = self.erased.get(partition, ()), self._cleaned.get(partition, ())
        yield from compare_rows(partition, log, table, erased, cleaned, only_equal=only_equal)

    def _expired_duplicates(self, *, only_equal: bool) -> Iterator[FaultyRange]:
        """Yields duplicate rows below the log start."""
        if not self.table.expired or (self.table.has_all_runs and not self._has_doubles):
            return
        for number, (low, _) in sorted(self._bounds.items()):
            for start, end in _windows(0, low):
                _, table = self._list_rows({number: [(start, end)]}, {})
                yield from _find_duplicates(number, table, self.erased.get(number, ()), only_equal=only_equal)

    def _erased_rows(self) -> Iterator[FaultyRange]:
        """Yields rows that were erased and are in the table."""
        return iter(find_erased(self._at, self.erased) if self.table.erased else ())

    def _unknown_rows(self) -> Iterator[FaultyRange]:
        """Yields rows of partitions that the topic does not have, and of none."""
        if not self.table.outside:
            return
        known = {each.partition for each in self._cold.partitions}
        found = list[OffsetRange]()
        has_nowhere = False
        for partitions, offsets, has_nulls in _read_all_places(self._at, self._files):
            import numpy as np

            has_nowhere = has_nowhere or has_nulls
            for number in np.unique(partitions).tolist():
                if number not in known:
                    found += find_runs(number, np.unique(offsets[partitions == number]))
        if has_nowhere:
            yield FaultyRange(-1, -1, 0, "extra")
        for each in join_runs(found)[0]:
            yield FaultyRange(*each, "extra")

    def holes(self, ends: Mapping[int, int], limit: int) -> list[OffsetRange]:
        """Returns the offsets below the ends that the table does not have, at most so many ranges if they are many."""
        if self.table.has_all_runs:
            return find_holes(self.runs, ends)
        return read_holes(self._at, ends, limit)

    def _list_rows(
        self, wanted: Mapping[int, Sequence[Range]], bounds: Mapping[int, Range]
    ) -> tuple[list[ListedRows], list[ListedRows]]:
        """Returns the rows of log and table in ranges."""
        files = [file for file in self._files if may_hold_any(file.add, wanted)]
        log, table = list[ListedRows](), list[ListedRows]()
        for found in self._read(self._rules._replace(listed=wanted), bounds, files):
            log += found.log_rows
            table += found.table_rows
        return log, table

    def _read(self, rules: SumRules, bounds: Mapping[int, Range], files: Sequence[TableFile]) -> list[PartsFound]:
        tasks = self._runner.tasks
        there = {number: (low, high) for number, (low, high) in bounds.items() if low < high}
        parts: list[Split | TableFile] = [*splits(self._cold, there, tasks), *files]
        sizes = [part.log_bytes if isinstance(part, Split) else part.size for part in parts]
        groups = group_parts(parts, sizes, GROUPS_PER_TASK * tasks)
        return self._runner.run_tasks(
            f"could not compare {self._at.url}", read_parts(self._store, self._at.url, rules), groups
        )


def table_files(at: Snapshot) -> list[TableFile]:
    """Returns the files of a version of a table."""
    form = read_form(at.state.metadata)
    return [TableFile(add, form) for add in at.state.files.values()]


def may_hold_any(add: Mapping[str, Any], ranges: Mapping[int, Sequence[Range]]) -> bool:
    """True if a file may have a row in one of these ranges, which are joined, by partition."""
    for first, last, high, low in delta_state.file_extents(add):
        if first is None or last is None:
            return True
        start, end = 0 if low is None else low, OFFSET_END if high is None else high + 1
        if any(first <= number <= last and overlaps(each, start, end) for number, each in ranges.items()):
            return True
    return False


def _windows(start: int, end: int) -> Iterator[Range]:
    """Yields the offsets `[start, end)`, some at a time."""
    for low in range(start, end, COMPARED_AT_ONCE):
        yield low, min(low + COMPARED_AT_ONCE, end)


def compare_rows(
    partition: int,
    log: Sequence[ListedRows],
    table: Sequence[ListedRows],
    erased: Sequence[Range] = (),
    cleaned: Sequence[Range] = (),
    *,
    only_equal: bool = False,
) -> list[FaultyRange]:
    """Returns the offsets of a partition at fault, in order, without erased ones.

    A row in a `cleaned` range was loaded before compaction took its record, so the log need not have it. `only_equal`:
    duplicates of such a row are named `KEPT_ONCE`, and left out if their content differs.
    """
    import numpy as np

    offsets, wanted, there, differs = _group((log, table), erased)
    if not len(offsets):
        return []
    is_lost = is_inside(offsets, cleaned) & (wanted == 0)
    has_more, has_one = there > 1, there == 1
    kinds = {
        "missing": there == 0,
        "extra": ~is_lost & (wanted == 0),
        "duplicate": (wanted > 0) & has_more,
        "changed": (wanted > 0) & has_one & differs,
    }
    if only_equal:
        kinds[KEPT_ONCE] = is_lost & has_more & ~differs
    else:
        kinds["duplicate"] = kinds["duplicate"] | (is_lost & has_more)
    return sorted(
        FaultyRange(*run, kind) for kind, at in kinds.items() for run in find_runs(partition, np.asarray(offsets[at]))
    )


def _find_duplicates(
    partition: int, rows: Sequence[ListedRows], erased: Sequence[Range], *, only_equal: bool
) -> list[FaultyRange]:
    """Returns offsets with more than one row, which the log no longer has. `only_equal`: only with equal content."""
    offsets, _, there, differs = _group(((), rows), erased)
    found = there > 1
    if only_equal:
        found = found & ~differs
    return [FaultyRange(*run, "duplicate") for run in find_runs(partition, offsets[found])]


def _group(
    sides: tuple[Sequence[ListedRows], Sequence[ListedRows]], erased: Sequence[Range]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Returns the offsets in order, how many rows of each are in the log and in the table, and whether any differ."""
    import numpy as np

    parts = [(each.offsets, each.hashes, side) for side, rows in enumerate(sides) for each in rows]
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing, nothing, np.zeros(0, dtype=np.bool_)
    offsets = np.concatenate([each[0] for each in parts])
    hashes = np.concatenate([each[1] for each in parts])
    side = np.concatenate([np.full(len(each[0]), each[2], dtype=np.int64) for each in parts])
    stays = ~is_inside(offsets, erased)
    order = np.argsort(offsets[stays], kind="stable")
    offsets, hashes, side = offsets[stays][order], hashes[stays][order], side[stays][order]
    if not len(offsets):
        return offsets, offsets, offsets, np.zeros(0, dtype=np.bool_)
    firsts = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1])))
    there = np.add.reduceat(side, firsts)
    wanted = np.diff(np.append(firsts, len(offsets))) - there
    differs = (np.minimum.reduceat(hashes, firsts, axis=0) != np.maximum.reduceat(hashes, firsts, axis=0)).any(axis=1)
    return offsets[firsts], wanted, there, differs


def _read_all_places(
    at: Snapshot, files: Iterable[TableFile]
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64], bool]]:
    """Yields partitions and offsets of rows, and true if rows beside them lack one of both."""
    with open_table_folder(at.url) as folder:
        for file in files:
            for batch in read_places(folder, file.add, file.form):
                placed = batch.drop_null()
                yield placed["partition"].to_numpy(), placed["offset"].to_numpy(), placed.num_rows < batch.num_rows


def find_erased(at: Snapshot, erased: Mapping[int, Sequence[Range]]) -> list[FaultyRange]:
    """Returns the rows of a table in the erased ranges, as faults."""
    import numpy as np

    files = [file for file in table_files(at) if may_hold_any(file.add, erased)]
    found = list[OffsetRange]()
    for partitions, offsets, _ in _read_all_places(at, files):
        for number, ranges in erased.items():
            mine = offsets[partitions == number]
            found += find_runs(number, np.unique(mine[is_inside(mine, ranges)]))
    return [FaultyRange(*each, "erased") for each in join_runs(found)[0]]


def read_ends(at: Snapshot, partitions: Collection[int]) -> dict[int, int]:
    """Returns the end of the rows of each partition that has any."""
    import numpy as np

    ends: dict[int, int] = {}
    unsure = list[TableFile]()
    for file in table_files(at):
        extents = delta_state.file_extents(file.add)
        is_exact = not file.add.get("deletionVector") and all(
            each.first_partition is not None
            and each.first_partition == each.last_partition
            and each.last_offset is not None
            for each in extents
        )
        if not is_exact:
            unsure.append(file)
            continue
        for each in extents:
            assert each.first_partition is not None and each.last_offset is not None
            ends[each.first_partition] = max(ends.get(each.first_partition, 0), each.last_offset + 1)
    for numbers, offsets, _ in _read_all_places(at, unsure):
        for number in np.unique(numbers).tolist():
            ends[number] = max(ends.get(number, 0), int(offsets[numbers == number].max()) + 1)
    return {number: end for number, end in ends.items() if number in partitions}


def read_holes(at: Snapshot, ends: Mapping[int, int], limit: int) -> list[OffsetRange]:
    """Returns the first offsets below the ends that the table does not have, for a table of too many runs to list."""
    import numpy as np

    files, found = table_files(at), list[OffsetRange]()
    for number, end in sorted(ends.items()):
        for low in range(0, end, PLACES_AT_ONCE):
            high = min(low + PLACES_AT_ONCE, end)
            is_there = np.zeros(high - low, dtype=np.bool_)
            chosen = [file for file in files if may_hold_any(file.add, {number: [(low, high)]})]
            for partitions, offsets, _ in _read_all_places(at, chosen):
                mine = offsets[(partitions == number) & (offsets >= low) & (offsets < high)]
                is_there[mine - low] = True
            for run in find_runs(number, np.flatnonzero(~is_there) + low):
                if found and found[-1].partition == number and found[-1].end == run.start:
                    run = run._replace(start=found.pop().start)
                found.append(run)
            if len(found) > limit:
                return found
    return found
