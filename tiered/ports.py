"""The five ports: all that the engine may know of the world, drawn at the level of bytes.

Each has a real and a simulated implementation and one contract suite (`tests/contract/`) that runs on both.
Errors of a port are `Unavailable` (try again, or never when `final`) and `Corrupt`; nothing else leaves one.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Time: monotonic for deadlines, wall for record timestamps. No clock takes part in safety (rule M4)."""

    def mono_ns(self) -> int: ...
    def wall_ms(self) -> int: ...
    async def sleep(self, seconds: float) -> None: ...


class Rng(Protocol):
    """Chance, as named streams, so that one more draw in one place moves no other."""

    def stream(self, name: str) -> random.Random: ...


# -- disk -------------------------------------------------------------------------------------------------------------


class Space(NamedTuple):
    """Bytes of the file system under a directory."""

    total: int
    free: int


class File(Protocol):
    """One open file. Calls that touch only the page cache are plain; `sync` may take long and is awaited."""

    name: str

    def append(self, parts: Sequence[Buffer]) -> int:
        """Writes all parts at the end in order, returns the new size. A short write (full disk) is cut back to the old
        size before `Unavailable` is raised: an append is whole or absent, unless the machine dies."""

    def pwrite(self, offset: int, data: Buffer) -> None: ...
    def pread(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; shorter only at the end of the file."""

    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def map(self) -> memoryview:
        """The whole file, read-only, mapped where the platform can; for closed, non-empty files."""

    def fileno(self) -> int:
        """The descriptor for `sendfile`, or -1 where there is none (simulated)."""

    async def sync(self) -> None:
        """fsync. A failure is final for the directory: `Unavailable(final=True)`, never retried."""

    def close(self) -> None: ...


class Disk(Protocol):
    """One data directory. Paths are relative to its root, with `/`; they never leave it. What is made is for the user
    of the process alone."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File: ...
    def exists(self, path: str) -> bool: ...
    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when it is absent."""

    def make_dirs(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None:
        """Replaces `new` when it exists (files); a directory moves whole."""

    def remove(self, path: str) -> None:
        """A file, or a directory with all in it. Absent is not an error."""

    async def discard(self, path: str) -> None:
        """The same for what may be large: giving its blocks back takes a file system long, so it is awaited."""

    def space(self) -> Space: ...
    def boot_mark(self) -> str:
        """Boot id, device and mount of the directory in one line: equal marks mean that the page cache is whole."""

    async def sync_dir(self, path: str) -> None: ...


# -- object store -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ok:
    """Done; `version` is the ETag (or generation) now in the store."""

    version: str


@dataclass(frozen=True, slots=True)
class ConditionFailed:
    """412: `if_absent` and it is there, or `if_match` and it is another or gone. May be one's own put (rule M1)."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """409: undecided, nothing is known; read back."""


@dataclass(frozen=True, slots=True)
class NotFound:
    """404: no such object."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Timeout, reset, 5xx: it may have landed, or land later. Read back (rule M1)."""

    why: str


PutResult = Ok | ConditionFailed | Conflict | NotFound | Unknown


@dataclass(frozen=True, slots=True)
class GetResult:
    """Bytes of an object (or of a range of it), its whole size and its version."""

    data: bytes
    size: int
    version: str


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One key of a listing."""

    key: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes `[start, start + length)` of an open file: what `sendfile` and uploads take, uncopied."""

    file: File
    start: int
    length: int


class ObjectStore(Protocol):
    """A bucket with a prefix. Keys are relative to the prefix. Every call has a deadline of its own inside."""

    url: str

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        """The bytes `[start, start + length)`, shorter only at the end of the object; `Unavailable` after own retries.
        Only a whole object's bytes may have been checked on the way: whoever reads a range proves it himself."""

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        """With a condition: tried once, the outcome is the caller's to judge; `Unavailable` only when the store refused
        it and nothing landed. Without: retried inside."""

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        """One object from many parts, streamed: memory does not grow with its size. Retried inside; unconditional,
        because data keys are unique."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        """Keys under `prefix` greater than `after`, in order, at most `limit`, perhaps fewer. Empty only where no key
        follows, so a caller has all that it asked for once a list is empty."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Absent keys are no error."""

    async def close(self) -> None: ...


# -- net --------------------------------------------------------------------------------------------------------------


class Stream(Protocol):
    """A connected, non-blocking byte stream with readiness call-backs on the loop. `None` means: would block."""

    peer: str

    def recv_into(self, buffer: memoryview) -> int | None:
        """Bytes read; 0 at the end of the stream."""

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        """Bytes taken. `more`: others follow at once, so that the network may hold these back to send both together."""

    def send_file(self, slice: FileSlice) -> int | None: ...
    def on_readable(self, call: Callable[[], None] | None) -> None: ...
    def on_writable(self, call: Callable[[], None] | None) -> None: ...
    def close(self) -> None: ...


class Listener(Protocol):
    """A bound, listening address."""

    host: str
    port: int

    def close(self) -> None: ...


class Net(Protocol):
    """Connections between processes."""

    async def listen(self, host: str, port: int, on_accept: Callable[[Stream], None]) -> Listener: ...
    async def connect(self, host: str, port: int, timeout: float) -> Stream:
        """`Unavailable`, with `refused` when that machine answered that nobody listens there."""


@dataclass(frozen=True)
class World:
    """The five ports of one broker."""

    clock: Clock
    rng: Rng
    disk: Disk
    store: ObjectStore
    net: Net


Spawn = Callable[[str, Awaitable[None]], None]
"""Starts a named task that the broker owns: an exception in it stops the broker, stopping cancels it."""
