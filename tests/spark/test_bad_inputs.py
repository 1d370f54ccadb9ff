"""Commands of tables and buckets with places that are missing, broken or of another kind: each ends in one sentence.

The commands run in this process, so an error that nobody expects fails the test with its traceback.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from tests.e2e.serving import ServeProcess
from tests.fakes3 import FakeS3, HttpFault, s3_fake
from tiered.object_store.faulty import FaultKind
from tiered_api.cli.exits import Exit
from tiered_api.cli.main import main

T = TypeVar("T")
SOON = ("-c", "tiered.upload.max.lag.ms=1", "-c", "log.retention.check.interval.ms=20")
TOPIC = "letters"
RAW = re.compile(r"Traceback|stacktrace|Caused by|\tat |^\s*at (org|java|scala)\.", re.MULTILINE)
"""Words of errors of Python and Java that nobody translated."""

STORE_COMMANDS = {
    "cold ls": "cold ls --store STORE",
    "cold ls topic": "cold ls --store STORE --topic letters",
    "cold cat": "cold cat --store STORE --topic letters",
    "encryption list": "encryption list --store STORE",
    "encryption rewrite": "encryption rewrite --store STORE",
    "load": "load --engine native --topic letters --store STORE --warehouse WAREHOUSE",
    "load topics": "load --engine native --topics .* --store STORE --warehouse WAREHOUSE",
    "table ls": "table ls --store STORE --warehouse WAREHOUSE",
    "change": "table change letters a --drop --store STORE --warehouse WAREHOUSE",
    "replay-dead": "table replay-dead letters --store STORE --warehouse WAREHOUSE",
    "sql": "sql --store STORE --warehouse WAREHOUSE|SELECT count(*) FROM letters",
}
WAREHOUSE_COMMANDS = {
    **{name: STORE_COMMANDS[name] for name in ("load", "load topics", "table ls", "change", "replay-dead", "sql")},
    "describe": "table describe letters --warehouse WAREHOUSE",
    "history": "table history letters --warehouse WAREHOUSE",
    "diff": "table diff letters 0 1 --warehouse WAREHOUSE",
    "plain sql": "sql --warehouse WAREHOUSE|SELECT value FROM letters",
}
SPARK_COMMANDS = {
    "load": "load --topic letters --store STORE --warehouse WAREHOUSE",
    "repair": "load --repair --topic letters --store STORE --warehouse WAREHOUSE",
    "verify": "verify --topic letters --store STORE --warehouse WAREHOUSE",
    "erase": "table erase letters --where|key=1|--reason|x|--store|STORE|--warehouse|WAREHOUSE",
    "sql": "sql --engine spark --warehouse WAREHOUSE|SELECT value FROM letters",
}
WITH_WAREHOUSE = sorted({*WAREHOUSE_COMMANDS.values(), *SPARK_COMMANDS.values()})
BAD_PLACES = {
    "missing": "{root}/absent",
    "file": "{root}/file",
    "empty": "{root}/empty",
    "garbage": "{root}/garbage",
    "missing bucket": "s3://absent/x",
    "refused": "s3://bucket/refused",
    "bad name": "s3://Bad_Name!/x",
    "no bucket": "s3://",
    "umlauts": "s3://bucket/ä b",
    "other scheme": "gs://bucket/x",
    "http": "http://127.0.0.1:1/x",
    "no scheme": "://",
    "brackets": "s3://[bucket/x",
}
NO_ADDRESSES = (
    "", "/", "//", ":", "://", ":///wh", "://bucket/wh", ":wh", "s3 ://bucket/wh", "3s://bucket/wh", "s3:", "s3:/", "s3://",
    "s3:///", "s3:///wh", "s3:bucket/wh", "s3a://", "s3//bucket/wh", "file:", "file:wh", "file://", "file:///", "file://host/wh",
    "file://localhost", "file//wh", "gs://", "gs:///",
)  # fmt: skip
"""Addresses without the name of a scheme, a bucket or a path."""
BAD_LOGS = {
    "binary commit": {"00000000000000000000.json": b"\0\xff\xfe{"},
    "no metadata": {"00000000000000000000.json": b'{"commitInfo":{}}\n'},
    "list": {"00000000000000000000.json": b"[1, 2]\n"},
    "wrong types": {"00000000000000000000.json": b'{"metaData": 3}\n{"protocol": []}\n{"add": {"path": 7}}\n'},
    "half a protocol": {
        "00000000000000000000.json": b'{"protocol":{"minReaderVersion":"x"}}\n{"metaData":{"id":"a"}}\n'
    },
    "checkpoint": {
        "00000000000000000003.checkpoint.parquet": b"PAR1 no parquet",
        "_last_checkpoint": b'{"version":3,"size":1}',
    },
    "empty": {},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a store and a warehouse of one loaded topic, which no broker serves any more, and bad places."""
    root = tmp_path_factory.mktemp("bad")
    with ServeProcess(root / "data", "--store", f"file://{root}/store", *SOON) as broker:
        broker.create_topic(TOPIC)
        broker.produce(TOPIC, {"a": 1}, {"a": 2})
        broker.wait_for_offset(TOPIC, "cold_end_offset", 2)
    assert main(fill(STORE_COMMANDS["load"], f"file://{root}/store", str(root / "wh"))) == Exit.OK
    (root / "file").write_text("a file")
    (root / "empty").mkdir()
    for place in ("garbage/meta", f"garbage/{TOPIC}/_delta_log"):
        (root / place).mkdir(parents=True)
    (root / "garbage/meta/FORMAT").write_bytes(b"\0garbage")
    (root / f"garbage/{TOPIC}/_delta_log/00000000000000000000.json").write_bytes(b"\0garbage")
    yield root


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeS3]:
    with s3_fake() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.faults.append(HttpFault(FaultKind.ERROR, key="refused", status=403))
        server.faults.append(HttpFault(FaultKind.ERROR, ("LIST",), status=403))
        yield server


every = pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.also("values"))], ids=["some", "all"])
"""`make test` runs every fourth pair: each command meets several bad inputs, and each input several commands."""


def choose(rows: Iterable[T], inputs: Iterable[str], chosen: str, step: int) -> list[T]:
    """Returns every `step`-th row, from a row on that the place of the chosen one among all inputs gives."""
    return list(rows)[list(inputs).index(chosen) % step :: step]


def fill(command: str, store: str, warehouse: str) -> list[str]:
    """Returns the words of a command; `|` stands before a word with spaces."""
    first, *rest = command.split("|")
    words = [*first.split(), *rest]
    return [{"STORE": store, "WAREHOUSE": warehouse}.get(word, word) for word in words]


def check(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a command that has to end in a sentence, or in an answer."""
    capsys.readouterr()
    code = main(words)
    output = capsys.readouterr()
    assert not RAW.search(output.err + output.out), (words, output.err)
    assert code in (Exit.OK, Exit.FAILED, Exit.USAGE, Exit.UNAVAILABLE), (words, code)
    if code != Exit.OK:
        told = [line for line in output.err.splitlines() if line.startswith("tiered: ")]
        assert told, (words, output.err)


@every
@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", BAD_PLACES)
def test_bad_store_is_told_in_a_sentence(
    served: Path, fake: FakeS3, place: str, step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    where = BAD_PLACES[place].format(root=served)
    stores = (f"file://{where}", where) if where.startswith("/") else (where,)
    for command, store in itertools.product(choose(STORE_COMMANDS.values(), BAD_PLACES, place, step), stores):
        check(fill(command, store, str(served / "wh")), capsys)


@every
@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", BAD_PLACES)
def test_bad_warehouse_is_told_in_a_sentence(
    served: Path, fake: FakeS3, place: str, step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = BAD_PLACES[place].format(root=served)
    if place in ("missing", "empty"):  # a load makes a warehouse there
        where = str(tmp_path / place)
    for command in choose(WAREHOUSE_COMMANDS.values(), BAD_PLACES, place, step):
        check(fill(command, f"file://{served}/store", where), capsys)


@every
@pytest.mark.timeout(300)
@pytest.mark.parametrize("command", WITH_WAREHOUSE)
def test_address_without_a_place_is_refused_and_makes_nothing(
    served: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    step: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = [(f"file://{served}/store", each) for each in NO_ADDRESSES] + [
        (each, str(tmp_path / "wh")) for each in NO_ADDRESSES[::5] if "STORE" in command
    ]
    for store, warehouse in choose(addresses, WITH_WAREHOUSE, command, step):
        capsys.readouterr()
        code = main(fill(command, store, warehouse))
        (told,) = capsys.readouterr().err.splitlines()
        assert (code, told.startswith("tiered: ")) == (Exit.USAGE, True), (store, warehouse, code, told)
        assert list(tmp_path.iterdir()) == [], (store, warehouse)


@pytest.mark.parametrize("name", ["load", "repair", "verify", "erase"])
def test_place_that_only_hadoop_knows_is_refused_by_name(
    served: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in ("hdfs://host/wh", "gs://bucket/wh"):
        capsys.readouterr()
        assert main(fill(SPARK_COMMANDS[name], f"file://{served}/store", place)) == Exit.USAGE
        assert f"in directories and on S3 only, not at {place}" in capsys.readouterr().err


@every
@pytest.mark.timeout(300)
@pytest.mark.parametrize("log", BAD_LOGS)
def test_bad_log_of_a_table_is_told_in_a_sentence(
    served: Path, log: str, step: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in choose(WAREHOUSE_COMMANDS.values(), BAD_LOGS, log, step):
        folder = tmp_path / "wh" / TOPIC / "_delta_log"
        shutil.rmtree(tmp_path / "wh", ignore_errors=True)
        folder.mkdir(parents=True)
        for name, data in BAD_LOGS[log].items():
            (folder / name).write_bytes(data)
        check(fill(command, f"file://{served}/store", str(tmp_path / "wh")), capsys)


@pytest.mark.timeout(300)
def test_bad_data_file_is_told_in_a_sentence(served: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(served / "wh", tmp_path / "wh")
    for file in (tmp_path / "wh" / TOPIC).glob("*.parquet"):
        file.write_bytes(b"PAR1 no parquet")
    for command in WAREHOUSE_COMMANDS.values():
        check(fill(command, f"file://{served}/store", str(tmp_path / "wh")), capsys)


@pytest.mark.java
@pytest.mark.timeout(600)
@pytest.mark.also("tests/spark/test_bad_inputs.py::test_address_without_a_place_is_refused_and_makes_nothing")
@pytest.mark.parametrize("pair", [zip, itertools.product])
def test_bad_places_are_told_in_a_sentence_by_spark(
    pair: Callable[..., Iterable[tuple[str, str]]],
    spark: SparkSession,
    served: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`make test` runs each command at one place."""
    log = tmp_path / "broken" / TOPIC / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_bytes(b"\0\xff\xfe{")
    places = [str(tmp_path / "broken"), "s3://absent/x", "s3://Bad_Name!/x", "gs://bucket/x", str(served / "file")]
    for command, place in pair(SPARK_COMMANDS.values(), places):
        check(fill(command, f"file://{served}/store", place), capsys)
    for command, place in pair(SPARK_COMMANDS.values(), ["s3://absent/x"]):
        check(fill(command, place, str(served / "wh")), capsys)
