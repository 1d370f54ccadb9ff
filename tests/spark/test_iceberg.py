"""Tests of Iceberg's metadata beside a table: each version once, despite kills, other writers and other engines."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyspark_tiered.delta.delta_state import commit_name
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import DirectoryFolder, open_folder
from pyspark_tiered.delta.table_form import Advance, FileRun, LoadedFile, ReplacedFile
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.iceberg.export import IcebergExport
from pyspark_tiered.iceberg.manifest import DELETED, Entry, decode_list, decode_manifest
from pyspark_tiered.iceberg.metadata import FOLDER
from pyspark_tiered.load.iceberg_property import export_iceberg
from pyspark_tiered.load.joining import FILES_MIN
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tests.unit.iceberg.commits import live_names
from tiered.errors import Refused
from tiered.ids import PartitionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = filling.topic_id(1)
ICEBERG = LoadOptions(iceberg=True)


def open_table(folder: Path, *, asks: bool = True) -> NativeTable:
    table = NativeTable(spark_url(str(folder)), "t", TOPIC)
    if asks:
        table.iceberg.ask()
    return table


def append(table: NativeTable, start: int) -> None:
    """Commits a file of ten offsets, which nobody reads."""
    run = FileRun(0, 10, start, start + 9, 1_000, 2_000)
    file = LoadedFile(f"part-{start}.parquet", 100, 0, (run,))
    assert table.commit([file], [Advance(0, start or -1, start + 10)])


def metadata_files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted((folder / FOLDER).iterdir())}


def newest(folder: Path) -> dict[str, Any]:
    """Returns the metadata that the hint names."""
    number = int((folder / FOLDER / "version-hint.text").read_text())
    return read_metadata(folder, number)


def read_metadata(folder: Path, number: int) -> dict[str, Any]:
    return dict(json.loads((folder / FOLDER / f"v{number}.metadata.json").read_text()))


def files_of(metadata: dict[str, Any]) -> list[str]:
    """Returns the names of the files of the newest version of these metadata."""
    return [Path(each).name for each in live_names(entries_of(metadata))]


def entries_of(metadata: dict[str, Any]) -> list[Entry]:
    """Returns all entries of the newest version of these metadata."""

    def local(url: str) -> bytes:
        return Path(url.removeprefix("file://")).read_bytes()

    listed = metadata["snapshots"][-1]["manifest-list"]
    return [entry for each in decode_list(local(listed), "") for entry in decode_manifest(local(each.path), "")]


def test_each_commit_has_its_version_and_the_hint_names_the_newest(tmp_path: Path) -> None:
    table = open_table(tmp_path / "t")
    for start in range(0, 50, 10):
        append(table, start)
        found = newest(tmp_path / "t")
        assert found["current-snapshot-id"] == table.snapshot().version + 1
        assert found["snapshots"][-1]["summary"]["total-records"] == str(start + 10)
    assert files_of(read_metadata(tmp_path / "t", 3)) == [f"part-{n}.parquet" for n in (0, 10, 20)]


def test_table_without_the_property_has_no_metadata(tmp_path: Path) -> None:
    table = open_table(tmp_path / "t", asks=False)
    append(table, 0)
    export_iceberg(table)
    assert not (tmp_path / "t" / "_iceberg").exists()


def test_table_that_is_there_gets_all_its_files_in_the_first_version(tmp_path: Path) -> None:
    table = open_table(tmp_path / "t", asks=False)
    append(table, 0)
    append(table, 10)
    again = open_table(tmp_path / "t")
    export_iceberg(again)
    export_iceberg(again)
    found = newest(tmp_path / "t")
    assert [each["snapshot-id"] for each in found["snapshots"]] == [3], "the property is one commit"
    assert files_of(found) == ["part-0.parquet", "part-10.parquet"]
    later = open_table(tmp_path / "t", asks=False)
    append(later, 20)
    assert newest(tmp_path / "t")["current-snapshot-id"] == 4, "the table remembers it"


def test_killed_writer_is_continued_to_the_same_files(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    table = open_table(whole)
    append(table, 0)
    before = metadata_files(whole)
    append(table, 10)
    after = metadata_files(whole)
    new = sorted(after.keys() - before.keys(), key=lambda name: "m-snap-v".index(name[0]))
    assert len(new) == 3
    for count in range(4):
        folder = tmp_path / f"killed-{count}"
        shutil.copytree(whole, folder)
        for name in new[count:]:
            (folder / FOLDER / name).unlink()
        (folder / FOLDER / "version-hint.text").write_bytes(before["version-hint.text"])
        # The places of files are whole URLs: the copy takes the place of the original.
        shutil.rmtree(whole)
        shutil.copytree(folder, whole)
        table = open_table(whole, asks=False)
        table.loaded_offsets()
        export_iceberg(table)
        assert metadata_files(whole) == after


class KilledWriter(BaseException):
    """The end of a process."""


class FolderUntil(DirectoryFolder):
    """The folder of a table for a process that is killed after some writes: the last one may be done, or not."""

    def __init__(self, url: str, writes: int, *, does_last: bool) -> None:
        super().__init__(url)
        self._left = writes
        self._does_last = does_last

    def _count(self, write: Callable[[], object]) -> None:
        self._left -= 1
        if self._left > 0 or (self._left == 0 and self._does_last):
            write()
        if self._left <= 0:
            raise KilledWriter

    def create(self, path: str, data: bytes) -> str | None:
        self._count(lambda: super(FolderUntil, self).create(path, data))
        return "created"

    def create_each(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            self.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._count(lambda: super(FolderUntil, self).replace(path, data))

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._count(lambda path=path: super(FolderUntil, self).delete([path]))  # type: ignore[misc]


@pytest.mark.parametrize("does_last", [False, True])
def test_writers_killed_after_any_write_end_with_the_same_files(
    does_last: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table of ten commits, joins and removals among them, exported by one process, and by many that are killed."""
    monkeypatch.setattr("pyspark_tiered.iceberg.version.SMALL_MAX", 3)
    folder = tmp_path / "t"
    table = open_table(folder)
    monkeypatch.setattr(table.iceberg, "catch_up", lambda: None)
    for start in range(0, 80, 10):
        append(table, start)
        if start in (30, 60):
            at = table.snapshot().state.copy()
            (gone,) = [add for add in at.files.values() if add["path"] == f"part-{start - 20}.parquet"]
            assert table.replace_files(at, [ReplacedFile(gone, 10, None, "")], {"operation": "DELETE"})

    for version in range(10):
        with log_up_to(folder, version):
            export(DirectoryFolder(table.url))
    whole = metadata_files(folder)
    assert len(whole) > 30
    for writes in range(1, 12):
        shutil.rmtree(folder / "_iceberg")
        with log_up_to(folder, 0):
            export(DirectoryFolder(table.url))
        for attempt in range(100):
            try:
                export(FolderUntil(table.url, writes + attempt, does_last=does_last))
                break
            except KilledWriter:
                continue
        assert metadata_files(folder) == whole


def export(folder: DirectoryFolder) -> None:
    """Writes the metadata that are missing, as a new process does."""
    log = TableLog(folder)
    log.read()
    IcebergExport(log).write()


@contextmanager
def log_up_to(folder: Path, version: int) -> Iterator[None]:
    """Hides the commits of later versions."""
    log = folder / "_delta_log"
    hidden = [each for each in log.glob("*.json") if each.name > commit_name(version)]
    for each in hidden:
        each.rename(each.with_suffix(".later"))
    yield
    for each in hidden:
        each.with_suffix(".later").rename(each)


def test_racing_writers_leave_one_history(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    append(open_table(folder), 0)
    places = [(number, open_table(folder, asks=False)) for number in (1, 2, 3)]

    def write(place: tuple[int, NativeTable]) -> None:
        number, table = place
        for start in range(0, 80, 10):
            file = LoadedFile(f"part-{number}-{start}.parquet", 100, 0, (FileRun(number, 10, start, start + 9, 1, 2),))
            assert table.commit([file], [Advance(number, start or -1, start + 10)])

    with ThreadPoolExecutor(3) as workers:
        list(workers.map(write, places))
    log = TableLog(open_folder(spark_url(str(folder))))
    found = newest(folder)
    assert [each["snapshot-id"] for each in found["snapshots"]] == list(range(1, 26))
    for number in range(1, 26):
        wanted = sorted(add["path"] for add in log.read_version(number - 1).files.values())
        assert files_of(read_metadata(folder, number)) == wanted


def test_slower_writer_leaves_the_hint_at_the_newest_version(tmp_path: Path) -> None:
    one = open_table(tmp_path / "t")
    append(one, 0)
    other = open_table(tmp_path / "t", asks=False)
    other.check_sound()
    append(one, 10)
    append(one, 20)
    (tmp_path / "t" / FOLDER / "version-hint.text").write_text("1")
    export_iceberg(other)
    assert newest(tmp_path / "t")["current-snapshot-id"] == 3
    append(other, 30)
    append(one, 40)
    assert files_of(newest(tmp_path / "t")) == [f"part-{n}.parquet" for n in range(0, 50, 10)]
    assert [each["snapshot-id"] for each in newest(tmp_path / "t")["snapshots"]] == [1, 2, 3, 4, 5]


def test_commits_of_other_engines_are_followed(tmp_path: Path) -> None:
    table = open_table(tmp_path / "t")
    append(table, 0)
    append(table, 10)
    log = tmp_path / "t" / "_delta_log"
    lines = [
        {"commitInfo": {"timestamp": 1, "engineInfo": "Spark"}},
        {"remove": {"path": "part-0.parquet", "dataChange": False}},
        {"add": {"path": "a.parquet", "size": 9, "dataChange": False, "stats": '{"numRecords": 10}'}},
    ]
    (log / commit_name(2)).write_text("\n".join(map(json.dumps, lines)))
    table.loaded_offsets()
    export_iceberg(table)
    found = newest(tmp_path / "t")
    assert files_of(found) == ["a.parquet", "part-10.parquet"]
    assert found["snapshots"][-1]["summary"]["operation"] == "replace"


def test_history_begins_anew_after_a_version_that_iceberg_cannot_have(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    table = open_table(folder)
    append(table, 0)
    odd = {"add": {"path": "v", "size": 9, "dataChange": True}}
    (folder / "_delta_log" / commit_name(1)).write_text(json.dumps(odd))
    table.loaded_offsets()
    export_iceberg(table)
    assert newest(folder)["current-snapshot-id"] == 1, "the version is refused, and the one before stays"
    gone = {"remove": {"path": "v", "dataChange": True}}
    (folder / "_delta_log" / commit_name(2)).write_text(json.dumps(gone))
    table.loaded_offsets()
    export_iceberg(table)
    assert [each["snapshot-id"] for each in newest(folder)["snapshots"]] == [3]
    assert files_of(newest(folder)) == ["part-0.parquet"]


def test_version_of_another_program_stops_the_metadata_and_no_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "t"
    table = open_table(folder)
    append(table, 0)
    other = json.dumps({**read_metadata(folder, 1), "properties": {}})
    (folder / FOLDER / "v2.metadata.json").write_text(other)
    append(table, 10)
    append(table, 20)
    assert table.loaded_offsets() == {0: 30}
    assert [each.message for each in caplog.records if "not of tiered" in each.message] != []
    assert len([each for each in caplog.records if "not of tiered" in each.message]) == 1, "it is told once"
    (folder / "_iceberg").rename(folder / "_iceberg-old")
    append(table, 30)
    assert open_table(folder).loaded_offsets() == {0: 40}
    again = open_table(folder, asks=False)
    append(again, 40)
    assert newest(folder)["snapshots"][-1]["summary"]["total-records"] == "50"


def test_old_metadata_are_deleted_and_kept_versions_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, every = 5, 10
    monkeypatch.setattr("pyspark_tiered.iceberg.metadata.SNAPSHOTS_MAX", kept)
    monkeypatch.setattr("pyspark_tiered.iceberg.export.EVERY", every)
    folder = tmp_path / "t"
    table = open_table(folder)
    for number in range(2 * every + 1):
        append(table, 10 * number)
    found = newest(folder)
    oldest = found["snapshots"][0]["snapshot-id"]
    assert len(found["snapshots"]) == kept
    held = metadata_files(folder)
    assert len(held) < 3 * (kept + every)
    for snapshot in found["snapshots"]:
        metadata = read_metadata(folder, snapshot["snapshot-id"])
        assert len(files_of(metadata)) == snapshot["snapshot-id"]
    assert "v10.metadata.json" not in held and oldest == 17


def test_deletes_of_kept_versions_stay_and_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, every = 5, 11
    monkeypatch.setattr("pyspark_tiered.iceberg.metadata.SNAPSHOTS_MAX", kept)
    monkeypatch.setattr("pyspark_tiered.iceberg.export.EVERY", every)
    store, warehouse, folder = f"file://{tmp_path}/store", str(tmp_path / "tables"), tmp_path / "tables" / "t"
    filling.create_topic(store, "t", TOPIC, 1)
    made: set[str] = set()
    number = -1
    while not made or newest(folder)["current-snapshot-id"] <= 2 * every:
        number += 1
        base = 8 * number
        keys = [b"same", *(b"k%d" % at for at in range(base, base + 7))]
        rows = [(filling.BASE_MS, key, b"v", ()) for key in keys]
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=base)))
        load(store, "t", warehouse, engine=NativeEngine(), options=LoadOptions(iceberg=True, mode="latest"))
        made |= {name for name in metadata_files(folder) if name.startswith("d-")}
    held = metadata_files(folder)
    snapshots = [each["snapshot-id"] for each in newest(folder)["snapshots"]]
    named = {
        Path(entry.file.path).name
        for number in snapshots
        for entry in entries_of(read_metadata(folder, number))
        if entry.file.of and entry.status != DELETED
    }
    assert named and named <= held.keys()
    assert made - held.keys(), "deletes that no kept version names are gone"


def test_table_that_iceberg_cannot_have_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    filling.create_topic(f"file://{tmp_path}/store", "t", TOPIC, 1)
    places = (f"file://{tmp_path}/store", "t", str(tmp_path / "tables"))
    fill(tmp_path, 1)
    variants = LoadOptions(iceberg=True, values=ValueRules("variant"))
    with pytest.raises(Refused, match="the column value has the type variant"):
        load(*places, engine=NativeEngine(), options=variants)


def fill(tmp_path: Path, number: int, partition: int = 0, store: str = "") -> None:
    """Adds ten records to a partition, the `number`-th ten."""
    base = (number - 1) * 10
    rows = [
        (
            filling.BASE_MS + i,
            b"k%d" % i,
            json.dumps({"id": i, "city": {"name": f"c{i}"}, "tags": [i]}).encode(),
            (("h", b"x"),),
        )
        for i in range(base, base + 10)
    ]
    segments = list(filling.segments(rows, base_offset=base))
    filling.upload(store or f"file://{tmp_path}/store", "t", PartitionId(TOPIC, partition), segments)


def test_pyiceberg_reads_the_rows_of_delta_at_each_version(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    from pyiceberg.table import StaticTable

    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "tables")
    filling.create_topic(store, "t", TOPIC, 2)
    options = LoadOptions(iceberg=True, values=ValueRules("json"))
    for number in range(1, FILES_MIN + 3):
        for partition in (0, 1):
            fill(tmp_path, number, partition)
        load(store, "t", warehouse, engine=NativeEngine(), options=options)
    operations = set()
    for name, order in (("t", ("partition", "offset")), ("t_typed", ("_partition", "_offset"))):
        folder = tmp_path / "tables" / name
        log = TableLog(open_folder(spark_url(str(folder))))
        last = newest(folder)["current-snapshot-id"]
        static = StaticTable.from_metadata(f"{folder}/{FOLDER}/v{last}.metadata.json")
        for snapshot in static.metadata.snapshots:
            assert snapshot.summary is not None
            operations.add(snapshot.summary.operation.value)
            state = log.read_version(snapshot.snapshot_id - 1)
            rows = static.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
            counted = sum(json.loads(add["stats"])["numRecords"] for add in state.files.values())
            assert rows.num_rows == counted
            places = set(zip(*(rows[column].to_pylist() for column in order), strict=True))
            assert len(places) == counted
        assert rows.num_rows == 20 * (FILES_MIN + 2)
        few = static.scan(row_filter=f"{order[1]} >= 15 and {order[1]} < 25 and {order[0]} = 1").to_arrow()
        assert sorted(few[order[1]].to_pylist()) == list(range(15, 25))
        if name == "t_typed":
            (row,) = static.scan(row_filter="id = 3 and _partition = 0").to_arrow().to_pylist()
            assert (row["id"], row["city"], row["tags"]) == (3, {"name": "c3"}, [3])
            assert row["_headers"] == [{"key": "h", "value": b"x"}]
    assert {"append", "replace"} <= operations


def test_pyiceberg_reads_one_row_for_each_key_at_each_version(tmp_path: Path) -> None:
    table_module = pytest.importorskip("pyiceberg.table", reason="pyiceberg is not installed")
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "tables")
    filling.create_topic(store, "t", TOPIC, 1)
    rng, end = random.Random(1), 0
    wanted: list[dict[bytes, bytes]] = []
    held: dict[bytes, bytes] = {}
    for _ in range(2 * FILES_MIN):
        rows = []
        for at in range(end, end + rng.randint(5, 30)):
            key, value = b"k%d" % rng.randrange(40), None if rng.random() < 0.2 else b"v%d" % at
            rows.append((filling.BASE_MS + at, key, value, ()))
            held.pop(key, None)
            held |= {} if value is None else {key: value}
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=end)))
        end += len(rows)
        load(store, "t", warehouse, engine=NativeEngine(), options=LoadOptions(iceberg=True, mode="latest"))
        wanted.append(dict(held))
    folder = tmp_path / "tables" / "t"
    found = newest(folder)
    static = table_module.StaticTable.from_metadata(f"{folder}/{FOLDER}/v{found['current-snapshot-id']}.metadata.json")
    loads = iter(wanted)
    latest: dict[bytes, bytes] = {}
    for snapshot in found["snapshots"]:
        if snapshot["summary"]["operation"] != "replace":
            latest = next(loads)
        rows_then = static.scan(snapshot_id=snapshot["snapshot-id"]).to_arrow()
        assert rows_then.num_rows == len(latest)
        assert dict(zip(rows_then["key"].to_pylist(), rows_then["value"].to_pylist(), strict=True)) == latest
    assert next(loads, None) is None
    assert "replace" in {each["summary"]["operation"] for each in found["snapshots"]}
    assert any(int(each["summary"]["total-position-deletes"]) for each in found["snapshots"])


def test_pyiceberg_reads_a_table_in_a_bucket(tmp_path: Path, bucket: str) -> None:
    table_module = pytest.importorskip("pyiceberg.table", reason="pyiceberg is not installed")
    store, warehouse = f"s3://{bucket}/{tmp_path.name}/store", f"s3://{bucket}/{tmp_path.name}/my tables"
    filling.create_topic(store, "t", TOPIC, 1)
    for number in (1, 2):
        fill(tmp_path, number, store=store)
        load(store, "t", warehouse, engine=NativeEngine(), options=ICEBERG)
    access = {
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL_S3"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": os.environ["AWS_REGION"],
    }
    static = table_module.StaticTable.from_metadata(f"{warehouse}/t/{FOLDER}/v2.metadata.json", properties=access)
    assert static.scan().to_arrow()["offset"].to_pylist() == list(range(20))
    assert static.scan(snapshot_id=1).to_arrow().num_rows == 10


def test_files_that_spark_writes_are_read_by_the_names_of_columns(tmp_path: Path, spark: SparkSession) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "tables")
    filling.create_topic(store, "t", TOPIC, 1)
    for number in (1, 2):
        fill(tmp_path, number)
        load(store, "t", warehouse, engine=NativeEngine(), options=ICEBERG)
    folder = tmp_path / "tables" / "t"
    spark.sql(f"OPTIMIZE delta.`{folder}`")
    spark.sql(f"DELETE FROM delta.`{folder}` WHERE offset = 3")
    table = open_table(folder, asks=False)
    table.loaded_offsets()
    export_iceberg(table)
    found = newest(folder)
    operations = [each["summary"]["operation"] for each in found["snapshots"]]
    assert operations == ["append", "append", "replace", "overwrite"]
    assert found["snapshots"][-1]["summary"]["total-records"] == "19"
    table_module = pytest.importorskip("pyiceberg.table", reason="pyiceberg is not installed")
    static = table_module.StaticTable.from_metadata(f"{folder}/{FOLDER}/v{found['current-snapshot-id']}.metadata.json")
    rows = static.scan().to_arrow()
    assert sorted(rows["offset"].to_pylist()) == [number for number in range(20) if number != 3]
    assert set(map(str, rows["headers"].to_pylist())) == {"[{'key': 'h', 'value': b'x'}]"}
    few = static.scan(row_filter="offset >= 15").to_arrow()
    assert sorted(few["offset"].to_pylist()) == [15, 16, 17, 18, 19]
