"""`spark.read.format("tiered")`: a topic's cold segments as rows, with the columns of Spark's Kafka source.

Options: `store` and `topic`, the bounds of `offsets.py`, `splitBytes`. Committed records only. A schema given by the
user picks columns: what it leaves out is not decoded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
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
from pyspark_tiered.bucket import bound_offset, cold_topic, pieces
from pyspark_tiered.plan import Split, splits
from pyspark_tiered.rows import arrow_batches, same_int, same_text
from tiered.bucket import open_bucket
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    import pyarrow

OPTIONS = (
    "store",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingTimestamp",
    "endingTimestamp",
    "splitBytes",
)

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
        return TieredReader(checked(self.options), picked(schema))


class SplitPartition(InputPartition):
    """One task's share."""

    def __init__(self, split: Split) -> None:
        super().__init__(split)
        self.split = split


class TieredReader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

    def __init__(self, options: Mapping[str, str], columns: tuple[str, ...]) -> None:
        self._options = dict(options)
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        return [SplitPartition(split) for split in asyncio.run(self._splits())]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        if not isinstance(partition, SplitPartition):
            return  # Spark plans one partition of its own where there is none: nothing lies between the bounds
        split = partition.split
        decoded = [name for name in self._columns if name not in ("topic", "partition")]
        for rows in arrow_batches(pieces(self._options["store"], split), split, decoded or ["offset"]):
            yield _with_constants(rows, self._columns, split)

    async def _splits(self) -> list[Split]:
        options = self._options
        async with open_bucket(options["store"]) as bucket:
            topic = await cold_topic(bucket, options["topic"])
            numbers = [partition.partition for partition in topic.partitions]
            starts = offsets.bounds(options, "starting", topic.name, numbers, offsets.EARLIEST)
            ends = offsets.bounds(options, "ending", topic.name, numbers, offsets.LATEST)
            bounds = {
                number: (
                    await bound_offset(bucket, topic, number, starts[number]),
                    await bound_offset(bucket, topic, number, ends[number]),
                )
                for number in numbers
            }
        size = options.get("splitbytes")
        return splits(topic, bounds, os.cpu_count() or 1, int(size) if size else None)


def checked(options: Mapping[str, str]) -> dict[str, str]:
    """The options under lower-case names. `Refused` for a missing or unknown one."""
    known = {name.lower(): name for name in OPTIONS}
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(set(given) - set(known)):
        raise Refused(Code.INVALID_REQUEST, f"unknown option {unknown[0]!r}; there are {', '.join(OPTIONS)}")
    for name in ("store", "topic"):
        if name not in given:
            raise Refused(Code.INVALID_REQUEST, f"the option {name!r} is missing")
    if not given.get("splitbytes", "1").isdecimal():
        raise Refused(Code.INVALID_REQUEST, f"splitBytes must be a number of bytes, not {given['splitbytes']!r}")
    return given


def picked(schema: StructType) -> tuple[str, ...]:
    """The columns of a user's schema, in its order. `Refused` when one is not ours or of another type."""
    for field in schema.fields:
        if field.name not in SCHEMA.fieldNames() or field.dataType != SCHEMA[field.name].dataType:
            raise Refused(
                Code.INVALID_REQUEST,
                f"no column {field.name} {field.dataType.simpleString()}; there are {SCHEMA.simpleString()}",
            )
    return tuple(schema.fieldNames())


def _with_constants(rows: pyarrow.RecordBatch, columns: tuple[str, ...], split: Split) -> pyarrow.RecordBatch:
    """The columns in the order asked for, `topic` and `partition` filled in."""
    import pyarrow as pa

    count = rows.num_rows
    constants = {"topic": lambda: same_text(split.topic, count), "partition": lambda: same_int(split.partition, count)}
    arrays = [constants[name]() if name in constants else rows.column(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
