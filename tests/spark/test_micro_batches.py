"""Tests of `readStream.format("tiered")`: each record reaches a sink once, over restarts, and lost data is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tiered.source import STREAM_OPTIONS, check_options
from pyspark_tiered.stream import append_once
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId, TopicId

TOPIC, LATER = filling.topic_id(8), filling.topic_id(18)


class Stream:
    """A topic, and a query of it that ends when it reached the end."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.store = f"file://{folder}/store"
        self.sink, self.checkpoint = str(folder / "sink"), str(folder / "checkpoint")
        self.fail_after_append = False
        filling.create_topic(self.store, "t", TOPIC, 2)

    def fill(self, partition: int, first: int, count: int, identity: TopicId = TOPIC) -> None:
        rows = [(filling.BASE_MS + i, b"k", f"value {i}".encode(), ()) for i in range(first, first + count)]
        segments = list(filling.segments(rows, base_offset=first))
        filling.upload(self.store, "t", PartitionId(identity, partition), segments)

    def run(self, **options: str | int) -> int:
        """Runs to the end. Returns the number of batches."""
        batches = 0
        append = append_once(self.sink, "test")

        def on_batch(rows: DataFrame, batch_id: int) -> None:
            nonlocal batches
            append(rows, batch_id)
            batches += 1
            if self.fail_after_append:
                self.fail_after_append = False
                raise RuntimeError("fails after the append")

        source = self.spark.readStream.format("tiered").option("store", self.store).option("topic", "t")
        rows = source.options(**({"startingOffsets": "earliest"} | options)).load()
        query = (
            rows.writeStream.foreachBatch(on_batch)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        return batches

    def held(self) -> dict[int, list[int]]:
        """Returns the offsets in the sink by partition, in order."""
        found: dict[int, list[int]] = {}
        rows = (
            self.spark.read.format("delta").load(self.sink).selectExpr("partition", "offset", "CAST(value AS string)")
        )
        for partition, offset, value in sorted(rows.collect()):
            assert value == f"value {offset}"
            found.setdefault(partition, []).append(offset)
        return found


@pytest.mark.java
def test_each_record_reaches_the_sink_once_despite_failure_and_restart(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.fill(0, 0, 150)
    stream.fill(1, 0, 50)
    stream.fail_after_append = True
    with pytest.raises(StreamingQueryException, match="fails after the append"):
        stream.run(maxOffsetsPerTrigger=100)
    assert stream.run(maxOffsetsPerTrigger=100) == 2, "the failed batch again, and one more"
    assert stream.held() == {0: list(range(150)), 1: list(range(50))}
    stream.fill(0, 150, 10)
    assert stream.run(maxBytesPerTrigger=1 << 30) == 1
    assert stream.run() == 0
    assert stream.held() == {0: list(range(160)), 1: list(range(50))}


@pytest.mark.java
@pytest.mark.also(
    "tests/spark/test_micro_batches.py::test_each_record_reaches_the_sink_once_despite_failure_and_restart"
)
def test_lost_records_fail_the_stream_unless_it_goes_on_without_them(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.fill(0, 0, 1000)
    stream.run()
    stream.fill(0, 1000, 2000)
    filling.expire(stream.store, "t", PartitionId(TOPIC, 0), 2000)
    with pytest.raises(StreamingQueryException, match="retention removed offsets 1000 to 1999 of t-0"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.held() == {0: [*range(1000), *range(2000, 3000)]}
    filling.delete_topic(stream.store, TOPIC)
    filling.create_topic(stream.store, "t", LATER, 3)
    stream.fill(2, 0, 5, LATER)
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.held()[2] == list(range(5))


def test_option_that_only_a_batch_has_is_refused_for_a_stream() -> None:
    given = {"store": "file:///x", "topic": "t"}
    assert check_options(given | {"maxOffsetsPerTrigger": "5"}, STREAM_OPTIONS)
    with pytest.raises(Refused, match="unknown option 'endingoffsets'"):
        check_options(given | {"endingOffsets": "latest"}, STREAM_OPTIONS)
    with pytest.raises(Refused, match="unknown option 'failondataloss'"):
        check_options(given | {"failOnDataLoss": "false"})
    for name, value in (("maxOffsetsPerTrigger", "0"), ("maxBytesPerTrigger", "a"), ("failOnDataLoss", "no")):
        with pytest.raises(Refused, match=name):
            check_options(given | {name: value}, STREAM_OPTIONS)
