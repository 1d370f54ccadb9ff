"""The loader: cold segments become a Delta table, each record once, despite kills and with any number of loaders.

Each round reads how far the table is loaded, plans from there, converts in Spark's Python tasks and commits in Delta's
own transaction. The commit succeeds only if the table is still where the plan began. No other state exists.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.bucket import check_topic, cold_topic
from pyspark_tiered.convert import convert
from pyspark_tiered.delta_commit import DeltaTable
from pyspark_tiered.failures import translate_failure
from pyspark_tiered.plan import ColdTopic, Split
from pyspark_tiered.rounds import Round, find_expired_ranges, has_missing_segments, next_round, select_committable
from pyspark_tiered.session import session, spark_url
from pyspark_tiered.table import ConversionResult, Range, Stop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.offline.bucket import open_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 10.0
"""Interval at which a following loader looks for new cold segments: new ones come once in minutes."""
ATTEMPTS = 5
"""Rounds in a row that may fail, or lose to another loader, before the load gives up."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a load; the numbers count this load.

    `step` is planned, converted or committed, and at the end done, or stopped if a partition cannot be read on.
    """

    step: str
    topic: str
    table: str
    rows: int = 0
    files: int = 0
    log_bytes: int = 0
    log_bytes_left: int = 0


Report = Callable[[LoadProgress], None]


class LoadOptions(NamedTuple):
    """Choices that a load leaves to the user.

    `null_timestamps`: a timestamp that Spark cannot hold becomes NULL and does not stop its partition.
    `accept_deletes`: rows that others removed from the table stay removed.
    """

    null_timestamps: bool = False
    accept_deletes: bool = False


DEFAULT_OPTIONS = LoadOptions()


def load(
    store: str,
    topic: str,
    warehouse: str,
    follow: bool = False,
    progress: Report = lambda _: None,
    *,
    options: LoadOptions = DEFAULT_OPTIONS,
    spark: SparkSession | None = None,
    split_bytes: int | None = None,
) -> LoadProgress:
    """Loads the cold part of `topic` into the Delta table `<warehouse>/<topic>`. With `follow` it goes on until killed.

    Store and warehouse are URLs (`file:`, `s3:`, `s3a:`) or, for the warehouse, a path. Raises `Refused`, `Unavailable`
    or `Corrupt`. After any of them, and after a kill, the same call goes on from the state of the table.

    A partition that cannot be read on is loaded up to there, all others to their ends. Then `Corrupt` (or `Refused`,
    for records that Spark cannot hold) names it. With `follow` this is a warning.
    """
    check_topic(store, topic)
    running = spark or session()
    loader = _Loader(running, store, topic, f"{spark_url(warehouse)}/{topic}", progress, split_bytes, options)
    done = loader.run()
    warned: set[Stop] = set()
    while follow:
        for stop in set(loader.stops.values()) - warned:
            log.warning("partition cannot be loaded further topic=%s stop=%s", topic, stop)
        warned = set(loader.stops.values())
        time.sleep(FOLLOW_SECONDS)
        done = loader.run()
    if loader.stops:
        raise _stop_error(topic, [loader.stops[number] for number in sorted(loader.stops)])
    return done


def _stop_error(topic: str, stops: Sequence[Stop]) -> Corrupt | Refused:
    why = "; ".join(f"{topic}-{stop.partition} is loaded up to offset {stop.offset}: {stop.why}" for stop in stops)
    if any(stop.damaged for stop in stops):
        return Corrupt(why)
    return Refused(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, why)


class _Loader:
    """One load in progress."""

    def __init__(
        self,
        spark: SparkSession,
        store: str,
        topic: str,
        url: str,
        report: Report,
        split_bytes: int | None,
        options: LoadOptions,
    ) -> None:
        self.stops: dict[int, Stop] = {}
        self._spark = spark
        self._store = store
        self._topic = topic
        self._url = url
        self._report = report
        self._split_bytes = split_bytes
        self._options = options
        self._progress = LoadProgress("planned", topic, url)
        self._last_reported: LoadProgress | None = None
        self._table: DeltaTable | None = None

    def run(self) -> LoadProgress:
        """Runs rounds until nothing cold is left to load. Another call reports only what is new."""
        topic = read_cold_topic(self._store, self._topic, {})
        if self._table is None or self._table.topic_id != topic.topic_id:
            self._table = DeltaTable(self._spark, self._url, topic.name, topic.topic_id)
        table = self._table
        self.stops = {}
        failures = 0
        while failures < ATTEMPTS:
            loaded = table.check_sound(self._options.accept_deletes)
            topic = read_cold_topic(self._store, self._topic, loaded)
            if topic.topic_id != table.topic_id:
                raise Unavailable(f"topic {self._topic} was deleted and created again while it was loaded", final=True)
            for gap in find_expired_ranges(topic, loaded):
                log.warning("records expired before they were loaded topic=%s gap=%s", self._topic, gap)
            tasks = self._spark.sparkContext.defaultParallelism
            plan = next_round(topic, loaded, tasks, self._split_bytes, self.stops)
            try:
                committed = (not plan.splits and table.exists()) or self._run_round(table, plan, loaded)
            except Unavailable as failure:
                if failure.final:
                    raise
                log.warning("round failed, retrying topic=%s why=%s", self._topic, failure)
                committed = False
            if committed and not plan.bytes_left:
                return self._finish()
            failures = 0 if committed else failures + 1
        raise Unavailable(
            f"{ATTEMPTS} rounds in a row failed, or other loaders of {self._url} committed first: try again"
        )

    def _finish(self) -> LoadProgress:
        if self._progress != self._last_reported:
            self._report_step("stopped" if self.stops else "done", self._progress)
            self._last_reported = self._progress
        return self._progress

    def _run_round(self, table: DeltaTable, plan: Round, loaded: Mapping[int, int]) -> bool:
        """Returns true if the round was committed or had nothing to commit, false if another loader committed first.

        Raises `Unavailable` if a new plan may succeed.
        """
        self._report_step("planned", replace(self._progress, log_bytes_left=_log_bytes(plan.splits) + plan.bytes_left))
        committable = select_committable(plan, self._convert(plan, loaded))
        files = committable.files
        after = replace(
            self._progress,
            rows=self._progress.rows + sum(file.rows for file in files),
            files=self._progress.files + len(files),
            log_bytes=self._progress.log_bytes + _log_bytes(committable.splits),
            log_bytes_left=plan.bytes_left,
        )
        self._report_step("converted", after)
        out_of_range = {f"{number}": dict(records) for number, records in committable.out_of_range_timestamps.items()}
        if (committable.advances or not plan.splits) and not table.commit(
            files, committable.advances, timestamps=out_of_range
        ):
            return False
        for number, records in committable.out_of_range_timestamps.items():
            log.warning("timestamps became NULL topic=%s partition=%d offsets_and_ms=%s", self._topic, number, records)
        self.stops |= {stop.partition: stop for stop in committable.stops}
        self._progress = after
        if committable.advances or not plan.splits:
            self._report_step("committed", after)
        return True

    def _convert(self, plan: Round, loaded: Mapping[int, int]) -> list[ConversionResult]:
        """Converts each split in one Spark task.

        Raises `Unavailable` if a segment vanished meanwhile: a new plan will succeed.
        """
        if not plan.splits:
            return []
        null_timestamps = self._options.null_timestamps
        found = convert_splits(
            self._spark, self._store, self._url, [(split, None) for split in plan.splits], null_timestamps
        )
        damaged = any(outcome.stop is not None and outcome.stop.damaged for outcome in found)
        if damaged and has_missing_segments(plan.splits, read_cold_topic(self._store, self._topic, loaded)):
            raise Unavailable(f"a planned segment of {self._topic} expired")
        return found

    def _report_step(self, step: str, progress: LoadProgress) -> None:
        self._report(replace(progress, step=step))


def convert_splits(
    spark: SparkSession,
    store: str,
    url: str,
    splits: Sequence[tuple[Split, Sequence[Range] | None]],
    null_timestamps: bool,
) -> list[ConversionResult]:
    """Converts each split, or some ranges in it, in one Spark task each.

    Raises `Unavailable` for failures that are not in the log.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = spark.sparkContext.parallelize(splits, max(len(splits), 1))
    try:
        return tasks.map(lambda each: convert(store, each[0], url, null_timestamps, each[1])).collect()
    except (Py4JError, PySparkException) as failure:
        raise translate_failure(f"could not convert {url}", failure) from failure


def read_cold_topic(store: str, topic: str, starts: Mapping[int, int]) -> ColdTopic:
    """Reads the cold part of a topic as it is now; of each partition only segments that end above `starts`."""

    async def read() -> ColdTopic:
        async with open_bucket(store) as bucket:
            return await cold_topic(bucket, topic, starts)

    return asyncio.run(read())


def _log_bytes(splits: Sequence[Split]) -> int:
    return sum(split.log_bytes for split in splits)
