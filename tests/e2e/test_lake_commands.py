"""`tiered load`, `verify` and `sql` as commands: what they print and their exit codes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.serving import Served, tiered
from tiered_api.cli.main import main

SOON = ("-c", "tiered.upload.max.lag.ms=1", "-c", "log.retention.check.interval.ms=20")


@pytest.fixture
def spark_ends() -> Iterator[None]:
    """Commands run in this process share one session; nothing after this test shall find it."""
    yield
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_load_verify_and_ask(tmp_path: Path, capfd: pytest.CaptureFixture[str], spark_ends: None) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(arguments)
        return code, capfd.readouterr().out.strip()

    store, warehouse = f"file://{tmp_path}/bucket", str(tmp_path / "warehouse")
    with Served(tmp_path / "data", "--store", store, *SOON) as broker:
        broker.create_topic("letters")
        broker.produce("letters", *"abcdef")
        while broker.ask("GET", "/tiered/v1/topics/letters/partitions/0")[1]["cold_end_offset"] < 6:
            pass
    topic = ("--store", store, "--topic", "letters", "--warehouse", warehouse)

    code, told = run("load", *topic, "--format", "json")
    last = json.loads(told.splitlines()[-1])
    assert (code, last["step"], last["rows"], last["log_bytes_left"]) == (0, "done", 6, 0)

    code, told = run("verify", *topic)
    assert (code, told.splitlines()[-1]) == (0, "every record is there once")

    delete = f"DELETE FROM delta.`{warehouse}/letters` WHERE offset = 3"
    assert run("sql", "--warehouse", warehouse, delete)[0] == 0
    code, told = run("verify", *topic, "--format", "json")
    assert (code, json.loads(told)["faults"]) == (1, [{"kind": "missing", "partition": 0, "offset": 3}])

    asked = "SELECT offset, CAST(value AS STRING) AS letter FROM letters ORDER BY offset DESC LIMIT 2"
    code, told = run("sql", "--warehouse", warehouse, "--format", "csv", asked)
    assert (code, list(csv.reader(told.splitlines()))) == (0, [["offset", "letter"], ["5", '"f"'], ["4", '"e"']])

    assert run("sql", "--warehouse", warehouse, "SELECT nothing FROM letters") == (2, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("load", "--store", "file:///nowhere", "--topic", "t"),
        ("verify", "--store", "file:///nowhere", "--topic", "t"),
        ("sql", "SELECT 1"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_without_java_one_sentence_says_what_to_do(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    lacking = tiered(*arguments, env={"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})
    assert (lacking.returncode, lacking.stdout) == (3, "")
    assert lacking.stderr.startswith("tiered: Spark needs Java") and len(lacking.stderr.splitlines()) == 1
