"""Erases rows from a table lawfully: the rows that a condition chooses, below the loaded bounds, with a reason.

The condition is evaluated on the rows of the table and on those of the log, so that no repair brings back a row that
the table lacked at that time. The record of the erasure (`erasures.py`) is written first. Then the raw table, the dead
letters and the typed table get one commit each that removes the rows. A kill leaves rows that are recorded and not yet
removed. The same command, any other erasure and a repair remove them; `verify` lists them until then.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyspark_tiered.delta import table_features, topic_table
from pyspark_tiered.delta.data_files import open_table_folder, read_rows
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import BatchReader, check_table, check_topic, never_loaded
from pyspark_tiered.log.plan import ColdTopic, splits
from pyspark_tiered.proof.comparison import may_hold_any, read_cold_topic
from pyspark_tiered.proof.condition import Condition
from pyspark_tiered.proof.erasures import RANGES_MAX, Erasure, join_ranges, read_erasures, write_erasure
from pyspark_tiered.proof.rewrite import RowChooser, remove_rows
from pyspark_tiered.proof.summing import read_log
from pyspark_tiered.proof.sums import OffsetRange, find_runs, is_inside, join_runs
from pyspark_tiered.typed import form
from pyspark_tiered.typed.tables import DeadLetters, RecordTable, TypedTable
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

ERASED = {"operation": "ERASE", "operationParameters": {}}
ATTEMPTS = 10
"""Commits of other writers in a row that may come first."""
CHOSEN_BYTES = 64 << 20
"""Rows of the log that are judged at once."""


@dataclass(frozen=True, slots=True)
class EraseProgress:
    """Progress of an erasure. `step` is chosen, recorded, removed (from the raw table) or done; for a dry run it is
    counted.

    `rows` were chosen and not erased before; `removed` were in the table, `values` in the typed table and the dead
    letters.
    """

    step: str
    table: str
    rows: int = 0
    removed: int = 0
    values: int = 0


Report = Callable[[EraseProgress], None]


def erase(
    store: str,
    topic: str,
    warehouse: str,
    where: str,
    reason: str,
    progress: Report = lambda _: None,
    *,
    spark: SparkSession | None = None,
    on_bytes: Callable[[int, int], None] = lambda *_: None,
    dry_run: bool = False,
) -> EraseProgress:
    """Erases the rows of `<warehouse>/<topic>` for which `where` is true. Another call after a kill completes it. A dry
    run only counts the rows, with the same checks.

    A session of Spark is not needed: callers of earlier releases give one.

    Raises `Refused` if there is no such table or topic, no reason, or the condition is not understood.
    """
    if not reason.strip():
        raise Refused(Code.INVALID_REQUEST, "an erasure needs a reason, which the table keeps")
    check_topic(store, topic)
    url = f"{spark_url(warehouse)}/{topic}"
    check_table(topic, url)
    cold = read_cold_topic(store, topic)
    with closing(NativeTable(url, topic, cold.topic_id)) as table, closing(Condition(where)) as condition:
        return _Erasing(store, table, progress, on_bytes).run(cold, condition, where, reason, dry_run)


class _Erasing:
    """One erasure in progress."""

    def __init__(self, store: str, table: NativeTable, report: Report, on_bytes: Callable[[int, int], None]) -> None:
        self._on_bytes = on_bytes
        self._store = store
        self._table = table
        self._url = table.url
        self._report = report
        self._rows = 0
        self._removed = 0
        self._values = 0

    def run(self, cold: ColdTopic, condition: Condition, where: str, reason: str, dry_run: bool) -> EraseProgress:
        typed_bounds = read_value_bounds(self._url, cold.name, cold.topic_id)
        self._table.snapshot()  # nothing is recorded for a table that cannot be written
        at = self._table.pin()
        if at.version < 0:
            raise never_loaded(cold.name, self._url)
        _check_typed_bounds(typed_bounds, at)
        topic_table.refuse_latest(at.properties(), self._url, "from which a tombstone of the key removes a row")
        table_features.check_removal(at.properties(), self._url)
        chosen = self._choose(cold, at, condition)
        self._rows = sum(end - start for each in chosen.values() for start, end in each)
        if dry_run:
            return self._report_step("counted")
        self._report_step("chosen")
        if chosen:
            now_ms = time.time_ns() // 1_000_000
            erasure = Erasure(cold.topic_id, now_ms, where, reason, chosen)
            write_erasure(self._url, erasure, f"{now_ms:013d}-{uuid.uuid4()}.json")
            self._report_step("recorded")
        known = read_erasures(self._url, cold.topic_id)
        mark = {"rows": self._rows, "where": where, "reason": reason}
        self._removed = remove_erased(self._table, known, chosen, mark)
        if self._removed:
            self._report_step("removed")
        self._values = remove_erased_values(self._url, cold.name, cold.topic_id, known)
        return self._report_step("done")

    def _choose(self, cold: ColdTopic, at: Snapshot, condition: Condition) -> dict[int, tuple[Range, ...]]:
        """Returns the offsets for which the condition is true and that no earlier erasure has, by partition."""
        loaded = at.loaded_offsets()
        bounds = {each.partition: (each.log_start_offset, loaded.get(each.partition, 0)) for each in cold.partitions}
        known = join_ranges(read_erasures(self._url, cold.topic_id))
        found = list[OffsetRange]()
        for rows in self._read_rows(cold, at, bounds):
            partitions, offsets = condition.choose(rows)
            for number, (_, end) in bounds.items():
                mine = offsets[(partitions == number) & (offsets < end)]
                mine.sort()
                found += find_runs(number, mine[~is_inside(mine, known.get(number, ()))])
            found = join_runs(found)[0]
            if len(found) > RANGES_MAX:
                raise Refused(
                    Code.INVALID_REQUEST,
                    f"--where chooses more than {RANGES_MAX:,} ranges of offsets: erase them in several commands",
                )
        return {
            number: tuple((run.start, run.end) for run in runs)
            for number, runs in groupby(found, lambda run: run.partition)
        }

    def _read_rows(self, cold: ColdTopic, at: Snapshot, bounds: Mapping[int, Range]) -> Iterator[pyarrow.Table]:
        """Yields the rows of log and table, some at a time. Reports the bytes of the parts that were read."""
        import pyarrow as pa

        in_log = {number: (low, high) for number, (low, high) in bounds.items() if low < high}
        parts, files, done = splits(cold, in_log, 1), at.files(), 0
        total = sum(each.log_bytes for each in parts) + sum(each.size for each in files)
        self._on_bytes(done, total)
        with BatchReader(self._store) as reader:
            for split in parts:
                for records in read_log(reader, split, CHOSEN_BYTES):
                    yield pa.Table.from_batches([records])
                self._on_bytes(done := done + split.log_bytes, total)
        with open_table_folder(at.url) as folder:
            for file in files:
                for batch in read_rows(folder, file.add, file.form):
                    yield pa.Table.from_batches([batch])
                self._on_bytes(done := done + file.size, total)

    def _report_step(self, step: str) -> EraseProgress:
        progress = EraseProgress(step, self._url, self._rows, self._removed, self._values)
        self._report(progress)
        return progress


def _check_typed_bounds(bounds: Mapping[int, int], at: Snapshot) -> None:
    """Raises `Unavailable` if values are loaded beyond the table, where the condition chooses no row."""
    loaded = at.loaded_offsets()
    for number, end in bounds.items():
        if end > max(loaded.get(number, 0), 0):
            raise Unavailable(
                f"the typed table of partition {number} is loaded up to {end}, beyond {at.url}: nothing was erased; "
                "run `tiered load`, and then this command again"
            )


def remove_erased(
    table: NativeTable,
    erasures: Sequence[Erasure],
    renewed: Collection[int] = (),
    mark: Mapping[str, Any] | None = None,
) -> int:
    """Takes erased rows out of a table, raw or typed, by one commit. Returns how many.

    There is a commit if the table does not say yet that it heeds so many erasures, and if there are partitions to be
    `renewed`. Then each load, replay and repair that was planned before the record of the erasure fails. Raises
    `Unavailable` if other writers always come first.
    """
    erased = join_ranges(erasures)
    for _ in range(ATTEMPTS):
        now = table.pin()
        at = now.state
        table_features.check_removal(at.properties(), table.url)
        found = remove_rows(table, now.files(), RowChooser(erased))
        noted = table.note_erasures(at, len(erasures))
        if not found and noted is None and not renewed:
            return 0
        rows = sum(each.rows for each in found)
        if table.replace_files(
            at,
            found,
            ERASED,
            renewed=renewed,
            metadata=noted,
            may_come=lambda add: not may_hold_any(add, erased),
            erased=mark or rows,
        ):
            return rows
    raise Unavailable(
        f"{ATTEMPTS} other commits to {table.url} came first: the erasure is recorded, run the same command again"
    )


def read_value_bounds(url: str, topic: str, topic_id: str) -> dict[int, int]:
    """Returns up to which offset both tables beside the raw one at `url` are loaded; empty without a typed table.

    Raises `Refused` if no row of one of them may be removed.
    """
    bounds: dict[int, int] = {}
    for table in _open_value_tables(url, topic, topic_id):
        with closing(table):
            if table.is_there():
                table.check_removal()
                for number, end in table.loaded_offsets().items():
                    bounds[number] = max(end, bounds.get(number, end))
    return bounds


def remove_erased_values(url: str, topic: str, topic_id: str, erasures: Sequence[Erasure]) -> int:
    """Takes erased rows out of both tables beside the raw one at `url`. Returns how many.

    Raises `Unavailable` if other writers always come first.
    """
    removed = 0
    for table in _open_value_tables(url, topic, topic_id) if erasures else ():
        with closing(table):
            if table.is_there():
                removed += remove_erased(table, erasures)
    return removed


def _open_value_tables(url: str, topic: str, topic_id: str) -> list[RecordTable]:
    if urlsplit(url).scheme not in form.TABLE_SCHEMES:
        return []
    return [
        DeadLetters(f"{url}{form.DEAD_SUFFIX}", topic, topic_id),
        TypedTable(f"{url}{form.TYPED_SUFFIX}", topic, topic_id),
    ]
