"""Erases rows from a table lawfully: the rows that a condition chooses, below the loaded bounds, with a reason.

The condition is evaluated on the rows of the table and on those of the log, so that no repair brings back a row that
the table lacked at that time. The record of the erasure (`erasures.py`) is written first. Then each partition gets one
transaction that removes the rows, and the dead letters and the typed table get one each. A kill leaves rows that are
recorded and not yet removed. The same command, any other erasure and a repair remove them; `verify` lists them until
then.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from pyspark_tiered.delta import table_features
from pyspark_tiered.delta.delta_commit import DeltaTable
from pyspark_tiered.delta.delta_log import TableSnapshot
from pyspark_tiered.delta.delta_rewrite import TableRewrite, snapshot_after
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.table_form import Advance, Range
from pyspark_tiered.failures import first_line, translate_failure
from pyspark_tiered.log.bucket import check_table, check_topic, never_loaded
from pyspark_tiered.log.plan import ColdTopic
from pyspark_tiered.proof import compare
from pyspark_tiered.proof.erasures import RANGES_MAX, Erasure, join_ranges, read_erasures, write_erasure
from pyspark_tiered.proof.repair import fault_ranges
from pyspark_tiered.session import session
from pyspark_tiered.typed.erase import read_value_bounds, remove_erased_values
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = 10
"""Attempts in a row of which none could commit, because other writers committed first."""


@dataclass(frozen=True, slots=True)
class EraseProgress:
    """Progress of an erasure. `step` is chosen, recorded, removed (a partition) or done.

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
) -> EraseProgress:
    """Erases the rows of `<warehouse>/<topic>` for which `where` is true. Another call after a kill completes it.

    Raises `Refused` if there is no such table or topic, no reason, or the condition is not understood.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not reason.strip():
        raise Refused(Code.INVALID_REQUEST, "an erasure needs a reason, which the table keeps")
    check_topic(store, topic)
    url = f"{spark_url(warehouse)}/{topic}"
    check_table(topic, url)
    running = spark or session()
    try:
        return _Erasing(running, store, topic, url, progress).run(where, reason)
    except (Py4JError, PySparkException) as failure:
        raise translate_failure(f"could not erase from {topic}", failure) from failure


class _Erasing:
    """One erasure in progress."""

    def __init__(self, spark: SparkSession, store: str, topic: str, url: str, report: Report) -> None:
        self._spark = spark
        self._store = store
        self._topic = topic
        self._url = url
        self._report = report
        self._rows = 0
        self._removed = 0
        self._values = 0

    def run(self, where: str, reason: str) -> EraseProgress:
        cold = compare.read_cold_topic(self._store, self._topic)
        table = DeltaTable(self._spark, self._url, cold.name, cold.topic_id)
        typed_bounds = read_value_bounds(self._url, cold.name, cold.topic_id)
        at = table.snapshot()
        if at.version < 0:
            raise never_loaded(self._topic, self._url)
        _check_typed_bounds(typed_bounds, at)
        table_features.check_removal(at.properties(), self._url)
        chosen = self._choose(cold, at, where)
        self._rows = sum(end - start for each in chosen.values() for start, end in each)
        self._report_step("chosen")
        if chosen:
            now_ms = time.time_ns() // 1_000_000
            erasure = Erasure(cold.topic_id, now_ms, where, reason, chosen)
            write_erasure(self._url, erasure, f"{now_ms:013d}-{uuid.uuid4()}.json")
            self._report_step("recorded")
        self._remove(table, cold, {"rows": self._rows, "where": where, "reason": reason}, set(chosen))
        known = read_erasures(self._url, cold.topic_id)
        self._values = remove_erased_values(self._url, cold.name, cold.topic_id, known)
        return self._report_step("done")

    def _choose(self, cold: ColdTopic, at: TableSnapshot, where: str) -> dict[int, tuple[Range, ...]]:
        """Returns the offsets for which the condition is true and that no earlier erasure has, by partition."""
        from pyspark.errors import AnalysisException, ParseException

        loaded = at.loaded_offsets()
        bounds = {each.partition: (each.log_start_offset, loaded.get(each.partition, 0)) for each in cold.partitions}
        in_log = {number: (low, high) for number, (low, high) in bounds.items() if low < high}
        below = " OR ".join(f"(partition = {number} AND offset < {high})" for number, (_, high) in bounds.items())
        rows = compare.expected_rows(self._spark, self._store, cold, in_log).unionByName(at.rows().where(below))
        try:
            found = rows.where(where).selectExpr("'erased' AS kind", "partition", "offset")
        except (AnalysisException, ParseException) as failure:
            raise Refused(Code.INVALID_REQUEST, f"--where: {first_line(failure)}") from failure
        known = join_ranges(read_erasures(self._url, cold.topic_id))
        ranges = fault_ranges(compare.without_ranges(found, known), RANGES_MAX + 1)
        if len(ranges) > RANGES_MAX:
            raise Refused(
                Code.INVALID_REQUEST,
                f"--where chooses more than {RANGES_MAX:,} ranges of offsets: erase them in several commands",
            )
        return {
            number: tuple((run.start, run.end) for run in runs)
            for number, runs in groupby(ranges, lambda run: run.partition)
        }

    def _remove(self, table: DeltaTable, cold: ColdTopic, mark: Mapping[str, object], to_mark: set[int]) -> None:
        """Removes all recorded rows that the table has. The partitions of this erasure get a commit in any case.

        That commit makes a repair fail that compared the table before the record was there.
        """
        failures = 0
        while failures < ATTEMPTS:
            at = table.snapshot()
            known = at.loaded_offsets()
            erased = join_ranges(read_erasures(self._url, cold.topic_id))
            found = fault_ranges(compare.find_erased_rows(at.rows(), erased), RANGES_MAX)
            if not found and not to_mark:
                return
            by_partition = {number: list(runs) for number, runs in groupby(found, lambda run: run.partition)}
            committed = False
            newest: TableSnapshot | None = at
            for number in sorted(by_partition.keys() | to_mark):
                step = [Advance(number, known[number], known[number])] if number in known else []
                if newest is None:
                    break
                if TableRewrite(self._spark, table, newest).commit(by_partition.get(number, []), [], step, erased=mark):
                    committed = True
                    newest = snapshot_after(table, newest)
                    to_mark.discard(number)
                    self._removed += sum(run.end - run.start for run in by_partition.get(number, []))
                    self._report_step("removed")
            failures = 0 if committed else failures + 1
        raise Unavailable(
            f"{ATTEMPTS} attempts in a row removed nothing from {self._url}, other writers committed first: the "
            "erasure is recorded, run the same command again"
        )

    def _report_step(self, step: str) -> EraseProgress:
        progress = EraseProgress(step, self._url, self._rows, self._removed, self._values)
        self._report(progress)
        return progress


def _check_typed_bounds(bounds: Mapping[int, int], at: TableSnapshot) -> None:
    """Raises `Unavailable` if values are loaded beyond the table, where the condition chooses no row."""
    loaded = at.loaded_offsets()
    for number, end in bounds.items():
        if end > max(loaded.get(number, 0), 0):
            raise Unavailable(
                f"the typed table of partition {number} is loaded up to {end}, beyond {at.url}: nothing was erased; "
                "run `tiered load`, and then this command again"
            )
