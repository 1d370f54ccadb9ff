"""The proof of a typed table: rows and dead letters together are the log, and each row is what its value says.

The bucket is read again below the loaded bounds, and each value is parsed by another parser (`reparse.py`). An offset
of the log has to be a dead letter with the bytes of its record, or else a row with the cells that the columns of today
give it. Both sides become sums by range of offsets (`row_hash.py`). Only ranges whose sums differ are compared row by
row.

A row that came before a column has NULL there, and its value has no leaf in that field. No file tells for good which
rows came before: files are written again. So a field that is NULL in the table may be blank in the log. A row is whole
if it has the same leaves as the log, and fewer blank fields. If more rows differ than are compared one by one, their
ranges are summed by leaves first, and the same holds for the sums of a range.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.plan import ColdTopic, cleaned_ranges, group_parts, splits
from pyspark_tiered.proof.erasures import explain_erased
from pyspark_tiered.proof.gaps import EXPIRED, Gap
from pyspark_tiered.proof.sums import (
    OffsetRange,
    PartSums,
    differing_ranges,
    find_holes,
    find_runs,
    join_runs,
    range_bits,
)
from pyspark_tiered.typed.form import DEAD_SUFFIX, TABLE_SCHEMES, TYPED_SUFFIX
from pyspark_tiered.typed.kinds import select_columns
from pyspark_tiered.typed.row_hash import BLANKS, LEAVES
from pyspark_tiered.typed.summing import (
    FilesTask,
    ListedRows,
    LogTask,
    PartsFound,
    Ranges,
    TableRules,
    ValueSumRules,
    sum_files,
    sum_log,
)
from pyspark_tiered.typed.tables import DeadLetters, RecordTable, TypedTable, may_hold
from tiered.errors import Code, Refused, Unavailable

FAULTS_MAX = 1000
"""Faults that are listed."""
GAPS_MAX = 1000
COMPARED_MAX = 1 << 21
"""Offsets in ranges whose sums differ that are compared row by row. The other ranges are listed as a whole."""
GROUPS_PER_TASK = 4
SECRET_BYTES = 16
SNAPSHOTS_MAX = 10

TRIES = 3
"""Comparisons, if the tables or the log change while they are compared."""

ReadLog = Callable[[], tuple[ColdTopic, Ranges]]
"""Reads the bounds of the topic in the bucket, and the offsets that erasures removed."""
T = TypeVar("T")
R = TypeVar("R")


class TaskRunner(Protocol):
    """The part of a load's engine that runs tasks."""

    @property
    def tasks(self) -> int:
        """Returns how many tasks run at once."""

    def run_tasks(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Returns the results of tasks, in order."""


class ValueFault(NamedTuple):
    """A fault at one offset of the typed table, or of its dead letters if `is_dead`.

    Kinds: missing, duplicate, changed, extra, erased and there all the same, unfit: neither a dead letter nor a value
    that fits its columns. A row without partition or offset has -1 there.
    """

    partition: int
    offset: int
    kind: str
    is_dead: bool = False
    why: str = ""


class ValuesVerifyResult(NamedTuple):
    """Result of the proof of a typed table. `rows` and `dead` were compared with the bucket.

    `fitting` dead letters fit the columns of today: `tiered table replay-dead` makes rows of them. `gaps` are offsets
    that expired before they were a row or a dead letter.
    """

    table: str
    rows: int
    dead: int
    fitting: int
    loaded: Mapping[int, int]
    faults: tuple[ValueFault, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def ok(self) -> bool:
        """True if there are no faults."""
        return not self.faults


def verify_values(
    runner: TaskRunner, store: str, read_log: ReadLog, typed: TypedTable, letters: DeadLetters
) -> ValuesVerifyResult:
    """Compares a typed table and its dead letters with the bucket. Compares again if all that changed meanwhile.

    Raises `Refused` for a table that another program made, `Corrupt` if the bucket or a file cannot be read.
    """
    for _ in range(TRIES):
        loaded, decided = _read_both(typed, letters)
        cold, erased = read_log()  # after the tables: what they have is there
        if cold.topic_id != typed.topic_id:
            raise Unavailable(f"topic {cold.name} was deleted and created again while it was verified", final=True)
        versions = typed.version, letters.version
        found = _verify_once(runner, store, cold, typed, letters, erased, loaded, decided)
        if found.ok:
            break
        newer, newly_erased = read_log()
        now = typed.snapshot().version, letters.snapshot().version
        if now == versions and newly_erased == erased and cleaned_ranges(newer) == cleaned_ranges(cold):
            break
    return found


def _verify_once(
    runner: TaskRunner,
    store: str,
    cold: ColdTopic,
    typed: TypedTable,
    letters: DeadLetters,
    erased: Ranges,
    loaded: Mapping[int, int],
    decided: Mapping[int, int],
) -> ValuesVerifyResult:
    value_rules = typed.rules()
    if value_rules is None:
        raise Refused(Code.INVALID_REQUEST, f"there is no typed table at {typed.url}")
    lows = {each.partition: each.log_start_offset for each in cold.partitions}
    rows, dead = (
        TableRules({number: (low, max(ends.get(number, low), low)) for number, low in lows.items()})
        for ends in (loaded, decided)
    )
    bits = range_bits([*rows.bounds.values(), *dead.bounds.values()])
    rules = ValueSumRules(
        select_columns(typed.schema()),
        os.urandom(SECRET_BYTES),
        bits,
        erased,
        (rows, dead),
        changes=typed.applied_rules(),
        has_key=bool(value_rules.keys),
    )
    return _Comparison(runner, store, cold, typed, letters, rules).run(loaded)


def verify_topic_values(
    runner: TaskRunner, store: str, topic: str, topic_id: str, url: str, read_log: ReadLog
) -> ValuesVerifyResult | None:
    """Compares the typed table beside the raw one at `url`. Returns None if this topic has none."""
    if urlsplit(url).scheme not in TABLE_SCHEMES:
        return None
    with (
        closing(TypedTable(f"{url}{TYPED_SUFFIX}", topic, topic_id)) as typed,
        closing(DeadLetters(f"{url}{DEAD_SUFFIX}", topic, topic_id)) as letters,
    ):
        return verify_values(runner, store, read_log, typed, letters) if typed.is_there() else None


def _read_both(typed: TypedTable, letters: DeadLetters) -> tuple[dict[int, int], dict[int, int]]:
    """Reads both tables as they were at one moment. Returns the loaded offsets of each."""
    for _ in range(SNAPSHOTS_MAX):
        loaded = typed.loaded_offsets()
        version, decided = typed.version, letters.loaded_offsets()
        typed.snapshot()
        if typed.version == version:
            return loaded, decided
    raise Unavailable(f"the table at {typed.url} changed {SNAPSHOTS_MAX} times while it was read: try again")


class _Comparison:
    def __init__(
        self,
        runner: TaskRunner,
        store: str,
        cold: ColdTopic,
        typed: TypedTable,
        letters: DeadLetters,
        rules: ValueSumRules,
    ) -> None:
        import numpy as np

        self._runner = runner
        self._store = store
        self._cold = cold
        self._tables: tuple[RecordTable, RecordTable] = typed, letters
        self._rules = rules
        self._cleaned = cleaned_ranges(cold)
        self._dead = {number: np.unique(each) for number, each in letters.places().items()}

    def run(self, loaded: Mapping[int, int]) -> ValuesVerifyResult:
        """Compares, and returns the result."""
        read, held = self._read_log(self._rules), self._read_tables(self._rules)
        log, table = _merge_sums(read), _merge_sums(held)
        faults = [ValueFault(row.partition, row.offset, "unfit", why=row.why) for each in read for row in each.unfit]
        unfit = {fault[:2] for fault in faults}
        ranges = [differing_ranges(*both, self._rules.bits) for both in zip(log, table, strict=True)]
        if sum(high - low for each in self._clip(ranges[0]).values() for low, high in each) > COMPARED_MAX:
            ranges[0] = self._drop_whole_by_leaves(ranges[0], log[0], table[0])
        faults += [fault for fault in self._compare_ranges(ranges) if fault[:2] not in unfit or fault.kind != "changed"]
        if any(each.outside or each.erased for each in table):
            faults += self._find_misplaced(table)
        faults += self._find_expired_doubles(table[0])
        fitting = sum(each.fitting for each in read)
        return ValuesVerifyResult(
            self._tables[0].url,
            table[0].rows,
            table[1].rows,
            fitting,
            loaded,
            tuple(sorted(set(faults))[:FAULTS_MAX]),
            tuple(self._find_expired_gaps(table[0], loaded)),
        )

    def _read_log(self, rules: ValueSumRules) -> list[PartsFound]:
        """Reads the log, or the wanted ranges of it."""
        rows, dead = rules.tables
        if rows.wanted is None or dead.wanted is None:
            bounds = {number: (low, max(end, dead.bounds[number][1])) for number, (low, end) in rows.bounds.items()}
        else:
            spans = [*rows.wanted.items(), *dead.wanted.items()]
            bounds = {number: (each[0][0], each[-1][1]) for number, each in spans}
            for number, each in spans:
                low, high = bounds[number]
                bounds[number] = min(low, each[0][0]), max(high, each[-1][1])
        found = splits(self._cold, {number: each for number, each in bounds.items() if each[0] < each[1]}, self._tasks)
        tasks = []
        for group in group_parts(found, [split.log_bytes for split in found], self._tasks):
            mine = {each.partition: self._dead[each.partition] for each in group if each.partition in self._dead}
            tasks.append(LogTask(self._store, tuple(group), mine, rules))
        return self._runner.run_tasks(f"could not verify {self._tables[0].url}", sum_log, tasks)

    def _read_tables(self, rules: ValueSumRules) -> list[PartsFound]:
        """Reads the files of both tables, or those that may hold rows of the wanted ranges."""
        tasks = []
        for at, table in enumerate(self._tables):
            wanted = rules.tables[at].wanted
            files = [add for add in table.files() if wanted is None or _may_hold_any(add, wanted)]
            for add in files:
                if add.get("deletionVector"):
                    raise Refused(
                        Code.INVALID_REQUEST,
                        f"the table at {table.url} has deletion vectors: run REORG TABLE ... APPLY (PURGE) on it",
                    )
            for group in group_parts(files, [int(add.get("size") or 0) for add in files], self._tasks):
                paths = tuple(delta_state.file_path(add, table.url) for add in group)
                tasks.append(FilesTask(table.url, paths, at, rules))
        return self._runner.run_tasks(f"could not verify {self._tables[0].url}", sum_files, tasks)

    @property
    def _tasks(self) -> int:
        return GROUPS_PER_TASK * self._runner.tasks

    def _clip(self, differing: Sequence[OffsetRange]) -> dict[int, list[Range]]:
        """Returns the offsets of ranges of rows that are compared, by partition."""
        found: dict[int, list[Range]] = {}
        for partition, start, end in differing:
            low, high = self._rules.tables[0].bounds[partition]
            found.setdefault(partition, []).append((max(start, low), min(end, high)))
        return found

    def _drop_whole_by_leaves(
        self, differing: Sequence[OffsetRange], log: PartSums, table: PartSums
    ) -> list[OffsetRange]:
        """Returns the ranges of rows that differ otherwise than by NULLs of the table in the place of blank fields."""
        rows, dead = self._rules.tables
        tables = rows._replace(wanted=self._clip(differing)), dead._replace(wanted={})
        rules = self._rules._replace(tables=tables, by_leaves=True)
        found = [
            (_merge_sums(each)[0], _merge_blanks(each)) for each in (self._read_log(rules), self._read_tables(rules))
        ]
        (log_leaves, log_blanks), (table_leaves, table_blanks) = found
        whole = {
            key
            for key, blanks in log_blanks.sums.items()
            if log_leaves.sums[key] == table_leaves.sums.get(key) and blanks.first > table_blanks.sums[key].first
        }
        one, other = (
            PartSums({key: each for key, each in side.sums.items() if key not in whole}) for side in (log, table)
        )
        return differing_ranges(one, other, self._rules.bits)

    def _compare_ranges(self, differing: Sequence[Sequence[OffsetRange]]) -> list[ValueFault]:
        """Compares the first ranges that differ row by row, and lists the others."""
        if not any(differing):
            return []
        room, faults = COMPARED_MAX, list[ValueFault]()
        compared: list[tuple[int, OffsetRange]] = []
        wanted: tuple[dict[int, list[Range]], dict[int, list[Range]]] = {}, {}
        for at, ranges in enumerate(differing):
            for each in ranges:
                low, high = self._rules.tables[at].bounds[each.partition]
                start, end = max(each.start, low), min(each.end, high)
                while start < end and room > 0:
                    stop = min(end, start + room)
                    wanted[at].setdefault(each.partition, []).append((start, stop))
                    if stop == end and start == max(each.start, low):
                        compared.append((at, each))
                    room -= stop - start
                    start = stop
                if start < end:
                    faults.append(_whole_range(at, OffsetRange(each.partition, start, end)))
        rows, dead = self._rules.tables
        rules = self._rules._replace(tables=(rows._replace(wanted=wanted[0]), dead._replace(wanted=wanted[1])))
        log, table = self._read_log(rules), self._read_tables(rules)
        for at in (0, 1):
            found, blank = compare_rows(_collect_listed(log, at), _collect_listed(table, at), at == 1)
            faults += [fault for fault in found if fault.kind != "extra" or not self._is_cleaned(fault)]
            bits = self._rules.bits
            explained = {(number, offset >> bits) for number, offset in (*blank, *(fault[:2] for fault in found))}
            faults += [
                _whole_range(side, each)
                for side, each in compared
                if side == at
                and not any((each.partition, n) in explained for n in range(each.start >> bits, each.end >> bits))
            ]
        return faults

    def _is_cleaned(self, fault: ValueFault) -> bool:
        """True if the record may have been in the log until compaction took it."""
        return any(low <= fault.offset < high for low, high in self._cleaned.get(fault.partition, ()))

    def _find_misplaced(self, table: Sequence[PartSums]) -> list[ValueFault]:
        """Returns rows that are outside of the log, and rows that were erased."""
        held = self._read_tables(self._rules._replace(finds_misplaced=True))
        faults = [
            ValueFault(rows.partition, offset, self._misplaced_kind(at, rows.partition, offset), at == 1)
            for at in (0, 1)
            for rows in _collect_listed(held, at)
            for offset in rows.offsets.tolist()
        ]
        if not faults:  # rows without a partition or an offset
            faults = [ValueFault(-1, -1, "extra", at == 1) for at in (0, 1) if table[at].outside]
        return faults

    def _misplaced_kind(self, at: int, partition: int, offset: int) -> str:
        bounds = self._rules.tables[at].bounds.get(partition)
        return "extra" if bounds is None or offset >= bounds[1] else "erased"

    def _find_expired_gaps(self, table: PartSums, loaded: Mapping[int, int]) -> list[Gap]:
        """Returns the offsets below the log start that are in neither table and were not erased."""
        lows = {number: min(low, loaded.get(number, 0)) for number, (low, _) in self._rules.tables[0].bounds.items()}
        lows = {number: low for number, low in lows.items() if low > 0}
        if not lows:
            return []
        runs = table.runs if table.has_all_runs else self._read_expired_runs(lows)
        letters = [run for number in lows if number in self._dead for run in find_runs(number, self._dead[number])]
        holes = find_holes(join_runs([*runs, *letters])[0], lows)
        holes = [hole._replace(end=min(hole.end, lows.get(hole.partition, 0))) for hole in holes]
        _, left = explain_erased([hole for hole in holes if hole.start < hole.end], self._rules.erased)
        return [Gap(*hole, EXPIRED) for hole in left[:GAPS_MAX]]

    def _read_expired_runs(self, lows: Mapping[int, int]) -> list[OffsetRange]:
        """Returns the runs of typed rows below the log start, and of the dead letters between them: these are few."""
        import numpy as np

        ranges = {number: [(0, low)] for number, low in lows.items()}
        runs: list[OffsetRange] = []
        for add in self._tables[0].files():
            if not _may_hold_any(add, ranges):
                continue
            for number, offsets in self._tables[0].places([add]).items():
                dead = self._dead.get(number, offsets[:0])
                first, last = np.searchsorted(dead, (offsets.min(), offsets.max()))
                runs += find_runs(number, np.unique(np.concatenate([offsets, dead[first:last]])))
        return runs

    def _find_expired_doubles(self, table: PartSums) -> list[ValueFault]:
        """Returns offsets below the log start that are there twice: in rows, or as a row and as a dead letter."""
        import numpy as np

        if not table.expired or not table.has_all_runs:
            return []
        runs, has_doubles = join_runs(table.runs)
        faults = []
        if has_doubles:
            ordered = sorted(table.runs)
            for one, two in pairwise(ordered):
                if one.partition == two.partition and two.start < one.end:
                    faults.append(ValueFault(two.partition, two.start, "duplicate"))
        for run in runs:
            dead = self._dead.get(run.partition)
            low = self._rules.tables[0].bounds.get(run.partition, (0, 0))[0]
            if dead is not None:
                first, last = np.searchsorted(dead, (run.start, min(run.end, low)))
                faults += [ValueFault(run.partition, each, "duplicate") for each in dead[first:last].tolist()]
        return [fault for fault in faults if fault.offset < self._rules.tables[0].bounds[fault.partition][0]]


def compare_rows(
    log: Iterable[ListedRows], table: Iterable[ListedRows], is_dead: bool
) -> tuple[list[ValueFault], list[tuple[int, int]]]:
    """Returns the faults of rows: each one of the log has to be in the table once, and whole.

    Then come the places of the whole rows that have NULLs in the place of blank fields.
    """
    wanted = {place: digest for rows in log for place, digest in _places(rows)}
    held: dict[tuple[int, int], list[bytes]] = {}
    for rows in table:
        for place, digest in _places(rows):
            held.setdefault(place, []).append(digest)
    faults, blank = [], []
    for place in wanted.keys() | held.keys():
        there = held.get(place, [])
        if len(there) > 1:
            kind = "duplicate"
        elif place not in wanted:
            kind = "extra"
        elif not there:
            kind = "missing"
        elif there[0] == wanted[place]:
            continue
        elif is_whole(wanted[place], there[0]):
            blank.append(place)
            continue
        else:
            kind = "changed"
        faults.append(ValueFault(*place, kind, is_dead))
    return sorted(faults), blank


def is_whole(log: bytes, table: bytes) -> bool:
    """True if a row of the table is that of the log, but for NULLs in the place of blank fields."""
    import numpy as np

    if log == table:
        return True
    wanted, held = (np.frombuffer(each, dtype="<u8").tolist() for each in (log, table))
    return bool(wanted[LEAVES] == held[LEAVES] and wanted[BLANKS] > held[BLANKS])


def _places(rows: ListedRows) -> Iterable[tuple[tuple[int, int], bytes]]:
    digests, size = rows.hashes.tobytes(), rows.hashes.itemsize * rows.hashes.shape[1]
    for at, offset in enumerate(rows.offsets.tolist()):
        yield (rows.partition, offset), digests[size * at : size * (at + 1)]


def _collect_listed(found: Sequence[PartsFound], at: int) -> list[ListedRows]:
    return [rows for each in found for rows in each.parts[at].listed]


def _merge_sums(found: Sequence[PartsFound]) -> tuple[PartSums, PartSums]:
    sums = PartSums(), PartSums()
    for each in found:
        for whole, part in zip(sums, each.parts, strict=True):
            whole.merge(part.sums)
    return sums


def _merge_blanks(found: Sequence[PartsFound]) -> PartSums:
    merged = PartSums()
    for each in found:
        merged.merge(each.parts[0].blanks)
    return merged


def _whole_range(at: int, found: OffsetRange) -> ValueFault:
    """Returns a fault for a range whose sums differ: a difference is never silent."""
    why = f"the sums of offsets {found.start} to {found.end - 1} differ"
    return ValueFault(found.partition, found.start, "changed", at == 1, why)


def _may_hold_any(add: Mapping[str, Any], wanted: Ranges) -> bool:
    return any(
        may_hold(extent, number, each) for extent in delta_state.file_extents(add)
        for number, ranges in wanted.items() for each in ranges
    )  # fmt: skip
