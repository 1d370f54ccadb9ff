"""The transaction of a repair: files with wrong rows replaced, right rows added, all of a partition or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark_tiered import table
from pyspark_tiered.delta_commit import DeltaTable, conflicts
from pyspark_tiered.delta_log import Snapshot
from pyspark_tiered.failures import first_line
from pyspark_tiered.table import Advance, LoadedFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)


class Run(Protocol):
    """Offsets `[start, end)` of a partition; -1 stands for a NULL."""

    @property
    def partition(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Rewrite:
    """A transaction that began at a version of the table."""

    def __init__(self, spark: SparkSession, delta: DeltaTable, at: Snapshot) -> None:
        self._spark = spark
        self._delta = delta
        self._at = at
        self._jvm: Any = spark._jvm

    def commit(
        self, wrong: Sequence[Run], log_start: int, files: Sequence[LoadedFile], advances: Sequence[Advance]
    ) -> bool:
        """Takes out the rows of `wrong` runs and adds `files`. Of doubled rows below the log start one is kept: nobody
        has another. False: others wrote first."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        transaction = self._delta.begin(self._at)
        if not self._delta.stands(transaction, advances):
            return False
        try:
            removed, rest = self._replaced(transaction, wrong, log_start)
            lines = table.actions(self._delta.topic_id, files, advances, time.time_ns() // 1_000_000)
            mark = self._delta.mark(files, advances, checked=None, repair=True)
            actions = [*removed, *rest, *map(self._delta.action, lines)]
            transaction.commit(self._delta.seq(actions), self._delta.operation(mark))
        except conflicts() as conflict:
            log.info("others wrote first table=%s why=%s", self._delta.url, first_line(conflict))
            return False
        except (Py4JError, PySparkException) as failure:
            # It may be in: the next comparison tells.
            log.warning("commit unclear, comparing again table=%s why=%s", self._delta.url, first_line(failure))
            return False
        return True

    def _replaced(self, transaction: Any, wrong: Sequence[Run], log_start: int) -> tuple[list[Any], list[Any]]:
        """The actions that remove all files that may hold a wrong row, and those that add what else is in them."""
        if not wrong:
            return [], []
        touched = list(self._at.handle.allFiles().where(_may_hold(wrong)).collect())
        rows = self._at.rows_of(self._delta.seq(touched))
        rest = self._without(rows, wrong)
        expired = [run for run in wrong if run.partition >= 0 and run.end <= log_start]
        if expired:
            rest = rest.unionByName(self._among(rows, expired).dropDuplicates(["partition", "offset"]))
        converters = self._jvm.scala.jdk.javaapi.CollectionConverters
        added = list(converters.asJava(transaction.writeFiles(rest._jdf)))
        return [file.remove() for file in touched], added

    def _without(self, rows: DataFrame, wrong: Sequence[Run]) -> DataFrame:
        if any(run.partition < 0 or run.start < 0 for run in wrong):
            rows = rows.where("partition IS NOT NULL AND offset IS NOT NULL")
        return rows.join(self._offsets(wrong), ["partition", "offset"], "left_anti").select(*rows.columns)

    def _among(self, rows: DataFrame, runs: Sequence[Run]) -> DataFrame:
        return rows.join(self._offsets(runs), ["partition", "offset"], "left_semi").select(*rows.columns)

    def _offsets(self, runs: Iterable[Run]) -> DataFrame:
        """One row for each offset of the runs."""
        spans = self._spark.createDataFrame(
            [(run.partition, run.start, run.end - 1) for run in runs], "partition int, first long, last long"
        )
        return spans.selectExpr("partition", "explode(sequence(first, last)) AS offset")


def _may_hold(wrong: Sequence[Run]) -> str:
    """The condition on add actions whose files may hold a row of the runs, which are of one partition."""
    partition, first, last = wrong[0].partition, min(run.start for run in wrong), max(run.end for run in wrong)
    number = "CAST(get_json_object(stats, '$.{0}.{1}') AS BIGINT)"
    low, high = (number.format(f"{side}Values", "partition") for side in ("min", "max"))
    start, end = (number.format(f"{side}Values", "offset") for side in ("min", "max"))
    told = [
        f"(coalesce({low}, {partition}) <= {partition} AND coalesce({high}, {partition}) >= {partition} "
        f"AND coalesce({start}, {first}) < {last} AND coalesce({end}, {first}) >= {first})"
    ]
    if partition < 0 or first < 0:
        told += [f"coalesce({number.format('nullCount', name)}, 1) > 0" for name in ("partition", "offset")]
    return " OR ".join(told)
