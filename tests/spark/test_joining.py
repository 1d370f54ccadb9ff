"""Tests of the joining of small files after loads without a JVM: which files, and that the rows stay the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tiered import history
from pyspark_tiered.joining import FILES_MIN, FREE_BYTES, JOINED_BYTES_MAX, SMALL_BYTES, choose_files
from pyspark_tiered.load import load
from pyspark_tiered.native_engine import NativeEngine
from pyspark_tiered.native_table import NativeTable
from pyspark_tiered.recent_rows import RecentRows
from pyspark_tiered.session import spark_url
from tests.spark import filling
from tests.spark.engine_race import read_offsets
from tiered.ids import PartitionId

TOPIC = filling.topic_id(1)


def add_of(size: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    stats = {"minValues": {"partition": partition, "offset": 0}, "maxValues": {"partition": partition, "offset": 9}}
    return {"path": "p", "size": size, "stats": json.dumps(stats), **more}


def choose(*adds: dict[str, Any]) -> list[str]:
    return choose_files({str(number): add for number, add in enumerate(adds)})


def test_few_small_files_are_left_alone() -> None:
    assert choose(*[add_of(10)] * (FILES_MIN - 1)) == []
    assert len(choose(*[add_of(10)] * FILES_MIN)) == FILES_MIN


def test_large_file_waits_until_it_is_worth_it() -> None:
    large = add_of(4 << 20)
    assert "0" not in choose(large, *[add_of(100_000)] * FILES_MIN)
    assert "0" in choose(large, *[add_of(FREE_BYTES)] * FILES_MIN)


def test_files_of_large_loads_are_joined_to_files_that_are_not_small() -> None:
    each = 3 * FREE_BYTES
    few = SMALL_BYTES // each
    assert choose(*[add_of(each)] * few) == []
    assert len(choose(*[add_of(each)] * (few + 1))) == few + 1
    assert len(choose(add_of(SMALL_BYTES - 1), add_of(SMALL_BYTES - 1), add_of(SMALL_BYTES - 1))) == 2


def test_statistics_are_parsed_only_if_files_are_joined() -> None:
    unreadable = {"path": "p", "stats": "no JSON"}
    assert choose(*[{**unreadable, "size": SMALL_BYTES}] * 1000, *[{**unreadable, "size": FREE_BYTES + 1}] * 20) == []


def test_files_that_cannot_be_joined_are_left_alone() -> None:
    small = [add_of(10)] * (FILES_MIN - 1)
    assert choose(*small, add_of(SMALL_BYTES)) == []
    assert choose(*small, add_of(10, deletionVector={"storageType": "u"})) == []
    assert choose(*small, {"path": "p", "size": 10}) == []
    assert choose(*small, add_of(10, partition=300)) == []


@given(st.lists(st.integers(1, 4 << 20), min_size=1, max_size=60))
def test_loads_with_joins_leave_few_files_and_write_rows_few_times(sizes: list[int]) -> None:
    files: dict[str, dict[str, Any]] = {}
    written = 0
    for number, size in enumerate(sizes):
        files[f"f{number}"] = add_of(size)
        while keys := choose_files(files):
            joined = sum(int(files.pop(key)["size"]) for key in keys)
            assert joined <= JOINED_BYTES_MAX
            written += joined
            files[f"j{number}"] = add_of(joined)
    small = [add for add in files.values() if add["size"] < SMALL_BYTES]
    assert len(small) < FILES_MIN + SMALL_BYTES // FREE_BYTES
    assert len(small) < 2 or sum(add["size"] for add in small) < SMALL_BYTES
    assert written <= 8 * sum(sizes) + FREE_BYTES * len(sizes)


@pytest.mark.parametrize("where", ["directory", pytest.param("s3", marks=pytest.mark.also)])
def test_many_small_loads_leave_few_files_with_the_same_rows(tmp_path: Path, bucket: str, where: str) -> None:
    root = f"file://{tmp_path}" if where == "directory" else f"s3://{bucket}/{tmp_path.name}"
    store, warehouse = f"{root}/store", f"{root}/tables"
    filling.create_topic(store, "t", TOPIC, 3)
    loads = FILES_MIN + 3
    for each in range(loads):
        for partition in (0, 2):
            rows = [(filling.BASE_MS + i, b"k", b"%d" % i, (("h", None),)) for i in range(each * 5, each * 5 + 5)]
            segments = list(filling.segments(rows, base_offset=each * 5))
            filling.upload(store, "t", PartitionId(TOPIC, partition), segments)
        assert load(store, "t", warehouse, engine=NativeEngine()).rows == 10
        if each == FILES_MIN - 1 and where == "directory":
            again = load(store, "t", warehouse, engine=NativeEngine())
            assert again.requests["list"] == 1, "a joining keeps the digest of the manifests"
    table = NativeTable(f"{spark_url(warehouse)}/t", "t", TOPIC)
    now = table.snapshot()
    assert len(now.state.files) == 4
    assert read_offsets(table) == {0: list(range(loads * 5)), 2: list(range(loads * 5))}
    (joined,) = [add for add in now.state.files.values() if "joined" in add["path"]]
    end = FILES_MIN * 5
    assert json.loads(joined["tags"]["tiered.runs"]) == [[0, 0, end - 1], [2, 0, end - 1]]
    with table.folder.local(joined["path"]) as path:
        held = pq.read_table(path)
        assert held["offset"].to_pylist() == [*range(end), *range(end)]
        assert held["value"].to_pylist()[:2] == [b"0", b"1"]
        assert held["headers"].to_pylist()[0] == [{"key": "h", "value": None}]
        assert pq.read_metadata(path).num_row_groups == 2
    commits, _ = now.commits(past_marks=True)
    assert history.find_row_removals(commits) == []
    assert [each.operation for each in commits].count("OPTIMIZE") == 1
    assert not any(change.changes_data for each in commits for change in each.removed)
    table.close()


def test_one_process_joins_its_files_without_reading_them(tmp_path: Path) -> None:
    store, tables = f"file://{tmp_path}/store", tmp_path / "tables"
    filling.create_topic(store, "t", TOPIC, 2)
    engine = NativeEngine()
    for each in range(FILES_MIN):
        for damaged in tables.glob("t/*.parquet"):
            damaged.write_bytes(b"")
        for partition in range(2):
            rows = [(filling.BASE_MS, None, b"%d" % each, (("h", b"x"),))]
            segments = list(filling.segments(rows, base_offset=each))
            filling.upload(store, "t", PartitionId(TOPIC, partition), segments)
        load(store, "t", str(tables), engine=engine)
    (joined,) = tables.glob("t/*joined*.parquet")
    held = pq.read_table(joined)
    assert held["offset"].to_pylist() == [*range(FILES_MIN)] * 2
    assert held["value"].to_pylist() == [b"%d" % each for each in range(FILES_MIN)] * 2
    assert held["headers"].to_pylist() == [[{"key": "h", "value": b"x"}]] * FILES_MIN * 2


def test_oldest_rows_go_beyond_the_bound() -> None:
    rows = pa.table({"offset": pa.array(range(1000), pa.int64())})
    recent = RecentRows(3 * rows.nbytes)
    for name in "abcd":
        recent.add(name, rows)
    assert recent.take("a") is None
    assert recent.take("b") is rows
    assert recent.take("b") is None
    recent.add("e", rows)
    assert recent.take("c") is rows


def test_files_that_another_writer_removed_are_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    for each in range(FILES_MIN - 1):
        rows = [(filling.BASE_MS, None, b"v", ())]
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=each)))
        load(store, "t", f"{tmp_path}/tables", engine=NativeEngine())
    table = NativeTable(f"file:{tmp_path}/tables/t", "t", TOPIC)
    monkeypatch.setattr("pyspark_tiered.joining.FILES_MIN", 2)
    removed = next(iter(table.snapshot().state.files.values()))["path"]
    gone = json.dumps({"remove": {"path": removed, "deletionTimestamp": 1, "dataChange": True}})
    (tmp_path / "tables/t/_delta_log" / f"{FILES_MIN - 1:020d}.json").write_text(gone)
    assert table.join_small_files() == 0
    assert removed not in {add["path"] for add in table.snapshot().state.files.values()}
