"""The loader: cold segments -> a Delta table, each record once, whoever is killed and however many run.

Each round reads how far the table is, plans from there, converts in Spark's Python tasks and commits in Delta's own
transaction, which holds only if the table still stands where the plan began. Nothing else is remembered anywhere.
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
from pyspark_tiered.failures import in_words
from pyspark_tiered.plan import ColdTopic, Split
from pyspark_tiered.rounds import Round, is_overtaken, loadable, next_round, skipped
from pyspark_tiered.session import session, spark_url
from pyspark_tiered.table import Converted, Range, Stop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.offline.bucket import open_bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 10.0
"""How often a following loader looks for new cold segments: they come once in minutes."""
ATTEMPTS = 5
"""Rounds in a row that may fail or lose to another loader before the load gives up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is. `step` is planned, converted, committed, and at the end done, or stopped where a partition
    cannot be read on; the other fields count this load."""

    step: str
    topic: str
    table: str
    rows: int = 0
    files: int = 0
    log_bytes: int = 0
    log_bytes_left: int = 0


Report = Callable[[Progress], None]


class Choices(NamedTuple):
    """What to do where a load cannot know what is wanted. `null_timestamps`: a timestamp that Spark cannot hold becomes
    NULL, and does not stop its partition. `accept_deletes`: rows that others took out of the table stay away."""

    null_timestamps: bool = False
    accept_deletes: bool = False


DEFAULT = Choices()


def load(
    store: str,
    topic: str,
    warehouse: str,
    follow: bool = False,
    progress: Report = lambda _: None,
    *,
    choices: Choices = DEFAULT,
    spark: SparkSession | None = None,
    split_bytes: int | None = None,
) -> Progress:
    """Loads what is cold of `topic` into the Delta table `<warehouse>/<topic>`; with `follow` goes on until killed.

    Store and warehouse are URLs (`file:`, `s3:`, `s3a:`) or, for the warehouse, a path. `Refused`, `Unavailable`,
    `Corrupt`; after any of them, and after a kill, the same call goes on where the table is. A partition that cannot be
    read on is loaded up to there, all others to their ends; then `Corrupt` (or `Refused`, for records that Spark cannot
    have) names it. With `follow` it is a warning.
    """
    check_topic(store, topic)
    running = spark or session()
    loader = _Loader(running, store, topic, f"{spark_url(warehouse)}/{topic}", progress, split_bytes, choices)
    done = loader.run()
    told: set[Stop] = set()
    while follow:
        for stop in set(loader.stops.values()) - told:
            log.warning("a partition stops topic=%s stop=%s", topic, stop)
        told = set(loader.stops.values())
        time.sleep(FOLLOW_SECONDS)
        done = loader.run()
    if loader.stops:
        raise _stopped(topic, [loader.stops[number] for number in sorted(loader.stops)])
    return done


def _stopped(topic: str, stops: Sequence[Stop]) -> Corrupt | Refused:
    told = "; ".join(f"{topic}-{stop.partition} is loaded up to offset {stop.offset}: {stop.why}" for stop in stops)
    if any(stop.damaged for stop in stops):
        return Corrupt(told)
    return Refused(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, told)


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
        choices: Choices,
    ) -> None:
        self.stops: dict[int, Stop] = {}
        self._spark = spark
        self._store = store
        self._topic = topic
        self._url = url
        self._report = report
        self._split_bytes = split_bytes
        self._choices = choices
        self._done = Progress("planned", topic, url)
        self._told: Progress | None = None
        self._table: DeltaTable | None = None

    def run(self) -> Progress:
        """Rounds until nothing cold is left to load. Run again, it tells only of what is new."""
        topic = cold_topic_of(self._store, self._topic, {})
        if self._table is None or self._table.topic_id != topic.topic_id:
            self._table = DeltaTable(self._spark, self._url, topic.name, topic.topic_id)
        table = self._table
        self.stops = {}
        failures = 0
        while failures < ATTEMPTS:
            loaded = table.sound(self._choices.accept_deletes)
            topic = cold_topic_of(self._store, self._topic, loaded)
            if topic.topic_id != table.topic_id:
                raise Unavailable(f"topic {self._topic} was deleted and made anew while it was loaded", final=True)
            for gap in skipped(topic, loaded):
                log.warning("records expired before they were loaded topic=%s gap=%s", self._topic, gap)
            tasks = self._spark.sparkContext.defaultParallelism
            plan = next_round(topic, loaded, tasks, self._split_bytes, self.stops)
            try:
                moved = (not plan.splits and table.exists()) or self._round(table, plan, loaded)
            except Unavailable as failure:
                if failure.final:
                    raise
                log.warning("round failed, trying again topic=%s why=%s", self._topic, failure)
                moved = False
            if moved and not plan.bytes_left:
                return self._finished()
            failures = 0 if moved else failures + 1
        raise Unavailable(f"{ATTEMPTS} rounds in a row failed, or other loaders of {self._url} were first")

    def _finished(self) -> Progress:
        if self._done != self._told:
            self._tell("stopped" if self.stops else "done", self._done)
            self._told = self._done
        return self._done

    def _round(self, table: DeltaTable, plan: Round, loaded: Mapping[int, int]) -> bool:
        """True: committed, or nothing is left to commit. False: another loader was first. `Unavailable`: a new plan may
        do."""
        self._tell("planned", replace(self._done, log_bytes_left=_size(plan.splits) + plan.bytes_left))
        taken = loadable(plan, self._convert(plan, loaded))
        files = taken.files
        after = replace(
            self._done,
            rows=self._done.rows + sum(file.rows for file in files),
            files=self._done.files + len(files),
            log_bytes=self._done.log_bytes + _size(taken.splits),
            log_bytes_left=plan.bytes_left,
        )
        self._tell("converted", after)
        beyond = {f"{number}": dict(told) for number, told in taken.beyond.items()}
        if (taken.advances or not plan.splits) and not table.commit(files, taken.advances, timestamps=beyond):
            return False
        for number, told in taken.beyond.items():
            log.warning("timestamps became NULL topic=%s partition=%d offsets_and_ms=%s", self._topic, number, told)
        self.stops |= {stop.partition: stop for stop in taken.stops}
        self._done = after
        if taken.advances or not plan.splits:
            self._tell("committed", after)
        return True

    def _convert(self, plan: Round, loaded: Mapping[int, int]) -> list[Converted]:
        """One Spark task for each split. `Unavailable` when a segment vanished meanwhile: a new plan will do."""
        if not plan.splits:
            return []
        null_timestamps = self._choices.null_timestamps
        found = converted(
            self._spark, self._store, self._url, [(split, None) for split in plan.splits], null_timestamps
        )
        damaged = any(outcome.stop is not None and outcome.stop.damaged for outcome in found)
        if damaged and is_overtaken(plan.splits, cold_topic_of(self._store, self._topic, loaded)):
            raise Unavailable(f"a planned segment of {self._topic} expired")
        return found

    def _tell(self, step: str, progress: Progress) -> None:
        self._report(replace(progress, step=step))


def converted(
    spark: SparkSession,
    store: str,
    url: str,
    splits: Sequence[tuple[Split, Sequence[Range] | None]],
    null_timestamps: bool,
) -> list[Converted]:
    """The outcome of each split, or of some ranges in it: one Spark task for each. `Unavailable` for what is not the
    log's fault."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    tasks = spark.sparkContext.parallelize(splits, max(len(splits), 1))
    try:
        return tasks.map(lambda each: convert(store, each[0], url, null_timestamps, each[1])).collect()
    except (Py4JError, PySparkException) as failure:
        raise in_words(f"could not convert {url}", failure) from failure


def cold_topic_of(store: str, topic: str, starts: Mapping[int, int]) -> ColdTopic:
    """What is cold of a topic now; of each partition only segments that end above `starts`."""

    async def read() -> ColdTopic:
        async with open_bucket(store) as bucket:
            return await cold_topic(bucket, topic, starts)

    return asyncio.run(read())


def _size(splits: Sequence[Split]) -> int:
    return sum(split.log_bytes for split in splits)
