"""Tests of `load --repair`: the table equals the log afterwards, whatever was done to it, and after kills and races."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.load.load import load
from pyspark_tiered.proof.gaps import Gap
from pyspark_tiered.proof.repair import RepairProgress, repair
from pyspark_tiered.proof.verify import verify
from tests.spark import filling, loader
from tests.spark.driver import OtherDriver
from tests.spark.test_load import fill, more, rows
from tiered.errors import Refused
from tiered.ids import PartitionId

pytestmark = pytest.mark.java

TOPIC = filling.topic_id(1)
REST = "timestamp, timestamp_type, key, value, headers"
COLUMNS = f"partition, offset, {REST}"

LACKING, CHANGED, FOREIGN = (
    "DELETE FROM {t} WHERE partition = 0 AND offset BETWEEN 17 AND 1200",
    "UPDATE {t} SET value = key, key = value WHERE offset = 1301",
    f"INSERT INTO {{t}} ({COLUMNS}) "
    f"SELECT {COLUMNS} FROM {{t}} WHERE partition = 0 AND offset IN (5, 2999) UNION ALL "
    f"SELECT partition, 5000, {REST} FROM {{t}} WHERE partition = 0 AND offset = 5 UNION ALL "
    f"SELECT 4, offset, {REST} FROM {{t}} WHERE partition = 1 AND offset = 1 UNION ALL "
    f"SELECT NULL, offset, {REST} FROM {{t}} WHERE partition = 1 AND offset = 1",
)
"""Rows that are gone; changed; doubled, above the bound, of another partition and of none."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/store"
    fill(url)
    return url


def damaged_table(spark: SparkSession, store: str, warehouse: str) -> None:
    """Returns a loaded table that lacks rows of partition 0 and has changed ones in both."""
    load(store, "flights", warehouse, spark=spark, split_bytes=8000)
    for harm in (LACKING, CHANGED):
        spark.sql(harm.format(t=f"delta.`{warehouse}/flights`"))


def is_whole(spark: SparkSession, store: str, warehouse: str, count: int = 6000) -> bool:
    table = spark.read.format("delta").load(f"{warehouse}/flights")
    assert table.selectExpr("count(*)", "count(DISTINCT partition, offset)").collect() == [(count, count)]
    return verify(store, "flights", warehouse, spark=spark).ok


def test_repair_fixes_every_kind_of_damage_and_nothing_else(spark: SparkSession, store: str, tmp_path: Path) -> None:
    warehouse = str(tmp_path / "warehouse")
    name = f"delta.`{warehouse}/flights`"
    load(store, "flights", warehouse, spark=spark)
    spark.sql(f"ALTER TABLE {name} ADD COLUMN note string")
    spark.sql(f"UPDATE {name} SET note = 'mine' WHERE partition = 1")
    for harm in (LACKING, CHANGED, FOREIGN):
        spark.sql(harm.format(t=name))
    steps: list[RepairProgress] = []
    done = repair(store, "flights", warehouse, steps.append, spark=spark)
    assert [each.step for each in steps].count("compared") == 2, "once before four transactions, and once after"
    # 1184 deleted, one changed in each partition, two doubled, three foreign.
    assert (done.rows, done.taken_out) == (1184 + 2 + 2, 2 + 2 + 3)
    held = spark.read.format("delta").load(f"{warehouse}/flights").orderBy("partition", "offset").collect()
    written = [
        (partition, offset, key, value, [tuple(header) for header in headers] or None)
        for partition in range(2)
        for offset, (_, key, value, headers) in enumerate(rows(partition, 3000))
    ]
    assert written == [
        (row["partition"], row["offset"], row["key"], row["value"], row["headers"] and [*map(tuple, row["headers"])])
        for row in held
    ]
    assert sum(row["note"] == "mine" for row in held) == 2999, "rows that were right keep what a user wrote beside them"
    assert load(store, "flights", warehouse, spark=spark).rows == 0


@pytest.mark.also("tests/spark/test_repair.py::test_repair_fixes_every_kind_of_damage_and_nothing_else")
def test_second_repair_finds_nothing(spark: SparkSession, store: str, tmp_path: Path) -> None:
    warehouse = str(tmp_path / "warehouse")
    damaged_table(spark, store, warehouse)
    assert repair(store, "flights", warehouse, spark=spark).rows == 1184 + 2
    again = repair(store, "flights", warehouse, spark=spark)
    assert (again.rows, again.taken_out) == (0, 0)
    assert is_whole(spark, store, warehouse)


@pytest.mark.also("tests/spark/test_repair.py::test_repair_fixes_every_kind_of_damage_and_nothing_else")
def test_rows_that_the_log_no_longer_has_are_reported_and_kept(spark: SparkSession, store: str, tmp_path: Path) -> None:
    warehouse = str(tmp_path / "warehouse")
    name = f"delta.`{warehouse}/flights`"
    load(store, "flights", warehouse, spark=spark)
    spark.sql(f"DELETE FROM {name} WHERE partition = 0 AND offset IN (50, 51, 1500)")
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE partition = 0 AND offset = 60")
    filling.expire(store, "flights", PartitionId(TOPIC, 0), 1000)
    done = repair(store, "flights", warehouse, spark=spark)
    assert done.rows == 1
    assert done.gaps == (Gap(0, 50, 52, "expired before it was loaded"),)
    assert is_whole(spark, store, warehouse, 5998)


@pytest.mark.also("tests/spark/test_load.py::test_table_ahead_of_the_bucket_is_refused")
def test_repair_refuses_a_table_ahead_of_the_bucket(spark: SparkSession, store: str, tmp_path: Path) -> None:
    warehouse = str(tmp_path / "warehouse")
    load(store, "flights", warehouse, spark=spark)
    older = f"file://{tmp_path}/older"
    filling.create_topic(older, "flights", TOPIC, 2)
    with pytest.raises(Refused, match="only up to 0"):
        repair(older, "flights", warehouse, spark=spark)


@pytest.mark.also("tests/spark/test_replay.py::test_replays_at_once_and_a_load_have_each_record_once")
def test_repair_and_load_in_between_duplicate_nothing(spark: SparkSession, store: str, tmp_path: Path) -> None:
    warehouse = str(tmp_path / "warehouse")
    damaged_table(spark, store, warehouse)
    between: list[RepairProgress] = []

    def report(progress: RepairProgress) -> None:
        if progress.step == "compared" and not between:
            between.append(repair(store, "flights", warehouse, spark=spark))
            more(store, 1, 3000, 500)
            assert load(store, "flights", warehouse, spark=spark).rows == 500

    mine = repair(store, "flights", warehouse, report, spark=spark)
    assert between[0].rows > 1000
    assert mine.rows == 0, "what it had compared was out of date: none of its transactions may hold"
    assert is_whole(spark, store, warehouse, 6500)


@pytest.mark.also("tests/spark/test_replay.py::test_replays_at_once_and_a_load_have_each_record_once")
def test_concurrent_repairs_duplicate_nothing(
    spark: SparkSession, other: OtherDriver, store: str, tmp_path: Path
) -> None:
    warehouse = str(tmp_path / "warehouse")
    damaged_table(spark, store, warehouse)
    other.start("repair", store, warehouse)
    mine = repair(store, "flights", warehouse, spark=spark)
    assert mine.rows + other.result() >= 1184 + 2
    assert is_whole(spark, store, warehouse)


@pytest.mark.also("tests/spark/test_replay.py::test_replay_that_ends_between_its_commits_is_completed_by_the_next")
def test_table_is_whole_after_a_killed_repair_and_another_one(spark: SparkSession, store: str, tmp_path: Path) -> None:
    steps = ("compared", "mended")
    for step in steps:
        damaged_table(spark, store, str(tmp_path / step))
    killed = [
        subprocess.Popen(
            [sys.executable, loader.__file__, store, str(tmp_path / step), step, "repair"], stdin=subprocess.DEVNULL
        )
        for step in steps
    ]
    assert [process.wait(280) for process in killed] == [-signal.SIGKILL] * len(steps)
    for step in steps:
        warehouse = str(tmp_path / step)
        assert not verify(store, "flights", warehouse, spark=spark).ok, "the kill came before the end"
        assert repair(store, "flights", warehouse, spark=spark).rows > 0
        assert is_whole(spark, store, warehouse)
