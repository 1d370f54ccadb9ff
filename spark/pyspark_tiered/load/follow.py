"""Loads many topics in one process: all whose names match a pattern, new ones included, round by round.

Each topic with new cold records gets one round, the one with the greatest lag first. Then those that have records left
get another one. So a topic with a long backlog delays the others by one of its rounds at most. A topic that fails is
tried again later, and holds no other topic up.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.failures import foreign_failures
from pyspark_tiered.load.load import IDLE_INTERVALS_MAX, LoadOptions, LoadProgress, TopicLoader, stop_error
from pyspark_tiered.load.table_loader import LoadEngine
from pyspark_tiered.log.bucket import ColdTopicReader
from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered.metrics import Metrics

log = logging.getLogger(__name__)

TOPICS_MAX = 10_000
"""Topics of one process: each has a table in memory."""
ROUND_SPLITS = 1
"""Bytes of a round for each task, in splits of full size: short rounds, so that no topic waits long for another."""
Failure = Refused | Unavailable | Corrupt | Fenced


@dataclass(slots=True)
class _Followed:
    """One topic. `lag` is the bytes of log that its last round left; `due` the interval at which it is tried again."""

    loader: TopicLoader
    lag: int = 0
    failures: int = 0
    due: int = 0
    looked_at: int = -IDLE_INTERVALS_MAX
    failure: Failure | None = None


class TopicsLoader:
    """The loads of all topics that match a pattern (a regular expression of the whole name)."""

    def __init__(
        self,
        engine: LoadEngine,
        reader: ColdTopicReader,
        store: str,
        pattern: str,
        warehouse: str,
        report: Callable[[LoadProgress], None],
        options: LoadOptions,
        metrics: Metrics,
        split_bytes: int | None = None,
    ) -> None:
        try:
            self._pattern = re.compile(pattern)
        except re.error as fault:
            raise Refused(Code.INVALID_REQUEST, f"{pattern!r} is no regular expression: {fault}") from None
        self._engine = engine
        self._reader = reader
        self._store = store
        self._warehouse = spark_url(warehouse)
        self._report = report
        self._options = options
        self._split_bytes = split_bytes
        self._topics: dict[str, _Followed] = {}
        self._interval = 0
        label = ("topic",)
        self._lag = metrics.gauge("tiered_load_lag_bytes", "Bytes of cold log that the table does not have.", label)
        self._rows = metrics.counter("tiered_load_rows_total", "Rows that this process loaded.", label)
        self._failed = metrics.counter("tiered_load_failures_total", "Rounds of a topic that failed.", label)
        self._committed = metrics.gauge(
            "tiered_load_commit_timestamp_seconds", "Time of the last commit of this process to the table.", label
        )

    def close(self) -> None:
        """Closes all tables."""
        for topic in self._topics.values():
            topic.loader.close()
        self._topics = {}

    def failures(self) -> dict[str, Failure]:
        """Returns the last failure of each topic that has one."""
        return {name: topic.failure for name, topic in sorted(self._topics.items()) if topic.failure is not None}

    def run_interval(self) -> None:
        """Loads what is cold now of all topics. Topics without anything new cost one list each."""
        self._find_topics()
        self._interval += 1
        waiting = [name for name, topic in self._topics.items() if self._begin(topic, name)]
        while waiting:
            waiting.sort(key=lambda name: (-self._topics[name].lag, name))
            waiting = [name for name in waiting if not self._run_round(name)]

    def _find_topics(self) -> None:
        names = {name for name in self._reader.topic_names() if self._pattern.fullmatch(name)}
        if len(names) > TOPICS_MAX:
            raise Refused(Code.INVALID_REQUEST, f"{len(names)} topics match, one process follows {TOPICS_MAX} at most")
        for name in self._topics.keys() - names:
            self._topics.pop(name).loader.close()
            self._lag.remove(name)
            self._committed.remove(name)
        for name in sorted(names - self._topics.keys()):
            url = f"{self._warehouse}/{name}"
            loader = TopicLoader(
                self._engine,
                self._reader,
                self._store,
                name,
                url,
                self._note,
                self._split_bytes,
                self._options,
                ROUND_SPLITS,
            )
            self._topics[name] = _Followed(loader)

    def _begin(self, topic: _Followed, name: str) -> bool:
        """Returns true if the topic gets rounds in this interval."""
        if topic.due > self._interval:
            return False
        try:
            is_old = self._interval - topic.looked_at >= IDLE_INTERVALS_MAX
            if not (is_old or topic.failure is not None or topic.loader.has_news()):
                return False
            topic.loader.begin()
        except (Refused, Unavailable, Corrupt, Fenced) as failure:
            self._note_failure(topic, name, failure)
            return False
        except foreign_failures() as failure:
            self._note_failure(topic, name, _other_failure(name, failure))
            return False
        topic.looked_at = self._interval
        return True

    def _run_round(self, name: str) -> bool:
        """Runs one round of a topic. Returns true if it has no more in this interval."""
        topic = self._topics[name]
        try:
            done = topic.loader.run_round()
            topic.lag = topic.loader.log_bytes_left
            self._lag.set(topic.lag, name)
            if not done:
                return False
            topic.loader.finish()
            if topic.loader.stops:
                raise stop_error(name, topic.loader.stops)
        except (Refused, Unavailable, Corrupt, Fenced) as failure:
            self._note_failure(topic, name, failure)
            return True
        except foreign_failures() as failure:
            self._note_failure(topic, name, _other_failure(name, failure))
            return True
        topic.failures, topic.failure = 0, None
        return True

    def _note_failure(self, topic: _Followed, name: str, failure: Failure) -> None:
        """Notes a failure. The topic is tried again after twice as many intervals as the last time."""
        self._failed.inc(1, name)
        if str(failure) != str(topic.failure):
            log.warning("topic cannot be loaded further topic=%s why=%s", name, failure)
        topic.failure = failure
        topic.due = self._interval + min(1 << min(topic.failures, 10), IDLE_INTERVALS_MAX)
        topic.failures += 1

    def _note(self, progress: LoadProgress) -> None:
        name = progress.topic
        if progress.step == "planned":
            self._lag.set(progress.log_bytes_left, name)
        elif progress.step == "committed":
            self._committed.set(time.time(), name)
            self._rows.inc(max(progress.rows - int(self._rows.value(name)), 0), name)
        self._report(progress)


def _other_failure(name: str, failure: Exception) -> Unavailable:
    """Returns our error for one of `foreign_failures`."""
    return Unavailable(f"could not load {name}: {type(failure).__name__}: {failure}", final=True)


def load_topics(
    store: str,
    pattern: str,
    warehouse: str,
    engine: LoadEngine,
    *,
    follow: bool = False,
    interval: float,
    progress: Callable[[LoadProgress], None] = lambda _: None,
    options: LoadOptions,
    metrics: Metrics,
) -> None:
    """Loads all topics whose whole names match `pattern`. With `follow` it goes on until killed.

    Closes the engine at the end. Without `follow` raises the first failure of a topic, after all others were loaded.
    """
    with ExitStack() as opened:
        opened.callback(engine.close)
        reader = opened.enter_context(closing(ColdTopicReader(store)))
        loads = opened.enter_context(
            closing(TopicsLoader(engine, reader, store, pattern, warehouse, progress, options, metrics))
        )
        loads.run_interval()
        while follow:
            time.sleep(interval)
            try:
                loads.run_interval()
            except Unavailable as failure:
                log.warning("the bucket cannot be read, trying again why=%s", failure)
        for failed in loads.failures().values():
            raise failed
