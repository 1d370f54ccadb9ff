"""Tests of a directory store that several processes share, of its leftovers, and of unusual file systems."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenario import run_alone, run_by
from tiered.errors import Refused, Unavailable
from tiered.metadata.layout import FORMAT_KEY
from tiered.object_store.directory import CREDENTIAL, LOCKS, TEMPORARY_MS, DirectoryStore
from tiered.ports import ConditionFailed, GetResult, NotFound, Ok, Unknown
from tiered.system.clock import SystemClock, SystemRng

PROCESSES = 6
ROUNDS = 60
STEPS = 25
COMINGS = 100

RACER = f"""
import asyncio, sys
from tiered.object_store.url import open_store
from tiered.ports import GetResult, Ok
from tiered.system.clock import SystemClock, SystemRng

async def main(url, name):
    store = open_store(url, SystemClock(), SystemRng())
    for number in range({ROUNDS}):
        if isinstance(await store.put(f"race/{{number}}", name.encode(), if_absent=True), Ok):
            print(number)
    done = 0
    while done < {STEPS}:
        got = await store.get("counter")
        assert isinstance(got, GetResult)
        count = b"%d" % (int(got.data) + 1)
        done += isinstance(await store.put("counter", count, if_match=got.version), Ok)
    await store.close()

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def new_store(folder: Path) -> DirectoryStore:
    return DirectoryStore(str(folder), SystemClock(), SystemRng())


def test_racing_processes_create_each_object_once_and_lose_no_step(tmp_path: Path) -> None:
    async def begin() -> None:
        await new_store(tmp_path).put("counter", b"0")

    async def read(key: str) -> str:
        got = await new_store(tmp_path).get(key)
        assert isinstance(got, GetResult)
        return got.data.decode()

    asyncio.run(begin())
    command = [sys.executable, "-c", RACER, f"file://{tmp_path}"]
    racers = [
        subprocess.Popen([*command, f"racer-{number}"], stdout=subprocess.PIPE, text=True)
        for number in range(PROCESSES)
    ]
    won = {f"racer-{number}": racer.communicate(timeout=240)[0].split() for number, racer in enumerate(racers)}
    assert [racer.returncode for racer in racers] == [0] * PROCESSES
    wins = Counter(number for numbers in won.values() for number in numbers)
    assert wins == {str(number): 1 for number in range(ROUNDS)}
    for name, numbers in won.items():
        for number in numbers:
            assert asyncio.run(read(f"race/{number}")) == name
    assert int(asyncio.run(read("counter"))) == PROCESSES * STEPS


@run_by(run_alone)
async def test_folder_that_another_process_removes_is_created_again(*, tmp_path: Path) -> None:
    """Brokers that start together on a new bucket each write their probes and delete them."""

    async def come_and_go(store: DirectoryStore, name: str) -> None:
        for number in range(COMINGS):
            key = f"some/where/deep/{name}-{number}"
            assert isinstance(await store.put(key, b"x", if_absent=True), Ok)
            await store.delete([key])

    stores = [new_store(tmp_path) for _ in range(4)]
    await asyncio.gather(*(come_and_go(store, f"{number}") for number, store in enumerate(stores)))
    assert await stores[0].list("") == []


def test_object_is_a_plain_file_under_its_key(tmp_path: Path) -> None:
    async def body() -> None:
        await new_store(tmp_path).put("data/topic/0/1.seg", b"bytes")

    asyncio.run(body())
    assert (tmp_path / "data/topic/0/1.seg").read_bytes() == b"bytes"


def test_delete_of_an_object_removes_its_empty_folders(tmp_path: Path) -> None:
    async def body() -> None:
        store = new_store(tmp_path)
        await store.put("data/topic/0/1.seg", b"x")
        await store.put("data/other", b"x")
        await store.delete(["data/topic/0/1.seg"])

    asyncio.run(body())
    assert sorted(os.listdir(tmp_path / "data")) == ["other"]


@run_by(run_alone)
async def test_versions_grow_even_when_the_clock_goes_back(*, tmp_path: Path) -> None:
    class BackwardClock(SystemClock):
        now_ms = 1_700_000_000_000

        def wall_ms(self) -> int:
            self.now_ms -= 1000
            return self.now_ms

    store = DirectoryStore(str(tmp_path), BackwardClock(), SystemRng())
    versions = []
    for _ in range(5):
        result = await store.put("k", b"same")
        assert isinstance(result, Ok)
        versions.append(result.version)
    assert versions == sorted(set(versions))
    assert await store.put("k", b"same", if_match=versions[3]) == ConditionFailed()


def test_partial_files_of_dead_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    new_store(tmp_path)
    for name, age_ms in (("old", TEMPORARY_MS + 60_000), ("young", 60_000)):
        (tmp_path / ".tmp" / name).write_bytes(b"half")
        time_ns = (SystemClock().wall_ms() - age_ms) * 1_000_000
        os.utime(tmp_path / ".tmp" / name, ns=(time_ns, time_ns))
    store = new_store(tmp_path)
    assert os.listdir(tmp_path / ".tmp") == ["young"]
    assert asyncio.run(store.list("")) == []


def test_unusable_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Refused, match="file/store"):
        new_store(tmp_path / "file" / "store")


@run_by(run_alone)
async def test_key_below_an_object_cannot_be_written(*, tmp_path: Path) -> None:
    store = new_store(tmp_path)
    await store.put("k", b"x")
    assert isinstance(await store.put("k/below", b"x", if_absent=True), Unknown)


def test_lock_held_too_long_leaves_the_outcome_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.object_store.directory.LOCK_SECONDS", 0.05)
    store = new_store(tmp_path)

    async def body() -> None:
        with contextlib.ExitStack() as held:
            for number in range(LOCKS):
                file = held.enter_context((tmp_path / ".lock" / f"{number:02d}").open("w"))
                fcntl.flock(file, fcntl.LOCK_EX)
            assert isinstance(await store.put("k", b"x"), Unknown)
            assert isinstance(await store.put("created", b"x", if_absent=True), Ok)
            with pytest.raises(Unavailable, match=r"delete failed .* key=created"):
                await store.delete(["created"])
        assert isinstance(await store.put("k", b"x"), Ok)

    asyncio.run(body())
    assert os.listdir(tmp_path / ".tmp") == []


@run_by(run_alone)
async def test_store_without_its_directory_is_unavailable_and_not_empty(*, tmp_path: Path) -> None:
    """An unmounted disk leaves an empty folder: the store must not report that there are no objects."""
    root = tmp_path / "mounted"
    store = new_store(root)
    made = await store.put("k/1", b"x", if_absent=True)
    assert isinstance(made, Ok)
    root.rename(tmp_path / "away")
    for there in (False, True):
        if there:
            root.mkdir()
        for asked in (store.get("k/1"), store.get("k/1", 0, 1), store.list("k/"), store.delete(["k/1"])):
            with pytest.raises(Unavailable, match=str(root)):
                await asked
        assert isinstance(await store.put("k/1", b"y", if_match=made.version), Unknown)
        assert isinstance(await store.put("k/2", b"y", if_absent=True), Unknown)
    root.rmdir()
    (tmp_path / "away").rename(root)
    assert isinstance(await store.get("k/1"), GetResult)
    assert isinstance(await store.get("k/2"), NotFound)
    assert await store.list("z") == []


def test_file_system_with_coarse_times_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = os.utime

    def coarse(path: int, ns: tuple[int, int]) -> None:
        fine(path, ns=(ns[0] // 10**9 * 10**9, ns[1] // 10**9 * 10**9))

    monkeypatch.setattr("os.utime", coarse)
    with pytest.raises(Unavailable, match="does not keep times") as caught:
        asyncio.run(new_store(tmp_path).put("k", b"x", if_absent=True))
    assert caught.value.final


@pytest.mark.parametrize("key", ["", "/k", "a//b", "../k", "a/../../k", "a/.", ".tmp/k", ".lock/k", "k\0"])
def test_key_never_leaves_the_directory(tmp_path: Path, key: str) -> None:
    with pytest.raises(AssertionError, match="bad key"):
        asyncio.run(new_store(tmp_path).put(key, b"x"))


def test_sync_does_not_hold_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that freezes during a change must not keep the lock: others have partitions to take over."""
    synced: list[bool] = []

    def free() -> bool:
        for lock in (tmp_path / ".lock").iterdir():
            with lock.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
        return True

    def record_calls(sync: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            synced.append(free())
            sync(descriptor)

        return call

    async def change() -> None:
        store = new_store(tmp_path)
        first = await store.put("folder/key", b"1")
        assert isinstance(first, Ok)
        assert isinstance(await store.put("folder/key", b"2", if_match=first.version), Ok)
        await store.delete(["folder/key"])

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, record_calls(getattr(os, name)))
    asyncio.run(change())
    assert len(synced) >= 5 and all(synced)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_files_of_a_store_are_private_for_any_umask(tmp_path: Path, umask: int) -> None:
    root = tmp_path / "srv" / "bucket"

    async def body() -> None:
        store = new_store(root)
        await store.put("meta/FORMAT", b"1", if_absent=True)
        await store.put("data/a/b", b"1")
        await store.put("data/a/b", b"2")
        await store.upload("data/c", [b"3"])
        await store.delete(["data/c"])
        await store.close()

    before = os.umask(umask)
    try:
        asyncio.run(body())
    finally:
        os.umask(before)
    made = [tmp_path / "srv", *(tmp_path / "srv").rglob("*")]
    assert {mode(path) for path in made if path.is_dir()} == {0o700}
    assert {mode(path) for path in made if path.is_file()} == {0o600}
    assert {"FORMAT", "b"} < {path.name for path in made} and any(path.parent.name == ".lock" for path in made)


def test_existing_directory_keeps_its_mode_and_the_credential_is_private(tmp_path: Path) -> None:
    """A store of an earlier version was readable by all."""
    assert CREDENTIAL == FORMAT_KEY
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "FORMAT").write_bytes(b"{}")
    (tmp_path / "meta" / "FORMAT").chmod(0o644)
    for folder in (tmp_path, tmp_path / "meta"):
        folder.chmod(0o2775)
    asyncio.run(new_store(tmp_path).close())
    assert (mode(tmp_path), mode(tmp_path / "meta"), mode(tmp_path / "meta" / "FORMAT")) == (0o2775, 0o2775, 0o600)
