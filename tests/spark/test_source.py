"""Tests of `spark.read.format("tiered")`: rows and types of Spark's Kafka source, bounds, user schemas."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.spark import filling
from tiered.ids import PartitionId

pytestmark = pytest.mark.java
TOPIC = filling.topic_id(3)
NEVER_MS = filling.BASE_MS + 1_000_000
KAFKA_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns two partitions of 2000 records in segments of 1000, one millisecond apart."""
    url = f"file://{tmp_path_factory.mktemp('source')}"
    filling.create_topic(url, "t", TOPIC, 2)
    for partition in range(2):
        rows = [
            (filling.BASE_MS + i, f"k{i}".encode(), None if i == 7 else f"{partition}:{i}".encode(), (("h", b"1"),))
            for i in range(2000)
        ]
        filling.upload(url, "t", PartitionId(TOPIC, partition), list(filling.segments(rows)))
    return url


def read(spark: SparkSession, store: str, schema: str | int = "", **options: str | int) -> DataFrame:
    reader = spark.read.format("tiered").options(**{"store": store, "topic": "t", **options})
    return (reader.schema(str(schema)) if schema else reader).load()


def test_columns_are_those_of_sparks_kafka_source(spark: SparkSession, store: str) -> None:
    frame = read(spark, store)
    assert dict(frame.dtypes) == KAFKA_TYPES
    row = frame.where("partition = 1 AND offset = 1234").collect()[0]
    assert row.asDict(recursive=True) == {
        "key": b"k1234",
        "value": b"1:1234",
        "topic": "t",
        "partition": 1,
        "offset": 1234,
        "timestamp": datetime.fromtimestamp((filling.BASE_MS + 1234) / 1000, UTC).astimezone().replace(tzinfo=None),
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}],
    }


def test_every_record_is_read_once_for_any_splits(spark: SparkSession, store: str) -> None:
    frame = read(spark, store, splitBytes=3000)
    assert frame.rdd.getNumPartitions() > 4
    assert frame.selectExpr("count(*)", "count(DISTINCT partition, offset)").collect() == [(4000, 4000)]


def test_a_users_schema_picks_columns_in_its_order(spark: SparkSession, store: str) -> None:
    frame = read(spark, store, "topic string, offset long")
    assert frame.selectExpr("max(topic)", "max(offset)", "count(*)").collect() == [("t", 1999, 4000)]
    assert read(spark, store, "partition int").distinct().count() == 2
    with pytest.raises(PySparkException, match="no column offset string"):
        read(spark, store, "offset string").collect()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"startingOffsets": '{"t": {"0": 1500, "1": -2}}', "endingOffsets": '{"t": {"0": -1, "1": 10}}'},
            [(0, 1500, 1999), (1, 0, 9)],
        ),
        (
            {"startingTimestamp": filling.BASE_MS + 1990, "endingTimestamp": filling.BASE_MS + 1995},
            [(0, 1990, 1994), (1, 1990, 1994)],
        ),
        (
            {
                "startingOffsetsByTimestamp": json.dumps({"t": {"0": NEVER_MS, "1": filling.BASE_MS + 1999}}),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [(1, 1999, 1999)],
        ),
        ({"startingTimestamp": NEVER_MS, "startingOffsetsByTimestampStrategy": "latest"}, []),
        ({"startingTimestamp": filling.BASE_MS, "endingTimestamp": NEVER_MS}, [(0, 0, 1999), (1, 0, 1999)]),
    ],
    ids=["offsets", "timestamps", "timestamps by partition", "nothing", "end after all"],
)
def test_reads_stay_within_their_bounds(
    spark: SparkSession, store: str, options: dict[str, str | int], expected: list[tuple[int, int, int]]
) -> None:
    found = read(spark, store, **options).groupBy("partition").agg({"offset": "min", "*": "count"})
    rows = {row["partition"]: (row["min(offset)"], row["count(1)"]) for row in found.collect()}
    assert rows == {partition: (first, last - first + 1) for partition, first, last in expected}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "none"}, "there is no topic none"),
        ({"startingOffset": "earliest"}, "unknown option"),
        ({"endingOffsets": '{"t": {"0": 5000, "1": -1}}'}, "not all in the bucket"),
        ({"store": "file:///nowhere/at/all"}, "no cluster|nowhere"),
        ({"startingTimestamp": NEVER_MS}, "no record of t-0 has timestamp"),
        ({"startingTimestamp": 7, "endingTimestamp": 6}, "starts at timestamp 7, after its end at 6"),
    ],
    ids=["topic", "option", "offset", "store", "start without a match", "start after the end"],
)
def test_unreadable_source_is_refused_with_a_reason(
    spark: SparkSession, store: str, options: dict[str, str | int], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        read(spark, str(options.pop("store", store)), **options).collect()


def test_committed_records_are_rows_unless_asked_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    filling.create_topic(url, "t", TOPIC, 1)
    log = filling.TransactionalLog()
    aborted = log.write(1, 2)
    committed = log.write(2, 2)
    log.end(1, commit=False)
    log.end(2, commit=True)
    undecided = log.write(1, 1)
    filling.upload(url, "t", PartitionId(TOPIC, 0), [log.roll()])
    assert [row["offset"] for row in read(spark, url, "offset long").collect()] == committed
    every = read(spark, url, "offset long", **{"kafka.isolation.level": "read_uncommitted"}).collect()
    assert [row["offset"] for row in every] == [*aborted, *committed, *undecided]
    with pytest.raises(PySparkException, match="a transaction is open from offset 6 on"):
        read(spark, url, "offset long", endingOffsets='{"t": {"0": 7}}').collect()
    with pytest.raises(PySparkException, match=r"isolation\.level must be read_committed or"):
        read(spark, url, "offset long", **{"kafka.isolation.level": "committed"}).collect()


def test_users_own_session_finds_the_format() -> None:
    """PySpark looks for `pyspark_*` packages in the folders of the path, and `make` puts ours there."""
    code = "import pkgutil; print('pyspark_tiered' in {found.name for found in pkgutil.iter_modules()})"
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd="/", timeout=240)
    assert done.stdout == "True\n", done.stderr
