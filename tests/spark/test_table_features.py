"""Tests of what features of Delta ask of a writer: it is kept, or the table is refused by the name of the feature."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta import delta_state, table_form
from pyspark_tiered.delta.log_folder import LOG
from pyspark_tiered.delta.table_features import check_append, check_removal, features_of
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.erase import erase, remove_erased_values
from pyspark_tiered.proof.erasures import Erasure, read_erasures, write_erasure
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.replay import replay_dead
from pyspark_tiered.typed.tables import RecordTable
from tests.spark import filling
from tests.spark.typed_site import Site, encode
from tiered.errors import Refused
from tiered.ids import PartitionId

TOPIC = filling.topic_id(1)
APPEND_ONLY = {"delta.appendOnly": "true"}


def metadata(properties: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Returns the metadata of a raw table with another field, or with other fields of its columns."""
    columns = [dict(each) for each in table_form.SCHEMA["fields"]]
    for name, change in fields.items():
        found = next((each for each in columns if each["name"] == name), None)
        if found is None:
            found = {"name": name, "type": "string", "nullable": True, "metadata": {}}
            columns.append(found)
        found |= change
    return {
        "configuration": properties or {},
        "partitionColumns": [],
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
    }


HEADERS = json.loads(json.dumps(table_form.SCHEMA["fields"][6]["type"]))
HEADERS["elementType"]["fields"][0]["metadata"] = {"delta.invariants": "{}"}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (metadata({"delta.constraints.has_value": "value IS NOT NULL"}), r"constraint has_value: CHECK \(value IS NOT"),
        (metadata(value={"nullable": False}), "column value NOT NULL"),
        (metadata(note={"nullable": False}), "column note NOT NULL"),
        (metadata(value={"metadata": {"delta.invariants": "{}"}}), "an invariant on column value"),
        (metadata(headers={"type": HEADERS}), "an invariant on column headers.key"),
        (metadata(day={"metadata": {"delta.generationExpression": "date(timestamp)"}}), "the generated column day"),
        (metadata(id={"metadata": {"delta.identity.start": 1}}), "the identity column id"),
        (metadata(note={"metadata": {"CURRENT_DEFAULT": "'x'"}}), "a default of column note"),
        (metadata(value={"type": "string"}), "another type of column value"),
        (metadata(value={"metadata": {"delta.columnMapping.physicalName": "col-1"}}), "column value that was dropped"),
        (metadata({"delta.columnMapping.mode": "id"}), "column mapping by id"),
        (metadata({"delta.enableIcebergCompatV2": "true"}), "property delta.enableIcebergCompatV2"),
        ({**metadata(), "partitionColumns": ["day"]}, "partition columns day"),
    ],
)
def test_feature_that_no_load_keeps_is_named(found: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused, match=words):
        check_append(found, "here")


@pytest.mark.parametrize(
    "found",
    [
        metadata(),
        metadata(APPEND_ONLY | {"delta.enableChangeDataFeed": "true", "delta.enableRowTracking": "true"}),
        metadata({"delta.columnMapping.mode": "name"}, note={"metadata": {"delta.columnMapping.physicalName": "c-1"}}),
        metadata(value={"metadata": {"CURRENT_DEFAULT": "NULL", "comment": "mine"}}),
        metadata(partition={"type": "long", "metadata": {"delta.typeChanges": []}}),
    ],
)
def test_rows_may_be_appended_to_all_other_tables(found: dict[str, Any]) -> None:
    check_append(found, "here")


def test_features_of_old_writer_versions_have_names() -> None:
    assert features_of({"minWriterVersion": 2}) == []
    assert features_of({"minWriterVersion": 3}) == ["checkConstraints"]
    assert features_of({"minWriterVersion": 5})[-1] == "columnMapping"
    assert features_of({"minWriterVersion": 7, "writerFeatures": ["invariants", "rowTracking"]}) == ["rowTracking"]


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_table_whose_rows_stay_is_refused_by_the_property(name: str) -> None:
    check_removal({name: "false"}, "here")
    with pytest.raises(Refused, match=name):
        check_removal({name: "TRUE"}, "here")


def set_properties(table: NativeTable, properties: dict[str, str]) -> None:
    state = table.snapshot().state
    changed = {**state.metadata, "configuration": {**state.properties(), **properties}}
    path = f"{LOG}/{delta_state.commit_name(state.version + 1)}"
    assert table.folder.create(path, json.dumps({"metaData": changed}).encode())


def test_native_load_appends_and_joins_in_an_append_only_table(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"id": 0}))
    site.load()
    for table in (NativeTable(f"file:{site.warehouse}/t", "t", TOPIC), site.typed(), site.dead()):
        set_properties(table, APPEND_ONLY)
    for number in range(1, 14):
        site.write(encode({"id": number if number < 13 else 1 << 40}))
        site.load()
    files = NativeTable(f"file:{site.warehouse}/t", "t", TOPIC).snapshot().state.files
    assert len(files) < 14, "joining changes no data"
    site.check_offsets()
    assert site.verify().ok


def typed_site(root: Path, property_of: str) -> Site:
    site = Site(root)
    site.write(encode({"id": 1, "old": 1}, {"id": "x", "old": 2}))
    site.load()
    table: RecordTable = site.typed() if property_of == "typed" else site.dead()
    set_properties(table, APPEND_ONLY)
    return site


@pytest.mark.parametrize(
    "change",
    [lambda field: field.drop(), lambda field: field.retype("string")],
    ids=["drop", "retype"],
)
def test_change_of_an_append_only_typed_table_is_refused(
    tmp_path: Path, change: Callable[[FieldChanger], None]
) -> None:
    site = typed_site(tmp_path, "typed")
    before = site.typed().version
    with pytest.raises(Refused, match="append-only"):
        change(FieldChanger(site.store, "t", site.warehouse, "id"))
    assert site.typed().version == before
    FieldChanger(site.store, "t", site.warehouse, "old").rename("new")
    assert site.rows("new") == [(1,)], "another name of a column changes no row"


def test_letters_of_an_append_only_table_are_not_replayed(tmp_path: Path) -> None:
    site = typed_site(tmp_path, "dead")
    FieldChanger(site.store, "t", site.warehouse, "id").retype("string")
    with pytest.raises(Refused, match="append-only"):
        replay_dead(site.store, "t", site.warehouse)
    site.check_offsets()


@pytest.mark.parametrize("which", ["typed", "dead"])
def test_erased_values_stay_in_an_append_only_table(tmp_path: Path, which: str) -> None:
    site = typed_site(tmp_path, which)
    url = f"file:{site.warehouse}/t"
    erasure = Erasure(TOPIC, 1, "true", "asked for", {0: ((0, 2),)})
    write_erasure(url, erasure, "1.json")
    with pytest.raises(Refused, match="append-only"):
        remove_erased_values(url, "t", TOPIC, [erasure])


def protocol(*features: str, reads: tuple[str, ...] = (), reader: int = 3, writer: int = 7) -> dict[str, Any]:
    """Returns the protocol of a table with features; `reads` are those that bind a reader too."""
    return {
        "minReaderVersion": reader,
        "minWriterVersion": writer,
        "readerFeatures": list(reads),
        "writerFeatures": [*features, *reads],
    }


ALL = ("load", "verify", "erase", "repair", "sql")
WRITERS = ("load", "erase", "repair")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, tuple[str, ...]]] = {
    "deletion vectors": (protocol(reads=("deletionVectors",)), metadata(), "", ()),
    "clustering": (protocol("clustering", "domainMetadata"), metadata(), "", ()),
    "type widening": (protocol(reads=("typeWidening",)), metadata(), "", ()),
    "times without a zone": (protocol(reads=("timestampNtz",)), metadata(), "", ()),
    "vacuum check": (protocol(reads=("vacuumProtocolCheck",)), metadata(), "", ()),
    "old writer version": (protocol(reader=2, writer=6), metadata(), "", ()),
    "change data feed": (protocol("changeDataFeed"), metadata({"delta.enableChangeDataFeed": "true"}),
                         "change data feed", ("erase",)),
    "append-only": (protocol("appendOnly"), metadata(APPEND_ONLY), "append-only", ("erase",)),
    "column mapping by name": (protocol(reads=("columnMapping",)), metadata({"delta.columnMapping.mode": "name"}),
                               "column mapping by name", ("sql",)),
    "column mapping by id": (protocol(reads=("columnMapping",)), metadata({"delta.columnMapping.mode": "id"}),
                             "column mapping by id", ("load", "sql")),
    "CHECK": (protocol("checkConstraints"), metadata({"delta.constraints.few": "offset < 9"}),
              r"the constraint few: CHECK \(offset < 9\)", ("load",)),
    "invariant": (protocol("invariants"), metadata(value={"metadata": {"delta.invariants": "{}"}}),
                  "an invariant on column value", ("load",)),
    "NOT NULL": (protocol(), metadata(value={"nullable": False}), "the column value NOT NULL", ("load",)),
    "generated column": (protocol("generatedColumns"), metadata(day={"metadata": {"delta.generationExpression": "1"}}),
                         "the generated column day", ("load",)),
    "identity column": (protocol("identityColumns"), metadata(id={"metadata": {"delta.identity.start": 1}}),
                        "the identity column id", ("load",)),
    "default": (protocol("allowColumnDefaults"), metadata(note={"metadata": {"CURRENT_DEFAULT": "'x'"}}),
                "a default of column note", ("load",)),
    "partitions": (protocol(), {**metadata(day={}), "partitionColumns": ["day"]}, "partition columns day",
                   ("load", "sql")),
    "row tracking": (protocol("rowTracking", "domainMetadata"), metadata(), "rowTracking", WRITERS),
    "times in commits": (protocol("inCommitTimestamp"), metadata({"delta.enableInCommitTimestamps": "true"}),
                         "times in its commits", WRITERS),
    "Iceberg": (protocol("icebergCompatV2"), metadata(), "icebergCompatV2", WRITERS),
    "partition columns in files": (protocol("materializePartitionColumns"), metadata(), "materializePartitionColumns",
                                   WRITERS),
    "protected checkpoints": (protocol("checkpointProtection"), metadata(), "checkpointProtection", WRITERS),
    "unknown feature of writers": (protocol("fancyWrites"), metadata(), "fancyWrites", WRITERS),
    "unknown feature of readers": (protocol(reads=("fancyRows",)), metadata(), "fancyRows", ALL),
    "shredded variants": (protocol(reads=("variantShredding",)), metadata(), "variantShredding", ALL),
    "v2 checkpoints": (protocol(reads=("v2Checkpoint",)), metadata(), "v2Checkpoint", ALL),
    "catalog": (protocol(reads=("catalogManaged",)), metadata(), "catalogManaged", ALL),
    "writer version": (protocol(writer=8), metadata(), "writer version 8", WRITERS),
    "reader version": (protocol(reader=4), metadata(), "reader version 4", ALL),
}  # fmt: skip
"""Features with a table's protocol and metadata, the words of a refusal, and the commands that refuse the table."""


@pytest.mark.parametrize("case", CASES)
def test_feature_is_kept_or_refused_by_its_name_by_each_command(tmp_path: Path, case: str) -> None:
    wanted, changed, words, refusing = CASES[case]
    site = Site(tmp_path)
    site.write(encode({"x": 0}, {"x": 1}, {"x": 2}))
    engine = NativeEngine()
    load(site.store, "t", site.warehouse, engine=engine)
    with closing(NativeTable(f"file:{site.warehouse}/t", "t", TOPIC)) as table:
        state = table.snapshot().state
        held = {**state.metadata, **changed, "configuration": {**state.properties(), **changed["configuration"]}}
        lines = [json.dumps({"protocol": wanted}), json.dumps({"metaData": held})]
        assert table.folder.create(f"{LOG}/{delta_state.commit_name(state.version + 1)}", "\n".join(lines).encode())
    site.write(encode({"x": 3}))
    place = site.store, "t", site.warehouse

    def ask(query: str) -> list[Any]:
        with SqlSession(site.warehouse) as session:
            return list(session.run(query).rows)

    commands: dict[str, Callable[[], Any]] = {
        "load": lambda: load(*place, engine=engine).rows,
        "verify": lambda: verify(*place).ok,
        "erase": lambda: erase(*place, '"offset" = 1', "asked for").removed,
        "repair": lambda: repair(*place).rows,
        "sql": lambda: ask("SELECT count(*) FROM t"),
    }
    answers = {
        "load": 1,
        "verify": True,
        "erase": 1,
        "repair": 0,
        "sql": [(4 - ("load" in refusing) - ("erase" not in refusing),)],
    }
    for name, run in commands.items():
        stored = sorted(each for each in tmp_path.rglob("*") if "_verified" not in str(each))
        if name in refusing:
            with pytest.raises(Refused, match=words):
                run()
            assert sorted(each for each in tmp_path.rglob("*") if "_verified" not in str(each)) == stored, name
        else:
            assert run() == answers[name], name


class Lake:
    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.store, self.warehouse, self.url = f"file://{root}/store", str(root / "tables"), f"file:{root}/tables/t"
        filling.create_topic(self.store, "t", TOPIC, 1)
        self._end = 0
        self.write(b"a", b"b", b"c")
        self.load()

    def write(self, *values: bytes | None) -> None:
        rows = [(filling.BASE_MS, b"k", value, ()) for value in values]
        segments = list(filling.segments(rows, base_offset=self._end))
        filling.upload(self.store, "t", PartitionId(TOPIC, 0), segments)
        self._end += len(values)

    def load(self) -> int:
        return load(self.store, "t", self.warehouse, spark=self.spark).rows

    def alter(self, what: str) -> None:
        self.spark.sql(f"ALTER TABLE delta.`{self.url}` {what}")

    def erase(self, where: str) -> int:
        return erase(self.store, "t", self.warehouse, where, "asked for", spark=self.spark).removed

    def version(self) -> int:
        return int(self.spark.sql(f"DESCRIBE HISTORY delta.`{self.url}` LIMIT 1").collect()[0]["version"])


@pytest.mark.also("tests/spark/test_table_features.py::test_feature_is_kept_or_refused_by_its_name_by_each_command")
@pytest.mark.java
def test_load_into_a_table_with_a_constraint_is_refused_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    lake.alter("ADD CONSTRAINT has_value CHECK (value IS NOT NULL)")
    lake.write(None)
    before = lake.version()
    files = len(list((tmp_path / "tables" / "t").glob("part-*")))
    with pytest.raises(Refused, match=r"the constraint has_value: CHECK \(value IS NOT NULL\)"):
        lake.load()
    with pytest.raises(Refused, match="the constraint has_value"):
        load(lake.store, "t", lake.warehouse, engine=NativeEngine())
    assert (lake.version(), len(list((tmp_path / "tables" / "t").glob("part-*")))) == (before, files), "at once"
    assert verify(lake.store, "t", lake.warehouse, spark=spark).ok
    lake.alter("DROP CONSTRAINT has_value")
    assert lake.load() == 1


@pytest.mark.also("tests/spark/test_table_features.py::test_feature_is_kept_or_refused_by_its_name_by_each_command")
@pytest.mark.java
def test_append_only_table_is_loaded_and_neither_erased_nor_repaired(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    spark.sql(f"UPDATE delta.`{lake.url}` SET value = CAST('z' AS BINARY) WHERE offset = 2")
    lake.alter("SET TBLPROPERTIES ('delta.appendOnly' = 'true')")
    lake.write(b"d")
    assert lake.load() == 1
    before = lake.version()
    with pytest.raises(Refused, match="append-only"):
        lake.erase("offset = 1")
    assert read_erasures(lake.url, TOPIC) == [], "no record of an erasure that never happens"
    with pytest.raises(Refused, match="append-only"):
        repair(lake.store, "t", lake.warehouse, spark=spark)
    assert lake.version() == before
    lake.alter("UNSET TBLPROPERTIES ('delta.appendOnly')")
    assert repair(lake.store, "t", lake.warehouse, spark=spark).rows == 1
    lake.alter("SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    with pytest.raises(Refused, match="change data feed"):
        lake.erase("offset = 1")
    lake.write(b"e")
    assert lake.load() == 1


@pytest.mark.java
def test_erasure_leaves_rows_that_a_constraint_forbids_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """A row that stays may violate a constraint that came after it: nothing is judged that does not change."""
    lake = Lake(spark, tmp_path)
    lake.alter("ADD CONSTRAINT short CHECK (offset < 3)")
    lake.alter("DROP CONSTRAINT short")
    lake.write(b"d", b"e")
    assert lake.load() == 2
    spark.sql(f"OPTIMIZE delta.`{lake.url}`")
    set_properties(NativeTable(lake.url, "t", TOPIC), {"delta.constraints.short": "offset < 3"})
    assert lake.erase("offset = 1") == 1
    rows = spark.read.format("delta").load(lake.url).orderBy("offset").collect()
    assert [(row["offset"], bytes(row["value"])) for row in rows] == [(0, b"a"), (2, b"c"), (3, b"d"), (4, b"e")]
    assert verify(lake.store, "t", lake.warehouse).ok
