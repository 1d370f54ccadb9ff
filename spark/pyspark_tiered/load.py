"""The loader: cold segments -> a Delta table, each record once, whoever is killed and however many run.

Each round reads how far the table is, plans from there, converts in Spark's Python tasks and commits in Delta's own
transaction, which holds only if the table still stands where the plan began. Nothing else is remembered anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark_tiered.bucket import cold_topic
from pyspark_tiered.convert import convert
from pyspark_tiered.delta_commit import DeltaTable, first_line
from pyspark_tiered.plan import ColdTopic, Split
from pyspark_tiered.rounds import Round, is_overtaken, next_round, skipped
from pyspark_tiered.session import session, spark_url
from pyspark_tiered.table import LoadedFile
from tiered.bucket import open_bucket
from tiered.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 10.0
"""How often a following loader looks for new cold segments: they come once in minutes."""
ATTEMPTS = 5
"""Rounds in a row that may fail or lose to another loader before the load gives up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is. `step` is planned, converted, committed or done; the other fields count this load."""

    step: str
    topic: str
    table: str
    rows: int = 0
    files: int = 0
    log_bytes: int = 0
    log_bytes_left: int = 0


Report = Callable[[Progress], None]


def load(
    store: str,
    topic: str,
    warehouse: str,
    follow: bool = False,
    progress: Report = lambda _: None,
    *,
    spark: SparkSession | None = None,
    split_bytes: int | None = None,
) -> Progress:
    """Loads what is cold of `topic` into the Delta table `<warehouse>/<topic>`; with `follow` goes on until killed.

    Store and warehouse are URLs (`file:`, `s3:`, `s3a:`) or, for the warehouse, a path. `Refused`, `Unavailable`,
    `Corrupt`; after any of them, and after a kill, the same call goes on where the table is.
    """
    running = spark or session()
    loader = _Loader(running, store, topic, f"{spark_url(warehouse)}/{topic}", progress, split_bytes)
    done = loader.run()
    while follow:
        time.sleep(FOLLOW_SECONDS)
        done = loader.run()
    return done


class _Loader:
    """One load in progress."""

    def __init__(
        self, spark: SparkSession, store: str, topic: str, url: str, report: Report, split_bytes: int | None
    ) -> None:
        self._spark = spark
        self._store = store
        self._topic = topic
        self._url = url
        self._report = report
        self._split_bytes = split_bytes
        self._done = Progress("planned", topic, url)
        self._told: Progress | None = None

    def run(self) -> Progress:
        """Rounds until nothing cold is left to load. Run again, it tells only of what is new."""
        topic = _cold_topic(self._store, self._topic, {})
        table = DeltaTable(self._spark, self._url, topic.name, topic.topic_id)
        failures = 0
        while failures < ATTEMPTS:
            loaded = table.loaded()
            topic = _cold_topic(self._store, self._topic, loaded)
            if topic.topic_id != table.topic_id:
                raise Unavailable(f"topic {self._topic} was deleted and made anew while it was loaded", final=True)
            for gap in skipped(topic, loaded):
                log.warning("records expired before they were loaded topic=%s gap=%s", self._topic, gap)
            plan = next_round(topic, loaded, self._spark.sparkContext.defaultParallelism, self._split_bytes)
            try:
                moved = (not plan.splits and table.exists()) or self._round(table, plan, loaded)
            except Unavailable as failure:
                if failure.final:
                    raise
                log.warning("round failed, trying again topic=%s why=%s", self._topic, failure)
                moved = False
            if moved and not plan.bytes_left:
                if self._done != self._told:
                    self._tell("done", self._done)
                    self._told = self._done
                return self._done
            failures = 0 if moved else failures + 1
        raise Unavailable(f"{ATTEMPTS} rounds in a row failed, or other loaders of {self._url} were first")

    def _round(self, table: DeltaTable, plan: Round, loaded: Mapping[int, int]) -> bool:
        """True: committed. False: another loader was first. `Unavailable`: a new plan may do."""
        self._tell("planned", replace(self._done, log_bytes_left=_size(plan.splits) + plan.bytes_left))
        files = self._convert(plan, loaded)
        after = replace(
            self._done,
            rows=self._done.rows + sum(file.rows for file in files),
            files=self._done.files + len(files),
            log_bytes=self._done.log_bytes + _size(plan.splits),
            log_bytes_left=plan.bytes_left,
        )
        self._tell("converted", after)
        if not table.commit(files, plan.advances):
            return False
        self._done = after
        self._tell("committed", after)
        return True

    def _convert(self, plan: Round, loaded: Mapping[int, int]) -> list[LoadedFile]:
        """One Spark task for each split. `Unavailable` when a segment vanished meanwhile: a new plan will do."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        if not plan.splits:
            return []
        store, url = self._store, self._url
        tasks = self._spark.sparkContext.parallelize(plan.splits, len(plan.splits))
        try:
            found = tasks.map(lambda split: convert(store, split, url)).collect()
        except (Py4JError, PySparkException) as failure:
            if is_overtaken(plan.splits, _cold_topic(store, self._topic, loaded)):
                raise Unavailable(f"a planned segment expired: {first_line(failure)}") from failure
            raise Unavailable(f"could not convert {self._topic}: {_reason(failure)}", final=True) from failure
        return [file for file in found if file is not None]

    def _tell(self, step: str, progress: Progress) -> None:
        self._report(replace(progress, step=step))


def _cold_topic(store: str, topic: str, starts: Mapping[int, int]) -> ColdTopic:
    async def read() -> ColdTopic:
        async with open_bucket(store) as bucket:
            return await cold_topic(bucket, topic, starts)

    return asyncio.run(read())


def _size(splits: tuple[Split, ...]) -> int:
    return sum(split.log_bytes for split in splits)


def _reason(failure: BaseException) -> str:
    """The last line of the Python trace back that a failed task sent: the error in its own words."""
    lines = [line.strip() for line in str(failure).splitlines()]
    errors = [line for line in lines if line.startswith(("tiered.errors.", "pyarrow.", "OSError", "MemoryError"))]
    return errors[0] if errors else first_line(failure)
