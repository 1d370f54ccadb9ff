"""The transaction of a repair or an erasure: removes wrong rows and adds right ones, all of a partition or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark_tiered.delta import orphans, table_features, table_form
from pyspark_tiered.delta.delta_commit import DeltaTable, conflict_errors
from pyspark_tiered.delta.delta_log import TableSnapshot
from pyspark_tiered.delta.table_form import Advance, LoadedFile
from pyspark_tiered.failures import first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


class OffsetRun(Protocol):
    """Offsets `[start, end)` of a partition; -1 stands for a NULL."""

    @property
    def partition(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class TableRewrite:
    """A transaction that starts at one version of the table."""

    def __init__(self, spark: SparkSession, delta: DeltaTable, at: TableSnapshot) -> None:
        self._spark = spark
        self._delta = delta
        self._at = at
        self._jvm: Any = spark._jvm

    def commit(
        self,
        to_remove: Sequence[OffsetRun],
        files: Sequence[LoadedFile],
        advances: Sequence[Advance],
        *,
        kept_once: Sequence[OffsetRun] = (),
        **mark_fields: Any,
    ) -> bool:
        """Removes the rows of the `to_remove` ranges and adds `files`. Returns false if others committed first.

        Keeps one row of duplicates in `kept_once` ranges: the log has no other copy. `mark_fields` go into the mark.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        if orphans.is_too_old((file.modified_ms for file in files), time.time_ns() // 1_000_000):
            return False
        if to_remove:
            table_features.check_removal(self._at.properties(), self._delta.url)
        if files:
            self._delta.check_writable(self._at)
        transaction = self._delta.begin_transaction(self._at)
        if not self._delta.is_at_start(transaction, advances):
            return False
        try:
            removed, rest = self._replacement_actions(transaction, to_remove, kept_once)
            lines = table_form.commit_actions(self._delta.topic_id, files, advances, time.time_ns() // 1_000_000)
            mark = self._delta.encode_mark(files, advances, checked=None, **mark_fields)
            actions = [*removed, *rest, *map(self._delta.parse_action, lines)]
            transaction.commit(self._delta.to_scala_seq(actions), self._delta.write_operation(mark))
        except conflict_errors() as conflict:
            log.info("another writer committed first table=%s why=%s", self._delta.url, first_line(conflict))
            return False
        except (Py4JError, PySparkException) as failure:
            if self._delta.snapshot().version == self._at.version:
                self._delta.check_refused(failure)
            # The commit may have landed: the next comparison shows it.
            log.warning(
                "commit has an unknown outcome, comparing again table=%s why=%s", self._delta.url, first_line(failure)
            )
            return False
        return True

    def _replacement_actions(
        self, transaction: Any, to_remove: Sequence[OffsetRun], kept_once: Sequence[OffsetRun]
    ) -> tuple[list[Any], list[Any]]:
        """Returns the actions that remove all files that may hold a wrong row, and those that add their other rows."""
        if not to_remove:
            return [], []
        touched = list(self._at.handle.allFiles().where(_file_condition(to_remove)).collect())
        rows = self._at.rows_of(self._delta.to_scala_seq(touched))
        rest = self._rows_without(rows, to_remove)
        if kept_once:
            rest = rest.unionByName(self._rows_in(rows, kept_once).dropDuplicates(["partition", "offset"]))
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        added = list(converters.asJava(transaction.writeFiles(rest._jdf)))
        return [file.remove() for file in touched], added

    def _rows_without(self, rows: DataFrame, to_remove: Sequence[OffsetRun]) -> DataFrame:
        if any(run.partition < 0 or run.start < 0 for run in to_remove):
            rows = rows.where("partition IS NOT NULL AND offset IS NOT NULL")
        return rows.join(self._offsets(to_remove), ["partition", "offset"], "left_anti").select(*rows.columns)

    def _rows_in(self, rows: DataFrame, runs: Sequence[OffsetRun]) -> DataFrame:
        return rows.join(self._offsets(runs), ["partition", "offset"], "left_semi").select(*rows.columns)

    def _offsets(self, runs: Iterable[OffsetRun]) -> DataFrame:
        """Returns one row for each offset of the ranges."""
        spans = self._spark.createDataFrame(
            [(run.partition, run.start, run.end - 1) for run in runs], "partition int, first long, last long"
        )
        return spans.selectExpr("partition", "explode(sequence(first, last)) AS offset")


def snapshot_after(table: DeltaTable, at: TableSnapshot) -> TableSnapshot | None:
    """Returns the table after one's own commit to this version; None if another writer has committed too.

    After the own commit alone, the findings about other partitions at this version still hold.
    """
    now = table.snapshot()
    return now if now.version == at.version + 1 else None


def _file_condition(runs: Sequence[OffsetRun]) -> str:
    """Returns the condition on add actions whose files may hold a row of the ranges, all of one partition."""
    partition, first, last = runs[0].partition, min(run.start for run in runs), max(run.end for run in runs)
    number = "CAST(get_json_object(stats, '$.{0}.{1}') AS BIGINT)"
    low, high = (number.format(f"{side}Values", "partition") for side in ("min", "max"))
    start, end = (number.format(f"{side}Values", "offset") for side in ("min", "max"))
    conditions = [
        f"(coalesce({low}, {partition}) <= {partition} AND coalesce({high}, {partition}) >= {partition} "
        f"AND coalesce({start}, {first}) < {last} AND coalesce({end}, {first}) >= {first})"
    ]
    if partition < 0 or first < 0:
        conditions += [f"coalesce({number.format('nullCount', name)}, 1) > 0" for name in ("partition", "offset")]
    return " OR ".join(conditions)
