"""The records of a topic that its table does not have yet, from the bucket or from a broker. Without a JVM.

One version of the table gives the bounds of its partitions, and one look at the topic gives the ends. So each record
below the ends is there once, while producers and loaders go on. If a load was between the two, one of them is read
again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyspark_tiered.delta import table_form
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.broker import NOTHING, BrokerClient, LiveTopic
from pyspark_tiered.log.bucket import BatchReader, ColdTopicReader
from pyspark_tiered.log.login import NO_LOGIN, HttpLogin
from pyspark_tiered.log.plan import ColdTopic, live_splits, splits
from pyspark_tiered.log.rows import arrow_batches, constant_int_column
from tiered.errors import Code, Refused
from tiered.records.arrow import arrow_types

if TYPE_CHECKING:
    import pyarrow


T = TypeVar("T")

LOOKS_MAX = 4
"""Times that the table or the log is read again before offsets count as lost."""


class ReadableLog(NamedTuple):
    """A topic's log now: its id, and the offsets `[start, end)` of each partition that can be read."""

    topic_id: str
    ranges: Mapping[int, Range]


def newer_ranges(topic: str, loaded: Mapping[int, int], log: ReadableLog) -> dict[int, Range]:
    """Returns the offsets of each partition that the log has above the table's bounds. Pure.

    Raises `Refused` for offsets that are in neither of them, and for a log that ends below the table.
    """
    found: dict[int, Range] = {}
    for number, (start, end) in log.ranges.items():
        first = loaded.get(number, start)
        if first > end:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE,
                f"the table holds {topic}-{number} up to offset {first}, the log only up to {end}: it is not the log "
                "that was loaded, or it lost records",
            )
        if first < start:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE,
                f"offsets {first} to {start - 1} of {topic}-{number} are neither in the table nor in the log: they "
                "expired before a load",
            )
        found[number] = (first, end) if first < end else (start, start)
    return found


def cut_log(
    topic: str,
    held: T,
    log: ReadableLog,
    *,
    loaded: Callable[[T], Mapping[int, int]],
    read: Callable[[], T],
    look: Callable[[Mapping[int, int]], ReadableLog],
) -> tuple[T, dict[int, Range]]:
    """Returns a version of the table, and the offsets of each partition that the log has above its bounds.

    `held` is the table, and `loaded` tells its bounds. `read` reads it again: a load may have come before retention
    removed what it brought. `look` looks at the log again: a load may have brought more than the first look saw.
    Raises `Refused` as `newer_ranges` does.
    """
    for _ in range(LOOKS_MAX):
        bounds = loaded(held)
        if any(bounds.get(number, start) < start for number, (start, _) in log.ranges.items()):
            held = read()
        elif any(bounds.get(number, end) > end for number, (_, end) in log.ranges.items()):
            log = look(bounds)
        else:
            break
    return held, newer_ranges(topic, loaded(held), log)


class LogTail(ABC):
    """Reads the newest records of topics. Plain, blocking code."""

    @abstractmethod
    def look(self, topic: str, topic_id: str = "", reached: Mapping[int, int] = NOTHING) -> ReadableLog:
        """Returns what can be read now. Raises `Refused` if there is no such topic.

        `reached` are ends of the topic with this id that were seen before. Waits a while for a new leader that does not
        know yet that its log is committed up to them.
        """

    @abstractmethod
    def batches(self, topic: str, ranges: Mapping[int, Range]) -> Iterator[pyarrow.RecordBatch]:
        """Yields the committed records in these ranges of the last look, in the columns of a table."""

    @abstractmethod
    def close(self) -> None:
        """Ends the use of the log."""


class BucketTail(LogTail):
    """The records in the bucket."""

    def __init__(self, store: str) -> None:
        with ExitStack() as failing:
            self._topics = failing.enter_context(closing(ColdTopicReader(store)))
            self._records = BatchReader(store)
            failing.pop_all()
        self._seen: dict[str, ColdTopic] = {}

    def look(self, topic: str, topic_id: str = "", reached: Mapping[int, int] = NOTHING) -> ReadableLog:
        cold = self._topics.read(topic, {})
        self._seen[topic] = cold
        ranges = {each.partition: (each.log_start_offset, each.readable_end_offset) for each in cold.partitions}
        return ReadableLog(cold.topic_id, ranges)

    def batches(self, topic: str, ranges: Mapping[int, Range]) -> Iterator[pyarrow.RecordBatch]:
        for split in splits(self._seen[topic], ranges, 1):
            rows = arrow_batches(self._records.read(split), (split.start, split.end), list(arrow_types()))
            yield from (_to_table(batch, split.partition) for batch in rows)

    def close(self) -> None:
        self._records.close()
        self._topics.close()


class BrokerTail(LogTail):
    """The records of a broker, by its HTTP: those in the bucket and the newest ones."""

    def __init__(self, bootstrap: str, login: HttpLogin = NO_LOGIN) -> None:
        self._broker = BrokerClient(bootstrap, login=login)
        self._seen: dict[str, LiveTopic] = {}

    def look(self, topic: str, topic_id: str = "", reached: Mapping[int, int] = NOTHING) -> ReadableLog:
        live = self._broker.topic(topic, topic_id, reached)
        self._seen[topic] = live
        return ReadableLog(live.topic_id, {each.partition: (each.start, each.end) for each in live.partitions})

    def batches(self, topic: str, ranges: Mapping[int, Range]) -> Iterator[pyarrow.RecordBatch]:
        live = self._seen[topic]
        available = {each.partition: (each.start, each.end, each.log_bytes) for each in live.partitions}
        for split in live_splits(topic, live.topic_id, ranges, available, 1):
            rows = arrow_batches(self._broker.batches(split), (split.start, split.end), list(arrow_types()))
            yield from (_to_table(batch, split.partition) for batch in rows)

    def close(self) -> None:
        self._seen = {}


def _to_table(batch: pyarrow.RecordBatch, partition: int) -> pyarrow.RecordBatch:
    """Returns decoded records with the table's columns, in its order."""
    import pyarrow as pa

    offset, timestamp, kind, key, value, headers = batch.columns
    numbers = constant_int_column(partition, batch.num_rows)
    arrays = [numbers, offset, timestamp, kind.cast(pa.int8()), key, value, headers]
    return pa.RecordBatch.from_arrays(arrays, list(table_form.COLUMNS))
