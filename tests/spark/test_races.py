"""Tests of two drivers on one Delta table: with Delta's own log stores acknowledged commits vanish, with ours none
does."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta.log_folder import open_folder
from pyspark_tiered.load.native_table import NativeTable
from tests.spark import racing
from tests.spark.driver import OtherDriver

pytestmark = pytest.mark.java


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, bucket: str) -> Callable[[str], str]:
    """Returns a new folder where the named log store works."""
    return lambda place: f"s3a://{bucket}/{tmp_path.name}" if "s3" in place else f"file:{tmp_path}/t"


class WriterInPython:
    """Creates commits beside the session without a JVM. It begins later after each commit that it won, and sooner after
    each that it lost, so that both win."""

    def __init__(self, folder: str) -> None:
        self._table = open_folder(folder)
        self._pool = ThreadPoolExecutor(1)
        self._running: Future[bool] | None = None
        self._delay = 0.001

    def start(self, race: str, log_store: str, path: str) -> None:
        self._running = self._pool.submit(self._create, path.removeprefix(f"{self._table.url}/"))

    def result(self) -> bool:
        assert self._running is not None
        won = self._running.result(60)
        self._delay *= 2 if won else 0.5
        return won

    def _create(self, name: str) -> bool:
        time.sleep(self._delay)
        return self._table.create(name, b'{"commitInfo":{"txnId":"other"}}\n') is not None

    def close(self) -> None:
        self._pool.shutdown()
        self._table.close()


def race_for_commits(
    spark: SparkSession, other: OtherDriver | WriterInPython, log_store: str, folder: str, count: int
) -> list[str]:
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


@pytest.mark.also("tests/spark/test_races.py::test_our_log_store_and_a_writer_in_python_own_each_commit_once")
@pytest.mark.parametrize(("log_store", "count"), [("delta's own on s3", 40), ("delta's own in a directory", 150)])
def test_deltas_own_log_stores_lose_acknowledged_commits(
    spark: SparkSession, other: OtherDriver, folder: Callable[[str], str], log_store: str, count: int
) -> None:
    assert race_for_commits(spark, other, log_store, folder(log_store), count)


@pytest.mark.also("tests/spark/test_races.py::test_our_log_store_and_a_writer_in_python_own_each_commit_once")
@pytest.mark.parametrize(("log_store", "count"), [("ours on s3", 40), ("ours in a directory", 150)])
def test_our_log_stores_assign_each_commit_to_one_driver(
    spark: SparkSession, other: OtherDriver, folder: Callable[[str], str], log_store: str, count: int
) -> None:
    assert race_for_commits(spark, other, log_store, folder(log_store), count) == []


@pytest.mark.parametrize(("log_store", "count"), [("ours on s3", 20), ("ours in a directory", 40)])
def test_our_log_store_and_a_writer_in_python_own_each_commit_once(
    spark: SparkSession, folder: Callable[[str], str], log_store: str, count: int
) -> None:
    url = folder(log_store)
    with closing(WriterInPython(url)) as other:
        assert race_for_commits(spark, other, log_store, url, count) == []


@pytest.mark.also(
    "tests/spark/test_native_engine.py::test_concurrent_writers_move_a_partition_once_per_acknowledged_commit"
)
@pytest.mark.parametrize("place", ["s3", "directory"])
def test_two_loaders_move_a_partition_once_per_acknowledged_commit(
    spark: SparkSession, other: OtherDriver, folder: Callable[[str], str], place: str
) -> None:
    url = folder(place)
    other.start("commits", url, 0, 4)
    told = racing.commits(spark, "self", url, 0, 4) + other.result()
    assert told == 8
    with closing(NativeTable(url, "race", "race")) as table:
        assert table.loaded_offsets() == {0: 80}


@pytest.mark.also(
    "tests/spark/test_native_engine.py::test_concurrent_writers_move_a_partition_once_per_acknowledged_commit"
)
@pytest.mark.parametrize("place", ["s3", "directory"])
def test_loaders_of_different_partitions_both_commit_everything(
    spark: SparkSession, other: OtherDriver, folder: Callable[[str], str], place: str
) -> None:
    url = folder(place)
    other.start("commits", url, 1, 4)
    racing.commits(spark, "self", url, 0, 4)
    other.result()
    with closing(NativeTable(url, "race", "race")) as table:
        assert table.loaded_offsets() == {0: 40, 1: 40}
    log = spark.read.json(f"{url}/_delta_log/*.json")
    assert log.where("add is not null").count() == 8
