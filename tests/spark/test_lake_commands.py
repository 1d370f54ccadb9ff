"""Tests of `tiered load`, `verify` and `sql` as commands: their output and their exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered import spark_engine
from pyspark_tiered.load.load import load
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.proof.verify import verify
from tests.e2e.serving import ServeProcess, run_tiered
from tests.spark.driver import INTERPRETED
from tiered.errors import Refused
from tiered_api.cli.main import main

SOON = ("-c", "tiered.upload.max.lag.ms=1", "-c", "log.retention.check.interval.ms=20")


ONE_PROCESS = """
import json, sys
from tiered_api.cli.main import main
for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    print(f"\\nexit {code}", flush=True)
"""


Run = Callable[..., list[tuple[int, str]]]
"""A function that returns exit codes and output of commands."""


def run_in_process(*commands: tuple[str, ...]) -> list[tuple[int, str]]:
    """Runs commands that share one Spark, in a process (and a JVM) of its own."""
    program = [sys.executable, "-c", ONE_PROCESS, json.dumps(commands)]
    settings = " ".join(f"--conf {key}={value}" for key, value in INTERPRETED.items())
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell"}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=280)
    assert "Traceback" not in done.stderr and "stacktrace" not in done.stderr, done.stderr
    parts = re.split(r"^exit (\d+)$", done.stdout, flags=re.MULTILINE)
    assert len(parts) == 2 * len(commands) + 1, done.stdout + done.stderr
    return [(int(code), text.strip()) for text, code in zip(parts[::2], parts[1::2], strict=False)]


@pytest.fixture
def run_in_session(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> Run:
    """Returns a function that runs commands in the session of these tests: a command takes a session that runs."""

    def run(*commands: tuple[str, ...]) -> list[tuple[int, str]]:
        results = []
        for command in commands:
            code = main(command)
            output = capsys.readouterr()
            assert "Traceback" not in output.err and "stacktrace" not in output.err, output.err
            results.append((code, output.out.strip()))
        return results

    return run


@pytest.fixture(params=["session", pytest.param("process", marks=pytest.mark.also("values"))])
def run(request: pytest.FixtureRequest) -> Run:
    return run_in_process if request.param == "process" else request.getfixturevalue("run_in_session")


@pytest.mark.java
@pytest.mark.timeout(300)
def test_verify_finds_a_deleted_row_and_load_restores_it(run: Run, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/bucket", str(tmp_path / "warehouse")
    with ServeProcess(tmp_path / "data", "--store", store, *SOON) as broker:
        broker.create_topic("letters")
        broker.produce("letters", *"abcdef")
        broker.wait_for_offset("letters", "cold_end_offset", 6)
    topic = ("--store", store, "--topic", "letters", "--warehouse", warehouse)

    shutil.copytree(tmp_path / "bucket", tmp_path / "damaged")
    segment = next((tmp_path / "damaged").rglob("*.seg"))
    held = segment.read_bytes()
    segment.write_bytes(held[:80] + bytes([held[80] ^ 1]) + held[81:])
    other = ("--store", f"file://{tmp_path}/damaged", "--topic", "letters", "--warehouse", f"{warehouse}-2")

    delete = f"DELETE FROM delta.`{warehouse}/letters` WHERE offset = 3"
    asked = "SELECT offset, CAST(value AS STRING) AS letter FROM letters ORDER BY offset DESC LIMIT 2"
    loaded, whole, deleted, broken, answer, wrong, mended, damaged = run(
        ("load", *topic, "--format", "json"),
        ("verify", *topic),
        ("sql", "--engine", "spark", "--warehouse", warehouse, delete),
        ("verify", *topic, "--format", "json"),
        ("sql", "--warehouse", warehouse, "--format", "csv", asked),
        ("sql", "--warehouse", warehouse, "SELECT nothing FROM letters"),
        ("load", *topic, "--repair"),
        ("load", *other),
    )
    last = json.loads(loaded[1].splitlines()[-1])
    assert (loaded[0], last["step"], last["rows"], last["log_bytes_left"]) == (0, "done", 6, 0)
    assert (whole[0], whole[1].splitlines()[-1]) == (0, "every record is there once")
    assert deleted[0] == 0
    (fault,) = json.loads(broken[1])["faults"]
    assert (broken[0], fault["kind"], fault["partition"], fault["offset"]) == (1, "missing", 0, 3)
    assert fault["why"].startswith("DELETE")
    assert answer[0] == 0
    assert list(csv.reader(answer[1].splitlines())) == [["offset", "letter"], ["5", '"f"'], ["4", '"e"']]
    assert wrong == (2, "")
    assert (mended[0], mended[1].splitlines()[-2]) == (0, "repaired: 1 rows put back")
    assert damaged[0] == 1, "broken data, not a store that cannot be reached"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns a store with the topic `letters`, of a broker that has stopped."""
    place = tmp_path_factory.mktemp("store")
    with ServeProcess(place / "data", "--store", f"file://{place}/bucket") as broker:
        broker.create_topic("letters")
    return f"file://{place}/bucket"


WORK: dict[str, Callable[..., Any]] = {"load": load, "repair": repair, "verify": verify}


@pytest.mark.parametrize("name", ["load", "repair", "verify"])
def test_unknown_topic_is_an_error_before_spark_starts(
    store: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_engine, "session", lambda: pytest.fail("Spark starts"))
    with pytest.raises(Refused, match="there is no topic nope in"):
        WORK[name](store, "nope", str(tmp_path / "warehouse"))


@pytest.mark.parametrize("name", ["repair", "verify"])
@pytest.mark.parametrize("exists", [False, True], ids=["no warehouse", "an empty warehouse"])
def test_topic_that_was_never_loaded_is_an_error(store: str, tmp_path: Path, name: str, exists: bool) -> None:
    warehouse = tmp_path / "a warehouse"
    if exists:
        (warehouse / "other" / "_delta_log").mkdir(parents=True)
    with pytest.raises(Refused, match=r"letters was never loaded: there is no table at file:.*/a warehouse/letters"):
        WORK[name](store, "letters", str(warehouse))


@pytest.mark.parametrize(
    "arguments",
    [
        ("load", "--store", "file:///nowhere", "--topic", "t"),
        ("sql", "--engine", "spark", "SELECT 1"),
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_missing_java_is_a_one_line_error_with_advice(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    lacking = run_tiered(*arguments, env={"PATH": str(tmp_path), "JAVA_HOME": str(tmp_path)})
    assert (lacking.returncode, lacking.stdout) == (3, "")
    assert lacking.stderr.startswith("tiered: Spark needs Java") and len(lacking.stderr.splitlines()) == 1
