"""Tests of changes that others make to typed tables and dead letters: each is followed, listed or refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.replay import replay_dead
from tests.spark.typed_site import Site, encode
from tiered.errors import Refused

pytestmark = pytest.mark.java

TABLES = ("t_typed", "t__dead")
MAPPED = "ALTER TABLE {t} SET TBLPROPERTIES('delta.columnMapping.mode' = 'name')"
VECTORS = "ALTER TABLE {t} SET TBLPROPERTIES('delta.enableDeletionVectors' = 'true')"


class TypedLake:
    """A topic with four rows and two dead letters in two loads."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.site = spark, Site(folder)
        self.site.write(encode({"a": 1, "b": "x"}, {"a": "dead"}, {"a": 2}))
        self.site.load()
        self.site.write(encode({"a": 3}, {"a": "dead too"}, {"a": 4}))
        self.site.load()

    def sql(self, table: str, *statements: str) -> None:
        for each in statements:
            self.spark.sql(each.format(t=f"delta.`{self.site.warehouse}/{table}`"))

    def load(self, accept_deletes: bool = False) -> tuple[int, int]:
        """Writes a row and a dead letter, and loads. Returns how many rows and letters were loaded."""
        self.site.write(encode({"a": 5}, {"a": "dead"}))
        done = self.site.load(LoadOptions(accept_deletes=accept_deletes))
        return done.typed_rows, done.dead_letters


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> TypedLake:
    return TypedLake(spark, tmp_path)


@pytest.mark.also("tests/spark/test_soundness.py::test_changed_layout_and_columns_are_followed")
def test_changes_of_layout_and_columns_are_followed(lake: TypedLake) -> None:
    for table in TABLES:
        lake.sql(
            table,
            "OPTIMIZE {t}",
            "ALTER TABLE {t} SET TBLPROPERTIES('a.b' = 'c')",
            "VACUUM {t}",
            "ALTER TABLE {t} ADD COLUMN note STRING",
        )
    assert lake.load() == (1, 1)
    assert lake.site.columns() == "a bigint, b string, note string"
    assert lake.site.verify().ok
    lake.site.write(encode({"a": 0.5, "note": "n"}))
    lake.site.load(LoadOptions())
    FieldChanger(lake.site.store, "t", lake.site.warehouse, "a").retype("string")
    assert replay_dead(lake.site.store, "t", lake.site.warehouse).rows == 3
    assert lake.site.rows("a", "note")[-1] == ("0.5", "n")
    assert (lake.site.verify().ok, lake.site.verify().rows, lake.site.verify().dead) == (True, 9, 0)


@pytest.mark.also("tests/spark/test_typed_verify.py")
@pytest.mark.parametrize(
    ("table", "statement", "faults"),
    [
        ("t_typed", "INSERT INTO {t} SELECT * FROM {t}", {"duplicate"}),
        ("t__dead", "INSERT INTO {t} SELECT * FROM {t}", {"duplicate"}),
        ("t_typed", "DELETE FROM {t} WHERE _offset = 2", {"missing"}),
        ("t__dead", "DELETE FROM {t} WHERE _offset = 1", {"missing", "unfit"}),
        ("t_typed", "UPDATE {t} SET a = 9 WHERE _offset = 2", {"changed"}),
        ("t__dead", "UPDATE {t} SET _value = NULL WHERE _offset = 1", {"changed"}),
        ("t_typed", "ALTER TABLE {t} SET TBLPROPERTIES('delta.setTransactionRetentionDuration' = 'interval 0 seconds')",
         set()),
        ("t__dead", "ALTER TABLE {t} SET TBLPROPERTIES('delta.setTransactionRetentionDuration' = 'interval 0 seconds')",
         set()),
        ("t__dead", "ALTER TABLE {t} ADD COLUMN c BINARY", set()),
    ],
)  # fmt: skip
def test_change_is_followed_and_listed(lake: TypedLake, table: str, statement: str, faults: set[str]) -> None:
    lake.sql(table, statement)
    assert lake.load() == (1, 1)
    assert {fault.kind for fault in lake.site.verify().faults} == faults


@pytest.mark.also("tests/spark/test_table_features.py::test_feature_is_kept_or_refused_by_its_name_by_each_command")
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["TRUNCATE TABLE {t}"], r"TRUNCATE \(version"),
        (["DELETE FROM {t}"], r"DELETE of all rows \(version"),
        (["INSERT OVERWRITE {t} SELECT * FROM {t} WHERE _offset > 2"], r"OVERWRITE \(version"),
        (["RESTORE TABLE {t} TO VERSION AS OF 1"], r"RESTORE to version 1 \(version"),
        (["INSERT INTO {t} (_partition, _offset) VALUES (0, 99)"], "partition 0 from offset 99"),
        (["INSERT INTO {t} (_partition, _offset) VALUES (7, 0)"], "partition 7 up to offset 0 and no"),
        ([MAPPED, "ALTER TABLE {t} RENAME COLUMN _key TO k"], "has writer version 7 with columnMapping"),
        ([VECTORS, "DELETE FROM {t} WHERE _offset < 2", "REORG TABLE {t} APPLY (PURGE)"], "with deletionVectors"),
        (["ALTER TABLE {t} ADD CONSTRAINT c CHECK (_offset < 1000)"], "has writer version 3"),
        (["ALTER TABLE {t} CLUSTER BY (_offset)", "OPTIMIZE {t}"], "with clustering"),
        (["ALTER TABLE {t} ADD COLUMN c STRING COMMENT 'mine'"], "a column c with conditions"),
    ],
    ids=["truncate", "delete", "overwrite", "restore", "above the bound", "no such partition", "column mapping",
         "deletion vectors", "constraint", "clustering", "comment"],
)  # fmt: skip
def test_change_is_refused_by_name(lake: TypedLake, table: str, statements: list[str], words: str) -> None:
    lake.sql(table, *statements)
    with pytest.raises(Refused, match=rf"{words}.*drop it and the other table of the values"):
        lake.load()


@pytest.mark.also("tests/spark/test_table_features.py::test_feature_is_kept_or_refused_by_its_name_by_each_command")
def test_columns_and_rules_that_no_load_writes_are_refused_by_name(lake: TypedLake, tmp_path: Path) -> None:
    lake.sql("t_typed", "ALTER TABLE {t} ADD COLUMN c BINARY")
    with pytest.raises(Refused, match="a column c of a type that no JSON value becomes"):
        lake.load()
    other = TypedLake(lake.spark, tmp_path / "other")
    other.sql("t_typed", "ALTER TABLE {t} UNSET TBLPROPERTIES('tiered.values')")
    with pytest.raises(Refused, match="is no typed table: move it away"):
        other.load()


@pytest.mark.also("tests/spark/test_soundness.py::test_delete_of_a_user_is_kept_reported_and_named_by_verify")
def test_accepted_loss_and_tables_that_were_dropped(lake: TypedLake) -> None:
    lake.sql("t_typed", "TRUNCATE TABLE {t}")
    assert lake.load(accept_deletes=True) == (1, 1)
    assert {fault.kind for fault in lake.site.verify().faults} == {"missing"}
    for table in TABLES:
        shutil.rmtree(Path(lake.site.warehouse, table))
    lake.site.load()
    assert (lake.site.verify().ok, lake.site.verify().rows, lake.site.verify().dead) == (True, 5, 3)


@pytest.mark.also("tests/spark/test_native_engine.py::test_table_of_another_topic_or_program_is_refused")
def test_clone_in_another_warehouse_is_refused(lake: TypedLake, tmp_path: Path) -> None:
    other = str(tmp_path / "clone")
    for table in TABLES:
        lake.sql(table, f"CREATE TABLE delta.`{other}/{table}` SHALLOW CLONE {{t}}")
    with pytest.raises(Refused, match=r"a file elsewhere|no transaction identifier"):
        load(lake.site.store, "t", other, engine=NativeEngine())
    assert lake.load() == (1, 1)
    assert lake.site.verify().ok
