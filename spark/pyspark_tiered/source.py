"""`spark.read.format("tiered")`: a topic as rows, with the columns of Spark's Kafka source.

Options: `store` (the cold segments, no broker needed) or `bootstrap` (HOST:PORT of a broker's HTTP: cold and hot, up to
the last committed record), `topic`, the bounds of `offsets.py`, `splitBytes`, `kafka.isolation.level`. By default
records of open and aborted transactions are left out. A schema given by the user selects columns: columns that it
leaves out are not decoded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_tiered import offsets
from pyspark_tiered.broker import BrokerClient
from pyspark_tiered.bucket import bound_offset, cold_topic, read_batches
from pyspark_tiered.offsets import Bound
from pyspark_tiered.plan import LiveSplit, Split, live_splits, splits
from pyspark_tiered.rows import arrow_batches, constant_int_column, constant_text_column
from tiered.errors import Code, Refused
from tiered.offline.bucket import open_bucket

if TYPE_CHECKING:
    import pyarrow

OPTIONS = (
    "store",
    "bootstrap",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "splitBytes",
    "kafka.isolation.level",
)
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(HEADER)),
    ]
)


class DefaultSource(DataSource):
    """The data source `tiered`. PySpark finds it by this name in this package."""

    @classmethod
    def name(cls) -> str:
        return "tiered"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> TieredReader:
        return TieredReader(check_options(self.options), pick_columns(schema))


class SplitPartition(InputPartition):
    """The split of one task."""

    def __init__(self, split: Split | LiveSplit) -> None:
        super().__init__(split)
        self.split = split


class TieredReader(DataSourceReader):
    """Plans on the driver and reads in the tasks."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._options = dict(options)
        self._read_committed = options.get("kafka.isolation.level", ISOLATION_LEVELS[0]) == ISOLATION_LEVELS[0]
        self._columns = columns

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
            found = self._broker().batches(split)
        else:
            found = read_batches(self._options["store"], split, read_committed=self._read_committed)
        decoded = [name for name in self._columns if name not in ("topic", "partition")]
        for rows in arrow_batches(found, (split.start, split.end), decoded or ["offset"]):
            yield _with_constants(rows, self._columns, split.topic, split.partition)

    def _broker(self) -> BrokerClient:
        return BrokerClient(self._options["bootstrap"], read_committed=self._read_committed)

    def _bounds(self, numbers: Sequence[int]) -> tuple[dict[int, Bound], dict[int, Bound]]:
        """Returns start and end of each partition by the options."""
        options, topic = self._options, self._options["topic"]
        starts = offsets.bounds(options, "starting", topic, numbers, offsets.EARLIEST)
        return starts, offsets.bounds(options, "ending", topic, numbers, offsets.LATEST)

    async def _plan_cold(self, tasks: int, bytes_each: int | None) -> list[Split]:
        async with open_bucket(self._options["store"]) as bucket:
            topic = await cold_topic(bucket, self._options["topic"], read_committed=self._read_committed)
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
        broker = self._broker()
        topic = broker.topic(self._options["topic"])
        found = {each.partition: each for each in topic.partitions}
        starts, ends = self._bounds(list(found))
        bounds = {
            number: (broker.offset(topic, each, starts[number]), broker.offset(topic, each, ends[number]))
            for number, each in found.items()
        }
        available = {number: (each.start, each.end, each.log_bytes) for number, each in found.items()}
        return live_splits(topic.name, topic.topic_id, bounds, available, tasks, bytes_each)


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options under lower-case names. Raises `Refused` for a missing or unknown one."""
    known = {name.lower(): name for name in OPTIONS}
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(set(given) - set(known)):
        raise Refused(Code.INVALID_REQUEST, f"unknown option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    if "topic" not in given:
        raise Refused(Code.INVALID_REQUEST, "the option 'topic' is missing")
    if ("store" in given) == ("bootstrap" in given):
        raise Refused(Code.INVALID_REQUEST, "one of the options 'store' and 'bootstrap' is needed, and only one")
    if not given.get("splitbytes", "1").isdecimal():
        raise Refused(Code.INVALID_REQUEST, f"splitBytes must be a number of bytes, not {given['splitbytes']!r}")
    isolation = given.get("kafka.isolation.level", ISOLATION_LEVELS[0])
    if isolation not in ISOLATION_LEVELS:
        raise Refused(
            Code.INVALID_REQUEST, f"kafka.isolation.level must be {' or '.join(ISOLATION_LEVELS)}, not {isolation!r}"
        )
    return given


def pick_columns(schema: StructType) -> tuple[str, ...]:
    """Returns the columns of a user's schema, in its order. Raises `Refused` for an unknown column or another type."""
    for field in schema.fields:
        if field.name not in SCHEMA.fieldNames() or field.dataType != SCHEMA[field.name].dataType:
            raise Refused(
                Code.INVALID_REQUEST,
                f"no column {field.name} {field.dataType.simpleString()}; there are {SCHEMA.simpleString()}",
            )
    return tuple(schema.fieldNames())


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
