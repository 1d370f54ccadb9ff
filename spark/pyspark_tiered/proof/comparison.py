"""Compares one version of a table with the log: all rows by sums, and row by row only the ranges whose sums differ.

Rows that are compared one by one are hashed with 128 bits (`row_hash.py`). Memory holds the hashes of some million rows
at once, however many rows differ.

A leaf is a field with a value of its own. A blank field is one that the value has, without a leaf. A typed row that
came before a column has NULL there, and its value has no leaf in that field. No file tells for good which rows came
before: files are written again. So a field that is NULL in the table may be blank in the log. A row is whole if it has
the same leaves as the log, and fewer blank fields.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.data_files import TableFile, open_table_folder, read_places
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.bucket import cold_topic
from pyspark_tiered.log.plan import ColdTopic, Split, cleaned_ranges, group_parts, splits
from pyspark_tiered.proof.erasures import overlaps
from pyspark_tiered.proof.row_form import BLANKS, EXACT, LEAVES, RAW_ROWS, RowForm, UnfitRow
from pyspark_tiered.proof.summing import ListedRows, PartsFound, SumRules, read_parts
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


T = TypeVar("T")
R = TypeVar("R")


class TaskRunner(Protocol):
    """The part of a load's engine that runs tasks."""

    @property
    def tasks(self) -> int:
        """Returns how many tasks run at once."""

    def run_tasks(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Returns the results of tasks, in order. Raises `Unavailable` for failures that are not in the log."""


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

    Rows of the log in the `erased` ranges of a partition must not be in the table. `unfit` and `fitting` are those of
    the log, as in `LogRows`.
    """

    def __init__(
        self,
        runner: TaskRunner,
        store: str,
        cold: ColdTopic,
        at: Snapshot,
        bounds: Mapping[int, Range],
        erased: Mapping[int, Sequence[Range]],
        form: RowForm = RAW_ROWS,
    ) -> None:
        self.at = at
        self._runner = runner
        self._store = store
        self._cold = cold
        self._form = form
        self._files = at.files()
        self._bounds = bounds
        self.erased = erased
        bits = range_bits(bounds.values())
        self._rules = SumRules(os.urandom(SECRET_BYTES), bits, bounds, erased)
        self.log, self.table = PartSums(), PartSums()
        self.unfit: list[UnfitRow] = []
        self.fitting = 0
        for found in self._read(self._rules, bounds, self._files):
            self.log.merge(found.log)
            self.table.merge(found.table)
            self.unfit += found.unfit
            self.fitting += found.fitting
        self.ranges = differing_ranges(self.log, self.table, bits)
        self.runs, self._has_doubles = join_runs(self.table.runs)
        self._cleaned = cleaned_ranges(cold)
        self._whole = set[tuple[int, int]]()
        """Partition and number of the ranges with whole rows whose hashes differ from those of the log."""

    @property
    def is_sound(self) -> bool:
        """True if the table has exactly the rows of the log in the bounds, apart from cleaned parts, and no rows
        outside. The rows of cleaned parts are compared one by one (`differing_rows`)."""
        return not self.unexplained_ranges and not self.table.outside and not self.table.erased

    @property
    def unexplained_ranges(self) -> list[OffsetRange]:
        """Returns the ranges whose sums differ, without those that compaction has cleaned a part of: the table has
        records there that the log has lost since. Call this after `differing_rows`: rows that it found whole explain
        their range."""
        return [each for each in self.ranges if not self._is_cleaned(each) and not self._has_whole_rows(each)]

    def _is_cleaned(self, found: OffsetRange) -> bool:
        return any(low < found.end and found.start < high for low, high in self._cleaned.get(found.partition, ()))

    def _has_whole_rows(self, found: OffsetRange) -> bool:
        bits = self._rules.bits
        return any((found.partition, number) in self._whole for number in range(found.start >> bits, found.end >> bits))

    def faults(self, *, only_equal: bool = False) -> Iterator[FaultyRange]:
        """Yields all faults of the table. `only_equal` as in `compare_rows`."""
        yield from self.differing_rows(only_equal=only_equal)
        yield from self.other_faults(only_equal=only_equal)

    def other_faults(self, *, only_equal: bool = False) -> Iterator[FaultyRange]:
        """Yields the faults outside of the ranges that are compared: no row of them is missing."""
        yield from self._erased_rows()
        yield from self._expired_duplicates(only_equal=only_equal)
        yield from self._misplaced_rows()

    def differing_rows(self, *, only_equal: bool = False) -> Iterator[FaultyRange]:
        """Yields the offsets at fault, but erased ones, in order of the ranges that differ."""
        for each in self.ranges:
            low, high = self._bounds[each.partition]
            for start, end in _windows(max(each.start, low), min(each.end, high)):
                yield from self._compare(each.partition, start, end, only_equal=only_equal)

    def _compare(self, partition: int, start: int, end: int, *, only_equal: bool) -> Iterator[FaultyRange]:
        log, table = self._list_rows({partition: [(start, end)]}, {partition: (start, end)})
        erased, cleaned = self.erased.get(partition, ()), self._cleaned.get(partition, ())
        faults, whole = compare_rows(partition, log, table, erased, cleaned, only_equal=only_equal)
        self._whole.update((partition, offset >> self._rules.bits) for offset in whole.tolist())
        yield from faults

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
        return iter(find_erased(self.at, self.erased) if self.table.erased else ())

    def _misplaced_rows(self) -> Iterator[FaultyRange]:
        """Yields rows at or above the end of their partition, of partitions that the topic does not have, and of
        none. Reads all files, whatever their statistics say."""
        import numpy as np

        if not self.table.outside:
            return
        found = list[OffsetRange]()
        has_nowhere = False
        for partitions, offsets, has_nulls in _read_all_places(self.at, self._files):
            has_nowhere = has_nowhere or has_nulls
            for number in np.unique(partitions).tolist():
                mine = np.unique(offsets[partitions == number])
                if number in self._bounds:
                    lawful = [*self.erased.get(number, ()), *self._cleaned.get(number, ())]
                    mine = mine[mine >= self._bounds[number][1]]
                    mine = mine[~np.any([is_inside(mine, [each]) for each in lawful], axis=0)] if lawful else mine
                found += find_runs(number, mine)
        if has_nowhere:
            yield FaultyRange(-1, -1, 0, "extra")
        for each in join_runs(found)[0]:
            yield FaultyRange(*each, "extra")

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
        there = {number: each for number, each in self._form.narrow(bounds).items() if each[0] < each[1]}
        parts: list[Split | TableFile] = [*splits(self._cold, there, tasks), *files]
        sizes = [part.log_bytes if isinstance(part, Split) else part.size for part in parts]
        groups = group_parts(parts, sizes, GROUPS_PER_TASK * tasks)
        return self._runner.run_tasks(
            f"could not compare {self.at.url}", read_parts(self._store, self.at.url, rules, self._form), groups
        )


def find_gaps(compared: Sequence[Comparison], ends: Mapping[int, int], limit: int) -> list[OffsetRange]:
    """Returns the offsets below the ends that none of these tables has, at most so many ranges if they are many."""
    if all(each.table.has_all_runs for each in compared):
        return find_holes(join_runs(run for each in compared for run in each.runs)[0], ends)
    return read_holes([each.at for each in compared], ends, limit)


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
) -> tuple[list[FaultyRange], NDArray[np.int64]]:
    """Returns the offsets of a partition at fault, in order, without erased ones; and those of rows that are whole,
    though their hashes differ.

    A row in a `cleaned` range was loaded before compaction took its record, so the log need not have it. `only_equal`:
    duplicates of such a row are named `KEPT_ONCE`, and left out if their content differs.
    """
    import numpy as np

    offsets, wanted, there, differs, is_whole = _group((log, table), erased)
    if not len(offsets):
        return [], offsets
    is_lost = is_inside(offsets, cleaned) & (wanted == 0)
    has_more, is_pair = there > 1, (wanted > 0) & (there == 1)
    kinds = {
        "missing": there == 0,
        "extra": ~is_lost & (wanted == 0),
        "duplicate": (wanted > 0) & has_more,
        "changed": is_pair & differs & ~is_whole,
    }
    if only_equal:
        kinds[KEPT_ONCE] = is_lost & has_more & ~differs
    else:
        kinds["duplicate"] = kinds["duplicate"] | (is_lost & has_more)
    faults = sorted(
        FaultyRange(*run, kind) for kind, at in kinds.items() for run in find_runs(partition, np.asarray(offsets[at]))
    )
    return faults, offsets[is_pair & differs & is_whole]


def _find_duplicates(
    partition: int, rows: Sequence[ListedRows], erased: Sequence[Range], *, only_equal: bool
) -> list[FaultyRange]:
    """Returns offsets with more than one row, which the log no longer has. `only_equal`: only with equal content."""
    offsets, _, there, differs, _ = _group(((), rows), erased)
    found = there > 1
    if only_equal:
        found = found & ~differs
    return [FaultyRange(*run, "duplicate") for run in find_runs(partition, offsets[found])]


def _group(
    sides: tuple[Sequence[ListedRows], Sequence[ListedRows]], erased: Sequence[Range]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns the offsets in order, how many rows of each are in the log and in the table, whether any differ, and
    whether a pair of both is equal but for NULLs of the table in the place of blank fields."""
    import numpy as np

    parts = [(each.offsets, each.hashes, side) for side, rows in enumerate(sides) for each in rows]
    nothing, none = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_)
    if not parts:
        return nothing, nothing, nothing, none, none
    offsets = np.concatenate([each[0] for each in parts])
    hashes = np.concatenate([each[1] for each in parts])
    side = np.concatenate([np.full(len(each[0]), each[2], dtype=np.int64) for each in parts])
    stays = ~is_inside(offsets, erased)
    order = np.argsort(offsets[stays], kind="stable")
    offsets, hashes, side = offsets[stays][order], hashes[stays][order], side[stays][order]
    if not len(offsets):
        return nothing, nothing, nothing, none, none
    firsts = np.flatnonzero(np.concatenate(([True], offsets[1:] != offsets[:-1])))
    there = np.add.reduceat(side, firsts)
    wanted = np.diff(np.append(firsts, len(offsets))) - there
    unequal = np.minimum.reduceat(hashes, firsts, axis=0) != np.maximum.reduceat(hashes, firsts, axis=0)
    is_whole = np.zeros(len(firsts), dtype=np.bool_)
    if hashes.shape[1] > EXACT.stop:
        signed = np.where(side == 0, 1, -1) * hashes[:, BLANKS].reshape(-1).astype(np.int64)
        is_whole = ~unequal[:, LEAVES].any(axis=1) & (np.add.reduceat(signed, firsts) > 0)
    return offsets[firsts], wanted, there, unequal[:, EXACT].any(axis=1), is_whole


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

    files = [file for file in at.files() if may_hold_any(file.add, erased)]
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
    for file in at.files():
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


def read_holes(tables: Sequence[Snapshot], ends: Mapping[int, int], limit: int) -> list[OffsetRange]:
    """Returns the first offsets below the ends that no table has, for tables of too many runs to list."""
    import numpy as np

    files, found = [at.files() for at in tables], list[OffsetRange]()
    for number, end in sorted(ends.items()):
        for low in range(0, end, PLACES_AT_ONCE):
            high = min(low + PLACES_AT_ONCE, end)
            is_there = np.zeros(high - low, dtype=np.bool_)
            for at, each in zip(tables, files, strict=True):
                chosen = [file for file in each if may_hold_any(file.add, {number: [(low, high)]})]
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
