"""Tests of files in a bucket, as DuckDB reads them: from several threads, and when one is gone."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.log_folder import SharedConnection, upload_file
from pyspark_tiered.query.bucket_files import PROTOCOL, TAIL_BYTES, BucketFiles
from tiered.errors import Unavailable
from tiered.object_store.url import open_store
from tiered.system.clock import SystemClock, SystemRng

DATA = Random(1).randbytes(3 * TAIL_BYTES + 17)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[BucketFiles]:
    """Yields a store with one file. A store in a directory has the same ranges as one on S3."""
    (tmp_path / "a").write_bytes(DATA)
    connection = SharedConnection(f"file://{tmp_path}")
    opened = BucketFiles(connection)
    opened.sizes["a"] = len(DATA)
    yield opened
    connection.close()


def test_threads_that_share_a_file_read_their_own_ranges(files: BucketFiles) -> None:
    file = files.open(f"{PROTOCOL}://a")
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = Random(seed)
        for _ in range(50):
            start, length = rng.randrange(len(DATA)), rng.randrange(1, 5000)
            file.seek(start)
            os.sched_yield()
            if file.read(length) != DATA[start : start + length]:
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_requests_of_several_threads_run_at_once(tmp_path: Path) -> None:
    connection = SharedConnection(f"file://{tmp_path}")

    async def open_barrier() -> asyncio.Barrier:
        return asyncio.Barrier(3)

    barrier = connection.run(open_barrier())
    with ThreadPoolExecutor(3) as pool:
        places = list(pool.map(lambda _: connection.run(barrier.wait()), range(3), timeout=240))
    assert sorted(places) == [0, 1, 2]
    connection.close()


def test_file_is_read_and_sought_as_any_other(files: BucketFiles) -> None:
    file = files.open(f"{PROTOCOL}://a")
    assert file.read() == DATA
    assert file.read(5) == b""
    assert file.seek(-3, io.SEEK_END) == len(DATA) - 3
    assert (file.read(100), file.tell()) == (DATA[-3:], len(DATA))


def test_ends_of_the_files_of_a_table_are_read_when_it_is_opened(files: BucketFiles, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t/part").write_bytes(DATA)
    state = TableState()
    adds = [{"add": {"path": name, "size": len(DATA)}} for name in ("part", "gone")]
    state.apply(0, adds)
    files.note_sizes(f"{PROTOCOL}://t", state)
    (tmp_path / "t/part").unlink()
    file = files.open("t/part")
    file.seek(-TAIL_BYTES, io.SEEK_END)
    assert file.read() == DATA[-TAIL_BYTES:]
    with pytest.raises(OSError, match="VACUUM"):
        files.open("t/gone").read(1)


def test_file_that_is_gone_writes_and_unknown_files_fail(files: BucketFiles) -> None:
    files.sizes["b"] = 10
    with pytest.raises(OSError, match="VACUUM"):
        files.open("b").read(1)
    assert files.failure is not None
    with pytest.raises(FileNotFoundError):
        files.open("c")
    with pytest.raises(PermissionError):
        files.open("a", "wb")


def test_upload_that_failed_is_an_error(tmp_path: Path) -> None:
    """The stored name would be that of a file in the table."""
    (tmp_path / "rows").write_bytes(DATA)
    (tmp_path / "bucket").mkdir()

    async def run() -> None:
        store = open_store(f"file://{tmp_path}/bucket", SystemClock(), SystemRng())
        try:
            await upload_file(store, "t/", str(tmp_path), "rows")
            (tmp_path / "bucket/gone").write_bytes(b"no folder")
            with pytest.raises(Unavailable, match="rows was not stored"):
                await upload_file(store, "gone/", str(tmp_path), "rows")
        finally:
            await store.close()

    asyncio.run(run())
    assert (tmp_path / "bucket/t/rows").read_bytes() == DATA
