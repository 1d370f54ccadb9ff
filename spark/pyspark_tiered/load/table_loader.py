"""The load of one table in progress: rounds of a plan, a conversion and a commit, whatever the form of its rows.

Each round reads how far the table is loaded, plans from there, converts and commits. The commit succeeds only if the
table is still where the plan began. No other state exists.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pyspark_tiered.delta import orphans
from pyspark_tiered.delta.log_folder import BucketConnection
from pyspark_tiered.delta.table_form import Stop
from pyspark_tiered.load.convert import ConversionTask, RawForm
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.load.rounds import (
    CommittableRound,
    ConversionResult,
    FilePlan,
    Round,
    find_expired_ranges,
    has_missing_segments,
    next_round,
    select_committable,
)
from pyspark_tiered.log.bucket import ColdTopicReader
from tiered.errors import Unavailable
from tiered.ids import TopicId

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class LoadEngine(Protocol):
    """The part of a load that differs between Spark and the native engine."""

    @property
    def tasks(self) -> int:
        """Returns how many files are converted at once."""

    def open_table(self, url: str, topic: str, topic_id: str) -> NativeTable:
        """Opens a topic's table."""

    def convert(self, what: str, tasks: Sequence[ConversionTask]) -> list[ConversionResult]:
        """Runs each task. Raises `Unavailable` for failures that are not in the log; `what` begins the error."""

    def close(self) -> None:
        """Closes the connections of the engine. It may be used again."""

    def connect(self, url: str) -> BucketConnection | None:
        """Returns a connection that all tables in this bucket share; None if each has its own, or needs none."""

    def run_tasks(self, what: str, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        """Returns the results of tasks, in order. `what` begins the error if one fails."""


Convert = Callable[[Sequence[FilePlan]], list[ConversionResult]]
"""Converts files of a round again, after the target has changed what it knows."""


class LoadTarget(Protocol):
    """The table that a load fills: what the form of its rows makes different."""

    url: str
    topic_id: str

    @property
    def was_found(self) -> bool:
        """True if the table was there at the last check."""

    @property
    def newest_mark(self) -> Mapping[str, Any]:
        """Returns the mark of the newest commit at the last check."""

    def check_sound(self) -> dict[int, int]:
        """Returns the loaded offsets, after a check that the next round neither duplicates nor loses rows."""

    def prepare(self) -> bool:
        """Makes the table ready for a round. Returns false if another writer came first."""

    def plan(self, plan: Round, loaded: Mapping[int, int]) -> None:
        """Reads what the tasks of a round have to know."""

    def task(self, splits: FilePlan) -> ConversionTask:
        """Returns the task that converts splits of the round."""

    def agree(self, plan: Round, results: Sequence[ConversionResult], again: Convert) -> list[ConversionResult] | None:
        """Returns results that fit into one table. Returns None if another writer came first."""

    def commit(self, plan: Round, found: CommittableRound, seen: str | None) -> bool:
        """Commits a round. Returns false if another writer came first. `seen` goes into the mark."""


Step = Callable[[str, Round, CommittableRound | None], None]
"""Hears of a round: planned, converted, committed."""


class TableLoader:
    """The rounds of one table. `stops` are the places at which partitions cannot be read on."""

    def __init__(
        self,
        target: LoadTarget,
        engine: LoadEngine,
        reader: ColdTopicReader,
        topic: str,
        split_bytes: int | None,
        round_splits: int,
        on_step: Step = lambda *_: None,
    ) -> None:
        self.stops: dict[int, Stop] = {}
        self.bytes_left = 0
        """Bytes of log that the last round left for the next."""
        self.requests: Counter[str] = Counter()
        """Requests of tasks by verb."""
        self.digest: str | None = None
        """Digest of the manifests that the last round saw."""
        self._target = target
        self._engine = engine
        self._reader = reader
        self._topic = topic
        self._split_bytes = split_bytes
        self._round_splits = round_splits
        self._on_step = on_step
        self._has_read = False

    def run_round(self) -> bool:
        """Runs one round. Returns true if it was committed, or had nothing to commit; `bytes_left` says if all is done.

        Returns false if a new plan may succeed: another loader committed first, or a conversion or commit failed.
        """
        target, topic_id = self._target, TopicId(self._target.topic_id)
        loaded = target.check_sound()
        self.bytes_left = 0
        seen = target.newest_mark.get("seen")
        if not self._has_read and seen is not None and seen == self._reader.list_digest(topic_id):
            self.digest = seen  # the newest commit loaded all that the bucket still shows
            return True
        self._has_read = True
        if not self._try(target.prepare):
            return False
        topic = self._reader.read(self._topic, loaded)
        self.digest = self._reader.digest(topic.topic_id)
        if topic.topic_id != topic_id:
            raise Unavailable(f"topic {self._topic} was deleted and created again while it was loaded", final=True)
        for gap in find_expired_ranges(topic, loaded):
            log.warning("records expired before they were loaded table=%s gap=%s", target.url, gap)
        plan = next_round(topic, loaded, self._engine.tasks, self._split_bytes, self.stops, self._round_splits)
        if not plan.files and target.was_found:
            return True
        self.bytes_left = plan.bytes_left
        return self._try(lambda: self._load_round(plan, loaded))

    def _try(self, step: Callable[[], bool]) -> bool:
        """Returns the result of a step; false if it failed and may succeed after a new plan."""
        try:
            return step()
        except Unavailable as failure:
            if failure.final:
                raise
            log.warning("round failed, retrying table=%s why=%s", self._target.url, failure)
            return False

    def _load_round(self, plan: Round, loaded: Mapping[int, int]) -> bool:
        target = self._target
        self._on_step("planned", plan, None)
        target.plan(plan, loaded)
        results = target.agree(plan, self._convert(plan, loaded), self._run)
        if results is None:
            return False
        found = select_committable(plan, results)
        self._on_step("converted", plan, found)
        if orphans.is_too_old((file.modified_ms for file in found.files), time.time_ns() // 1_000_000):
            raise Unavailable(f"files of a round of {self._topic} are older than a day, and are made anew")
        is_whole = not (plan.bytes_left or found.stops or self.stops)
        if not target.commit(plan, found, self._reader.digest(TopicId(target.topic_id)) if is_whole else None):
            return False
        self.stops |= {stop.partition: stop for stop in found.stops}
        self._on_step("committed", plan, found)
        return True

    def _convert(self, plan: Round, loaded: Mapping[int, int]) -> list[ConversionResult]:
        """Converts the files of a round. Raises `Unavailable` if a segment vanished meanwhile: a new plan will
        succeed."""
        found = self._run(plan.files)
        stops = [outcome.stop for result in found for outcome in result.outcomes if outcome.stop is not None]
        damaged = any(stop.damaged for stop in stops)
        if damaged and has_missing_segments(plan.splits, self._reader.read(self._topic, loaded)):
            raise Unavailable(f"a planned segment of {self._topic} expired")
        return found

    def _run(self, files: Sequence[FilePlan]) -> list[ConversionResult]:
        if not files:
            return []
        tasks = [self._target.task(splits) for splits in files]
        found = self._engine.convert(f"could not convert {self._target.url}", tasks)
        for result in found:
            self.requests.update(result.requests)
        return found


class RawTarget:
    """A raw table: its form is fixed, so nothing has to be prepared or agreed on."""

    def __init__(self, table: NativeTable, store: str, null_timestamps: bool, accept_deletes: bool) -> None:
        self.url, self.topic_id = table.url, table.topic_id
        self._table = table
        self._store = store
        self._null_timestamps = null_timestamps
        self._accept_deletes = accept_deletes

    @property
    def was_found(self) -> bool:
        """True if the table was there at the last check."""
        return self._table.was_found

    @property
    def newest_mark(self) -> Mapping[str, Any]:
        """Returns the mark of the newest commit at the last check."""
        return self._table.newest_mark

    def check_sound(self) -> dict[int, int]:
        """Checks the table. Returns the loaded offsets."""
        return self._table.check_sound(self._accept_deletes)

    def prepare(self) -> bool:
        """Does nothing: the first commit creates the table."""
        return True

    def plan(self, plan: Round, loaded: Mapping[int, int]) -> None:
        """Does nothing: a record is a row whatever others did."""

    def task(self, splits: FilePlan) -> ConversionTask:
        """Returns the task that converts splits of the round."""
        return ConversionTask(self._store, splits, RawForm(self.url), self._null_timestamps)

    def agree(self, plan: Round, results: Sequence[ConversionResult], again: Convert) -> list[ConversionResult]:
        """Returns the results."""
        return list(results)

    def commit(self, plan: Round, found: CommittableRound, seen: str | None) -> bool:
        """Commits a round, if it moves a partition or creates the table."""
        out_of_range = {f"{number}": dict(records) for number, records in found.out_of_range_timestamps.items()}
        has_any = bool(found.advances) or not plan.files
        if has_any and not self._table.commit(found.files, found.advances, timestamps=out_of_range, seen=seen):
            return False
        for number, records in found.out_of_range_timestamps.items():
            log.warning(
                "timestamps became NULL topic=%s partition=%d offsets_and_ms=%s", self._table.topic, number, records
            )
        return True
