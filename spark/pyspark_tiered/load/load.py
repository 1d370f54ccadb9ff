"""The loader: cold segments become a Delta table, each record once, despite kills and with any number of loaders.

Each table is loaded in rounds (`table_loader.py`). An engine converts: Spark's, or the native one.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta import log_cleanup
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import open_folder
from pyspark_tiered.delta.table_form import LATEST, Stop
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.delta.vacuum import vacuum_once_a_day
from pyspark_tiered.failures import foreign_failures
from pyspark_tiered.latest.table import LatestTable
from pyspark_tiered.latest.target import LatestTarget
from pyspark_tiered.load.iceberg_property import export_iceberg
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.load.rounds import ROUND_SPLITS_PER_TASK, CommittableRound, Round
from pyspark_tiered.load.table_loader import LoadEngine, LoadTarget, RawTarget, Step, TableLoader
from pyspark_tiered.log.bucket import ColdTopicReader
from pyspark_tiered.log.plan import Split
from pyspark_tiered.schemas.registry import ANY_REGISTRY, RegistryChoice
from pyspark_tiered.typed.form import DEAD_SUFFIX, TYPED_SUFFIX, ValueRules
from pyspark_tiered.typed.load import ValuesTarget
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

FOLLOW_SECONDS = 10.0
"""Interval at which a following loader looks for new cold segments: new ones come once in minutes."""
IDLE_INTERVALS_MAX = 30
"""Intervals without news after which a following loader looks at the metadata and the table again."""
LATEST_SPLIT_BYTES = 64 << 20
"""Bytes of log that a task converts at once for a table in mode latest."""
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
    `registry`: where the schemas of values are. `mode`: append, or latest for a table with one row for each key.
    `iceberg`: each version of the tables has metadata of Iceberg from now on.
    `vacuum`: the first load of a day removes files that no version within the retention needs.
    """

    null_timestamps: bool = False
    accept_deletes: bool = False
    values: ValueRules | None = None
    registry: RegistryChoice = ANY_REGISTRY
    mode: str = "append"
    iceberg: bool = False
    vacuum: bool = False


DEFAULT_OPTIONS = LoadOptions()


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
    """The load of one topic in progress: of its raw table first, then of its typed table if it has one."""

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
        self.log_bytes_left = 0
        """Bytes of log that the last round left for the next."""
        if options.mode == LATEST and options.values is not None:
            why = "a table in mode latest has no columns for values yet: load without --values, or without --mode"
            raise Refused(Code.INVALID_REQUEST, why)
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
        self._failures = 0
        self._table: NativeTable | None = None
        self._values = ValuesTarget(
            engine,
            store,
            topic,
            url,
            options.values,
            options.null_timestamps,
            options.accept_deletes,
            options.registry,
            reader.broker_addresses,
            iceberg=options.iceberg,
        )
        self._raw_rounds: TableLoader | None = None
        self._value_rounds = self._rounds_of(self._values)
        self._is_raw_done = False
        self._vacuumed_on = -1
        """Day (UTC) of the last look for files that no version needs."""

    def _rounds_of(self, target: LoadTarget, on_step: Step = lambda *_: None) -> TableLoader:
        size, count = self._split_bytes, self._round_splits
        if self._options.mode == LATEST:
            size, count = size or LATEST_SPLIT_BYTES, 1  # a round is in memory with the rows that it deletes
        return TableLoader(target, self._engine, self._reader, self._topic, size, count, on_step)

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
            self._raw_rounds = self._rounds_of(self._open_target(topic_id), self._on_raw_step)
        assert self._raw_rounds is not None
        self.stops = self._raw_rounds.stops = {}
        self._failures = 0
        self._is_raw_done = False
        self._rows_before = self._progress.rows

    def _open_target(self, topic_id: str) -> LoadTarget:
        options = self._options
        choices = (self._store, options.null_timestamps, options.accept_deletes)
        if options.mode == LATEST:
            table = LatestTable(self._url, self._topic, topic_id, self._engine.connect(self._url))
            self._table = table
            if options.iceberg:
                table.iceberg.ask()
            return LatestTarget(table, *choices)
        self._table = self._engine.open_table(self._url, self._topic, topic_id)
        if options.iceberg:
            self._table.iceberg.ask()
        return RawTarget(self._table, *choices)

    def run_round(self) -> bool:
        """Runs one round, of the raw table or of the typed one. Returns true if nothing cold is left to load.

        Raises `Unavailable` if rounds failed too often in a row.
        """
        assert self._table is not None and self._raw_rounds is not None
        rounds = self._value_rounds if self._is_raw_done else self._raw_rounds
        committed = rounds.run_round()
        self.log_bytes_left = rounds.bytes_left
        self._note_stops()
        is_done = self._count_failure(committed) and not rounds.bytes_left
        if not is_done or self._is_raw_done:
            return is_done
        if self._options.mode == LATEST:
            return True  # the values of such a table have no columns yet
        # A typed table that is refused does not keep rows from the raw one.
        self._values.begin(self._table.topic_id)
        self._value_rounds.stops = {}
        self._is_raw_done = True
        return not self._values.is_wanted

    def _note_stops(self) -> None:
        assert self._raw_rounds is not None
        values = self._value_rounds.stops if self._is_raw_done else {}
        typed = {number: stop._replace(why=f"in the typed table, {stop.why}") for number, stop in values.items()}
        self.stops = typed | self._raw_rounds.stops
        if self._is_raw_done:
            self._progress = replace(
                self._progress, typed_rows=self._values.rows, dead_letters=self._values.dead, log_bytes_left=0
            )

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
        if self._table is None or self._raw_rounds is None:
            return True
        topic_id, seen = TopicId(self._table.topic_id), self._raw_rounds.digest
        # A round of values may have read newer manifests than the last one of the raw table.
        is_behind = seen is not None and seen != self._reader.digest(topic_id)
        return is_behind or self._reader.has_changed(topic_id)

    def finish(self) -> LoadProgress:
        """Reports the end of the rounds, if anything is new, and maintains the table.

        Raises `Refused` if a table cannot have the metadata of Iceberg that the user asks for.
        """
        if self._table is not None:
            export_iceberg(self._table)
            self._values.export_iceberg()
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
            if self._options.vacuum:
                self._vacuum()
        except (Unavailable, Refused, Corrupt) as failure:
            log.warning("maintenance of the table failed topic=%s why=%s", self._topic, failure)
        except foreign_failures() as failure:
            log.warning("maintenance of the table failed topic=%s why=%s", self._topic, failure)

    def _vacuum(self) -> None:
        """Removes files that no kept version of the tables needs, by the first load of a day (UTC)."""
        today = time.time_ns() // 1_000_000 // log_cleanup.DAY_MS
        if today == self._vacuumed_on:
            return
        self._vacuumed_on = today
        for suffix in ("", TYPED_SUFFIX, DEAD_SUFFIX):
            with closing(open_folder(self._url + suffix, self._engine.connect(self._url))) as folder:
                if found := vacuum_once_a_day(TableLog(folder)):
                    log.info("files that no kept version needs were removed table=%s result=%s", folder.url, found)

    def _count_requests(self) -> dict[str, int]:
        found = Counter(self._reader.count_requests())
        for tables in (self._table, self._values):
            if tables is not None:
                found.update(tables.count_requests())
        for rounds in (self._raw_rounds, self._value_rounds):
            if rounds is not None:
                found.update(rounds.requests)
        return dict(found)

    def _on_raw_step(self, step: str, plan: Round, found: CommittableRound | None) -> None:
        """Reports a round of the raw table. Its numbers count from the commit on."""
        if found is None:
            self._report_step(step, replace(self._progress, log_bytes_left=_log_bytes(plan.splits) + plan.bytes_left))
            return
        after = replace(
            self._progress,
            rows=self._progress.rows + sum(file.rows for file in found.files),
            files=self._progress.files + len(found.files),
            log_bytes=self._progress.log_bytes + _log_bytes(found.splits),
            log_bytes_left=plan.bytes_left,
        )
        if step == "committed":
            self._progress = after
            if not found.advances and plan.files:
                return
        self._report_step(step, after)

    def _report_step(self, step: str, progress: LoadProgress) -> None:
        self._report(replace(progress, step=step, requests=self._count_requests()))


def _log_bytes(splits: Sequence[Split]) -> int:
    return sum(split.log_bytes for split in splits)
