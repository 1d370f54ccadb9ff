"""Tests of the engine without a JVM: loads of a topic on a directory and on S3, and races of its commits."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.checkpoint import decode_checkpoint, encode_checkpoint
from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import LOG, READS_AT_ONCE, BucketConnection, BucketFolder, open_folder
from pyspark_tiered.delta.table_form import Advance, FileRun, LoadedFile
from pyspark_tiered.delta.table_log import TableLog
from pyspark_tiered.load.load import DEFAULT_OPTIONS, TopicLoader, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import ColdTopicReader
from pyspark_tiered.log.plan import cleaned_ranges
from pyspark_tiered.proof.comparison import read_cold_topic
from pyspark_tiered.proof.gaps import COMPACTED, EMPTY, PRESENT, Gap, explain_from_log
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.proof.verify import RowFault, verify
from tests.seeds import chosen
from tests.spark import filling
from tests.spark.engine_race import read_offsets
from tiered.errors import Refused, Unavailable
from tiered.ids import PartitionId
from tiered.records.model import Codec
from tiered.thread_pool import WAITING_MAX
from tiered_api.cli.main import main

TOPIC = filling.topic_id(1)


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, bucket: str) -> Callable[[str], str]:
    """Returns URLs of a new place for store and warehouse."""
    root = f"file://{tmp_path}" if request.param == "directory" else f"s3://{bucket}/{tmp_path.name}"
    return lambda name: f"{root}/{name}"


def fill(store: str, partition: int, first: int, count: int) -> None:
    rows = [(filling.BASE_MS + i, b"k", f"{partition}:{i}".encode(), ()) for i in range(first, first + count)]
    segments = list(filling.segments(rows, base_offset=first))
    filling.upload(store, "t", PartitionId(TOPIC, partition), segments)


def run_load(place: Callable[[str], str], topic: str = "t") -> int:
    return load(place("store"), topic, place("tables"), engine=NativeEngine()).rows


@pytest.fixture
def open_table(place: Callable[[str], str]) -> Iterator[Callable[[], NativeTable]]:
    """Yields a function that opens the table; at the end all are closed."""
    opened: list[NativeTable] = []

    def run() -> NativeTable:
        opened.append(NativeTable(f"{spark_url(place('tables'))}/t", "t", TOPIC))
        return opened[-1]

    yield run
    for table in opened:
        table.close()


def test_loads_without_a_jvm_have_each_record_once(
    place: Callable[[str], str], open_table: Callable[[], NativeTable]
) -> None:
    filling.create_topic(place("store"), "t", TOPIC, 3)
    fill(place("store"), 0, 0, 300)
    fill(place("store"), 2, 0, 20)
    assert run_load(place) == 320
    made = open_table().snapshot().state.metadata["id"]
    assert run_load(place) == 0
    fill(place("store"), 2, 20, 5)
    assert run_load(place) == 5
    table = open_table()
    now = table.snapshot()
    assert now.state.metadata["id"] == made
    assert (now.version, now.loaded_offsets()) == (1, {0: 300, 2: 25})
    assert read_offsets(table) == {0: list(range(300)), 2: list(range(25))}


def test_loads_around_a_clean_have_each_record_that_was_there_once(tmp_path: Path) -> None:
    """The first load has what a clean takes later; a table that is loaded afterwards has the reason for each gap."""
    store, tables, later_tables = (f"file://{tmp_path}/{name}" for name in ("store", "tables", "later"))

    def fill_keys(first: int, count: int) -> None:
        rows = [(filling.BASE_MS + i, b"k%d" % (i % 7), b"%d" % i, ()) for i in range(first, first + count)]
        made = filling.segments(rows, base_offset=first, rows_per_batch=10, batches_per_segment=3)
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(made))

    filling.create_topic(store, "t", TOPIC, 1)
    fill_keys(0, 90)
    assert load(store, "t", tables, engine=NativeEngine()).rows == 90
    cleaned = filling.clean(store, "t", PartitionId(TOPIC, 0))
    assert cleaned.clean_to == 90 and sum(each.record_count for each in cleaned.entries) == 7
    fill_keys(90, 30)
    assert load(store, "t", tables, engine=NativeEngine()).rows == 30
    assert load(store, "t", later_tables, engine=NativeEngine()).rows == 37
    found = []
    for url in (tables, later_tables):
        table = NativeTable(f"{spark_url(url)}/t", "t", TOPIC)
        found.append(read_offsets(table))
        table.close()
    assert found == [{0: list(range(120))}, {0: list(range(83, 120))}]
    filling.clean(store, "t", PartitionId(TOPIC, 0))
    fill_keys(120, 3)
    cold = read_cold_topic(store, "t")
    assert cleaned_ranges(cold) == {0: [(0, 120)]}
    gaps = [Gap(0, 5, 113, EMPTY), Gap(0, 120, 200, EMPTY)]
    explained = [Gap(0, 5, 113, COMPACTED), Gap(0, 120, 123, PRESENT), Gap(0, 123, 200, EMPTY)]
    assert explain_from_log(store, cold, gaps, 10) == explained


@pytest.mark.parametrize("codec", chosen([Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], [Codec.LZ4]))
def test_batches_that_compress_well_are_loaded_and_cleaned(codec: Codec, tmp_path: Path) -> None:
    """Each has 100 MiB of lines, and a few hundred kilobytes in the bucket."""
    store, tables, later_tables = (f"file://{tmp_path}/{name}" for name in ("store", "tables", "later"))
    line = b"x" * 5000
    rows = [(filling.BASE_MS + i, b"k%d" % (i % 7), line, ()) for i in range(42_000)]
    filling.create_topic(store, "t", TOPIC, 1)
    made = filling.segments(rows, rows_per_batch=21_000, batches_per_segment=1, codec=codec)
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(made))
    assert load(store, "t", tables, engine=NativeEngine()).rows == 42_000
    cleaned = filling.clean(store, "t", PartitionId(TOPIC, 0))
    assert cleaned.clean_to == 42_000 and sum(each.record_count for each in cleaned.entries) == 7
    assert load(store, "t", later_tables, engine=NativeEngine()).rows == 7
    table = NativeTable(f"{spark_url(later_tables)}/t", "t", TOPIC)
    assert read_offsets(table) == {0: list(range(41_993, 42_000))}
    table.close()


@pytest.mark.java
@pytest.mark.also("tests/spark/test_native_engine.py::test_loads_around_a_clean_have_each_record_that_was_there_once")
def test_verify_of_a_cleaned_topic_finds_faults_and_accepts_older_rows(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "warehouse")
    filling.create_topic(store, "t", TOPIC, 1)
    rows = [(filling.BASE_MS + i, b"k%d" % (i % 7), b"%d" % i, ()) for i in range(90)]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    load(store, "t", warehouse, engine=NativeEngine())
    filling.clean(store, "t", PartitionId(TOPIC, 0))
    found = verify(store, "t", warehouse, spark=spark)
    assert found.ok and found.gaps == ()
    table = f"delta.`{warehouse}/t`"
    spark.sql(f"DELETE FROM {table} WHERE offset IN (3, 85)")
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE offset = 5")
    found = verify(store, "t", warehouse, spark=spark)
    assert [each._replace(why="") for each in found.faults] == [RowFault("duplicate", 0, 5), RowFault("missing", 0, 85)]
    assert found.gaps == (Gap(0, 3, 4, COMPACTED),)
    done = repair(store, "t", warehouse, spark=spark)
    assert (done.rows, done.taken_out) == (1, 1)
    assert verify(store, "t", warehouse, spark=spark).ok
    kept = spark.sql(f"SELECT count(*) FROM {table} WHERE offset = 5").collect()
    assert [tuple(row) for row in kept] == [(1,)], "the log cannot give it again"


def file_of(partition: int, start: int, end: int, name: str) -> LoadedFile:
    return LoadedFile(
        f"{name}-{partition}-{end}.parquet", 1, 0, (FileRun(partition, end - start, start, end - 1, 0, 0),)
    )


def advance_table(table: NativeTable, partition: int, count: int, name: str, told: list[int]) -> None:
    """Moves a partition forward by ten offsets until `count` commits were acknowledged."""
    while len(told) < count:
        start = table.loaded_offsets().get(partition, -1)
        end = max(start, 0) + 10
        if table.commit([file_of(partition, max(start, 0), end, name)], [Advance(partition, start, end)]):
            told.append(end)


def test_concurrent_writers_move_a_partition_once_per_acknowledged_commit(
    place: Callable[[str], str], open_table: Callable[[], NativeTable]
) -> None:
    told: list[list[int]] = [[], [], []]
    threads = [
        threading.Thread(target=advance_table, args=(open_table(), number // 2, 8, f"w{number}", told[number]))
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    now = open_table().snapshot()
    assert now.loaded_offsets() == {0: 160, 1: 80}
    assert sorted(told[0] + told[1]) == list(range(10, 170, 10))
    assert (now.version, len(now.state.files)) == (23, 24)


def test_new_reader_starts_at_the_checkpoint(open_table: Callable[[], NativeTable]) -> None:
    table = open_table()
    for end in range(10, 130, 10):
        assert table.commit([file_of(0, end - 10, end, "f")], [Advance(0, end - 10 or -1, end)])
    names = table.folder.list_names(LOG)
    assert delta_state.newest_checkpoint(names)[0] == 10
    for version in range(10):
        table.folder.delete([f"{LOG}/{delta_state.commit_name(version)}"])
    again = open_table().snapshot()
    assert (again.version, again.loaded_offsets(), len(again.state.files)) == (11, {0: 120}, 12)
    assert again.commits(past_marks=True)[1] is False
    assert [extent[:3] for extent in again.extents()][-1] == (0, 0, 119)


def test_commit_of_another_metadata_causes_a_new_plan(tmp_path: Path) -> None:
    table, other = (NativeTable(f"file:{tmp_path}/t", "t", TOPIC) for _ in range(2))
    table.snapshot()
    assert other.commit([], [Advance(0, -1, 5)])
    assert not table.commit([file_of(0, 0, 5, "f")], [Advance(0, -1, 5)])
    assert table.commit([file_of(0, 5, 9, "f")], [Advance(0, 5, 9)])
    assert other.loaded_offsets() == {0: 9}


def test_unclear_commit_landed_only_if_its_own_file_is_in_the_table(tmp_path: Path) -> None:
    table, other = (NativeTable(f"file:{tmp_path}/t", "t", TOPIC) for _ in range(2))
    first, second = Advance(0, -1, 5), Advance(0, 5, 9)
    assert other.commit([file_of(0, 0, 5, "other")], [first])
    assert table.judge_unclear_commit([file_of(0, 0, 5, "other")], [first], "no answer")
    assert not table.judge_unclear_commit([file_of(0, 0, 5, "mine")], [first], "no answer")
    assert not table.judge_unclear_commit([file_of(0, 3, 9, "mine")], [Advance(0, 3, 9)], "no answer")
    with pytest.raises(Unavailable, match="no answer"):
        table.judge_unclear_commit([file_of(0, 5, 9, "mine")], [second], "no answer")


def test_topic_made_again_during_a_round_stays_out_of_the_table(tmp_path: Path) -> None:
    store, url = f"file://{tmp_path}/store", f"file:{tmp_path}/t"
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 0, 3)
    with closing(ColdTopicReader(store)) as reader:
        loader = TopicLoader(NativeEngine(), reader, store, "t", url, lambda _: None, None, DEFAULT_OPTIONS)
        with closing(loader):
            loader.begin()
            filling.delete_topic(store, TOPIC)
            filling.create_topic(store, "t", filling.topic_id(2), 1)
            filling.upload(
                store,
                "t",
                PartitionId(filling.topic_id(2), 0),
                list(filling.segments([(filling.BASE_MS, None, b"later", ())])),
            )
            with pytest.raises(Unavailable, match="deleted and created again"):
                loader.run_round()
    assert NativeTable(url, "t", TOPIC).snapshot().version == -1


def test_table_of_another_topic_or_program_is_refused(tmp_path: Path) -> None:
    place = f"file:{tmp_path}/t"
    assert NativeTable(place, "t", TOPIC).commit([], [Advance(0, -1, 5)])
    other = NativeTable(place, "t", filling.topic_id(2))
    for _ in range(2):
        with pytest.raises(Refused, match="load into another warehouse"):
            other.commit([], [Advance(0, -1, 5)])


@pytest.mark.parametrize("name", ["mkdir", "touch"])
def test_warehouse_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 0, 3)
    real = getattr(Path, name)

    def deny(path: Path, *arguments: Any, **more: Any) -> None:
        if "tables" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        real(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, name, deny)
        with pytest.raises(Refused, match=f"no permission to write in {tmp_path}/tables/t"):
            load(store, "t", str(tmp_path / "tables"), engine=NativeEngine())
    assert load(store, "t", str(tmp_path / "tables"), engine=NativeEngine()).rows == 3


def test_warehouse_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = open_folder(f"file:{tmp_path}/file/tables/t")
    with pytest.raises(Refused, match="cannot be written"):
        folder.create(f"{LOG}/0.json", b"{}")


def test_table_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    table = NativeTable(f"file:{tmp_path}/t", "t", TOPIC)
    for start, end in ((-1, 5), (5, 9)):
        assert table.commit([], [Advance(0, start, end)])
    (tmp_path / "t").rename(tmp_path / "moved")
    assert table.loaded_offsets() == {}
    assert table.commit([], [Advance(0, -1, 5)])
    assert NativeTable(f"file:{tmp_path}/t", "t", TOPIC).snapshot().version == 0


def test_table_that_was_made_again_with_as_many_versions_is_read_anew(
    place: Callable[[str], str], open_table: Callable[[], NativeTable]
) -> None:
    table = open_table()
    for start, end in ((-1, 500), (500, 1000)):
        assert table.commit([], [Advance(0, start, end)])
    before = table.count_requests()
    assert table.check_sound() == {0: 1000}
    spent = {verb: count - before.get(verb, 0) for verb, count in table.count_requests().items()}
    assert not spent or spent == {**dict.fromkeys(spent, 0), "list": 1}, "a look costs one list"
    table.folder.delete([f"{LOG}/{name}" for name in table.folder.list_names(LOG)])
    other = open_table()
    for start, end in ((-1, 100), (100, 200)):
        assert other.commit([], [Advance(0, start, end)])
    assert not table.commit([], [Advance(0, 1000, 1001)])
    assert table.loaded_offsets() == {0: 200}
    assert table.checked_version is None, "the check was that of the other table"
    assert other.loaded_offsets() == {0: 200}


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (
            {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}},
            "rowTracking",
        ),
        ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 8}}, "writer version 8"),
        ({"metaData": {"configuration": {"delta.enableInCommitTimestamps": "true"}}}, "times in its commits"),
        ({"metaData": {"partitionColumns": ["day"]}}, "partition columns day"),
        ({"metaData": {"schemaString": '{"fields": []}'}}, "no column partition"),
    ],
    ids=["feature", "version", "times", "partitioned", "schema"],
)
def test_table_that_needs_more_of_its_writers_is_refused_by_name(
    tmp_path: Path, action: dict[str, dict[str, Any]], words: str
) -> None:
    table = NativeTable(f"file:{tmp_path}/t", "t", TOPIC)
    assert table.commit([], [Advance(0, -1, 5)])
    if "metaData" in action:
        held = table.snapshot().state.metadata
        properties = {"configuration": held["configuration"] | action["metaData"].pop("configuration", {})}
        action = {"metaData": {**held, **action["metaData"], **properties}}
    (tmp_path / "t" / LOG / delta_state.commit_name(1)).write_text(json.dumps(action))
    with pytest.raises(Refused, match=words):
        table.commit([file_of(0, 5, 6, "more")], [Advance(0, 5, 6)])


def test_checkpoint_holds_every_action() -> None:
    state = delta_state.TableState()
    add = {
        "path": "a b",
        "partitionValues": {},
        "size": 5,
        "modificationTime": 7,
        "dataChange": True,
        "stats": "{}",
        "tags": {"k": "v"},
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {"id": "u", "format": {"provider": "parquet", "options": {}}, "schemaString": "{}"}},
        {"txn": {"appId": "ID/0", "version": 7, "lastUpdated": 1}},
        {"add": add},
        {"add": {**add, "path": "gone"}},
        {"remove": {"path": "gone", "deletionTimestamp": 10, "dataChange": True}},
        {"remove": {"path": "long gone", "deletionTimestamp": 1, "dataChange": True}},
    ]
    state.apply(3, actions)
    data, count = encode_checkpoint(state.actions(delta_state.TOMBSTONE_MS + 5))
    again = delta_state.TableState()
    again.apply(3, decode_checkpoint(data, "here"))
    assert count == 5
    assert (again.protocol, again.transactions) == (state.protocol, state.transactions)
    assert again.metadata["format"] == {"provider": "parquet", "options": {}}
    assert list(again.files.values()) == [{**add, "dataChange": False}]
    assert [remove["path"] for remove in again.tombstones.values()] == ["gone"]


def test_inline_vector_of_a_checkpoint_is_the_one_of_the_commit() -> None:
    vector = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8", "sizeInBytes": 40}
    add = {"path": "a.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
    state, again = delta_state.TableState(), delta_state.TableState()
    state.apply(0, [{"protocol": {}}, {"metaData": {"id": "x"}}, {"add": {**add, "deletionVector": vector}}])
    again.apply(0, decode_checkpoint(encode_checkpoint(state.actions(0))[0], "here"))
    again.apply(1, [{"remove": {"path": "a.parquet", "dataChange": True, "deletionVector": vector}}])
    assert not again.files


def test_names_of_removed_files_do_not_pile_up_in_a_writer(tmp_path: Path) -> None:
    table = NativeTable(f"file:{tmp_path}/t", "t", TOPIC)
    assert table.commit([], [Advance(0, -1, 0)])
    times = {"old": 1, "new": time.time_ns() // 1_000_000}
    removes = [{"remove": {"path": name, "deletionTimestamp": at}} for name, at in times.items()]
    commit = "".join(f"{json.dumps(each)}\n" for each in removes)
    (tmp_path / "t" / LOG / delta_state.commit_name(1)).write_text(commit)
    for end in range(1, delta_state.CHECKPOINT_INTERVAL):
        assert table.commit([], [Advance(0, end - 1, end)])
    assert table.snapshot().state.named_paths() == {"new"}


def test_incomplete_checkpoint_is_not_used() -> None:
    part = "{:020d}.checkpoint.{:010d}.{:010d}.parquet"
    names = [delta_state.checkpoint_name(10), part.format(20, 1, 2), part.format(30, 1, 2), part.format(30, 2, 2)]
    assert delta_state.newest_checkpoint(names) == (30, names[2:])
    assert delta_state.newest_checkpoint(names[:2]) == (10, names[:1])
    assert delta_state.newest_checkpoint([]) == (-1, [])


def test_file_is_created_once(place: Callable[[str], str]) -> None:
    folder = open_folder(f"{spark_url(place('tables'))}/t")
    assert folder.create("_delta_log/a", b"mine")
    assert not folder.create("_delta_log/a", b"other")
    assert folder.create("_delta_log/a", b"mine"), "a lost reply: these are the bytes of this attempt"
    assert folder.read("_delta_log/a") == b"mine"
    folder.replace("_delta_log/a", b"new")
    assert folder.list_names(LOG) == ["a"]
    assert folder.list_names(LOG, "a") == []
    paths = [f"_delta_log/{number}" for number in range(READS_AT_ONCE + 2)]
    for path in paths[1:]:
        folder.create(path, path.encode())
    listed = list(folder.list_files(LOG))
    assert [each.name for each in listed] == sorted(path.rpartition("/")[2] for path in [*paths[1:], "/a"])
    assert listed[-1].modified_ms == folder.modified_ms(f"{LOG}/a")
    assert list(folder.read_each(paths)) == [None, *(path.encode() for path in paths[1:])], "in order"
    assert time.time() * 1000 - 600_000 < (folder.modified_ms("_delta_log/a") or 0) < time.time() * 1000 + 600_000
    folder.create("_delta_log/bc", b"")
    assert folder.modified_ms("_delta_log/b") is None
    folder.close()


def test_list_and_checkpoint_of_a_log_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in a bucket: the pointer to the checkpoint, then both of them, then the commits."""
    connection = BucketConnection(f"file://{tmp_path}")
    folder = BucketFolder("s3://bucket/t", connection)
    table = NativeTable(f"file:{tmp_path}/t", "t", TOPIC)
    for end in range(13):
        assert table.commit([], [Advance(0, end - 1, end)])
    asked: list[str] = []
    both = asyncio.Barrier(2)
    real_list, real_get = folder._store.list, folder._store.get

    async def list_objects(*arguments: Any) -> Any:
        asked.append("list")
        await asyncio.wait_for(both.wait(), 30)
        return await real_list(*arguments)

    async def get(key: str, *arguments: Any) -> Any:
        asked.append(key.rpartition("/")[2])
        if key.endswith(delta_state.checkpoint_name(10)):
            await asyncio.wait_for(both.wait(), 30)
        return await real_get(key, *arguments)

    monkeypatch.setattr(folder._store, "list", list_objects)
    monkeypatch.setattr(folder._store, "get", get)
    state = TableLog(folder).read()
    assert (state.version, state.versions()) == (12, {f"{TOPIC}/0": 12})
    commits = [delta_state.commit_name(version) for version in (11, 12)]
    assert asked == ["_last_checkpoint", "list", delta_state.checkpoint_name(10), *commits]
    pointer = tmp_path / "t" / LOG / "_last_checkpoint"
    before = pointer.read_bytes()
    for end in range(13, 22):
        assert table.commit([], [Advance(0, end - 1, end)])
    pointer.write_bytes(before)
    asked.clear()
    state = TableLog(folder).read()
    assert (state.version, state.versions()) == (21, {f"{TOPIC}/0": 21})
    assert asked[2:] == [delta_state.checkpoint_name(10), delta_state.checkpoint_name(20), delta_state.commit_name(21)]
    connection.close()


def test_rows_that_no_identifier_covers_are_found_without_spark(
    place: Callable[[str], str], open_table: Callable[[], NativeTable]
) -> None:
    filling.create_topic(place("store"), "t", TOPIC, 2)
    fill(place("store"), 0, 0, 30)
    fill(place("store"), 1, 0, 20)
    run_load(place)
    found = open_table().snapshot().find_unaccounted_rows({0: 25})
    assert found == [(0, 25, 29), (1, 0, 19)]
    assert open_table().snapshot().find_unaccounted_rows({0: 30, 1: 20}) == []


def test_native_load_imports_neither_spark_nor_pyarrow_without_work(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 0, 10)
    load(store, "t", f"{tmp_path}/tables", engine=NativeEngine())
    program = (
        "import sys; from tiered_api.cli.main import main; "
        f"code = main(['load', '--engine', 'native', '--store', '{store}', '--topic', 't', "
        f"'--warehouse', '{tmp_path}/tables']); "
        "print(code, sorted({'pyspark', 'pyarrow', 'botocore', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout + done.stderr


def test_topic_of_more_partitions_than_requests_may_wait_is_loaded(tmp_path: Path) -> None:
    store, partitions = f"file://{tmp_path}/store", WAITING_MAX + 100
    filling.create_topic(store, "t", TOPIC, partitions)
    fill(store, partitions - 1, 0, 3)
    assert load(store, "t", f"{tmp_path}/tables", engine=NativeEngine()).rows == 3


def test_load_prints_its_requests_by_verb(place: Callable[[str], str], capsys: pytest.CaptureFixture[str]) -> None:
    """Those to the store, and those to a table in a bucket. A table in a directory has none."""
    store, tables = place("store"), place("tables")
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 0, 3)

    def run() -> tuple[str, dict[str, int]]:
        assert main(["load", "--engine", "native", "--store", store, "--topic", "t", "--warehouse", tables]) == 0
        done, _, printed = capsys.readouterr().out.splitlines()[-1].partition("; requests: ")
        return done, {verb: int(count) for count, verb in map(str.split, printed.split(", "))}

    (done, first), (nothing, again) = run(), run()
    assert done.startswith("done: 3 rows in 1 files") and nothing.startswith("done: the bucket holds no record")
    assert set(first) - {"get", "list"} == ({"put", "upload"} if store.startswith("s3") else set())
    assert set(again) == {"get", "list"}
    assert again["get"] < first["get"] <= 15


def test_load_with_nothing_new_reads_no_manifest(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 60)
    for partition in range(50):
        fill(store, partition, 0, 2)

    def requests() -> dict[str, int]:
        return dict(load(store, "t", f"{tmp_path}/tables", engine=NativeEngine()).requests)

    assert requests()["get"] > 100
    assert requests() == {"get": 8, "list": 1}
    fill(store, 7, 2, 2)
    assert requests()["get"] > 60
    assert requests() == {"get": 8, "list": 1}
