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

from pyspark_tiered.delta import history
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.table_form import table_schema
from pyspark_tiered.load.convert import read_rows
from pyspark_tiered.load.joining import (
    FILES_MIN,
    FREE_BYTES,
    JOINED_BYTES_MAX,
    SMALL_BYTES,
    TARGET_BYTES,
    choose_files,
)
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.load.recent_rows import RecentRows
from tests.spark import filling
from tests.spark.engine_race import read_offsets
from tiered.errors import Corrupt
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
    few = TARGET_BYTES // each
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


def test_table_without_news_waits_for_no_more_files() -> None:
    files = {str(number): add_of(size) for number, size in enumerate([10, 20, 4 << 20])}
    assert choose_files(files) == []
    assert choose_files(files, is_idle=True) == ["0", "1"], "the large file is not written again for them"
    assert choose_files({"0": files["0"], "2": files["2"]}, is_idle=True) == []
    assert len(choose_files({str(number): add_of(3 * FREE_BYTES) for number in range(5)}, is_idle=True)) == 5
    many = {str(number): add_of(3 * FREE_BYTES) for number in range(5)}
    assert choose_files({**many, "tiny": add_of(10)}, is_idle=True) == list(many), "a tiny file hinders no others"
    assert choose_files({**many, "tiny": add_of(10, partition=1_000)}, is_idle=True) == list(many)


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
    assert len(small) < FILES_MIN + TARGET_BYTES // FREE_BYTES
    assert len(small) < 2 or sum(add["size"] for add in small) < TARGET_BYTES
    assert written <= 8 * sum(sizes) + FREE_BYTES * len(sizes)


@pytest.mark.parametrize("where", ["directory", pytest.param("s3", marks=pytest.mark.also("stores"))])
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
    for _ in range(2):
        assert load(store, "t", warehouse, engine=NativeEngine()).rows == 0
        now = table.snapshot()
        assert len(now.state.files) == 1, "a load that finds nothing new joins what few files are left"
    assert read_offsets(table) == {0: list(range(loads * 5)), 2: list(range(loads * 5))}
    assert [each.operation for each in now.commits(past_marks=True)[0]].count("OPTIMIZE") == 2
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
    monkeypatch.setattr("pyspark_tiered.load.joining.FILES_MIN", 2)
    removed = next(iter(table.snapshot().state.files.values()))["path"]
    gone = json.dumps({"remove": {"path": removed, "deletionTimestamp": 1, "dataChange": True}})
    (tmp_path / "tables/t/_delta_log" / f"{FILES_MIN - 1:020d}.json").write_text(gone)
    assert table.join_small_files() == 0
    assert removed not in {add["path"] for add in table.snapshot().state.files.values()}


def rows_at(times_us: list[int], value: bytes = b"v") -> pa.Table:
    rows = [
        {"partition": 0, "offset": at, "timestamp": us, "timestamp_type": 0, "value": value}
        for at, us in enumerate(times_us)
    ]
    return pa.Table.from_pylist(rows, table_schema())


def write_as_spark(rows: pa.Table, path: Path, marks: dict[str, str] | None = None) -> None:
    """Writes a file with times as OPTIMIZE, UPDATE, a repair and an erasure by Spark do."""
    with pq.ParquetWriter(path, rows.schema, use_deprecated_int96_timestamps=True, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"org.apache.spark.version": "4.0.1", **(marks or {})})


def test_joined_files_of_spark_keep_their_times(tmp_path: Path) -> None:
    store, root = f"file://{tmp_path}/store", tmp_path / "tables/t"
    filling.create_topic(store, "t", TOPIC, 1)
    times_ms = [filling.BASE_MS, -62_000_000_000_000, 9_999_999_999_999, 1_764_000_000_000_000]
    for first in range(0, 4 * FILES_MIN, 4):
        rows = [(ms, None, b"v", ()) for ms in times_ms]
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=first)))
        if first == 4 * (FILES_MIN - 1):
            (path,) = root.glob(f"*-{4:020d}-*.parquet")
            write_as_spark(pq.read_table(path), path)
            assert "int96" in str(pq.ParquetFile(path).schema).lower()
        load(store, "t", str(tmp_path / "tables"), engine=NativeEngine())
    (joined,) = root.glob("*joined*.parquet")
    held = pq.read_table(joined)
    assert held.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert held["timestamp"].cast(pa.int64()).to_pylist() == [ms * 1000 for ms in times_ms] * FILES_MIN


def test_files_in_another_form_are_not_read_for_a_joining(tmp_path: Path) -> None:
    path, rows, most = tmp_path / "a.parquet", rows_at([-62_000_000_000_000_000, 5]), 1 << 20
    pq.write_table(rows, path)
    assert read_rows(path, most) == rows
    write_as_spark(rows, path)
    assert read_rows(path, most) == rows
    write_as_spark(rows, path, {"org.apache.spark.legacyINT96": ""})
    assert read_rows(path, most) is None, "its calendar is another one"
    at = rows.schema.get_field_index("timestamp")
    pq.write_table(rows.set_column(at, "timestamp", rows["timestamp"].cast(pa.timestamp("us"))), path)
    assert read_rows(path, most) is None
    pq.write_table(rows.append_column("note", pa.nulls(2, pa.string())), path)
    assert read_rows(path, most) is None
    pq.write_table(rows.set_column(0, "partition", pa.nulls(2, pa.int32())), path)
    assert read_rows(path, most) is None
    path.write_bytes(b"no Parquet")
    with pytest.raises(Corrupt, match="not readable Parquet"):
        read_rows(path, most)


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_file_with_too_many_bytes_of_rows_is_not_read_for_a_joining(tmp_path: Path, use_dictionary: bool) -> None:
    path, rows = tmp_path / "a.parquet", rows_at([0] * 5000, b"v" * 1000)
    pq.write_table(rows, path, use_dictionary=use_dictionary, compression="zstd")
    assert path.stat().st_size < 100_000 < rows.nbytes
    assert read_rows(path, rows.nbytes - 100_000) is None
    assert read_rows(path, rows.nbytes + 100_000) == rows


def test_rows_that_do_not_fit_into_memory_are_joined_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    for first, count in ((0, 10), (10, 10), (20, 10), (30, 10), (40, 30)):
        rows = [(filling.BASE_MS, None, b"v" * 1000, ())] * count
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=first)))
        load(store, "t", f"{tmp_path}/tables", engine=NativeEngine())
    monkeypatch.setattr("pyspark_tiered.load.joining.FILES_MIN", 2)
    monkeypatch.setattr("pyspark_tiered.load.joining.ROWS_BYTES_MAX", 30_000)
    table = NativeTable(f"file:{tmp_path}/tables/t", "t", TOPIC)
    table.snapshot()
    assert [table.join_small_files() for _ in range(3)] == [2, 2, 0]
    assert len(table.snapshot().state.files) == 3
    assert read_offsets(table) == {0: list(range(70))}
