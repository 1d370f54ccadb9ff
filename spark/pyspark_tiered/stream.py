"""`spark.readStream.format("tiered")`: a topic as micro-batches, with the options and columns of the batch source.

Spark keeps the offsets in its checkpoint and asks for a batch again, with the same bounds, after a failure. So a sink
that takes each batch once (`append_once` for Delta) has each record once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from pyspark_tiered.log import offsets
from pyspark_tiered.log.bucket import bound_offset, cold_topic
from pyspark_tiered.log.offsets import LATEST
from pyspark_tiered.log.plan import ColdTopic, LiveSplit, Split, live_splits, splits
from pyspark_tiered.reader import SplitPartition, TieredReader
from pyspark_tiered.stream_plan import (
    BatchLimits,
    ReadablePartition,
    ReadableTopic,
    StreamOffset,
    batch_ranges,
    next_offset,
    parse_offset,
)
from tiered.ids import TopicId
from tiered.offline.bucket import open_bucket

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

POLL_SECONDS = {"store": 10.0, "bootstrap": 0.5}
"""Interval of looks for new records while there are none. Spark asks a hundred times a second."""


class TieredStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process beside the driver, for the life of the query, and reads in the tasks."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._options = dict(options)
        self._topic = options["topic"]
        self._batch = TieredReader(options, columns)
        self._fail_on_data_loss = options.get("failondataloss", "true").lower() == "true"
        rows, log_bytes = options.get("maxoffsetspertrigger"), options.get("maxbytespertrigger")
        self._limits = BatchLimits(int(rows) if rows else None, int(log_bytes) if log_bytes else None)
        self._target: StreamOffset | None = None
        self._known: tuple[float, ReadableTopic] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._starting_offset().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._limits.log_bytes is not None:
            return ReadMaxBytes(self._limits.log_bytes)
        return ReadAllAvailable() if self._limits.rows is None else ReadMaxRows(self._limits.rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the next batch. Any limit that Spark names stands for both limits of the options."""
        begin = parse_offset(start, self._topic)
        limits = BatchLimits() if isinstance(limit, ReadAllAvailable) else self._limits
        now = self._readable(begin)
        found = next_offset(begin, now, limits, self._target, fail_on_data_loss=self._fail_on_data_loss)
        return found.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._known is None else self._known[1].ends().to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._read_topic().ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        begin, last = parse_offset(start, self._topic), parse_offset(end, self._topic)
        size = self._options.get("splitbytes")
        tasks, bytes_each = os.cpu_count() or 1, int(size) if size else None
        planned: list[Split] | list[LiveSplit]
        if "bootstrap" in self._options:
            now = self._read_topic(last)
            ranges = self._ranges(begin, last, now)
            available = {number: (each.start, each.end, each.log_bytes) for number, each in now.partitions.items()}
            planned = live_splits(now.topic, TopicId(now.topic_id), ranges, available, tasks, bytes_each)
        else:
            cold = self._read_cold(begin.offsets if begin.topic_id == last.topic_id else {})
            planned = splits(cold, self._ranges(begin, last, _readable_cold(cold)), tasks, bytes_each)
        return [SplitPartition(split) for split in planned]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        return self._batch.read(partition)

    def _ranges(self, begin: StreamOffset, last: StreamOffset, now: ReadableTopic) -> dict[int, tuple[int, int]]:
        ranges, lost = batch_ranges(begin, last, now, fail_on_data_loss=self._fail_on_data_loss)
        for each in lost:
            log.warning("records were lost to the stream topic=%s why=%s", self._topic, each)
        return ranges

    def _starting_offset(self) -> StreamOffset:
        """Returns the place that the options name: by default the end, as in Spark's Kafka source."""
        if "bootstrap" in self._options:
            broker = self._batch.broker()
            topic = broker.topic(self._topic)
            numbers = [each.partition for each in topic.partitions]
            starts = offsets.bounds(self._options, "starting", self._topic, numbers, LATEST)
            found = {each.partition: broker.offset(topic, each, starts[each.partition]) for each in topic.partitions}
            return StreamOffset(topic.name, topic.topic_id, found)
        return asyncio.run(self._starting_offset_in_bucket())

    async def _starting_offset_in_bucket(self) -> StreamOffset:
        async with open_bucket(self._options["store"]) as bucket:
            topic = await cold_topic(bucket, self._topic, read_committed=self._batch.read_committed)
            numbers = [each.partition for each in topic.partitions]
            starts = offsets.bounds(self._options, "starting", self._topic, numbers, LATEST)
            found = {number: await bound_offset(bucket, topic, number, starts[number]) for number in numbers}
        return StreamOffset(topic.name, topic.topic_id, found)

    def _readable(self, begin: StreamOffset) -> ReadableTopic:
        """Returns what can be read. Looks again only if all that was known is read and the interval is over."""
        if self._known is not None:
            at, known = self._known
            interval = POLL_SECONDS["bootstrap" if "bootstrap" in self._options else "store"]
            has_more = any(begin.offsets.get(number, -1) < each.end for number, each in known.partitions.items())
            is_same = begin.topic_id == known.topic_id and not known.is_behind(begin)
            if is_same and (has_more or time.monotonic() < at + interval):
                return known
        return self._read_topic(begin)

    def _read_topic(self, reached: StreamOffset | None = None) -> ReadableTopic:
        """Returns what can be read now. Waits a while for a new leader whose log ends below a place that was reached,
        and for a broker that replied before."""
        if "bootstrap" in self._options:
            broker = self._batch.broker(is_patient=self._known is not None)
            place = StreamOffset(self._topic, "", {}) if reached is None else reached
            live = broker.topic(self._topic, place.topic_id, place.offsets)
            parts = {each.partition: ReadablePartition(*each[1:]) for each in live.partitions}
            found = ReadableTopic(live.name, live.topic_id, parts)
        else:
            found = _readable_cold(self._read_cold({}))
        self._known = time.monotonic(), found
        return found

    def _read_cold(self, starts: Mapping[int, int]) -> ColdTopic:
        async def read() -> ColdTopic:
            async with open_bucket(self._options["store"]) as bucket:
                return await cold_topic(bucket, self._topic, starts, read_committed=self._batch.read_committed)

        return asyncio.run(read())


def append_once(url: str, name: str) -> Callable[[DataFrame, int], None]:
    """Returns a function for `foreachBatch` that appends each batch to the Delta table at `url` once.

    Delta keeps a transaction identifier: `name` and the id of the query, which a new checkpoint changes. So a batch
    that Spark runs again after a kill is not appended again.
    """

    def append(rows: DataFrame, batch_id: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        writer = rows.write.format("delta").mode("append").option("txnAppId", f"{name}/{query}")
        writer.option("txnVersion", str(batch_id)).save(url)

    return append


def _readable_cold(cold: ColdTopic) -> ReadableTopic:
    parts = {}
    for each in cold.partitions:
        log_bytes = sum(entry.log_bytes for entry in each.entries)
        parts[each.partition] = ReadablePartition(
            each.log_start_offset, each.readable_end_offset, log_bytes, each.cold_end_offset
        )
    return ReadableTopic(cold.name, cold.topic_id, parts)
