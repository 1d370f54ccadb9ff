"""Tests of the URL of a warehouse: all its forms name one folder, for both engines and all commands."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta.folder_url import bucket_prefix, spark_url
from pyspark_tiered.delta.warehouse import Warehouse
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.proof.erase import erase
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.query.engine import SqlSession
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId

TOPIC = filling.topic_id(1)


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("s3://lake/u1//wh", "s3a://lake/u1/wh"),
        ("s3a://lake//u1/wh//", "s3a://lake/u1/wh"),
        ("S3://lake/u2/my%20wh", "s3a://lake/u2/my wh"),
        ("s3://lake/u2/my wh", "s3a://lake/u2/my wh"),
        ("s3://lake/100%/a%2Fb/%C3%BC", "s3a://lake/100%/a/b/ü"),
        ("s3://lake/a+b&c=d", "s3a://lake/a+b&c=d"),
        ("s3://lake", "s3a://lake"),
        ("s3://lake/", "s3a://lake"),
        ("//w//h/", "file:/w/h"),
        ("/w/a#b?c/100%20", "file:/w/a#b?c/100%20"),
        ("file:///w/my%20h", "file:/w/my h"),
        ("file:/w//h", "file:/w/h"),
        ("hdfs://host/w/", "hdfs://host/w"),
        ("/w/a:b://c", "file:/w/a:b:/c"),
    ],
)
def test_forms_of_a_folder_have_one_url(place: str, url: str) -> None:
    assert spark_url(place) == url


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("s3://lake/p/x#y", "a query or a fragment"),
        ("s3://lake/p/q?keys=/nowhere", "a query or a fragment"),
        ("file:///w/a#b", "a query or a fragment"),
        ("s3://lake/a/../b", r"a \. or \.\."),
        ("s3://lake/a/%2e/b", r"a \. or \.\."),
        ("s3://lake/%ff", "no UTF-8"),
        ("s3://lake/a%0ab", "control character"),
        ("s3:///wh", "names no bucket"),
        ("file://host/wh", "names no absolute directory"),
        ("file:wh", "names no absolute directory"),
        ("://", "names no scheme"),
        ("://lake/wh", "names no scheme"),
        (":", "names no scheme"),
        (":wh", "names no scheme"),
        ("3s://lake/wh", "names no scheme"),
        ("s3 ://lake/wh", "names no scheme"),
        ("s3//lake/wh", "names no scheme"),
        ("s3://", "names no bucket"),
        ("s3:lake/wh", "names no bucket"),
        ("", "names no directory"),
        ("//", "names no directory"),
        ("file:///", "names no directory"),
        ("file:", "names no absolute directory"),
        ("hdfs://", "names no place"),
        ("gs:", "names no place"),
    ],
)
def test_form_that_could_mean_another_folder_is_refused(place: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        spark_url(place)


def test_parent_of_a_linked_directory_is_what_the_file_system_says(tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    os.symlink(tmp_path / "far" / "away", tmp_path / "link")
    assert spark_url(f"{tmp_path}/link/../wh") == f"file:{tmp_path}/far/wh"
    assert spark_url(f"{tmp_path}/link/wh") == f"file:{tmp_path}/link/wh"


def test_prefix_of_keys_is_the_path() -> None:
    assert bucket_prefix("s3a://lake/u2/my wh/100%20") == ("lake", "u2/my wh/100%20/")
    assert bucket_prefix("s3a://lake") == ("lake", "")


def fill(store: str, first: int, count: int) -> None:
    rows = [(filling.BASE_MS + i, b"k", b"%d" % i, ()) for i in range(first, first + count)]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=first)))


FORMS = [
    ("{root}//wh", "{root}/wh"),
    ("{root}/my%20wh", "{root}/my wh"),
    ("{root}/a%2525+&='{{", "{root}//a%2525+&='{{/"),
]


@pytest.mark.parametrize(("one", "other"), FORMS, ids=["slashes", "space", "percent"])
def test_rows_of_native_loads_are_found_under_each_form(tmp_path: Path, bucket: str, one: str, other: str) -> None:
    root = f"s3://{bucket}/{tmp_path.name}"
    one, other, store = one.format(root=root), other.format(root=root), f"{root}//st%20ore"
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 3)
    assert load(store, "t", one, engine=NativeEngine()).rows == 3
    assert load(store, "t", other, engine=NativeEngine()).rows == 0
    for place in (one, other):
        with SqlSession(place) as session:
            assert list(session.run("SELECT CAST(value AS INT) FROM t ORDER BY 1").rows) == [(0,), (1,), (2,)]
        with closing(Warehouse(place)) as warehouse:
            assert list(warehouse.names()) == ["t"]


def test_warehouse_at_the_root_of_a_bucket_has_its_tables(bucket: str, tmp_path: Path) -> None:
    store = f"s3://{bucket}/{tmp_path.name}"
    filling.create_topic(store, "at-the-root", TOPIC, 1)
    filling.upload(
        store, "at-the-root", PartitionId(TOPIC, 0), list(filling.segments([(filling.BASE_MS, b"k", b"1", ())]))
    )
    assert load(store, "at-the-root", f"s3://{bucket}/", engine=NativeEngine()).rows == 1
    with SqlSession(f"s3://{bucket}") as session:
        assert list(session.run('SELECT value FROM "at-the-root"').rows) == [("1",)]


@pytest.mark.java
@pytest.mark.parametrize(
    ("one", "other"),
    [*(pytest.param(*each, marks=pytest.mark.also("values")) for each in FORMS[:2]), FORMS[2]],
    ids=["slashes", "space", "percent"],
)
def test_both_engines_and_all_commands_share_one_folder(
    spark: SparkSession, tmp_path: Path, bucket: str, one: str, other: str
) -> None:
    root = f"s3://{bucket}/{tmp_path.name}"
    one, other, store = one.format(root=root), other.format(root=root), f"{root}//st%20ore"
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 3)
    assert load(store, "t", one, spark=spark).rows == 3
    fill(store, 3, 2)
    assert load(store, "t", other, engine=NativeEngine()).rows == 2
    fill(store, 5, 1)
    assert load(store, "t", other, spark=spark).rows == 1
    source = spark.read.format("tiered").option("store", store).option("topic", "t").load()
    assert source.count() == 6
    for place in (one, other):
        with SqlSession(place) as session:
            assert list(session.run("SELECT CAST(value AS INT) FROM t ORDER BY 1").rows) == [(i,) for i in range(6)]
        read = spark.read.format("delta").load(f"{spark_url(place)}/t").orderBy("offset").collect()
        assert [bytes(row["value"]) for row in read] == [b"%d" % i for i in range(6)]
    assert erase(store, "t", one, "offset = 4", "asked for", spark=spark).removed == 1
    found = verify(store, "t", other, spark=spark)
    assert (found.ok, found.rows) == (True, 5)
