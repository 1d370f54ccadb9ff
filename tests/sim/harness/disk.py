"""Simulated Disk port: contents that survive a power cut only if synced, and the faults that a test may set.

Every change has a number and can be observed, so that a test takes an image at each of them.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tests.sim.harness.durable_bytes import DurableBytes, Folder, Inode, Write, count_bytes
from tiered.errors import Unavailable
from tiered.ports import Buffer, Space, WriteErrors

TOTAL_BYTES = 1 << 40
DEAD = "the process is dead"


class Op(NamedTuple):
    """One numbered change, as the observer gets it afterwards."""

    number: int
    verb: str
    path: str


@dataclass
class DiskFault:
    """Fails calls of a verb (append, pwrite, truncate, pread, sync, rename, ...) on paths that contain `path`.

    `error` is EIO, which is final for a write or sync, ENOSPC (of an append), or EMFILE, which is temporary. `times=-1`
    means without end.
    """

    verb: str
    path: str = ""
    error: str = "EIO"
    skip: int = 0
    times: int = 1

    def matches(self, verb: str, path: str) -> bool:
        if verb != self.verb or self.path not in path or self.times == 0:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        self.times -= 1 if self.times > 0 else 0
        return True


class SimDisk:
    """One data directory. Faults, fullness and slowness are attributes that a test may set at any time."""

    def __init__(self, rng: random.Random, contents: DurableBytes | None = None) -> None:
        self.faults: list[DiskFault] = []
        self.capacity: int | None = None
        self.sync_seconds: Callable[[], float] = lambda: 0.0
        self.on_op: Callable[[Op], None] | None = None
        self.ops = 0
        self.open_files = 0
        """Open files: neither closed nor garbage."""
        self._rng = rng
        self._contents = contents or DurableBytes()
        self._failed = ""
        self._full = ""
        self._full_count = 0

    @property
    def failed(self) -> bool:
        """True if an I/O error ended all writing by this process."""
        return bool(self._failed) and self._failed != DEAD

    # -- the port -----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, write: bool = True) -> SimFile:
        self.check_faults("open", path, write=write)
        folder, name = self._parent(path, "open")
        node = folder.names.get(name)
        if node is None and create:
            node = Inode()
            self._contents.rename(((folder, name, node),))
            self.count_op("create", path)
        if not isinstance(node, Inode):
            raise self._error("open", path, "Is a directory" if node else "No such file or directory")
        return SimFile(self, path, node, write)

    def exists(self, path: str) -> bool:
        self.check_faults("exists", path)
        return self._find(path) is not None

    def list(self, path: str) -> list[str]:
        self.check_faults("list", path)
        node = self._find(path)
        return sorted(node.names) if isinstance(node, Folder) else []

    def make_dirs(self, path: str) -> None:
        self.check_faults("make_dirs", path, write=True)
        folder = self._contents.root
        for name in _parts(path):
            node = folder.names.get(name)
            if node is None:
                node = Folder()
                self._contents.rename(((folder, name, node),))
                self.count_op("make_dir", path)
            if isinstance(node, Inode):
                raise self._error("make_dirs", path, "File exists")
            folder = node

    def rename(self, old: str, new: str) -> None:
        self.check_faults("rename", old, write=True)
        source, old_name = self._parent(old, "rename")
        target, new_name = self._parent(new, "rename")
        node = source.names.get(old_name)
        if node is None:
            raise self._error("rename", old, "No such file or directory")
        replaced = target.names.get(new_name)
        if isinstance(replaced, Folder) and (replaced.names or isinstance(node, Inode)):
            raise self._error("rename", old, "Directory not empty" if replaced.names else "Is a directory")
        self._contents.rename(((source, old_name, None), (target, new_name, node)))
        self.count_op("rename", new)

    def remove(self, path: str) -> None:
        self.check_faults("remove", path)
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, Folder):
            for name in sorted(node.names):
                self.remove(f"{path}/{name}")
        folder, name = self._parent(path, "remove")
        self._contents.rename(((folder, name, None),))
        self.count_op("remove", path)

    async def discard(self, path: str) -> None:
        self.remove(path)

    def space(self) -> Space:
        total = TOTAL_BYTES if self.capacity is None else self.capacity
        return Space(total, max(0, total - count_bytes(self._contents.root)))

    def write_errors(self) -> WriteErrors:
        return WriteErrors(self._failed if self.failed else "", self._full, self._full_count)

    def boot_mark(self, path: str) -> str:
        return f"boot={self._contents.boot} device=1 mount=1 inode={self._contents.inode}"

    async def sync_dir(self, path: str) -> None:
        self.check_faults("sync_dir", path, write=True)
        folder = self._find(path)
        if not isinstance(folder, Folder):
            raise self._error("sync_dir", path, "Not a directory")
        await self.sync_delay("sync_dir", path)
        self._contents.make_names_durable(folder)
        self.count_op("sync_dir", path)

    # -- what tests do to it ------------------------------------------------------------------------------------------

    def revoke(self) -> None:
        """Revokes the port of a dead process: its tasks can change nothing here any more."""
        self._failed = DEAD

    @property
    def contents(self) -> DurableBytes:
        return self._contents

    def after_kill(self) -> SimDisk:
        """Returns the disk after the death of the process: the page cache is whole."""
        self.revoke()
        return SimDisk(self._rng, self._contents)

    def after_power_cut(self) -> SimDisk:
        self.revoke()
        return self.crash_image(self._rng)

    def clone(self) -> SimDisk:
        """Returns a separate copy as after a kill at this moment."""
        return SimDisk(self._rng, copy.deepcopy(self._contents))

    def copy(self) -> SimDisk:
        """Returns a copy that an operator makes while the machine runs: its directories are other ones."""
        copied = self.clone()
        copied._contents.inode += 1
        return copied

    def crash_image(self, rng: random.Random) -> SimDisk:
        """Returns a separate copy as after a power cut at this moment."""
        return SimDisk(rng, self._contents.crash_image(rng))

    def flip_bit(self, path: str, bit: int) -> None:
        """Flips one bit of a file (bit 0 is the lowest of the first byte)."""
        node = self._find(path)
        assert isinstance(node, Inode), f"no file {path}"
        self._contents.has_rotted = True
        for data in (node.data, node.durable):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    # -- for SimFile --------------------------------------------------------------------------------------------------

    def check_faults(self, verb: str, path: str, *, write: bool = False) -> None:
        if self._failed and (write or self._failed == DEAD):
            raise Unavailable(self._failed, final=True)
        if not self.faults:
            return
        if any(fault.error == "EIO" and fault.matches(verb, path) for fault in self.faults):
            if write:
                self._failed = f"{verb} failed path={path} error=Input/output error"
            raise self._error(verb, path, "Input/output error")
        if any(fault.error == "EMFILE" and fault.matches(verb, path) for fault in self.faults):
            raise self._error(verb, path, "Too many open files")

    def bytes_that_fit(self, path: str, wanted: int) -> int:
        """Returns how many of `wanted` bytes still fit."""
        if any(fault.error == "ENOSPC" and fault.matches("append", path) for fault in self.faults):
            return self._rng.randint(0, max(0, wanted - 1))
        return wanted if self.capacity is None else min(wanted, self.space().free)

    def full_error(self, verb: str, path: str) -> Unavailable:
        """Returns the error of a write that does not fit, and counts it."""
        self._full = f"{verb} failed path={path} error=No space left on device"
        self._full_count += 1
        return Unavailable(self._full)

    def next_sequence(self) -> int:
        self._contents.sequence += 1
        return self._contents.sequence

    def count_op(self, verb: str, path: str) -> None:
        self.ops += 1
        if self.on_op:
            self.on_op(Op(self.ops, verb, path))

    async def sync_delay(self, verb: str, path: str) -> None:
        if seconds := self.sync_seconds():
            await asyncio.sleep(seconds)
            self.check_faults(verb, path, write=True)

    # -- names --------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> Inode | Folder | None:
        return self._find_node(_parts(path))

    def _find_node(self, parts: Sequence[str]) -> Inode | Folder | None:
        node: Inode | Folder | None = self._contents.root
        for name in parts:
            node = node.names.get(name) if isinstance(node, Folder) else None
        return node

    def _parent(self, path: str, verb: str) -> tuple[Folder, str]:
        *above, name = _parts(path)
        folder = self._find_node(above)
        if not isinstance(folder, Folder):
            raise self._error(verb, path, "No such file or directory")
        return folder, name

    def _error(self, verb: str, path: str, why: str) -> Unavailable:
        return Unavailable(f"{verb} failed path={path} error={why}", final=bool(self._failed))


class SimFile:
    """One open file; it stays readable after its name is removed."""

    def __init__(self, disk: SimDisk, name: str, inode: Inode, write: bool) -> None:
        self.name = name
        self._disk = disk
        self._inode = inode
        self._write = write
        self._open = True
        disk.open_files += 1

    def append(self, parts: Sequence[Buffer]) -> int:
        self._enter("append", write=True)
        data = b"".join(parts)
        fits = self._disk.bytes_that_fit(self.name, len(data))
        before = len(self._inode.data)
        self._change(before, data[:fits])
        if fits < len(data):
            self._change(before, None)
            raise self._disk.full_error("append", self.name)
        self._disk.count_op("append", self.name)
        return len(self._inode.data)

    def pwrite(self, offset: int, data: Buffer) -> None:
        self._enter("pwrite", write=True)
        growth = max(0, offset + len(data) - len(self._inode.data))
        if self._disk.bytes_that_fit(self.name, growth) < growth:
            raise self._disk.full_error("pwrite", self.name)
        self._change(offset, bytes(data))
        self._disk.count_op("pwrite", self.name)

    def pread(self, offset: int, length: int) -> bytes:
        self._enter("pread")
        return bytes(self._inode.data[offset : offset + length])

    async def read(self, offset: int, length: int) -> bytes:
        data = self.pread(offset, length)
        await asyncio.sleep(0)
        return data

    def size(self) -> int:
        self._enter("size")
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._enter("truncate", write=True)
        self._change(size, None)
        self._disk.count_op("truncate", self.name)

    def map(self) -> memoryview:
        self._enter("map")
        return memoryview(bytes(self._inode.data))

    def fileno(self) -> int:
        return -1

    async def sync(self) -> None:
        self._enter("sync", write=True)
        upto = self._disk.next_sequence()
        await self._disk.sync_delay("sync", self.name)
        self._inode.make_durable(upto)
        self._disk.count_op("sync", self.name)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._disk.open_files -= 1

    __del__ = close

    def _enter(self, verb: str, *, write: bool = False) -> None:
        if not self._open or (write and not self._write):
            raise Unavailable(f"{verb} failed path={self.name} error=Bad file descriptor")
        self._disk.check_faults(verb, self.name, write=write)

    def _change(self, offset: int, data: bytes | None) -> None:
        self._inode.change(Write(self._disk.next_sequence(), offset, data))


@lru_cache(maxsize=10_000)
def _parts(path: str) -> tuple[str, ...]:
    parts = path.split("/")
    assert path and not path.startswith("/") and ".." not in parts, f"bad path {path!r}"
    return tuple(part for part in parts if part not in ("", "."))
