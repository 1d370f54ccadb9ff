"""Tests of SQL over a table and the newest records of a running broker, which are not in the bucket yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.load.native_table import NativeTable
from tests.e2e.serving import ServeProcess
from tests.spark.whole_topic_queries import run_queries
from tiered_api.cli.main import main


def test_records_of_a_broker_are_rows_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    warehouse = str(tmp_path / "tables")
    with ServeProcess(tmp_path / "data") as broker:
        broker.create_topic("live")
        broker.produce("live", {"n": 1}, {"n": 2})
        identity = broker.ask("GET", "/tiered/v1/topics/live/partitions/0")[1]["topic_id"]
        assert NativeTable(f"file:{warehouse}/live", "live", identity).commit([], [Advance(0, -1, 1)])
        query = "SELECT offset, value.n FROM live WHERE value.n > 0"
        where = ["--warehouse", warehouse, "--format", "json"]
        assert main(["sql", query, *where, "--bootstrap", broker.url]) == 0
        assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == [{"offset": 1, "n": "2"}]
        assert main(["sql", query, *where]) == 0
        assert capfd.readouterr().out == ""
        assert main(["table", "ls", *where, "--bootstrap", broker.url]) == 0
        assert json.loads(capfd.readouterr().out)["lag"] == 1


def test_queries_count_a_prefix_of_the_log_while_producers_and_loads_go_on(tmp_path: Path) -> None:
    found = run_queries(None, tmp_path, 30)
    assert found["queries"] == 30
    assert found["native"] > 0
