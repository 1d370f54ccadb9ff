"""The cache of chunks on disk: it spares gets, survives a restart, and no fault of it is more than a get."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.disk import DiskFault, SimDisk
from tests.sim.harness.loop import SimLoop
from tiered.cold import disk_cache
from tiered.cold.cached_files import KEPT_MS
from tiered.cold.chunks import Chunk
from tiered.cold.disk_cache import FOLDER, DiskCache
from tiered.metrics import Metrics

A, B, C = (Chunk(f"segments/{name}", 0, 1_000) for name in "abc")
BYTES = {each: each.key[-1:].encode() * 1_000 for each in (A, B, C)}
FILE_BYTES = 1_100


class Rig:
    """A disk, and the cache of the process that runs now."""

    def __init__(self, loop: SimLoop) -> None:
        self.clock = SimClock(loop)
        self.disk = SimDisk(random.Random(1))
        self.cache: DiskCache
        self.running: asyncio.Task[None]

    async def start(self, bytes_max: int = 2 * FILE_BYTES) -> None:
        """Starts a process, after a kill of the one before."""
        if hasattr(self, "running"):
            self.running.cancel()
            self.disk = self.disk.after_kill()
        self.cache = DiskCache(self.disk, self.clock, Metrics(), bytes_max)
        self.running = asyncio.ensure_future(self.cache.run())
        await asyncio.sleep(1.0)

    async def keep(self, *chunks: Chunk) -> None:
        for each in chunks:
            self.cache.keep(each, BYTES[each])
            await asyncio.sleep(1.0)

    async def found(self) -> list[Chunk]:
        """Returns the chunks that are here, in the order of names; each has its bytes."""
        there = {each: await self.cache.get(each) for each in (A, B, C)}
        assert all(data in (None, BYTES[each]) for each, data in there.items())
        return [each for each, data in there.items() if data is not None]

    def files(self) -> list[str]:
        return [f"{FOLDER}/{name}" for name in self.disk.list(FOLDER)]


def run(scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    loop = SimLoop(1)

    async def main() -> None:
        rig = Rig(loop)
        await scenario(rig)
        rig.running.cancel()

    loop.run(main())


@run_by(run)
async def test_chunk_is_here_after_a_kill(rig: Rig) -> None:
    await rig.start()
    assert await rig.found() == []
    await rig.keep(A)
    await rig.start()
    assert await rig.found() == [A]


@run_by(run)
async def test_least_recently_used_chunks_make_room(rig: Rig) -> None:
    await rig.start()
    await rig.keep(A, B)
    assert await rig.cache.get(A) is not None
    await rig.keep(C)
    assert await rig.found() == [A, C] and len(rig.files()) == 2


@run_by(run)
async def test_files_that_no_longer_fit_go_at_the_start(rig: Rig) -> None:
    await rig.start(3 * FILE_BYTES)
    await rig.keep(A, B, C)
    await rig.start(FILE_BYTES)
    assert await rig.found() == [C] and len(rig.files()) == 1
    await rig.start(0)
    assert rig.files() == [] and rig.running.done()
    await rig.keep(A)
    assert await rig.found() == []


@run_by(run)
async def test_chunk_larger_than_the_cache_displaces_nothing(rig: Rig) -> None:
    await rig.start()
    await rig.keep(A)
    large = Chunk("segments/d", 0, 3 * FILE_BYTES)
    rig.cache.keep(large, bytes(large.length))
    await asyncio.sleep(1.0)
    assert await rig.found() == [A] and await rig.cache.get(large) is None


@run_by(run)
async def test_logs_have_the_last_tenth_of_the_disk(rig: Rig) -> None:
    await rig.start(100 * FILE_BYTES)
    await rig.keep(A, B)
    rig.disk.capacity = 2_600
    await rig.keep(C)
    assert await rig.found() == [B, C], "the oldest makes room for the newest"
    rig.disk.open("log", create=True).append([bytes(350)])
    await rig.cache.make_room()
    assert await rig.found() == [C] and rig.disk.write_errors().full_count == 0
    rig.disk.capacity = 1_000
    await rig.cache.make_room()
    await rig.keep(A)
    assert rig.files() == [] and rig.disk.write_errors().full_count == 0


@run_by(run)
async def test_chunk_is_kept_for_a_day(rig: Rig) -> None:
    """The records in it may be deleted in the bucket."""
    await rig.start()
    await rig.keep(A)
    await asyncio.sleep(KEPT_MS / 1000)
    await rig.cache.expire()
    assert rig.files() == []
    await rig.keep(B)
    rig.running.cancel()
    await asyncio.sleep(KEPT_MS / 1000)
    await rig.start()
    assert rig.files() == []


@pytest.mark.parametrize("what", ["cut", "another", "longer"])
@run_by(run)
async def test_damaged_file_is_removed(rig: Rig, *, what: str) -> None:
    await rig.start()
    await rig.keep(A, B)
    name, other = rig.files()
    file = rig.disk.open(name)
    if what == "cut":
        file.truncate(500)
    elif what == "longer":
        file.append([b"x"])
    else:
        rig.disk.rename(other, name)
    assert await rig.cache.get(A) is None and name not in rig.files()


@run_by(run)
async def test_chunk_with_wrong_bytes_is_removed_by_its_reader(rig: Rig) -> None:
    await rig.start()
    await rig.keep(A)
    rig.cache.invalidate(A)
    rig.cache.invalidate(B)
    assert rig.files() == [] and await rig.found() == []


@run_by(run)
async def test_part_of_a_killed_process_and_foreign_names_go_at_the_start(rig: Rig) -> None:
    await rig.start()
    await rig.keep(A)
    for name in (disk_cache.PART, "x"):
        rig.disk.open(f"{FOLDER}/{name}", create=True).append([b"x"])
    await rig.start()
    assert await rig.found() == [A] and len(rig.files()) == 1


@run_by(run)
async def test_failed_disk_ends_the_cache_and_nothing_else(rig: Rig) -> None:
    await rig.start()
    await rig.keep(A)
    rig.disk.faults.append(DiskFault("append", error="EIO"))
    await rig.keep(B)
    assert rig.running.done() and rig.running.exception() is None
    rig.cache.keep(C, BYTES[C])
    assert await rig.found() == []


@run_by(run)
async def test_chunks_that_wait_are_bounded(rig: Rig) -> None:
    await rig.start(1 << 30)
    data = bytes(disk_cache.WAITING_BYTES // 2)
    for number in range(4):
        rig.cache.keep(Chunk(f"segments/{number}", 0, len(data)), data)
    await asyncio.sleep(60.0)
    assert len(rig.files()) == 2
