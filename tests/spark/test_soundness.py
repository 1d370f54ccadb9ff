"""Tests of changes by other writers between two loads: each is followed, reported or refused by name."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.proof.verify import verify
from tests.spark import filling
from tiered.errors import Refused
from tiered.ids import PartitionId

pytestmark = pytest.mark.java

TOPIC = filling.topic_id(9)


class Lake:
    """A topic of two partitions with 200 records each, loaded into a table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.store, self.warehouse = f"file://{folder}/store", str(folder / "warehouse")
        self.name = f"delta.`{self.warehouse}/t`"
        filling.create_topic(self.store, "t", TOPIC, 2)
        self.ends = [0, 0]
        self.more(0, 200)
        self.more(1, 200)
        self.load()

    def more(self, partition: int, count: int) -> None:
        first = self.ends[partition]
        rows = [(filling.BASE_MS + i, b"k", f"value {i}".encode(), ()) for i in range(first, first + count)]
        segments = list(filling.segments(rows, base_offset=first))
        filling.upload(self.store, "t", PartitionId(TOPIC, partition), segments)
        self.ends[partition] += count

    def load(self, choices: LoadOptions = LoadOptions()) -> int:  # noqa: B008
        return load(self.store, "t", self.warehouse, spark=self.spark, options=choices).rows

    def sql(self, statement: str) -> None:
        self.spark.sql(statement.format(t=self.name))

    def version(self) -> int:
        found: int = self.spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1").collect()[0]["version"]
        return found

    def count(self) -> tuple[int, int]:
        """Returns the number of rows, and of distinct offsets."""
        (counted,) = self.spark.sql(f"SELECT count(*), count(DISTINCT partition, offset) FROM {self.name}").collect()
        return counted[0], counted[1]

    def whole(self) -> bool:
        """True if each record is there once and the verification agrees."""
        assert self.count() == (sum(self.ends), sum(self.ends))
        return verify(self.store, "t", self.warehouse, spark=self.spark).ok


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


@pytest.mark.also("tests/spark/test_engines.py::test_native_load_heeds_what_spark_did_to_the_table")
def test_rows_are_not_duplicated_when_delta_drops_the_identifiers(lake: Lake) -> None:
    lake.sql(
        "ALTER TABLE {t} SET TBLPROPERTIES('delta.setTransactionRetentionDuration' = 'interval 0 seconds', "
        "'delta.checkpointInterval' = '1')"
    )  # Delta drops them by its next checkpoint
    with pytest.raises(Refused, match=r"partition 0 up to offset 199 and no transaction identifier.*--repair"):
        lake.load()
    lake.sql("ALTER TABLE {t} UNSET TBLPROPERTIES('delta.setTransactionRetentionDuration', 'delta.checkpointInterval')")
    repair(lake.store, "t", lake.warehouse, spark=lake.spark)
    lake.more(1, 50)
    assert lake.load() == 50
    assert lake.whole()


UP_TO_3 = "timestamp, timestamp_type, key, value, headers FROM {t} WHERE partition = 0 AND offset < 4"


@pytest.mark.also("tests/spark/test_engines.py::test_native_load_heeds_what_spark_did_to_the_table")
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        pytest.param("partition, offset + 200", "partition 0 from offset 200", id="above the bound"),
        pytest.param("7, offset", "partition 7 up to offset 3 and no", id="no such partition"),
        pytest.param("NULL, offset", "without a partition or an offset", id="no place"),
    ],
)
def test_rows_without_an_identifier_are_refused(lake: Lake, rows: str, words: str) -> None:
    lake.sql(f"INSERT INTO {{t}} SELECT {rows}, {UP_TO_3}")
    with pytest.raises(Refused, match=words):
        lake.load()
    assert repair(lake.store, "t", lake.warehouse, spark=lake.spark).taken_out > 0
    assert lake.load() == 0
    assert lake.whole()


@pytest.mark.also("tests/spark/test_engines.py::test_native_load_heeds_what_spark_did_to_the_table")
def test_load_after_a_restore_is_refused_and_a_repair_adds_its_rows(lake: Lake) -> None:
    lake.more(0, 100)
    lake.load()
    lake.sql("RESTORE TABLE {t} TO VERSION AS OF 0")
    lake.more(1, 50)
    short = r"RESTORE to version 0 \(.*partition 0 now ends at offset 200 and was loaded up to 300"
    with pytest.raises(Refused, match=rf"{short}.*--repair.*--accept-deletes"):
        lake.load()
    assert repair(lake.store, "t", lake.warehouse, spark=lake.spark).rows == 100
    assert lake.load() == 50
    assert lake.count() == (550, 550)


@pytest.mark.also("tests/spark/test_history.py::test_commit_that_removes_whole_files_is_named")
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("TRUNCATE TABLE {t}", "TRUNCATE"),
        ("DELETE FROM {t}", "DELETE of all rows"),
        ("INSERT OVERWRITE {t} SELECT * FROM {t} WHERE offset < 10", "OVERWRITE"),
    ],
    ids=["truncate", "delete", "overwrite"],
)
def test_commit_that_removes_files_is_named_unless_all_are_restored(lake: Lake, statement: str, words: str) -> None:
    lake.more(0, 100)
    lake.load()
    good = lake.version()
    lake.sql(statement)
    lake.more(1, 50)
    with pytest.raises(Refused, match=rf"{words} \(version"):
        lake.load()
    lake.sql(f"RESTORE TABLE {{t}} TO VERSION AS OF {good}")
    assert lake.load() == 50
    assert lake.whole()


@pytest.mark.also("tests/spark/test_engines.py::test_native_load_heeds_what_spark_did_to_the_table")
def test_accepted_loss_of_rows_stays_accepted(lake: Lake) -> None:
    lake.sql("TRUNCATE TABLE {t}")
    lake.more(0, 30)
    assert lake.load(LoadOptions(accept_deletes=True)) == 30
    assert lake.load() == 0
    found = verify(lake.store, "t", lake.warehouse, spark=lake.spark)
    assert len(found.faults) == 400
    assert {(fault.kind, fault.why.split(" (")[0]) for fault in found.faults} == {("missing", "TRUNCATE")}


def test_delete_of_a_user_is_kept_reported_and_named_by_verify(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    lake.sql("DELETE FROM {t} WHERE offset = 17")
    lake.more(0, 10)
    with caplog.at_level(logging.WARNING):
        assert lake.load() == 10
    (warning,) = [record.getMessage() for record in caplog.records if "rows were removed" in record.getMessage()]
    assert "DELETE" in warning and "= 17)" in warning
    found = verify(lake.store, "t", lake.warehouse, spark=lake.spark)
    assert [fault[:3] for fault in found.faults] == [("missing", 0, 17), ("missing", 1, 17)]
    assert all("DELETE" in fault.why and "= 17)" in fault.why for fault in found.faults)


def test_changed_layout_and_columns_are_followed(lake: Lake, caplog: pytest.LogCaptureFixture) -> None:
    steps: list[Callable[[], None]] = [
        lambda: lake.sql("OPTIMIZE {t}"),
        lambda: lake.sql("ALTER TABLE {t} ADD COLUMN note string"),
        lambda: lake.sql("ALTER TABLE {t} SET TBLPROPERTIES('a.b' = 'c')"),
        lambda: lake.sql("VACUUM {t}"),
    ]
    with caplog.at_level(logging.WARNING, logger="pyspark_tiered"):
        for step in steps:
            step()
        lake.more(0, 40)
        assert lake.load() == 40
    assert lake.whole()
    assert [record.getMessage() for record in caplog.records if record.name.startswith("pyspark_tiered")] == []
    commits = lake.spark.sql(f"DESCRIBE HISTORY {lake.name}").collect()
    metrics = commits[0]["operationMetrics"]
    assert (metrics["numOutputRows"], metrics["numFiles"]) == ("40", "1") and int(metrics["numOutputBytes"]) > 0
    said = [row["userMetadata"] for row in commits]
    newest, *_, first = (json.loads(text)["tiered"] for text in said if text)
    assert (first["offsets"], first["rows"]) == ({"0": [0, 200], "1": [0, 200]}, 400)
    assert (newest["offsets"], newest["rows"]) == ({"0": [200, 240]}, 40)


MAPPED = "ALTER TABLE {t} SET TBLPROPERTIES('delta.columnMapping.mode' = 'name')"
VECTORS = "ALTER TABLE {t} SET TBLPROPERTIES('delta.enableDeletionVectors' = 'true')"


@pytest.mark.also("tests/spark/test_soundness.py::test_changed_layout_and_columns_are_followed")
@pytest.mark.parametrize(
    "statements",
    [
        [MAPPED],
        [MAPPED, "ALTER TABLE {t} ADD COLUMN note string", "ALTER TABLE {t} RENAME COLUMN note TO remark"],
        ["ALTER TABLE {t} CLUSTER BY (offset)", "OPTIMIZE {t}"],
        [
            "ALTER TABLE {t} SET TBLPROPERTIES('delta.enableTypeWidening' = 'true')",
            "ALTER TABLE {t} ALTER COLUMN partition TYPE bigint",
            "OPTIMIZE {t}",
        ],
        [VECTORS, "OPTIMIZE {t}", "REORG TABLE {t} APPLY (PURGE)"],
    ],
    ids=["column mapping", "renamed column of a user", "clustering", "wider type", "reorg"],
)
def test_change_of_the_tables_form_is_followed(lake: Lake, statements: list[str]) -> None:
    for statement in statements:
        lake.sql(statement)
    lake.more(0, 10)
    assert lake.load() == 10
    assert lake.whole()


@pytest.mark.also("tests/spark/test_native_engine.py::test_rows_that_no_identifier_covers_are_found_without_spark")
def test_clone_is_loaded_after_a_repair_and_its_source_at_once(lake: Lake, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    lake.sql(f"CREATE TABLE delta.`{other}/t` SHALLOW CLONE {{t}}")
    lake.more(0, 10)
    assert lake.load() == 10
    assert lake.whole()
    with pytest.raises(Refused, match=r"partition 0 up to offset 199 and no transaction identifier.*--repair"):
        load(lake.store, "t", other, spark=lake.spark)
    repair(lake.store, "t", other, spark=lake.spark)
    assert load(lake.store, "t", other, spark=lake.spark).rows == 10
    lake.more(1, 10)
    assert load(lake.store, "t", other, engine=NativeEngine()).rows == 10
    found = verify(lake.store, "t", other, spark=lake.spark)
    assert (found.ok, found.rows) == (True, 420)
    lake.spark.sql(f"DELETE FROM delta.`{other}/t` WHERE offset = 17")
    assert repair(lake.store, "t", other, spark=lake.spark).rows == 2
    assert verify(lake.store, "t", other, spark=lake.spark).ok
    assert lake.load() == 10
    assert lake.whole()


@pytest.mark.also("tests/spark/test_repair.py::test_repair_fixes_every_kind_of_damage_and_nothing_else")
def test_rows_in_a_deletion_vector_are_missing_and_a_repair_restores_them(lake: Lake) -> None:
    lake.sql(VECTORS)
    lake.sql("DELETE FROM {t} WHERE offset = 17")
    assert lake.load() == 0
    found = verify(lake.store, "t", lake.warehouse, spark=lake.spark)
    assert [fault[:3] for fault in found.faults] == [("missing", 0, 17), ("missing", 1, 17)]
    assert repair(lake.store, "t", lake.warehouse, spark=lake.spark).rows == 2
    assert lake.whole()


@pytest.mark.also("tests/spark/test_table_features.py::test_feature_is_kept_or_refused_by_its_name_by_each_command")
@pytest.mark.parametrize("statement", ["RENAME COLUMN key TO name", "DROP COLUMN headers"])
def test_renamed_or_dropped_column_of_a_load_is_refused_by_name(lake: Lake, statement: str) -> None:
    lake.sql(MAPPED)
    lake.sql(f"ALTER TABLE {{t}} {statement}")
    lake.more(0, 10)
    column = statement.split()[2]
    with pytest.raises(Refused, match=rf"no column {column}: ALTER TABLE renamed or dropped"):
        lake.load()
    with pytest.raises(Refused, match=rf"no column {column}: ALTER TABLE renamed or dropped"):
        verify(lake.store, "t", lake.warehouse, spark=lake.spark)
