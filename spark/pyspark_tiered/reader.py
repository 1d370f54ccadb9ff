"""Reads one split of a topic in a task, and plans the splits of a batch read on the driver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log import offsets
from pyspark_tiered.log.broker import BrokerClient, LiveTopic
from pyspark_tiered.log.bucket import bound_offset, cold_topic, read_batches
from pyspark_tiered.log.login import login_of_options
from pyspark_tiered.log.offsets import Bound
from pyspark_tiered.log.plan import LiveSplit, Split, live_splits, splits
from pyspark_tiered.log.rows import arrow_batches, constant_int_column, constant_text_column
from tiered.offline.bucket import open_bucket

if TYPE_CHECKING:
    import pyarrow

READ_COMMITTED = "read_committed"


class SplitPartition(InputPartition):
    """The split of one task."""

    def __init__(self, split: Split | LiveSplit) -> None:
        super().__init__(split)
        self.split = split


class TieredReader(DataSourceReader):
    """Plans on the driver and reads in the tasks."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._options = dict(options)
        self.read_committed = options.get("kafka.isolation.level", READ_COMMITTED) == READ_COMMITTED
        self._columns = columns
        self._cut = offsets.parse_cut(options[offsets.CUT]) if offsets.CUT in options else None

    def partitions(self) -> list[InputPartition]:
        size = self._options.get("splitbytes")
        bytes_each, tasks = int(size) if size else None, os.cpu_count() or 1
        if "bootstrap" in self._options:
            return [SplitPartition(split) for split in self._plan_live(tasks, bytes_each)]
        return [SplitPartition(split) for split in asyncio.run(self._plan_cold(tasks, bytes_each))]

    def read(self, partition: InputPartition | None) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, SplitPartition):  # without partitions PySpark reads one, None
            return
        split = partition.split
        if isinstance(split, LiveSplit):
            found = self.broker(is_patient=True).batches(split)
        else:
            found = read_batches(self._options["store"], split, read_committed=self.read_committed)
        decoded = [name for name in self._columns if name not in ("topic", "partition")]
        for rows in arrow_batches(found, (split.start, split.end), decoded or ["offset"]):
            yield _with_constants(rows, self._columns, split.topic, split.partition)

    def broker(self, *, is_patient: bool = False) -> BrokerClient:
        """Returns a client of the broker that the options name. `is_patient`: the broker has replied before."""
        login, committed = login_of_options(self._options), self.read_committed
        return BrokerClient(self._options["bootstrap"], read_committed=committed, login=login, is_patient=is_patient)

    def _bounds(self, numbers: Sequence[int]) -> tuple[dict[int, Bound], dict[int, Bound]]:
        """Returns start and end of each partition by the options."""
        options, topic = self._options, self._options["topic"]
        starts = offsets.bounds(options, "starting", topic, numbers, offsets.EARLIEST)
        ends = offsets.bounds(options, "ending", topic, numbers, offsets.LATEST)
        offsets.check_order(topic, starts, ends)
        return starts, ends

    async def _plan_cold(self, tasks: int, bytes_each: int | None) -> list[Split]:
        async with open_bucket(self._options["store"]) as bucket:
            topic = await cold_topic(bucket, self._options["topic"], read_committed=self.read_committed)
            if self._cut is not None:
                return splits(topic, self._cut.check(topic.name, topic.topic_id), tasks, bytes_each)
            starts, ends = self._bounds([partition.partition for partition in topic.partitions])
            bounds = {
                number: (
                    await bound_offset(bucket, topic, number, starts[number]),
                    await bound_offset(bucket, topic, number, ends[number]),
                )
                for number in starts
            }
        return splits(topic, bounds, tasks, bytes_each)

    def _plan_live(self, tasks: int, bytes_each: int | None) -> list[LiveSplit]:
        name, cut = self._options["topic"], self._cut
        broker = self.broker(is_patient=cut is not None)
        topic = broker.topic(name) if cut is None else broker.topic(name, cut.topic_id, cut.ends())
        bounds = self._live_bounds(broker, topic) if cut is None else cut.check(name, topic.topic_id)
        available = {each.partition: (each.start, each.end, each.log_bytes) for each in topic.partitions}
        return live_splits(topic.name, topic.topic_id, bounds, available, tasks, bytes_each)

    def _live_bounds(self, broker: BrokerClient, topic: LiveTopic) -> dict[int, Range]:
        starts, ends = self._bounds([each.partition for each in topic.partitions])
        return {
            each.partition: (
                broker.offset(topic, each, starts[each.partition]),
                broker.offset(topic, each, ends[each.partition]),
            )
            for each in topic.partitions
        }


def _with_constants(
    rows: pyarrow.RecordBatch, columns: tuple[str, ...], topic: str, partition: int
) -> pyarrow.RecordBatch:
    """Returns the requested columns in their order, with `topic` and `partition` filled in."""
    import pyarrow as pa

    count = rows.num_rows
    constants = {
        "topic": lambda: constant_text_column(topic, count),
        "partition": lambda: constant_int_column(partition, count),
    }
    arrays = [constants[name]() if name in constants else rows.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
