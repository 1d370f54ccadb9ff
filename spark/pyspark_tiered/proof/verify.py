"""Proof that tables hold every loaded record exactly once with equal content, and the reason for each missing offset.

The bucket is read again and compared with one version of a table, up to the loaded bound of each partition: by sums
first, and row by row where these differ (`comparison.py`). Offsets without a row in a raw table must be explained by
the log itself (`gaps.py`), or by an erasure. Rows that retention removed from the bucket can no longer be compared, and
are reported as such. Rows whose records compaction took after the load are no faults. If other writers removed rows
from the raw table, a missing row names their commit.

The rows and the dead letters of a typed table together are the log. Each value is parsed by another parser
(`reparse.py`). An offset of the log has to be a dead letter with the bytes of its record, or else a row with the cells
that the columns of today give it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pyspark_tiered.delta import history
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import LATEST, MODE, Range
from pyspark_tiered.load.native_engine import OnTask, open_engine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import ColdTopicReader, check_table, check_topic, never_loaded
from pyspark_tiered.log.plan import ColdTopic, cleaned_ranges
from pyspark_tiered.proof.comparison import Comparison, FaultyRange, TaskRunner, find_gaps, read_cold_topic
from pyspark_tiered.proof.erasures import Erasure, explain_erased, join_ranges, read_erasures
from pyspark_tiered.proof.gaps import EXPIRED, PRESENT, Gap, explain_from_log, explain_gap, undecided_gaps
from pyspark_tiered.proof.last_verify import LastVerify, write_last_verify
from pyspark_tiered.proof.latest_fold import compare_with_fold
from pyspark_tiered.proof.row_form import LetterRows, Letters, TypedRows
from pyspark_tiered.proof.sums import OffsetRange
from pyspark_tiered.schemas.registry import ANY_REGISTRY, RegistryChoice
from pyspark_tiered.typed.form import DEAD_SUFFIX, TABLE_SCHEMES, TYPED_SUFFIX
from pyspark_tiered.typed.kinds import select_columns
from pyspark_tiered.typed.tables import DeadLetters, TypedTable
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAULTS_MAX = 1000
"""Faults that are listed at most: the first ones are enough to find the cause."""
GAPS_MAX = 1000
TRIES = 3
"""Comparisons, if the tables or the log change while they are compared."""
SNAPSHOTS_MAX = 10

ReadLog = Callable[[], tuple[ColdTopic, Sequence[Erasure]]]
"""Reads the bounds of the topic in the bucket, and the erasures."""


class RowFault(NamedTuple):
    """A fault of a table at one offset.

    Kinds: missing, duplicate, changed, extra, erased and there all the same, and unfit: neither a dead letter nor a
    value that fits its columns. `why` names the commit of another writer that may have caused it. A row without
    partition or offset has -1 there. `is_dead`: the fault is one of the dead letters.
    """

    kind: str
    partition: int
    offset: int
    why: str = ""
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Result of the proof of one table. `rows` were compared with the bucket; `loaded` is the bound per partition.

    `erased` counts the rows that were erased lawfully. Without faults the table is whole. `values` is the proof of the
    typed table, None if the topic has none. In that one, `dead` letters were compared too, and `fitting` of them fit
    the columns of today: `tiered table replay-dead` makes rows of them. `version` is the version that was compared.
    """

    table: str
    rows: int
    loaded: Mapping[int, int]
    faults: tuple[RowFault, ...]
    gaps: tuple[Gap, ...] = ()
    erased: int = 0
    values: VerifyResult | None = None
    dead: int = 0
    fitting: int = 0
    version: int = -1

    @property
    def ok(self) -> bool:
        """True if there are no faults: the exit code is 0."""
        return not self.faults and (self.values is None or self.values.ok)


def verify(
    store: str,
    topic: str,
    warehouse: str,
    *,
    spark: SparkSession | None = None,
    on_task: OnTask = lambda *_: None,
    registry: RegistryChoice = ANY_REGISTRY,
) -> VerifyResult:
    """Compares the table `<warehouse>/<topic>` and the typed table beside it with the bucket, and keeps the result.
    `registry`: where the schemas of values are.

    The tasks run in this process, or in a session of Spark. Raises `Refused` if there is no such table or topic,
    `Corrupt` if the bucket or a file cannot be read.
    """
    check_topic(store, topic)
    url = f"{spark_url(warehouse)}/{topic}"
    check_table(topic, url)
    topic_id = read_cold_topic(store, topic).topic_id

    def read_log() -> tuple[ColdTopic, Sequence[Erasure]]:
        cold = read_cold_topic(store, topic)
        if cold.topic_id != topic_id:
            raise Unavailable(f"topic {topic} was deleted and created again while it was verified", final=True)
        return cold, read_erasures(url, topic_id)

    with closing(NativeTable(url, topic, topic_id)) as table, closing(open_engine(spark, on_task)) as runner:
        if table.pin().properties().get(MODE, "") == LATEST:
            found = verify_latest(store, read_log, table)
        else:
            found = verify_raw(runner, store, read_log, table)
        found = replace(found, values=_verify_values_beside(runner, store, read_log, table, registry))
    faults = len(found.faults) + (len(found.values.faults) if found.values is not None else 0)
    write_last_verify(url, LastVerify(time.time_ns() // 1_000_000, found.version, found.rows, faults))
    return found


def verify_raw(runner: TaskRunner, store: str, read_log: ReadLog, table: NativeTable) -> VerifyResult:
    """Compares a raw table with the bucket. Raises `Refused` if it was never loaded."""

    def pin() -> tuple[Snapshot]:
        at = table.pin()
        if at.version < 0:
            raise never_loaded(table.topic, table.url)
        return (at,)

    def compare(cold: ColdTopic, erasures: Sequence[Erasure], tables: Sequence[Snapshot]) -> VerifyResult:
        (at,) = tables
        loaded, erased = at.loaded_offsets(), join_ranges(erasures)
        found = Comparison(runner, store, cold, at, _bounds(cold, loaded), erased)
        faults, last_compared = _list_faults(found)
        if faults:
            removals = history.find_row_removals(at.commits(past_marks=True)[0])
            faults = [fault._replace(why=fault.why or _likely_cause(fault, removals)) for fault in faults]
        missing = {(fault.partition, fault.offset) for fault in faults if fault.kind == "missing"}
        erased_gaps, holes = explain_erased(find_gaps([found], loaded, GAPS_MAX), erased)
        gaps = [gap for gap in explain_holes(holes, cold)[:GAPS_MAX] if not _contains_missing(gap, missing)]
        gaps = [gap for gap in gaps if last_compared is None or gap[:2] <= last_compared]
        gaps = [*explain_from_log(store, cold, gaps, GAPS_MAX), *undecided_gaps(cold), *erased_gaps[:GAPS_MAX]]
        faults += [
            RowFault("missing", gap.partition, offset, gap.why)
            for gap in gaps
            if gap.why == PRESENT
            for offset in range(gap.start, min(gap.end, gap.start + FAULTS_MAX))
        ]
        return VerifyResult(
            at.url,
            found.table.rows,
            loaded,
            tuple(sorted(faults)[:FAULTS_MAX]),
            tuple(sorted(gap for gap in gaps if gap.why != PRESENT)),
            sum(each.rows for each in erasures),
            version=at.version,
        )

    return _compare_steadily(pin, read_log, compare)


def verify_latest(store: str, read_log: ReadLog, table: NativeTable) -> VerifyResult:
    """Compares a table in mode latest with the fold of the log: the last record of each key of a partition."""

    def pin() -> tuple[Snapshot]:
        return (table.pin(),)

    def compare(cold: ColdTopic, erasures: Sequence[Erasure], tables: Sequence[Snapshot]) -> VerifyResult:
        (at,) = tables
        loaded = at.loaded_offsets()
        found = compare_with_fold(store, cold, at, _bounds(cold, loaded))
        faults = tuple(RowFault(*each) for each in found.faults[:FAULTS_MAX])
        return VerifyResult(at.url, found.rows, loaded, faults, version=at.version)

    return _compare_steadily(pin, read_log, compare)


def verify_values(
    runner: TaskRunner,
    store: str,
    read_log: ReadLog,
    typed: TypedTable,
    letters: DeadLetters,
    registry: RegistryChoice = ANY_REGISTRY,
) -> VerifyResult:
    """Compares a typed table and its dead letters with the bucket. Raises `Refused` for another program's table."""

    def pin() -> tuple[Snapshot, Snapshot]:
        return _pin_both(typed, letters)

    def compare(cold: ColdTopic, erasures: Sequence[Erasure], tables: Sequence[Snapshot]) -> VerifyResult:
        import numpy as np

        at, dead_at = tables
        rules = typed.rules()
        if rules is None:
            raise Refused(Code.INVALID_REQUEST, f"there is no typed table at {typed.url}")
        loaded, decided, erased = at.loaded_offsets(), dead_at.loaded_offsets(), join_ranges(erasures)
        dead = {number: np.unique(each) for number, each in letters.places().items()}
        kinds = typed.registered_kinds(registry, lambda: _find_brokers(store))
        form = TypedRows(select_columns(typed.schema()), typed.applied_rules(), bool(rules.keys), dead, kinds)
        rows = Comparison(runner, store, cold, at, _bounds(cold, loaded), erased, form)
        both = Comparison(runner, store, cold, dead_at, _bounds(cold, decided), erased, LetterRows(form))
        unfit = {(each.partition, each.offset): each.why for each in rows.unfit}
        faults = [RowFault("unfit", *place, why) for place, why in unfit.items()]
        faults += [each for each in _list_faults(rows)[0] if each[1:3] not in unfit or each.kind != "changed"]
        faults += [each._replace(is_dead=True) for each in _list_faults(both)[0]]
        faults += _find_expired_doubles(rows, dead, cold)
        lows = {each.partition: min(each.log_start_offset, loaded.get(each.partition, 0)) for each in cold.partitions}
        _, holes = explain_erased(find_gaps([rows, both], lows, GAPS_MAX), erased)
        gaps = tuple(Gap(*hole, EXPIRED) for hole in holes[:GAPS_MAX])
        found = tuple(sorted(set(faults))[:FAULTS_MAX])
        return VerifyResult(
            at.url, rows.table.rows, loaded, found, gaps, dead=both.table.rows, fitting=both.fitting, version=at.version
        )

    return _compare_steadily(pin, read_log, compare)


def _find_brokers(store: str) -> tuple[str, ...]:
    with closing(ColdTopicReader(store)) as reader:
        return reader.broker_addresses()


def _verify_values_beside(
    runner: TaskRunner, store: str, read_log: ReadLog, table: NativeTable, registry: RegistryChoice
) -> VerifyResult | None:
    """Compares the typed table beside a raw one. Returns None if this topic has none."""
    if urlsplit(table.url).scheme not in TABLE_SCHEMES:
        return None
    with (
        closing(TypedTable(f"{table.url}{TYPED_SUFFIX}", table.topic, table.topic_id)) as typed,
        closing(DeadLetters(f"{table.url}{DEAD_SUFFIX}", table.topic, table.topic_id)) as letters,
    ):
        return verify_values(runner, store, read_log, typed, letters, registry) if typed.is_there() else None


def _compare_steadily(
    pin: Callable[[], Sequence[Snapshot]],
    read_log: ReadLog,
    compare: Callable[[ColdTopic, Sequence[Erasure], Sequence[Snapshot]], VerifyResult],
) -> VerifyResult:
    """Compares tables with the log. Compares again if faults are found and a table, the erasures or the cleaned ranges
    changed. After three tries returns the last result, which such a change may have caused."""
    for _ in range(TRIES):
        tables = pin()
        cold, erasures = read_log()  # after the tables: what they have is there
        found = compare(cold, erasures, tables)
        if found.ok:
            break
        newer, newer_erasures = read_log()
        versions, newer_versions = ([at.version for at in each] for each in (tables, pin()))
        if (versions, erasures, cleaned_ranges(cold)) == (newer_versions, newer_erasures, cleaned_ranges(newer)):
            break
    return found


def _pin_both(typed: TypedTable, letters: DeadLetters) -> tuple[Snapshot, Snapshot]:
    """Returns both tables as they were at one moment."""
    for _ in range(SNAPSHOTS_MAX):
        at, dead_at = typed.pin(), letters.pin()
        if typed.snapshot().version == at.version:
            return at, dead_at
    raise Unavailable(f"the table at {typed.url} changed {SNAPSHOTS_MAX} times while it was read: try again")


def _bounds(cold: ColdTopic, ends: Mapping[int, int]) -> dict[int, Range]:
    """Returns the offsets of each partition that are compared."""
    return {number: (low, max(ends.get(number, low), low)) for number, low, *_ in cold.partitions}


def _list_faults(found: Comparison) -> tuple[list[RowFault], tuple[int, int] | None]:
    """Returns the first faults, and the last place that was compared row by row; None if all were."""
    differences = _first_faults(found.differing_rows())
    faults = [*differences, *_first_faults(found.other_faults())]
    if len(differences) == FAULTS_MAX:
        return faults, (differences[-1].partition, differences[-1].offset)
    return [*faults, *_unnamed_ranges(faults, found.unexplained_ranges)], None


def _unnamed_ranges(faults: Sequence[RowFault], ranges: Sequence[OffsetRange]) -> list[RowFault]:
    """Returns a fault for each range whose sums differ and in which no row was found: a difference is never silent."""
    return [
        RowFault("changed", number, start, f"the sums of offsets {start} to {end - 1} differ")
        for number, start, end in ranges
        if not any(fault.partition == number and start <= fault.offset < end for fault in faults)
    ]


def _first_faults(found: Iterable[FaultyRange]) -> list[RowFault]:
    """Returns the first offsets at fault, each for itself."""
    each_offset = (RowFault(each.kind, each.partition, at) for each in found for at in range(each.start, each.end))
    return list(islice(each_offset, FAULTS_MAX))


def _likely_cause(fault: RowFault, removals: Sequence[history.RowRemoval]) -> str:
    """Returns the last commit of other writers that removed rows from the file that held this one."""
    candidates = [each for each in removals if each.may_have_removed(fault.partition, fault.offset)]
    return candidates[-1].description if candidates and fault.kind in ("missing", "changed") else ""


def _contains_missing(gap: Gap, missing: Collection[tuple[int, int]]) -> bool:
    return any(partition == gap.partition and gap.start <= offset < gap.end for partition, offset in missing)


def explain_holes(holes: Sequence[OffsetRange], cold: ColdTopic) -> list[Gap]:
    """Returns the holes split at the log start of their partition, with the reason on each side of it.

    The caller takes out offsets that the comparison found missing: they are faults.
    """
    lows = {number: low for number, low, *_ in cold.partitions}
    return [gap for hole in holes for gap in explain_gap(*hole, lows.get(hole.partition, 0))]


def _find_expired_doubles(rows: Comparison, dead: Letters, cold: ColdTopic) -> list[RowFault]:
    """Returns the offsets below the log start that are a row and a dead letter."""
    import numpy as np

    lows = {each.partition: each.log_start_offset for each in cold.partitions}
    faults = []
    for run in rows.runs if rows.table.has_all_runs else ():
        letters = dead.get(run.partition)
        if letters is not None:
            first, last = np.searchsorted(letters, (run.start, min(run.end, lows.get(run.partition, 0))))
            faults += [RowFault("duplicate", run.partition, offset) for offset in letters[first:last].tolist()]
    return faults
