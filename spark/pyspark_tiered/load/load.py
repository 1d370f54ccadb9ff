"""The loader: cold segments become a Delta table, each record once, despite kills and with any number of loaders.

Each round reads how far the table is loaded, plans from there, converts and commits. The commit succeeds only if the
table is still where the plan began. No other state exists. An engine converts and commits: Spark's, or the native one.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from pyspark_tiered.delta import orphans
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import BucketConnection
from pyspark_tiered.delta.table_form import ConversionResult, Stop
from pyspark_tiered.failures import foreign_failures
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.load.rounds import (
    ROUND_SPLITS_PER_TASK,
    FilePlan,
    Round,
    find_expired_ranges,
    has_missing_segments,
    next_round,
    select_committable,
)
from pyspark_tiered.log.bucket import ColdTopicReader
from pyspark_tiered.log.plan import Split
from pyspark_tiered.typed.form import ValueRules
from pyspark_tiered.typed.load import ValuesLoader
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

FOLLOW_SECONDS = 10.0
"""Interval at which a following loader looks for new cold segments: new ones come once in minutes."""
IDLE_INTERVALS_MAX = 30
"""Intervals without news after which a following loader looks at the metadata and the table again."""
ATTEMPTS = 5
"""Rounds in a row that may fail, or lose to another loader, before the load gives up."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a load; the numbers count this load.

    `step` is planned, converted or committed, and at the end done, or stopped if a partition cannot be read on.
    `requests` are those to the store by verb, and with the native engine also those to a table in a bucket.
    """

    step: str
    topic: str
    table: str
    rows: int = 0
    files: int = 0
    log_bytes: int = 0
    log_bytes_left: int = 0
    requests: Mapping[str, int] = field(default_factory=dict)
    typed_rows: int = 0
    dead_letters: int = 0


Report = Callable[[LoadProgress], None]


class LoadOptions(NamedTuple):
    """Choices that a load leaves to the user.

    `null_timestamps`: a timestamp that Spark cannot hold becomes NULL and does not stop its partition.
    `accept_deletes`: rows that others removed from the table stay removed.
    `values`: how values become columns of a typed table; None leaves that to a typed table that is there.
    """

    null_timestamps: bool = False
    accept_deletes: bool = False
    values: ValueRules | None = None


DEFAULT_OPTIONS = LoadOptions()


class LoadEngine(Protocol):
    """The part of a load that differs between Spark and the native engine."""

    @property
    def tasks(self) -> int:
        """Returns how many files are converted at once."""

    def open_table(self, url: str, topic: str, topic_id: str) -> NativeTable:
        """Opens a topic's table."""

    def convert(self, store: str, url: str, files: Sequence[FilePlan], null_timestamps: bool) -> list[ConversionResult]:
        """Converts each file. Raises `Unavailable` for failures that are not in the log."""

    def close(self) -> None:
        """Closes the connections of the engine. It may be used again."""

    def connect(self, url: str) -> BucketConnection | None:
        """Returns a connection that all tables in this bucket share; None if each has its own, or needs none."""

    def run_tasks(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Returns the results of tasks, in order. `what` begins the error if one fails."""


def load(
    store: str,
    topic: str,
    warehouse: str,
    follow: bool = False,
    progress: Report = lambda _: None,
    *,
    interval: float | None = None,
    options: LoadOptions = DEFAULT_OPTIONS,
    engine: LoadEngine | None = None,
    spark: SparkSession | None = None,
    split_bytes: int | None = None,
) -> LoadProgress:
    """Loads the cold part of `topic` into the Delta table `<warehouse>/<topic>`. With `follow` it goes on until killed.

    Store and warehouse are URLs (`file:`, `s3:`, `s3a:`) or, for the warehouse, a path. Without an `engine` Spark's is
    used, in the session `spark` or a new one. The engine is closed at the end. Raises `Refused`, `Unavailable` or
    `Corrupt`. After any of them, and after a kill, the same call goes on from the state of the table.

    A partition that cannot be read on is loaded up to there, all others to their ends. Then `Corrupt` (or `Refused`,
    for records that Spark cannot hold) names it. With `follow` this is a warning.
    """
    with ExitStack() as opened:
        reader = opened.enter_context(closing(ColdTopicReader(store)))
        reader.topic_id(topic)  # refuse before Spark starts, which takes a while
        url = f"{spark_url(warehouse)}/{topic}"
        used = opened.enter_context(closing(engine or _spark_engine(spark)))
        loader = TopicLoader(used, reader, store, topic, url, progress, split_bytes, options)
        with closing(loader):
            done = loader.run()
            warned: set[Stop] = set()
            idle = 0
            while follow:
                for stop in set(loader.stops.values()) - warned:
                    log.warning("partition cannot be loaded further topic=%s stop=%s", topic, stop)
                warned = set(loader.stops.values())
                time.sleep(FOLLOW_SECONDS if interval is None else interval)
                idle += 1
                if idle >= IDLE_INTERVALS_MAX or loader.stops or loader.has_news():
                    idle = 0
                    done = loader.run()
    if loader.stops:
        raise stop_error(topic, loader.stops)
    return done


def _spark_engine(spark: SparkSession | None) -> LoadEngine:
    from pyspark_tiered.spark_engine import SparkEngine

    return SparkEngine(spark)


def stop_error(topic: str, stops: Mapping[int, Stop]) -> Corrupt | Refused:
    """Returns the error that names the places at which partitions cannot be read on."""
    why = "; ".join(
        f"{topic}-{number} is loaded up to offset {stop.offset}: {stop.why}" for number, stop in sorted(stops.items())
    )
    if any(stop.damaged for stop in stops.values()):
        return Corrupt(why)
    return Refused(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, why)


class TopicLoader:
    """The load of one topic in progress."""

    def __init__(
        self,
        engine: LoadEngine,
        reader: ColdTopicReader,
        store: str,
        topic: str,
        url: str,
        report: Report,
        split_bytes: int | None,
        options: LoadOptions,
        round_splits: int = ROUND_SPLITS_PER_TASK,
    ) -> None:
        self.stops: dict[int, Stop] = {}
        self._engine = engine
        self._reader = reader
        self._store = store
        self._topic = topic
        self._url = url
        self._report = report
        self._split_bytes = split_bytes
        self._options = options
        self._round_splits = round_splits
        self._progress = LoadProgress("planned", topic, url)
        self._last_reported: LoadProgress | None = None
        self._rows_before = 0
        """Rows that this process had loaded when the rounds began."""
        self._table: NativeTable | None = None
        self.log_bytes_left = 0
        """Bytes of log that the last round left for the next."""
        self._failures = 0
        self._has_read = False
        self._task_requests: Counter[str] = Counter()
        self._values = ValuesLoader(
            engine,
            reader,
            store,
            topic,
            url,
            options.values,
            split_bytes=split_bytes,
            null_timestamps=options.null_timestamps,
            accept_deletes=options.accept_deletes,
        )
        self._is_raw_done = False
        self._raw_digest: str | None = None
        """Digest of the manifests that the last raw round saw: a round of values may read newer ones."""

    def close(self) -> None:
        """Closes the tables, and drops what the reader knows of the topic."""
        self._values.close()
        self._close_table()

    def _close_table(self) -> None:
        if self._table is not None:
            self._table.close()
            self._reader.forget(TopicId(self._table.topic_id))

    def run(self) -> LoadProgress:
        """Runs rounds until nothing cold is left to load. Another call reports only what is new."""
        self.begin()
        while not self.run_round():
            pass
        return self.finish()

    def begin(self) -> None:
        """Finds the topic again, before the next round. Partitions that could not be read on are tried again."""
        topic_id = self._reader.topic_id(self._topic, refresh=self._table is not None)
        if self._table is None or self._table.topic_id != topic_id:
            self._close_table()
            self._table = self._engine.open_table(self._url, self._topic, topic_id)
        self.stops = {}
        self._failures = 0
        self._is_raw_done = False
        self._rows_before = self._progress.rows

    def run_round(self) -> bool:
        """Runs one round, of the raw table or of the typed one. Returns true if nothing cold is left to load.

        Raises `Unavailable` if rounds failed too often in a row.
        """
        if not self._is_raw_done:
            if not self._run_raw_round():
                return False
            # A typed table that is refused does not keep rows from the raw one.
            assert self._table is not None
            self._values.begin(self._table.topic_id)
            self._is_raw_done = True
            return not self._values.is_wanted
        try:
            committed, self.log_bytes_left = self._values.run_round()
        except Unavailable as failure:
            if failure.final:
                raise
            log.warning("round of values failed, retrying topic=%s why=%s", self._topic, failure)
            committed = False
        for number, stop in self._values.stops.items():
            self.stops.setdefault(number, stop._replace(why=f"in the typed table, {stop.why}"))
        self._progress = replace(
            self._progress, typed_rows=self._values.rows, dead_letters=self._values.dead, log_bytes_left=0
        )
        return self._count_failure(committed) and not self.log_bytes_left

    def _run_raw_round(self) -> bool:
        table = self._table
        assert table is not None
        loaded = table.check_sound(self._options.accept_deletes)
        if not self._has_read and self._has_all(table):
            self._raw_digest = table.newest_mark.get("seen")
            return True
        self._has_read = True
        topic = self._reader.read(self._topic, loaded)
        self._raw_digest = self._reader.digest(topic.topic_id)
        if topic.topic_id != table.topic_id:
            raise Unavailable(f"topic {self._topic} was deleted and created again while it was loaded", final=True)
        for gap in find_expired_ranges(topic, loaded):
            log.warning("records expired before they were loaded topic=%s gap=%s", self._topic, gap)
        plan = next_round(topic, loaded, self._engine.tasks, self._split_bytes, self.stops, self._round_splits)
        try:
            committed = (not plan.files and table.was_found) or self._commit_round(table, plan, loaded)
        except Unavailable as failure:
            if failure.final:
                raise
            log.warning("round failed, retrying topic=%s why=%s", self._topic, failure)
            committed = False
        self.log_bytes_left = plan.bytes_left
        return self._count_failure(committed) and not plan.bytes_left

    def _count_failure(self, committed: bool) -> bool:
        if committed:
            self._failures = 0
            return True
        self._failures += 1
        if self._failures >= ATTEMPTS:
            raise Unavailable(
                f"{ATTEMPTS} rounds in a row failed, or other loaders of {self._url} committed first: try again"
            )
        return False

    def has_news(self) -> bool:
        """True if the topic may have new cold records since the last run: one list, or nothing is known of it yet."""
        if self._table is None:
            return True
        topic_id = TopicId(self._table.topic_id)
        is_behind = self._raw_digest is not None and self._raw_digest != self._reader.digest(topic_id)
        return is_behind or self._reader.has_changed(topic_id)

    def _has_all(self, table: NativeTable) -> bool:
        """True if the newest commit loaded all that the bucket still shows: one list instead of all manifests."""
        seen = table.newest_mark.get("seen")
        return seen is not None and seen == self._reader.list_digest(TopicId(table.topic_id))

    def finish(self) -> LoadProgress:
        """Reports the end of the rounds, if anything is new, and maintains the table."""
        self._maintain(is_idle=self._progress.rows == self._rows_before)
        if self._progress != self._last_reported:
            self._last_reported = self._progress
            self._report_step("stopped" if self.stops else "done", self._progress)
        return replace(self._progress, requests=self._count_requests())

    def _maintain(self, is_idle: bool) -> None:
        """Joins small files after a load, and removes orphans. The table is whole without it: failures are warnings."""
        if self._table is None:
            return
        try:
            if count := self._table.join_small_files(is_idle):
                log.info("small files joined topic=%s files=%d", self._topic, count)
            if count := self._table.remove_orphans():
                log.info("files that no version names were removed topic=%s files=%d", self._topic, count)
        except (Unavailable, Refused, Corrupt) as failure:
            log.warning("maintenance of the table failed topic=%s why=%s", self._topic, failure)
        except foreign_failures() as failure:
            log.warning("maintenance of the table failed topic=%s why=%s", self._topic, failure)

    def _count_requests(self) -> dict[str, int]:
        table = self._table.count_requests() if self._table is not None else {}
        values = Counter(self._values.count_requests())
        return dict(self._task_requests + Counter(self._reader.count_requests()) + Counter(table) + values)

    def _commit_round(self, table: NativeTable, plan: Round, loaded: Mapping[int, int]) -> bool:
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
        if orphans.is_too_old((file.modified_ms for file in files), time.time_ns() // 1_000_000):
            raise Unavailable(f"files of a round of {self._topic} are older than a day, and are made anew")
        out_of_range = {f"{number}": dict(records) for number, records in committable.out_of_range_timestamps.items()}
        is_whole = not (plan.bytes_left or committable.stops or self.stops)
        seen = self._reader.digest(TopicId(table.topic_id)) if is_whole else None
        if (committable.advances or not plan.files) and not table.commit(
            files, committable.advances, timestamps=out_of_range, seen=seen
        ):
            return False
        for number, records in committable.out_of_range_timestamps.items():
            log.warning("timestamps became NULL topic=%s partition=%d offsets_and_ms=%s", self._topic, number, records)
        self.stops |= {stop.partition: stop for stop in committable.stops}
        self._progress = after
        if committable.advances or not plan.files:
            self._report_step("committed", after)
        return True

    def _convert(self, plan: Round, loaded: Mapping[int, int]) -> list[ConversionResult]:
        """Converts the files of a round.

        Raises `Unavailable` if a segment vanished meanwhile: a new plan will succeed.
        """
        if not plan.files:
            return []
        found = self._engine.convert(self._store, self._url, plan.files, self._options.null_timestamps)
        for result in found:
            self._task_requests.update(result.requests)
        stops = [outcome.stop for result in found for outcome in result.outcomes if outcome.stop is not None]
        damaged = any(stop.damaged for stop in stops)
        if damaged and has_missing_segments(plan.splits, self._reader.read(self._topic, loaded)):
            raise Unavailable(f"a planned segment of {self._topic} expired")
        return found

    def _report_step(self, step: str, progress: LoadProgress) -> None:
        self._report(replace(progress, step=step, requests=self._count_requests()))


def _log_bytes(splits: Sequence[Split]) -> int:
    return sum(split.log_bytes for split in splits)
