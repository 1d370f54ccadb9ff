"""Tests of the reader of Delta's log: hints that are wrong, checkpoints of other kinds, and times that go back."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.checkpoint import encode_checkpoint
from pyspark_tiered.delta.log_folder import LOG, open_folder
from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.spark_engine import SparkEngine
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tiered.errors import Corrupt, Refused
from tiered.ids import PartitionId
from tiered_api.cli.main import main

TOPIC = filling.topic_id(1)


def make_table(root: Path, commits: int) -> NativeTable:
    table = NativeTable(f"file:{root}", "t", TOPIC)
    for end in range(commits):
        assert table.commit([], [Advance(0, end - 1, end)])
    return table


def hint(root: Path, **fields: Any) -> None:
    (root / LOG / "_last_checkpoint").write_text(json.dumps({"size": 5, **fields}))


@pytest.mark.parametrize("version", [900, 13, 12, -4, 10**30, 1e400], ids=str)
def test_hint_ahead_of_the_log_is_ignored(tmp_path: Path, version: float) -> None:
    """Also one that names a commit without a checkpoint."""
    root = tmp_path / "t"
    make_table(root, 13)
    hint(root, version=version)
    log = TableLog(open_folder(f"file:{root}"))
    assert (log.read().version, log.read().versions()) == (12, {f"{TOPIC}/0": 12})
    other = NativeTable(f"file:{root}", "t", TOPIC)
    assert other.commit([], [Advance(0, 12, 13)])
    assert TableLog(open_folder(f"file:{root}")).read().version == 13


def test_hint_ahead_of_a_cleaned_log_makes_no_second_table(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make_table(root, 13)
    for version in range(10):
        (root / LOG / delta_state.commit_name(version)).unlink()
    hint(root, version=900)
    other = NativeTable(f"file:{root}", "t", TOPIC)
    assert not other.commit([], [Advance(0, -1, 5)]), "the table is loaded up to offset 12"
    assert other.commit([], [Advance(0, 12, 13)])
    assert not (root / LOG / delta_state.commit_name(0)).exists()


def test_hint_of_an_empty_log_creates_no_table(tmp_path: Path) -> None:
    root = tmp_path / "t"
    make_table(root, 13)
    for path in (root / LOG).glob("0*"):
        path.unlink()
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"neither a commit nor a checkpoint.*version 10"):
            NativeTable(f"file:{root}", "t", TOPIC).commit([], [Advance(0, -1, 5)])
    assert os.listdir(root / LOG) == ["_last_checkpoint"]


V2_NAMES = ("{:020d}.checkpoint.{}.json", "{:020d}.checkpoint.{}.parquet")


@pytest.mark.parametrize("name", V2_NAMES)
@pytest.mark.parametrize("hinted", [True, False])
def test_v2_checkpoint_is_refused_by_name(tmp_path: Path, name: str, hinted: bool) -> None:
    root = tmp_path / "t"
    make_table(root, 13)
    (root / LOG / name.format(12, uuid.uuid4())).write_bytes(b"")
    if hinted:
        hint(root, version=12, v2Checkpoint={"path": "x"})
    with pytest.raises(Refused, match=r"v2Checkpoint.*--engine spark"):
        TableLog(open_folder(f"file:{root}")).read()
    assert TableLog(open_folder(f"file:{root}")).read_version(11).version == 11, "before that checkpoint"
    with pytest.raises(Refused, match="v2Checkpoint"):
        TableLog(open_folder(f"file:{root}")).read_version(12)


@pytest.mark.parametrize("feature", ["v2Checkpoint", "catalogManaged"])
def test_log_that_does_not_say_all_is_refused_by_the_feature(tmp_path: Path, feature: str) -> None:
    """Also one in a checkpoint under a classic name: it may name the files in others."""
    root = tmp_path / "t"
    table = make_table(root, 11)
    state = table.snapshot().state
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature]}
    state.protocol = protocol
    (root / LOG / delta_state.checkpoint_name(10)).write_bytes(encode_checkpoint(state.actions(0))[0])
    with pytest.raises(Refused, match=rf"{feature}.*--engine spark"):
        TableLog(open_folder(f"file:{root}")).read()


def test_typed_table_whose_log_is_not_read_stops_the_load(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", f"{tmp_path}/tables"
    filling.create_topic(store, "t", TOPIC, 1)
    rows = [(filling.BASE_MS, b"k", b'{"id": 1}', ())]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    load(store, "t", tables, engine=NativeEngine(), options=LoadOptions(values=ValueRules("json")))
    (tmp_path / "tables/t_typed" / LOG / V2_NAMES[0].format(1, uuid.uuid4())).write_bytes(b"")
    with pytest.raises(Refused, match="t_typed needs reader version 3 with v2Checkpoint"):
        load(store, "t", tables, engine=NativeEngine())


def test_ls_shows_the_other_tables(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c", "d"):
        make_table(tmp_path / name, 12)
    (tmp_path / "b" / LOG / V2_NAMES[0].format(11, uuid.uuid4())).write_bytes(b"")
    words = ["table", "ls", "--warehouse", str(tmp_path)]
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["a", "raw"], ["b", "unreadable"], ["c", "raw"], ["d", "raw"],
    ]  # fmt: skip
    assert "tiered: b: the table at" in err and "v2Checkpoint" in err
    for command in (["describe", "b"], ["history", "b"]):
        assert main(["table", *command, "--warehouse", str(tmp_path)]) == 2
        assert "v2Checkpoint" in capfd.readouterr().err
    (tmp_path / "c" / LOG / delta_state.commit_name(11)).write_text("{")
    assert main([*words, "--format", "json"]) == 1, "data is broken"
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [each["kind"] for each in rows] == ["raw", "unreadable", "unreadable", "raw"]
    assert "no JSON" in rows[2]["why"] and rows[2]["rows"] is None


def test_dead_letters_are_counted_by_the_topic_of_their_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A topic may have the name that the dead letters of another topic would have."""
    store, tables = f"file://{tmp_path}/store", str(tmp_path / "tables")
    for number, name in enumerate(("t", "t__dead"), 1):
        identity = filling.topic_id(number)
        filling.create_topic(store, name, identity, 1)
        rows = [(filling.BASE_MS, b"k", b"v", ())] * 9
        filling.upload(store, name, PartitionId(identity, 0), list(filling.segments(rows)))
        load(store, name, tables, engine=NativeEngine())
    assert main(["table", "ls", "--warehouse", tables, "--format", "json"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(each["table"], each["kind"], each["dead_letters"]) for each in found] == [
        ("t", "raw", None), ("t__dead", "raw", None),
    ]  # fmt: skip


MINUTE_MS = 60_000
START_MS = (int(time.time()) // 86_400 - 1) * 86_400_000
"""Yesterday: Delta reads no versions that are older than its files are kept."""
CLOCKS = {
    "fast": [0, 1, 10, 2, 3, 4, 5],
    "fast at the end": [0, 1, 2, 3, 4, 10, 5],
    "still": [0, 0, 0, 1, 1, 1, 1],
    "back": [5, 4, 3, 2, 1, 0, 6],
}


def set_times(root: Path, minutes: list[int]) -> None:
    for version, minute in enumerate(minutes):
        path = root / LOG / delta_state.commit_name(version)
        at_ms = START_MS + minute * MINUTE_MS
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["timestamp"] = at_ms
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
        os.utime(path, ns=(0, at_ms * 1_000_000))


@pytest.mark.parametrize("clock", CLOCKS)
def test_times_that_go_back_are_made_to_grow(tmp_path: Path, clock: str) -> None:
    root = tmp_path / "t"
    make_table(root, 7)
    set_times(root, CLOCKS[clock])
    log = TableLog(open_folder(f"file:{root}"))
    expected = {
        "fast": {0: 0, 1: 1, 2.5: 1, 3.5: 1, 9: 1, 10: 2, 11: 6},
        "fast at the end": {4: 4, 4.5: 4, 9.9: 4, 10: 5, 10.1: 6},
        "still": {0: 0, 0.5: 2, 1: 3, 1.1: 6},
        "back": {5: 0, 5.5: 5, 6: 6},
    }[clock]
    for minute, version in expected.items():
        assert log.find_version(START_MS + int(minute * MINUTE_MS)) == version, minute
    with pytest.raises(Refused, match="does not reach back"):
        log.find_version(START_MS - 1 + min(CLOCKS[clock][:1]) * MINUTE_MS)


def test_in_commit_timestamps_are_the_times_of_their_commits(tmp_path: Path) -> None:
    """From the version on that has them; the commits before have the times of their files."""
    root = tmp_path / "t"
    table = make_table(root, 8)
    set_times(root, [0, 1, 2, 3, 4, 5, 6, 7])
    state = table.snapshot().state
    properties = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "4",
        "delta.inCommitTimestampEnablementTimestamp": str(START_MS + 40 * MINUTE_MS),
    }
    for version in range(4, 8):
        info: dict[str, Any] = {"commitInfo": {"inCommitTimestamp": START_MS + version * 10 * MINUTE_MS}}
        more = [{"metaData": {**state.metadata, "configuration": properties}}] if version == 4 else []
        path = root / LOG / delta_state.commit_name(version)
        path.write_text("".join(json.dumps(each) + "\n" for each in (info, *more)))
        os.utime(path, ns=(0, (START_MS + version * MINUTE_MS) * 1_000_000))
    log = TableLog(open_folder(f"file:{root}"))
    for minute, version in {0: 0, 3: 3, 39: 3, 40: 4, 45: 4, 60: 6, 99: 7}.items():
        assert log.find_version(START_MS + minute * MINUTE_MS) == version, minute


@pytest.mark.also("tests/spark/test_table_log.py::test_times_that_go_back_are_made_to_grow")
@pytest.mark.java
@pytest.mark.parametrize(
    "clocks",
    [
        pytest.param(["fast", "still", "back"], id="some"),
        pytest.param(["fast at the end"], id="others"),
    ],
)
def test_spark_finds_the_same_versions(spark: SparkSession, tmp_path: Path, clocks: list[str]) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    for first in range(7):
        rows = list(filling.segments([(filling.BASE_MS, b"k", b"v", ())], base_offset=first))
        filling.upload(store, "t", PartitionId(TOPIC, 0), rows)
        load(store, "t", str(tmp_path / "tables"), engine=NativeEngine())
    compared = 0
    for number, minutes in enumerate(CLOCKS[each] for each in clocks):
        root = tmp_path / f"t{number}"
        shutil.copytree(tmp_path / "tables" / "t", root)
        set_times(root, minutes)
        log = TableLog(open_folder(f"file:{root}"))
        for half in {2 * minutes[0], 3, 5, 7, 10, 11, 19, 20} & set(range(2 * minutes[0], 2 * max(minutes) + 1)):
            at_ms = START_MS + half * MINUTE_MS // 2
            at = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
            (row,) = spark.sql(f"SELECT count(*) FROM delta.`file:{root}` TIMESTAMP AS OF '{at}'").collect()
            assert log.find_version(at_ms) + 1 == row[0], (minutes, half)
            compared += 1
    assert compared >= 8


@pytest.mark.also("tests/spark/test_table_log.py::test_v2_checkpoint_is_refused_by_name")
@pytest.mark.java
def test_table_with_v2_checkpoints_by_spark_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, tables = f"file://{tmp_path}/store", str(tmp_path / "tables")
    filling.create_topic(store, "t", TOPIC, 1)

    def fill(first: int) -> None:
        rows = list(filling.segments([(filling.BASE_MS, b"k", b"v", ())], base_offset=first))
        filling.upload(store, "t", PartitionId(TOPIC, 0), rows)

    fill(0)
    load(store, "t", tables, spark=spark)
    settings = "'delta.checkpointPolicy'='v2', 'delta.checkpointInterval'='2'"
    spark.sql(f"ALTER TABLE delta.`file:{tables}/t` SET TBLPROPERTIES ({settings})")
    for number in range(4):
        spark.sql(f"ALTER TABLE delta.`file:{tables}/t` SET TBLPROPERTIES ('mine' = '{number}')")
    assert any(".checkpoint." in name and len(name) > 60 for name in os.listdir(f"{tables}/t/{LOG}"))
    fill(1)
    for engine in (NativeEngine(), SparkEngine(spark)):
        with pytest.raises(Refused, match="DROP FEATURE v2Checkpoint"):
            load(store, "t", tables, engine=engine)
    with pytest.raises(Refused, match="DROP FEATURE v2Checkpoint"):
        verify(store, "t", tables)
    with SqlSession(tables) as session, pytest.raises(Refused, match="v2Checkpoint"):
        session.run("SELECT count(*) FROM t")
    for command in (["describe", "t"], ["history", "t"]):
        assert main(["table", *command, "--warehouse", tables]) == 2
    assert main(["table", "ls", "--warehouse", tables]) == 0
    assert "unreadable" in capfd.readouterr().out
