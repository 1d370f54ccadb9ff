"""Tests of two drivers on one Delta table: with Delta's own log stores acknowledged commits vanish, with ours none
does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta_commit import DeltaTable
from tests.spark import racing
from tests.spark.driver import OtherDriver

pytestmark = pytest.mark.java


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, bucket: str) -> Callable[[str], str]:
    """Returns a new folder where the named log store works."""
    return lambda place: f"s3a://{bucket}/{tmp_path.name}" if "s3" in place else f"file:{tmp_path}/t"


def race_for_commits(spark: SparkSession, other: OtherDriver, log_store: str, folder: str, count: int) -> list[str]:
    """Returns the faults: commits that both drivers, none, or not the owner was told to have made."""
    racing.make_folder(spark, folder)
    wins, wrong = Counter[str](), []
    for slot in range(count):
        path = f"{folder}/{slot:020d}.json"
        other.start("create", log_store, path)
        told = {"self": racing.create(spark, "self", log_store, path), "other": other.result()}
        owner = racing.owner(spark, log_store, path)
        wins[owner] += 1
        if told != {"self": owner == "self", "other": owner == "other"}:
            wrong.append(f"{slot} told={told} owner={owner}")
    assert min(wins["self"], wins["other"]) > 0, f"there was no race: {wins}"
    return wrong


@pytest.mark.also
@pytest.mark.parametrize(("log_store", "count"), [("delta's own on s3", 40), ("delta's own in a directory", 150)])
def test_deltas_own_log_stores_lose_acknowledged_commits(
    spark: SparkSession, other: OtherDriver, folder: Callable[[str], str], log_store: str, count: int
) -> None:
    assert race_for_commits(spark, other, log_store, folder(log_store), count)


@pytest.mark.parametrize(
    ("log_store", "count"),
    [("ours on s3", 40), pytest.param("ours in a directory", 150, marks=pytest.mark.also)],
)
def test_our_log_stores_assign_each_commit_to_one_driver(
    spark: SparkSession, other: OtherDriver, folder: Callable[[str], str], log_store: str, count: int
) -> None:
    assert race_for_commits(spark, other, log_store, folder(log_store), count) == []


@pytest.mark.parametrize("place", ["s3", pytest.param("directory", marks=pytest.mark.also)])
def test_two_loaders_move_a_partition_once_per_acknowledged_commit(
    spark: SparkSession, other: OtherDriver, folder: Callable[[str], str], place: str
) -> None:
    url = folder(place)
    table = DeltaTable(spark, url, "race", "race")
    other.start("commits", url, 0, 4)
    told = racing.commits(spark, "self", url, 0, 4) + other.result()
    assert told == 8
    assert table.loaded_offsets() == {0: 80}


@pytest.mark.also
@pytest.mark.parametrize("place", ["s3", "directory"])
def test_loaders_of_different_partitions_both_commit_everything(
    spark: SparkSession, other: OtherDriver, folder: Callable[[str], str], place: str
) -> None:
    url = folder(place)
    table = DeltaTable(spark, url, "race", "race")
    other.start("commits", url, 1, 4)
    racing.commits(spark, "self", url, 0, 4)
    other.result()
    assert table.loaded_offsets() == {0: 40, 1: 40}
    log = spark.read.json(f"{url}/_delta_log/*.json")
    assert log.where("add is not null").count() == 8
