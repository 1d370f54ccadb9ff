"""Tests of loads: every record is in the table once, after kills, beside other loaders, on a directory and on S3."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.load.load import LoadOptions, LoadProgress, load
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.gaps import Gap
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.sql import sql
from tests.spark import filling, loader
from tests.spark.driver import OtherDriver
from tiered.errors import Corrupt, Refused
from tiered.ids import PartitionId, TopicId
from tiered.records.model import Codec, ProducerRecord

pytestmark = pytest.mark.java

TOPIC = filling.topic_id(1)
SMALL = 16_000
"""Bytes of a split in these tests, so that there are many small ones."""


def rows(partition: int, count: int, first: int = 0) -> list[ProducerRecord]:
    """Returns records with and without key, value and headers."""
    return [
        (
            filling.BASE_MS + i,
            None if i % 3 == 0 else f"k{i % 7}".encode(),
            None if i % 11 == 0 else f"{partition}:{i}".encode() * 3,
            (("h", b"x"), ("n", None)) if i % 5 == 0 else (),
        )
        for i in range(first, first + count)
    ]


def fill(store: str, name: str = "flights", topic_id: TopicId = TOPIC, partitions: int = 2) -> None:
    filling.create_topic(store, name, topic_id, partitions)
    for partition in range(partitions):
        more(store, partition, 0, 3000, name, topic_id)


def more(store: str, partition: int, first: int, count: int, name: str = "flights", topic_id: TopicId = TOPIC) -> None:
    segments = filling.segments(rows(partition, count, first), base_offset=first)
    filling.upload(store, name, PartitionId(topic_id, partition), list(segments))


def held_up_to_the_bounds(spark: SparkSession, warehouse: str) -> dict[int, int]:
    """Returns the bounds, after a check that the table has the offsets below them once each, and no others."""
    url = f"file:{warehouse}/flights"
    bounds = NativeTable(url, "flights", TOPIC).loaded_offsets()
    if bounds:
        found = spark.read.format("delta").load(url).groupBy("partition")
        counted = found.agg(f.count("offset"), f.count_distinct("offset"), f.min("offset"), f.max("offset"))
        assert {row[0]: row[1:] for row in counted.collect()} == {
            number: (end, end, 0, end - 1) for number, end in bounds.items()
        }
    return bounds


@pytest.fixture(params=[pytest.param("directory", marks=pytest.mark.also("stores")), "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, bucket: str) -> Callable[[str], str]:
    """Returns URLs of a new place for store and warehouse."""
    root = f"file://{tmp_path}" if request.param == "directory" else f"s3://{bucket}/{tmp_path.name}"
    return lambda name: f"{root}/{name}"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    return str(tmp_path / "warehouse")


def test_load_has_every_record_once_and_a_second_one_adds_new_ones(
    spark: SparkSession, place: Callable[[str], str]
) -> None:
    fill(place("store"))
    steps: list[str] = []

    def report(progress: LoadProgress) -> None:
        steps.append(progress.step)

    def table_id() -> Any:
        return spark.sql(f"DESCRIBE DETAIL delta.`{spark_url(place('warehouse'))}/flights`").collect()[0]["id"]

    first = load(place("store"), "flights", place("warehouse"), progress=report, spark=spark, split_bytes=SMALL)
    assert (first.rows, first.log_bytes_left) == (6000, 0)
    assert steps[:3] == ["planned", "converted", "committed"]
    assert steps[-1] == "done"
    made = table_id()
    more(place("store"), 1, 3000, 500)
    assert load(place("store"), "flights", place("warehouse"), spark=spark).rows == 500
    assert load(place("store"), "flights", place("warehouse"), spark=spark).rows == 0
    assert table_id() == made
    found = verify(place("store"), "flights", place("warehouse"), spark=spark)
    assert (found.ok, found.rows, found.loaded, found.gaps) == (True, 6500, {0: 3000, 1: 3500}, ())
    asked = sql(place("warehouse"), "SELECT count(*), count(DISTINCT partition, offset) FROM flights", spark=spark)
    assert asked.rows == ((6500, 6500),)
    frame = spark.read.format("tiered").options(store=place("store"), topic="flights").load()
    assert frame.selectExpr("count(*)", "count(DISTINCT partition, offset)").collect() == [(6500, 6500)]


def test_following_load_adds_records_that_become_cold(
    spark: SparkSession, store: str, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        """Raised to end a load that follows; nothing else ends it."""

    monkeypatch.setattr("pyspark_tiered.load.load.FOLLOW_SECONDS", 0.05)
    fill(store, partitions=1)
    done: list[int] = []

    def report(progress: LoadProgress) -> None:
        if progress.step == "done":
            done.append(progress.rows)
            if len(done) == 2:
                raise Enough
            more(store, 0, 3000, 500)

    with pytest.raises(Enough):
        load(store, "flights", warehouse, follow=True, progress=report, spark=spark)
    assert done == [3000, 3500]
    assert spark.read.format("delta").load(f"{warehouse}/flights").count() == 3500


def test_files_have_bounds_that_let_queries_skip_them(spark: SparkSession, store: str, warehouse: str) -> None:
    fill(store)
    load(store, "flights", warehouse, spark=spark, split_bytes=SMALL)
    log = Path(warehouse, "flights", "_delta_log", f"{0:020d}.json").read_text().splitlines()
    stats = [json.loads(line["add"]["stats"]) for line in map(json.loads, log) if "add" in line]
    assert sorted((s["minValues"]["partition"], s["minValues"]["offset"]) for s in stats)[0] == (0, 0)
    assert all(s["maxValues"]["offset"] - s["minValues"]["offset"] + 1 == s["numRecords"] for s in stats)


@pytest.mark.parametrize(
    "codec", [each if each is Codec.ZSTD else pytest.param(each, marks=pytest.mark.also("values")) for each in Codec]
)
def test_all_codecs_load(spark: SparkSession, store: str, warehouse: str, codec: Codec) -> None:
    filling.create_topic(store, "codec", TOPIC, 1)
    segments = list(filling.segments(rows(0, 200), codec=codec))
    filling.upload(store, "codec", PartitionId(TOPIC, 0), segments)
    assert load(store, "codec", warehouse, spark=spark).rows == 200
    first = spark.read.format("delta").load(f"{warehouse}/codec").orderBy("offset").take(2)[1]
    assert (first["key"], first["value"], first["headers"]) == (b"k1", b"0:1" * 3, None)


@pytest.mark.also("tests/spark/test_load.py::test_plan_whose_start_has_moved_commits_nothing")
@pytest.mark.parametrize("steps", [("converted", "committed"), ("planned",)], ids="-".join)
def test_table_is_whole_after_a_kill_at_any_step_and_another_load(
    spark: SparkSession, tmp_path: Path, steps: tuple[str, ...]
) -> None:
    store = f"file://{tmp_path}/store"
    fill(store)
    killed = [
        subprocess.Popen([sys.executable, loader.__file__, store, f"{tmp_path}/{step}", step], stdin=subprocess.DEVNULL)
        for step in steps
    ]
    assert [process.wait(280) for process in killed] == [-signal.SIGKILL] * len(steps)
    for step in steps:
        held_up_to_the_bounds(spark, f"{tmp_path}/{step}")
        rest = load(store, "flights", f"{tmp_path}/{step}", spark=spark).rows
        assert rest < 6000 if step == "committed" else rest == 6000
        found = verify(store, "flights", f"{tmp_path}/{step}", spark=spark)
        assert (found.ok, found.rows) == (True, 6000)


def test_damaged_segment_stops_its_partition_only(spark: SparkSession, store: str, warehouse: str) -> None:
    fill(store, partitions=3)
    damaged = sorted(Path(store.removeprefix("file://")).rglob("*/1/*.seg"))[1]
    held = damaged.read_bytes()
    damaged.write_bytes(held[:4000] + bytes([held[4000] ^ 1]) + held[4001:])
    steps: list[LoadProgress] = []
    with pytest.raises(Corrupt, match=rf"flights-1 is loaded up to offset (\d+): .*{damaged.name} position=\d+"):
        load(store, "flights", warehouse, progress=steps.append, spark=spark, split_bytes=SMALL)
    bounds = held_up_to_the_bounds(spark, warehouse)
    assert (bounds[0], bounds[2], steps[-1].step) == (3000, 3000, "stopped")
    assert 1000 <= bounds[1] < 2000
    damaged.write_bytes(held)
    assert load(store, "flights", warehouse, spark=spark).rows == 3000 - bounds[1]
    assert held_up_to_the_bounds(spark, warehouse) == {0: 3000, 1: 3000, 2: 3000}


def test_timestamp_beyond_sparks_range_is_refused_or_null(spark: SparkSession, store: str, warehouse: str) -> None:
    filling.create_topic(store, "flights", TOPIC, 2)
    late_ms = 300_000_000_000_000  # the year 11476
    times = [0, late_ms, 1 << 62, -(1 << 62), 1]
    filling.upload(
        store, "flights", PartitionId(TOPIC, 0), list(filling.segments([(at, None, b"v", ()) for at in times]))
    )
    more(store, 1, 0, 100)
    with pytest.raises(
        Refused, match=rf"flights-0 is loaded up to offset 2: .*offset 2 is {1 << 62} ms.*timestamps null"
    ):
        load(store, "flights", warehouse, spark=spark)
    assert held_up_to_the_bounds(spark, warehouse) == {0: 2, 1: 100}
    assert load(store, "flights", warehouse, spark=spark, options=LoadOptions(null_timestamps=True)).rows == 3
    found = sql(warehouse, "SELECT offset, timestamp FROM flights WHERE partition = 0 ORDER BY offset", spark=spark)
    assert found.rows == (
        (0, "1970-01-01 00:00:00"),
        (1, "+11476-08-15 05:20:00"),
        (2, None),
        (3, None),
        (4, "1970-01-01 00:00:00.001"),
    )
    assert verify(store, "flights", warehouse, spark=spark).ok
    spark.sql(
        f"UPDATE delta.`{warehouse}/flights` SET timestamp = timestamp_micros(9223372036854775807) WHERE offset = 2"
    )
    clamped = verify(store, "flights", warehouse, spark=spark).faults
    assert [fault[:3] for fault in clamped] == [("changed", 0, 2), ("changed", 1, 2)]


@pytest.mark.also("tests/spark/test_load.py::test_plan_whose_start_has_moved_commits_nothing")
def test_two_concurrent_loaders_duplicate_nothing(
    spark: SparkSession, other: OtherDriver, place: Callable[[str], str]
) -> None:
    fill(place("store"))
    other.start("load", place("store"), place("warehouse"), SMALL)
    mine = load(place("store"), "flights", place("warehouse"), spark=spark, split_bytes=SMALL).rows
    assert mine + other.result() == 6000
    found = verify(place("store"), "flights", place("warehouse"), spark=spark)
    assert (found.ok, found.rows) == (True, 6000)


def test_plan_whose_start_has_moved_commits_nothing(spark: SparkSession, store: str, warehouse: str) -> None:
    fill(store)
    load(store, "flights", warehouse, spark=spark)
    table = NativeTable(f"file:{warehouse}/flights", "flights", TOPIC)
    assert not table.commit([], [Advance(0, -1, 3000)])
    assert not table.commit([], [Advance(0, 3000, 4000), Advance(1, 2999, 4000)])
    assert table.loaded_offsets() == {0: 3000, 1: 3000}


def test_segment_that_vanishes_during_a_round_causes_a_new_plan(
    spark: SparkSession, store: str, warehouse: str
) -> None:
    fill(store)
    vanish = threading.Event()

    def report(progress: LoadProgress) -> None:
        if progress.step == "planned" and not vanish.is_set():
            vanish.set()
            filling.expire(store, "flights", PartitionId(TOPIC, 0), 1000)

    assert load(store, "flights", warehouse, progress=report, spark=spark).rows == 5000
    found = verify(store, "flights", warehouse, spark=spark)
    assert (found.ok, found.gaps) == (True, (Gap(0, 0, 1000, "expired before it was loaded"),))


def test_rows_of_a_recreated_topic_do_not_enter_the_old_table(spark: SparkSession, store: str, warehouse: str) -> None:
    fill(store)
    load(store, "flights", warehouse, spark=spark)
    filling.delete_topic(store, TOPIC)
    fill(store, topic_id=filling.topic_id(2))
    with pytest.raises(Refused, match="load into another warehouse"):
        load(store, "flights", warehouse, spark=spark)


def test_table_ahead_of_the_bucket_is_refused(spark: SparkSession, store: str, warehouse: str, tmp_path: Path) -> None:
    fill(store)
    load(store, "flights", warehouse, spark=spark)
    older = f"file://{tmp_path}/older"
    filling.create_topic(older, "flights", TOPIC, 2)
    with pytest.raises(Refused, match="only up to 0"):
        load(older, "flights", warehouse, spark=spark)


def test_empty_topic_becomes_an_empty_table(spark: SparkSession, store: str, warehouse: str) -> None:
    filling.create_topic(store, "quiet", TOPIC, 3)
    assert load(store, "quiet", warehouse, spark=spark).rows == 0
    assert spark.read.format("delta").load(f"{warehouse}/quiet").count() == 0
