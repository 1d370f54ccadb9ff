"""Tests of `verify`, which finds faults of a table, and of `sql`, which queries loaded topics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta.log_folder import open_folder
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import check_table
from pyspark_tiered.log.plan import ColdTopic
from pyspark_tiered.proof.comparison import read_cold_topic
from pyspark_tiered.proof.gaps import (
    ABORTED,
    CONTROL_RECORD,
    EMPTY,
    PRESENT,
    UNDECIDED,
    Gap,
    explain_from_log,
    explain_gap,
)
from pyspark_tiered.proof.last_verify import read_last_verify
from pyspark_tiered.proof.verify import RowFault, verify
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.query.output import QueryResult, render
from pyspark_tiered.sql import sql
from tests.fakes3 import BUCKET, s3_fake
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered.object_store.url import open_store
from tiered.system.clock import SystemClock, SystemRng

java = pytest.mark.java
TOPIC = filling.topic_id(7)
REST = "timestamp, timestamp_type, key, value, headers"


HARM = {
    "DELETE FROM {t} WHERE offset = 17": [RowFault("missing", 0, 17)],
    "INSERT INTO {t} SELECT * FROM {t} WHERE (offset = 5 OR offset = 299)": [
        RowFault("duplicate", 0, 5),
        RowFault("duplicate", 0, 299),
    ],
    "UPDATE {t} SET value = CAST('value 8!' AS binary) WHERE offset = 8": [RowFault("changed", 0, 8)],
    "UPDATE {t} SET key = NULL WHERE offset = 9": [RowFault("changed", 0, 9)],
    f"INSERT INTO {{t}} SELECT partition, 300, {REST} FROM {{t}} WHERE offset = 1": [RowFault("extra", 0, 300)],
    f"INSERT INTO {{t}} SELECT 4, offset, {REST} FROM {{t}} WHERE offset = 1": [RowFault("extra", 4, 1)],
}
"""Statements on a table of the offsets 0 to 299, each with the fault that follows."""


@java
def test_injected_faults_are_found_and_named(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "warehouse")
    filling.create_topic(store, "t", TOPIC, 1)
    rows = [(filling.BASE_MS + i, b"k", f"value {i}".encode(), ()) for i in range(300)]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    load(store, "t", warehouse, spark=spark)
    assert verify(store, "t", warehouse, spark=spark).ok
    for harm in HARM:
        spark.sql(harm.format(t=f"delta.`{warehouse}/t`"))
    found = verify(store, "t", warehouse, spark=spark)
    assert not found.ok
    at = NativeTable(f"file:{warehouse}/t", "t", TOPIC).snapshot()
    planted = [fault for faults in HARM.values() for fault in faults]
    assert sorted((fault._replace(why="") for fault in found.faults), key=repr) == sorted(planted, key=repr)
    why = {fault.offset: fault.why.split(" [")[0] for fault in found.faults if fault.kind in ("missing", "changed")}
    assert set(why.values()) <= {"DELETE", "UPDATE"} and why[17]
    kept = read_last_verify(open_folder(at.url))
    assert kept is not None and (kept.table_version, kept.faults) == (at.version, len(found.faults))
    query = "SELECT partition, offset, CAST(timestamp AS STRING) AS at, key, value, headers FROM t ORDER BY 1, 2"
    with SqlSession(warehouse) as session:
        native = [
            (*row[:2], row[2].removesuffix("+00"), *row[3:])
            for row in session.run(query.replace("FROM ", "FROM raw.")).rows
        ]
    assert native == [tuple(row) for row in sql(warehouse, query, spark=spark).rows], "files of loads and of Spark"


@java
def test_offsets_that_the_log_never_had_are_no_faults(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "warehouse")
    filling.create_topic(store, "t", TOPIC, 1)
    rows = [(filling.BASE_MS + i, None, b"v", ()) for i in range(100)]
    first, *_ = filling.segments(rows)
    (later,) = filling.segments(rows, base_offset=150)
    filling.upload(store, "t", PartitionId(TOPIC, 0), [first._replace(next_offset=150), later])
    load(store, "t", warehouse, spark=spark)
    found = verify(store, "t", warehouse, spark=spark)
    assert (found.ok, found.rows) == (True, 200)
    assert found.gaps == (Gap(0, 100, 150, "no record in the log has this offset"),)


def transactional_log(store: str) -> tuple[ColdTopic, list[int]]:
    """Fills a topic whose offsets 0 to 8 lack no batch. Returns it, and the offsets of committed records.

    0, 1: aborted; 2: committed; 3: the abort; 4: aborted; 5: the commit; 6: the abort; 7: plain; 8: undecided.
    """
    filling.create_topic(store, "t", TOPIC, 1)
    log = filling.TransactionalLog()
    log.write(1, 2)
    committed = log.write(2, 1)
    log.end(1, commit=False)
    log.write(1, 1)
    log.end(2, commit=True)
    log.end(1, commit=False)
    committed += log.write(-1, 1, transactional=False)
    log.write(1, 1)
    filling.upload(store, "t", PartitionId(TOPIC, 0), [log.roll()])
    return read_cold_topic(store, "t"), committed


def test_each_gap_has_the_reason_that_the_log_gives(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    cold, _ = transactional_log(store)
    gaps = [Gap(0, 0, 2, EMPTY), Gap(0, 3, 7, EMPTY)]
    assert explain_from_log(store, cold, gaps, 100) == [
        Gap(0, 0, 2, ABORTED),
        Gap(0, 3, 4, CONTROL_RECORD),
        Gap(0, 4, 5, ABORTED),
        Gap(0, 5, 7, CONTROL_RECORD),
    ]
    foreign = [Gap(0, 6, 20, EMPTY), Gap(0, 30, 40, EMPTY), Gap(4, 0, 3, EMPTY)]
    assert explain_from_log(store, cold, foreign, 100) == [
        Gap(0, 6, 7, CONTROL_RECORD),
        Gap(0, 7, 8, PRESENT),
        Gap(0, 8, 20, EMPTY),
        *foreign[1:],
    ]
    assert explain_from_log(store, cold, gaps, 2) == [Gap(0, 0, 2, ABORTED), Gap(0, 3, 4, CONTROL_RECORD)]


def test_committed_record_in_a_gap_is_not_explained_away(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    cold, _ = transactional_log(store)
    assert explain_from_log(store, cold, [Gap(0, 1, 4, EMPTY), Gap(0, 7, 8, EMPTY)], 100) == [
        Gap(0, 1, 2, ABORTED),
        Gap(0, 2, 3, PRESENT),
        Gap(0, 3, 4, CONTROL_RECORD),
        Gap(0, 7, 8, PRESENT),
    ]


@java
def test_transactions_are_loaded_and_verified_with_the_reason_for_each_gap(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "warehouse")
    _, committed = transactional_log(store)
    load(store, "t", warehouse, spark=spark)
    found = verify(store, "t", warehouse, spark=spark)
    assert (found.ok, found.rows, found.loaded) == (True, len(committed), {0: 8})
    assert [(gap.start, gap.end, gap.why) for gap in found.gaps] == [
        (0, 2, ABORTED),
        (3, 4, CONTROL_RECORD),
        (4, 5, ABORTED),
        (5, 7, CONTROL_RECORD),
        (8, 9, UNDECIDED),
    ]
    spark.sql(f"DELETE FROM delta.`{warehouse}/t` WHERE offset = 2")
    found = verify(store, "t", warehouse, spark=spark)
    assert [fault[:3] for fault in found.faults] == [("missing", 0, 2)]


@java
def test_topic_that_was_never_loaded_cannot_be_verified(spark: SparkSession, tmp_path: Path) -> None:
    filling.create_topic(f"file://{tmp_path}/store", "t", TOPIC, 1)
    with pytest.raises(Refused, match="never loaded"):
        verify(f"file://{tmp_path}/store", "t", str(tmp_path), spark=spark)


def test_missing_table_in_s3_is_found_without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_fake() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3a://{BUCKET}/a/warehouse"
        warehouse = open_store(url, SystemClock(), SystemRng())
        asyncio.run(warehouse.put("t/_delta_log/00000000000000000000.json", b"{}"))
        asyncio.run(warehouse.close())
        check_table("t", f"{url}/t")
        with pytest.raises(Refused, match="other was never loaded: there is no table at s3a://"):
            check_table("other", f"{url}/other")
    check_table("t", "abfss://kind/that/only/spark/can/list")


def test_hole_is_reported_from_the_log_start_on() -> None:
    assert explain_gap(2, 10, 30, 20) == [
        Gap(2, 10, 20, "expired before it was loaded"),
        Gap(2, 20, 30, "no record in the log has this offset"),
    ]
    assert explain_gap(2, 10, 30, 0) == [Gap(2, 10, 30, "no record in the log has this offset")]
    assert explain_gap(2, 10, 30, 40) == [Gap(2, 10, 30, "expired before it was loaded")]


@java
def test_sql_finds_topics_by_name_and_refuses_with_a_reason(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "warehouse")
    filling.create_topic(store, "my-topic.v1", TOPIC, 1)
    rows = [(filling.BASE_MS, b"k", f"v{i}".encode(), ()) for i in range(3)]
    filling.upload(store, "my-topic.v1", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    load(store, "my-topic.v1", warehouse, spark=spark)
    answer = sql(warehouse, "SELECT offset, value FROM `my-topic.v1` WHERE offset > 0 ORDER BY 1", spark=spark)
    assert (answer.columns, answer.rows) == (("offset", "value"), ((1, b"v1"), (2, b"v2")))
    with pytest.raises(Refused, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql(warehouse, "SELECT * FROM nothing", spark=spark)
    with pytest.raises(Refused, match="no warehouse"):
        sql(f"{warehouse}/none", "SELECT 1", spark=spark)


def test_sql_prints_results_in_three_formats() -> None:
    answer = QueryResult(("name", "n"), (("a", 1), (b"bytes", None), (b"\xff", 2.5)))
    assert render(answer) == "name   n\n-----  ----\na      1\nbytes  NULL\nff     2.5"
    assert render(answer, "csv") == "name,n\na,1\nbytes,NULL\nff,2.5"
    assert render(answer, "json") == '{"name": "a", "n": 1}\n{"name": "bytes", "n": null}\n{"name": "ff", "n": 2.5}'
    with pytest.raises(Refused, match="text, json, csv"):
        render(answer, "xml")
