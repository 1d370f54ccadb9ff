"""Tests of the report on a warehouse, by the process that a broker runs: real loads, and tables of strangers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import LOG
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.proof.last_verify import LastVerify, write_last_verify
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tests.spark.test_table_reports import TOPIC, write

MODULE = "pyspark_tiered.query.warehouse_report"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a warehouse with the tables of a topic, two versions each, and with tables of strangers."""
    root = tmp_path_factory.mktemp("report")
    store, tables = f"file://{root}/store", root / "tables"
    filling.create_topic(store, "t", TOPIC, 2)
    options = LoadOptions(values=ValueRules("json"))
    write(store, 0, 0, [b'{"a": 1}', b"dead", b"<b>dead</b>"])
    load(store, "t", str(tables), engine=NativeEngine(), options=options)
    write(store, 1, 0, [b'{"b": 1}'])
    load(store, "t", str(tables), engine=NativeEngine(), options=options)
    write_last_verify(f"{spark_url(str(tables))}/t", LastVerify(filling.BASE_MS, 1, 4, 0))
    add_commit(tables, "damaged", "no JSON")
    add_commit(tables, "odd", '{"metaData": {"configuration": {"tiered.topic.id": 7}}}\n{"commitInfo": 3}')
    add_commit(tables, "foreign", '{"metaData": {"schemaString": "{}"}}\n{"commitInfo": {"timestamp": "soon"}}')
    (tables / "no table").mkdir()
    return tables


def add_commit(tables: Path, name: str, text: str) -> None:
    log = tables / name / LOG
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text(text)


def ask(tables: Path | str, **request: Any) -> list[dict[str, Any]]:
    """Returns the lines of a report without those that say that a table is begun."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", MODULE],
        input=json.dumps({"warehouse": str(tables), **request}).encode(),
        capture_output=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return [line for line in map(json.loads, done.stdout.splitlines()) if "begun" not in line]


def test_report_has_a_line_for_each_table_whatever_the_others_are(tables: Path) -> None:
    *lines, last = ask(tables)
    found = {line["table"]: line for line in lines}
    assert last == {"done": True, "has_more": False}
    assert sorted(found) == ["damaged", "foreign", "odd", "t", "t__dead", "t_typed"]
    raw = found["t"]
    assert (raw["kind"], raw["topic"], raw["topic_id"], raw["rows"], raw["version"]) == ("raw", "t", str(TOPIC), 4, 1)
    assert raw["offsets"] == {"0": 3, "1": 1} and raw["newest_ms"] >= filling.BASE_MS
    assert raw["committed_ms"] >= raw["loaded_ms"] > 1_700_000_000_000
    assert raw["verified"] == {"ok": True, "at_ms": filling.BASE_MS, "table_version": 1, "rows": 4, "faults": 0}
    assert (found["t__dead"]["kind"], found["t__dead"]["rows"]) == ("dead letters", 2)
    assert "no JSON" in found["damaged"]["problem"]
    assert "another form" in found["odd"]["problem"] and "another form" in found["foreign"]["problem"]


def test_report_on_one_table_has_its_versions_columns_and_reasons(tables: Path) -> None:
    [line, last] = ask(tables, table="t", versions=5)
    assert last["done"] and line["dead_letters"] == 2 and line["reasons_problem"] is None
    assert [each["version"] for each in line["versions"]] == [1, 0]
    assert [(each["operation"], each["rows"], each["files_added"]) for each in line["versions"]] == [
        ("load", 1, 1),
        ("load", 3, 1),
    ]
    assert [each["name"] for each in line["columns"]][:3] == ["partition", "offset", "timestamp"]
    assert sum(each["count"] for each in line["reasons"]) == line["reasons_of"] == 2
    assert {(each["partition"], each["offset"]) for each in line["reasons"]} <= {(0, 1), (0, 2)}
    [newest, _] = ask(tables, table="t", versions=1)
    assert [each["version"] for each in newest["versions"]] == [1]
    [dead, _] = ask(tables, table="t__dead", versions=1)
    assert dead["reasons"] == line["reasons"] and dead["kind"] == "dead letters"


def test_report_on_a_table_that_is_not_there_says_so(tables: Path) -> None:
    for name in ("absent", "no table"):
        assert ask(tables, table=name)[0] == {"table": name, "is_absent": True}
    [outside, _] = ask(tables, table="..")
    assert "no table" in outside["problem"]


def test_report_on_a_list_stops_at_its_most(tables: Path) -> None:
    *lines, last = ask(tables, most=2)
    assert [line["table"] for line in sorted(lines, key=lambda line: line["table"])] == ["damaged", "foreign"]
    assert last["has_more"]


def test_report_on_a_place_that_is_no_warehouse_has_words(tmp_path: Path) -> None:
    [line] = ask(tmp_path / "absent")
    assert "there is no warehouse" in line["problem"]


def test_report_on_dead_letters_reads_no_file_outside_of_the_table(tables: Path, tmp_path: Path) -> None:
    [file] = (tables / "t__dead").glob("part-*.parquet")
    add = {"path": file.as_uri(), "size": 1, "stats": '{"numRecords": 2}', "partitionValues": {}}
    properties = {"tiered.topic.id": str(TOPIC), "tiered.topic.name": "t", "tiered.dead.letters": "t"}
    add_commit(
        tmp_path,
        "t__dead",
        "\n".join(map(json.dumps, ({"metaData": {"configuration": properties, "schemaString": "{}"}}, {"add": add}))),
    )
    [line, _] = ask(tmp_path, table="t__dead", versions=1)
    assert line["reasons"] == [] and "elsewhere" in line["reasons_problem"]


@pytest.mark.also("tests/spark/test_warehouse_report.py::test_report_has_a_line_for_each_table_whatever_the_others_are")
def test_report_on_a_bucket_is_that_of_a_directory(bucket: str) -> None:
    root = f"s3://{bucket}/report"
    filling.create_topic(f"{root}/store", "t", TOPIC, 1)
    write(f"{root}/store", 0, 0, [b'{"a": 1}', b"dead"])
    load(f"{root}/store", "t", f"{root}/tables", engine=NativeEngine(), options=LoadOptions(values=ValueRules("json")))
    *lines, last = ask(f"{root}/tables")
    assert last["done"] and {line["table"]: line["rows"] for line in lines} == {"t": 2, "t__dead": 1, "t_typed": 1}
    [line, _] = ask(f"{root}/tables", table="t", versions=5)
    assert line["dead_letters"] == line["reasons_of"] == 1 and [each["version"] for each in line["versions"]] == [0]
    assert ask(f"{root}/tables", table="absent")[0] == {"table": "absent", "is_absent": True}
