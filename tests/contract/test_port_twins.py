"""Random histories on two implementations of a port: whatever one shows, the other must show too."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.sim.disk import SimDisk
from tiered.cold.directory import DirectoryStore
from tiered.cold.memory import MemoryStore
from tiered.errors import Unavailable
from tiered.hot.local_disk import LocalDisk
from tiered.ports import Disk, File, Got, ObjectStore, Ok
from tiered.world import SystemClock, SystemRng

STEPS = 120
PATHS = ("a", "b", "d/a", "d/b", "d/e/a", "x/y")
FOLDERS = (".", "d", "d/e", "x", "a")
Seen = str | int | bool | bytes | Sequence[str]


def disk_history(disk: Disk, seed: int) -> list[Seen]:
    """What a caller sees of a random history; errors count as one word, their texts may differ."""
    rng = random.Random()
    files: list[File] = []
    seen: list[Seen] = []

    def file() -> File | None:
        return rng.choice(files) if files else None

    def opened() -> int:
        files.append(disk.open(rng.choice(PATHS), create=rng.random() < 0.7))
        return files[-1].size()

    def appended() -> Seen:
        parts = [rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(4))]
        # One writing handle per file: appends go through a fresh one.
        writer = disk.open(rng.choice(PATHS), create=True)
        size = writer.append(parts)
        writer.close()
        return size

    def patched() -> Seen:
        offset, data = rng.randrange(120), rng.randbytes(rng.randrange(1, 30))
        writer = disk.open(rng.choice(PATHS))
        writer.pwrite(offset, data)
        size = writer.size()
        writer.close()
        return size

    def cut() -> Seen:
        size = rng.randrange(120)
        writer = disk.open(rng.choice(PATHS))
        writer.truncate(size)
        writer.close()
        return size

    def read() -> Seen:
        offset, length, chosen = rng.randrange(120), rng.randrange(60), file()
        return chosen.pread(offset, length) if chosen else b""

    def moved() -> Seen:
        disk.rename(rng.choice(PATHS), rng.choice(PATHS))
        return True

    def removed() -> Seen:
        disk.remove(rng.choice((*PATHS, *FOLDERS[1:])))
        return True

    def made() -> Seen:
        disk.make_dirs(rng.choice(FOLDERS[1:4]))
        return True

    actions: list[Callable[[], Seen]] = [opened, appended, appended, patched, cut, read, moved, removed, made]
    for step in range(STEPS):
        rng.seed(f"{seed}/{step}")  # an error leaves draws undone: both begin each step at the same place
        try:
            seen.append(rng.choice(actions)())
        except Unavailable:
            seen.append("unavailable")
        seen += [disk.list(folder) for folder in FOLDERS]
        seen += [disk.exists(path) for path in PATHS]
    return seen


@pytest.mark.parametrize("seed", range(30))
def test_the_simulated_disk_behaves_as_the_real_one(seed: int, tmp_path: Path) -> None:
    local = LocalDisk(str(tmp_path))
    real = disk_history(local, seed)
    local.close()
    assert len({repr(item) for item in real}) > 20, "a history without events proves nothing"
    assert real == disk_history(SimDisk(random.Random(0)), seed)


async def store_history(store: ObjectStore, rng: random.Random) -> list[object]:
    """What a caller sees, with versions named by the order in which they were first seen."""
    keys = ("a/1", "a/2", "a/b/1", "a-/1", "b")
    names: dict[str, int] = {}
    versions = dict.fromkeys(keys, "never")
    seen: list[object] = []
    for _ in range(STEPS):
        key, draw, body = rng.choice(keys), rng.random(), rng.randbytes(rng.randrange(1, 40))
        start, length = rng.randrange(45), rng.choice((None, 0, 5, 100))
        if draw < 0.2:
            result = await store.put(key, body, if_absent=True)
        elif draw < 0.5:
            result = await store.put(key, body, if_match=versions[key])
        elif draw < 0.6:
            result = await store.put(key, body)
        elif draw < 0.7:
            result = await store.upload(key, [body, body])
        elif draw < 0.8:
            await store.delete([key, rng.choice(keys)])
            continue
        else:
            got = await store.get(key, start, length)
            seen.append((got.data, got.size, names[got.version]) if isinstance(got, Got) else got)
            continue
        if isinstance(result, Ok):
            names.setdefault(result.version, len(names))
            versions[key] = result.version if rng.random() < 0.8 else versions[key]
        seen.append(names[result.version] if isinstance(result, Ok) else result)
        prefix, after = rng.choice(("", "a", "a/", "a/b", "c")), rng.choice(("", "a/1", "a/b"))
        seen.append([(entry.key, entry.size) for entry in await store.list(prefix, after, rng.randrange(1, 5))])
    return seen


@pytest.mark.parametrize("seed", range(15))
def test_the_directory_behaves_as_memory(seed: int, tmp_path: Path) -> None:
    async def both() -> None:
        directory = DirectoryStore(str(tmp_path), SystemClock(), SystemRng())
        real = await store_history(directory, random.Random(seed))
        await directory.close()
        assert real == await store_history(MemoryStore(SystemClock()), random.Random(seed))

    asyncio.run(both())
