"""Tests of random histories on two implementations of a port: both must show the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import SimDisk
from tiered.errors import Unavailable
from tiered.object_store.directory import DirectoryStore
from tiered.object_store.memory import MemoryStore
from tiered.ports import Disk, File, GetResult, ObjectStore, Ok
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk

STEPS = 120
PATHS = ("a", "b", "d/a", "d/b", "d/e/a", "x/y")
FOLDERS = (".", "d", "d/e", "x", "a")
Seen = str | int | bool | bytes | Sequence[str]


class DiskHistory:
    """A random history on a disk, and its results; errors count as one word, because their texts may differ."""

    def __init__(self, disk: Disk, seed: int) -> None:
        self.seen: list[Seen] = []
        self._disk = disk
        self._rng = random.Random()
        self._readers: list[File] = []
        actions = [
            self.open,
            self.append,
            self.append,
            self.patch,
            self.cut,
            self.read,
            self.move,
            self.remove,
            self.make,
        ]
        for step in range(STEPS):
            self._rng.seed(f"{seed}/{step}")  # an error leaves draws undone: both begin each step at the same place
            try:
                self.seen.append(self._rng.choice(actions)())
            except Unavailable:
                self.seen.append("unavailable")
            self.seen += [disk.list(folder) for folder in FOLDERS]
            self.seen += [disk.exists(path) for path in PATHS]

    def path(self) -> str:
        return self._rng.choice(PATHS)

    def open(self) -> Seen:
        self._readers.append(self._disk.open(self.path(), create=self._rng.random() < 0.7))
        return self._readers[-1].size()

    def append(self) -> Seen:
        parts = [self._rng.randbytes(self._rng.randrange(50)) for _ in range(self._rng.randrange(4))]
        return self._open_writer(True, lambda writer: writer.append(parts))

    def patch(self) -> Seen:
        offset, data = self._rng.randrange(120), self._rng.randbytes(self._rng.randrange(1, 30))
        return self._open_writer(False, lambda writer: writer.pwrite(offset, data))

    def cut(self) -> Seen:
        size = self._rng.randrange(120)
        return self._open_writer(False, lambda writer: writer.truncate(size))

    def _open_writer(self, create: bool, write: Callable[[File], object]) -> Seen:
        """Opens a handle of its own: at most one handle writes at a time."""
        writer = self._disk.open(self.path(), create=create)
        write(writer)
        size = writer.size()
        writer.close()
        return size

    def read(self) -> Seen:
        offset, length = self._rng.randrange(120), self._rng.randrange(60)
        return self._rng.choice(self._readers).pread(offset, length) if self._readers else b""

    def move(self) -> Seen:
        self._disk.rename(self.path(), self.path())
        return True

    def remove(self) -> Seen:
        self._disk.remove(self._rng.choice((*PATHS, *FOLDERS[1:])))
        return True

    def make(self) -> Seen:
        self._disk.make_dirs(self._rng.choice(FOLDERS[1:4]))
        return True


@pytest.mark.parametrize("seed", range(16))
def test_simulated_disk_behaves_as_the_real_one(seed: int, tmp_path: Path) -> None:
    local = LocalDisk(str(tmp_path))
    real = DiskHistory(local, seed).seen
    local.close()
    assert len({repr(item) for item in real}) > 20, "a history without events proves nothing"
    assert real == DiskHistory(SimDisk(random.Random(0)), seed).seen


async def store_history(store: ObjectStore, rng: random.Random) -> list[object]:
    """Returns the results of a caller, with versions named by the order of their first appearance."""
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
            seen.append((got.data, got.size, names[got.version]) if isinstance(got, GetResult) else got)
            continue
        if isinstance(result, Ok):
            names.setdefault(result.version, len(names))
            versions[key] = result.version if rng.random() < 0.8 else versions[key]
        seen.append(names[result.version] if isinstance(result, Ok) else result)
        prefix, after = rng.choice(("", "a", "a/", "a/b", "c")), rng.choice(("", "a/1", "a/b"))
        seen.append([(entry.key, entry.size) for entry in await store.list(prefix, after, rng.randrange(1, 5))])
    return seen


@pytest.mark.parametrize("seed", range(8))
@run_by(run_alone)
async def test_directory_store_behaves_as_the_memory_store(*, seed: int, tmp_path: Path) -> None:
    directory = DirectoryStore(str(tmp_path), SystemClock(), SystemRng())
    real = await store_history(directory, random.Random(seed))
    await directory.close()
    assert real == await store_history(MemoryStore(SystemClock()), random.Random(seed))
