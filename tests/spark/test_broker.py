"""Tests of `spark.read.format("tiered").option("bootstrap", ...)`: cold and hot records of a running broker as one
frame."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_tiered import table
from pyspark_tiered.load.load import load
from pyspark_tiered.stream import append_once
from tests.e2e.serving import INTERNAL_CONFIGS, ServeProcess

pytestmark = pytest.mark.java
COUNT = 600
TOPIC = "live"


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A topic whose closed segments left the disk and whose newest records have nowhere gone."""
    directory = tmp_path_factory.mktemp("live") / "data"
    with ServeProcess(directory, *INTERNAL_CONFIGS, "-c", "log.retention.check.interval.ms=100") as broker:
        broker.create_topic(TOPIC, internal_segment_bytes="4096", local_retention_bytes="1")
        for first in range(0, COUNT, 50):
            broker.produce(TOPIC, *({"n": n} for n in range(first, first + 50)))
        broker.wait_for_offset(TOPIC, "local_start_offset", 1)
        yield broker


def read(spark: SparkSession, topic: ServeProcess, **options: str | int) -> DataFrame:
    return spark.read.format("tiered").options(bootstrap=topic.url, topic=TOPIC, **options).load()


def test_cold_and_hot_records_are_one_frame(spark: SparkSession, topic: ServeProcess) -> None:
    state = topic.ask("GET", f"/tiered/v1/topics/{TOPIC}/partitions/0")[1]
    assert 0 < state["local_start_offset"] < state["high_watermark"] == COUNT
    frame = read(spark, topic, splitBytes=2000)
    assert frame.rdd.getNumPartitions() > 1
    rows = frame.orderBy("offset").collect()
    assert [json.loads(row["value"])["n"] for row in rows] == list(range(COUNT))
    assert [row["offset"] for row in rows] == list(range(COUNT))
    assert {(row["topic"], row["partition"]) for row in rows} == {(TOPIC, 0)}


def test_reads_are_bounded_by_offset_and_by_time(spark: SparkSession, topic: ServeProcess) -> None:
    from_50 = read(spark, topic, startingOffsets=json.dumps({TOPIC: {"0": 50}}), endingOffsets="latest")
    assert from_50.selectExpr("min(offset)", "count(*)").collect() == [(50, COUNT - 50)]
    newest = read(spark, topic).selectExpr("max(unix_millis(timestamp))").collect()[0][0]
    late = {"startingTimestamp": newest + 1, "startingOffsetsByTimestampStrategy": "latest"}
    assert read(spark, topic, **late).count() == 0
    assert read(spark, topic, startingTimestamp=0).count() == COUNT


@pytest.mark.also(
    "tests/spark/test_micro_batches.py::test_each_record_reaches_the_sink_once_despite_failure_and_restart"
)
def test_stream_of_a_broker_has_cold_and_hot_records_once(
    spark: SparkSession, topic: ServeProcess, tmp_path: Path
) -> None:
    def run() -> list[int]:
        options: dict[str, str | int] = {
            "bootstrap": topic.url,
            "topic": TOPIC,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": 400,
        }
        rows = spark.readStream.format("tiered").options(**options).load()
        writer = rows.writeStream.foreachBatch(append_once(f"{tmp_path}/sink", "live"))
        writer = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True)
        writer.start().awaitTermination(120)
        held = spark.read.format("delta").load(f"{tmp_path}/sink").orderBy("offset").collect()
        return [row["offset"] for row in held]

    assert run() == list(range(COUNT))
    assert run() == list(range(COUNT)), "a second run has nothing to add"


def test_whole_topic_is_the_table_and_the_newer_records_of_a_broker(
    spark: SparkSession, topic: ServeProcess, tmp_path: Path
) -> None:
    loaded = load(f"file://{topic.log.with_suffix('')}/bucket", TOPIC, str(tmp_path), spark=spark)
    assert 0 < loaded.rows < COUNT
    rows = table(spark, TOPIC, warehouse=str(tmp_path), bootstrap=topic.url).orderBy("offset").collect()
    assert [json.loads(row["value"])["n"] for row in rows] == list(range(COUNT))
    assert [row["offset"] for row in rows] == list(range(COUNT))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"topic": "none"}, "none"),
        ({"startingOffsets": json.dumps({TOPIC: {"0": COUNT + 1}}), "endingOffsets": '{"live": {"0": 9999}}'}, "9999"),
        ({"store": "file:///somewhere"}, "only one"),
        ({"bootstrap": "ftp://127.0.0.1:1"}, "HOST:PORT"),
        ({"bootstrap": "127.0.0.1:1"}, "no broker replies at 127.0.0.1:1"),
    ],
)
def test_unreadable_topic_is_refused_with_a_reason(
    spark: SparkSession, topic: ServeProcess, options: dict[str, str], why: str
) -> None:
    with pytest.raises(PySparkException, match=why):
        spark.read.format("tiered").options(**{"bootstrap": topic.url, "topic": TOPIC, **options}).load().count()


def test_committed_records_of_a_broker_are_rows_unless_asked_otherwise(
    spark: SparkSession, topic: ServeProcess
) -> None:
    topic.create_topic("transactions")
    producer = confluent_kafka.Producer({"bootstrap.servers": topic.kafka, "transactional.id": "test"})
    producer.init_transactions(60)
    for value, commit in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        producer.produce("transactions", value)
        if commit:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)
    options = {"bootstrap": topic.url, "topic": "transactions"}
    topic.wait_for_offset("transactions", "last_stable_offset", 6)  # the last marker follows the commit
    committed = spark.read.format("tiered").options(**options).load().orderBy("offset").collect()
    assert [bytes(row["value"]) for row in committed] == [b"a", b"c"]
    every = spark.read.format("tiered").options(**options, **{"kafka.isolation.level": "read_uncommitted"}).load()
    assert [bytes(row["value"]) for row in every.orderBy("offset").collect()] == [b"a", b"b", b"c"]
