"""Tests of Spark and the native engine on one table: each reads what the other wrote, and races lose nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import LOG
from pyspark_tiered.load.joining import FILES_MIN
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.erase import erase
from pyspark_tiered.proof.verify import RowFault, verify
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tests.spark.engine_race import race
from tiered.errors import Refused
from tiered.ids import PartitionId

pytestmark = pytest.mark.java

TOPIC = filling.topic_id(1)


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.also("stores"))])
def place(request: pytest.FixtureRequest, tmp_path: Path, bucket: str) -> Callable[[str], str]:
    """Returns URLs of a new place for store and warehouse."""
    root = f"file://{tmp_path}" if request.param == "directory" else f"s3://{bucket}/{tmp_path.name}"
    return lambda name: f"{root}/{name}"


def fill(store: str, partition: int, first: int, count: int) -> None:
    rows = [(filling.BASE_MS + i, b"k", f"{partition}:{i}".encode(), ()) for i in range(first, first + count)]
    segments = list(filling.segments(rows, base_offset=first))
    filling.upload(store, "t", PartitionId(TOPIC, partition), segments)


@pytest.mark.also("tests/spark/test_engines.py::test_values_are_columns_whichever_engine_loads_them")
def test_engines_take_turns_on_one_table(spark: SparkSession, place: Callable[[str], str]) -> None:
    store, warehouse = place("store"), place("tables")
    filling.create_topic(store, "t", TOPIC, 3)
    for each in range(FILES_MIN + 2):
        for partition in (0, 2):
            fill(store, partition, each * 10, 10)
        if each in (3, FILES_MIN + 1):
            assert load(store, "t", warehouse, spark=spark).rows == 20
        else:
            assert load(store, "t", warehouse, engine=NativeEngine()).rows == 20
    found = verify(store, "t", warehouse, spark=spark)
    bounds = dict.fromkeys((0, 2), 10 * (FILES_MIN + 2))
    assert (found.ok, found.rows, found.loaded, found.gaps) == (True, sum(bounds.values()), bounds, ())
    table = NativeTable(f"{spark_url(warehouse)}/t", "t", TOPIC)
    assert (table.loaded_offsets(), len(table.snapshot().state.files)) == (bounds, 3)
    pointer = table.folder.read(f"{LOG}/_last_checkpoint")
    assert pointer is not None and json.loads(pointer)["version"] == 10
    other = spark.newSession()
    history = other.sql(f"DESCRIBE HISTORY delta.`{spark_url(warehouse)}/t`").collect()
    assert [row["operation"] for row in history] == [*["WRITE"] * 2, "OPTIMIZE", *["WRITE"] * FILES_MIN]
    (native,) = [row for row in history if row["version"] == 5]
    assert json.loads(native["userMetadata"])["tiered"]["offsets"] == {"0": [50, 60], "2": [50, 60]}
    assert native["operationMetrics"]["numOutputRows"] == "20"
    table.close()


def test_values_are_columns_whichever_engine_loads_them(spark: SparkSession, place: Callable[[str], str]) -> None:
    store, warehouse = place("store"), place("tables")
    filling.create_topic(store, "t", TOPIC, 1)
    options = LoadOptions(values=ValueRules("json", keys="json"))

    def write(first: int, *values: bytes) -> None:
        rows = [(filling.BASE_MS, b'{"n":%d}' % at, value, ()) for at, value in enumerate(values, first)]
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=first)))

    write(0, b'{"id": 1, "city": "Rome"}', b"no JSON")
    load(store, "t", warehouse, spark=spark, options=options)
    write(2, b'{"id": 2, "city": "Oslo", "mayor": {"name": "M"}}')
    load(store, "t", warehouse, engine=NativeEngine(), options=options)
    write(3, b'{"id": 4294967296}')
    FieldChanger(store, "t", warehouse, "id").retype("string")
    FieldChanger(store, "t", warehouse, "city").rename("town")
    load(store, "t", warehouse, spark=spark)
    url = spark_url(warehouse)
    typed = spark.sql(f"SELECT _offset, id, town, mayor.name FROM delta.`{url}/t_typed` ORDER BY _offset").collect()
    assert [tuple(row) for row in typed] == [
        (0, "1", "Rome", None), (2, "2", "Oslo", "M"), (3, "4294967296", None, None),
    ]  # fmt: skip
    found_keys = spark.sql(f"SELECT _typed_key.n FROM delta.`{url}/t_typed` ORDER BY 1").collect()
    assert [key[0] for key in found_keys] == [0, 2, 3]
    field = "variant_get(parse_json(CAST(value AS STRING)), '$.mayor.name', 'string')"
    (mayor,) = spark.sql(f"SELECT {field} FROM delta.`{url}/t` WHERE offset = 2").collect()
    assert mayor[0] == "M"
    (letter,) = spark.sql(f"SELECT _offset, _value FROM delta.`{url}/t__dead`").collect()
    assert (letter["_offset"], bytes(letter["_value"])) == (1, b"no JSON")
    assert spark.read.format("delta").load(f"{url}/t").count() == 4
    found = verify(store, "t", warehouse, spark=spark).values
    assert found is not None and (found.ok, found.rows, found.dead) == (True, 3, 1)
    done = erase(store, "t", warehouse, "offset IN (1, 2)", "asked for", spark=spark)
    assert (done.rows, done.removed, done.values) == (2, 2, 2)
    typed = spark.sql(f"SELECT _offset, id, town FROM delta.`{url}/t_typed` ORDER BY _offset").collect()
    assert [tuple(row) for row in typed] == [(0, "1", "Rome"), (3, "4294967296", None)]
    assert spark.sql(f"SELECT * FROM delta.`{url}/t__dead`").count() == 0
    spark.sql(f"DELETE FROM delta.`{url}/t_typed` WHERE _offset = 0")
    whole = verify(store, "t", warehouse, spark=spark)
    assert (whole.ok, whole.faults) == (False, ())
    assert whole.values is not None and whole.values.faults == (RowFault("missing", 0, 0),)


def test_native_load_heeds_what_spark_did_to_the_table(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "tables")
    filling.create_topic(store, "t", TOPIC, 2)
    for partition in (0, 1):
        fill(store, partition, 0, 20)
    load(store, "t", warehouse, engine=NativeEngine())
    name = f"delta.`{warehouse}/t`"
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"DELETE FROM {name} WHERE offset = 7")
    fill(store, 0, 20, 5)
    assert load(store, "t", warehouse, engine=NativeEngine()).rows == 5
    assert "DELETE" in caplog.text and "= 7)" in caplog.text
    spark.sql(
        f"INSERT INTO {name} SELECT partition + 5, offset, timestamp, timestamp_type, key, value, headers FROM {name}"
    )
    with pytest.raises(Refused, match="rows of partition 5 up to offset 24 and no transaction identifier"):
        load(store, "t", warehouse, engine=NativeEngine())
    spark.sql(f"RESTORE TABLE {name} TO VERSION AS OF 0")
    with pytest.raises(Refused, match=r"RESTORE to version 0 \(version.*--repair"):
        load(store, "t", warehouse, engine=NativeEngine())
    fill(store, 0, 25, 5)
    accepting = LoadOptions(accept_deletes=True)
    assert load(store, "t", warehouse, engine=NativeEngine(), options=accepting).rows == 5
    assert load(store, "t", warehouse, engine=NativeEngine()).rows == 0, "what was accepted stays accepted"


@pytest.mark.parametrize("where", [pytest.param("directory", marks=pytest.mark.also("stores")), "s3"])
def test_races_of_both_engines_lose_and_duplicate_nothing(
    spark: SparkSession, tmp_path: Path, bucket: str, where: str
) -> None:
    root = f"file://{tmp_path}" if where == "directory" else f"s3://{bucket}/{tmp_path.name}"
    race(spark, f"{root}/store", f"{root}/tables", 2)
