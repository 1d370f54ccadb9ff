"""Tests of the removal of files that loads left behind: only those that no version names and no load will commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.delta.log_folder import LOG
from pyspark_tiered.delta.orphans import (
    COMMITTED_WITHIN_MS,
    HOUR_MS,
    NAMED_FOR_MS,
    ORPHAN_MS,
    StoredFile,
    choose_orphans,
)
from pyspark_tiered.load.file_writer import upload
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.load.native_table import NativeTable
from tests.fakes3 import BUCKET, s3_fake
from tests.spark import filling
from tests.spark.engine_race import read_offsets
from tiered.ids import PartitionId

TOPIC = filling.topic_id(1)
NOW_MS = 1_800_000_000_000
KILLED = """
import os, signal, sys
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_engine import NativeEngine
def kill(progress):
    if progress.step == "converted":
        os.kill(os.getpid(), signal.SIGKILL)
load(sys.argv[1], "t", sys.argv[2], progress=kill, engine=NativeEngine())
"""


def name_of(kind: str) -> str:
    return f"part-{kind}-{uuid.uuid4()}.zstd.parquet"


def choose(name: str, age_ms: int, *named: str) -> bool:
    return choose_orphans([StoredFile(name, NOW_MS - age_ms)], named, NOW_MS) == [name]


@pytest.mark.parametrize("kind", ["00003-00000000000000000017", "shared-00002", "joined-00256"])
def test_unnamed_file_of_a_load_is_an_orphan_after_two_days(kind: str) -> None:
    name = name_of(kind)
    assert choose(name, ORPHAN_MS + 1)
    assert not choose(name, ORPHAN_MS)
    assert not choose(name, ORPHAN_MS + 1, name)
    assert not choose(name, NAMED_FOR_MS + 1), "an older version may name it"
    assert choose(f".{name}.tmp", NAMED_FOR_MS + 1), "no version names a hidden file"
    assert not choose(f".{name}.tmp", ORPHAN_MS)


def test_files_of_other_writers_are_no_orphans() -> None:
    for name in (f"part-00000-{uuid.uuid4()}-c000.snappy.parquet", "part-1.parquet", f"x{name_of('shared-00002')}"):
        assert not choose(name, ORPHAN_MS + 1)


def test_file_is_not_committed_any_more_long_before_it_is_an_orphan() -> None:
    assert COMMITTED_WITHIN_MS * 2 <= ORPHAN_MS < NAMED_FOR_MS


def fill(store: str, first: int, count: int) -> None:
    rows = [(filling.BASE_MS + i, b"k", b"%d" % i, ()) for i in range(first, first + count)]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=first)))


@pytest.mark.parametrize("where", ["directory", pytest.param("s3", marks=pytest.mark.also("stores"))])
def test_load_of_a_new_day_removes_the_files_of_a_killed_one(tmp_path: Path, bucket: str, where: str) -> None:
    root = f"file://{tmp_path}" if where == "directory" else f"s3://{bucket}/{tmp_path.name}"
    store, warehouse = f"{root}/store", f"{root}/tables"
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 10)
    load(store, "t", warehouse, engine=NativeEngine())
    fill(store, 10, 10)
    command = [sys.executable, "-c", KILLED, store, warehouse]
    assert subprocess.run(command, timeout=240, check=False).returncode < 0
    assert load(store, "t", warehouse, engine=NativeEngine()).rows == 10
    table = NativeTable(f"{spark_url(warehouse)}/t", "t", TOPIC)
    table.check_sound()
    assert len(list(table.folder.list_data_files())) == 3
    days = time.time_ns() // 1_000_000 + ORPHAN_MS + HOUR_MS
    assert table.remove_orphans() == 0, "somebody has committed today"
    assert table.remove_orphans(days) == 1
    assert len(list(table.folder.list_data_files())) == 2
    assert read_offsets(table) == {0: list(range(20))}
    table.close()


def test_removed_file_is_kept_and_the_loader_looks_once_a_day(tmp_path: Path) -> None:
    store, folder = f"file://{tmp_path}/store", tmp_path / "tables/t"
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 10)
    load(store, "t", f"{tmp_path}/tables", engine=NativeEngine())
    (kept,) = folder.glob("part-*")
    orphan, unfinished = folder / name_of("shared-00002"), folder / f".{name_of('shared-00002')}.tmp"
    for path in (orphan, unfinished):
        path.touch()
    long_ago = time.time() - 3 * 24 * 3600
    for path in (kept, orphan, unfinished):
        os.utime(path, (long_ago, long_ago))
    gone = {"remove": {"path": kept.name, "deletionTimestamp": int(time.time() * 1000), "dataChange": False}}
    info = {"commitInfo": {"timestamp": int(long_ago * 1000), "operation": "OPTIMIZE"}}
    (folder / LOG / f"{1:020d}.json").write_text(json.dumps(info) + "\n" + json.dumps(gone))
    fill(store, 10, 5)
    assert load(store, "t", f"{tmp_path}/tables", engine=NativeEngine()).rows == 5
    assert kept.exists() and not orphan.exists() and not unfinished.exists()
    orphan.touch()
    os.utime(orphan, (long_ago, long_ago))
    fill(store, 15, 5)
    load(store, "t", f"{tmp_path}/tables", engine=NativeEngine())
    assert orphan.exists(), "the newest commit is of today"


def test_files_older_than_a_day_are_made_anew(tmp_path: Path) -> None:
    store, folder = f"file://{tmp_path}/store", tmp_path / "tables/t"
    filling.create_topic(store, "t", TOPIC, 1)
    fill(store, 0, 10)

    class Slow(NativeEngine):
        """A conversion that took two days, the first time."""

        conversions = 0

        def convert(self, *arguments, **more):  # type: ignore[no-untyped-def]
            self.conversions += 1
            found = super().convert(*arguments, **more)
            if self.conversions > 1:
                return found
            return [each._replace(files=tuple(file._replace(modified_ms=0) for file in each.files)) for each in found]

    engine = Slow()
    assert load(store, "t", f"{tmp_path}/tables", engine=engine).rows == 10
    assert engine.conversions == 2
    assert len(list(folder.glob("part-*"))) == 2


def test_large_file_ends_old_uploads_of_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tiered.delta.log_folder.IN_PARTS_BYTES", 3)
    (tmp_path / "small").write_bytes(b"12")
    (tmp_path / "large").write_bytes(b"123")
    with s3_fake() as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        for key in ("wh/t/part", "wh/t_typed/part"):
            fake.rules.uploads[key] = {}
            fake.rules.begun[key] = (BUCKET, key, time.time() - 2 * 24 * 3600)
        upload(f"s3a://{BUCKET}/wh/t", str(tmp_path), "small")
        assert len(fake.rules.begun) == 2 and fake.requests["LIST"] == 0
        upload(f"s3a://{BUCKET}/wh/t", str(tmp_path), "large")
        assert list(fake.rules.begun) == ["wh/t_typed/part"]
        assert {"wh/t/small", "wh/t/large"} <= set(fake.rules.buckets[BUCKET])
