"""The five ports: everything that the engine may know of the world outside, at the level of bytes.

Each port has a real and a simulated implementation, and one contract suite (`tests/contract/`) that runs on both. A
port raises only `Unavailable` (try again; never if `final`) and `Corrupt`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tiered.value import value

Buffer = bytes | bytearray | memoryview
Subject = Sequence[Sequence[tuple[str, str]]]
"""Name in a certificate: its parts, each with one or more attributes and their values."""


class Clock(Protocol):
    """Time: monotonic for deadlines, wall clock for record timestamps. No clock takes part in safety (M4)."""

    def mono_ns(self) -> int: ...
    def cpu_ns(self) -> int:
        """Returns the time in which the calling thread had a core."""

    def wall_ms(self) -> int: ...
    async def sleep(self, seconds: float) -> None: ...


class Rng(Protocol):
    """Random numbers, as named streams: one more draw from one stream changes no other."""

    def stream(self, name: str) -> random.Random: ...


# -- disk -------------------------------------------------------------------------------------------------------------


class Space(NamedTuple):
    """Bytes of the file system that holds a directory."""

    total: int
    free: int


class ByteSource(Protocol):
    """Bytes that may be read at any place: a file, or what stands for one in an upload."""

    name: str

    def pread(self, offset: int, length: int) -> bytes:
        """Returns up to `length` bytes; fewer only at the end of the file."""

    def fileno(self) -> int:
        """Returns the descriptor for `sendfile`, or -1 if there is none (simulated)."""


class File(ByteSource, Protocol):
    """One open file. Calls that touch only the page cache return at once; `sync` may take long and is awaited."""

    def append(self, parts: Sequence[Buffer]) -> int:
        """Appends all parts in order and returns the new size. After a short write (full disk) the file is truncated to
        its old size before `Unavailable` is raised. An append is therefore complete or absent, unless the machine
        dies."""

    def pwrite(self, offset: int, data: Buffer) -> None: ...
    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def map(self) -> memoryview:
        """Returns the whole file, read-only, memory-mapped where the platform can; for closed, non-empty files."""

    async def read(self, offset: int, length: int) -> bytes:
        """Returns what `pread` does, for bytes that the page cache may lack: the event loop does not wait for them."""

    async def sync(self) -> None:
        """Calls fsync. A failure is final for the directory: `Unavailable(final=True)`, never retried."""

    def close(self) -> None: ...


class WriteErrors(NamedTuple):
    """Failed writes in a data directory.

    `failure` says why nothing is written any more; empty while writes work. `full_count` counts the writes for which
    there was no room, and `full` is the reason of the last one.
    """

    failure: str = ""
    full: str = ""
    full_count: int = 0


class Disk(Protocol):
    """One data directory. Paths are relative to its root, use `/` and never leave it. New files belong to the user of
    the process alone."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File: ...
    def exists(self, path: str) -> bool: ...
    def list(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted; none if it is absent."""

    def make_dirs(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None:
        """Replaces `new` if it exists (files); moves a directory as a whole."""

    def remove(self, path: str) -> None:
        """Removes a file, or a directory and everything in it. Does nothing if it is absent."""

    async def discard(self, path: str) -> None:
        """Removes something that may be large, and is awaited: it takes a file system long to free the blocks."""

    def space(self) -> Space:
        """Returns the room of the file system in bytes. Raises `Unavailable` if the file system does not say."""

    def write_errors(self) -> WriteErrors:
        """Returns which writes of this process failed so far, whoever made them."""

    def boot_mark(self, path: str) -> str:
        """Returns the boot id, and the device, mount and inode of a directory, in one line. Equal marks mean that the
        page cache survived, and that the directory is no copy."""

    async def sync_dir(self, path: str) -> None: ...


# -- object store -----------------------------------------------------------------------------------------------------


@value
class Ok:
    """The put succeeded; `version` is the ETag (or generation) of the object now."""

    version: str


@value
class ConditionFailed:
    """412: the object exists (`if_absent`), or has another version or is gone (`if_match`). The object may be the
    caller's own put (M1)."""


@value
class Conflict:
    """409: undecided; the caller reads the object back."""


@value
class NotFound:
    """404: no such object."""


@value
class Unknown:
    """Timeout, reset, 5xx: the put may have landed, or may land later. The caller reads the object back (M1)."""

    why: str


PutResult = Ok | ConditionFailed | Conflict | NotFound | Unknown


def describe_failed_put(result: PutResult) -> str:
    """Returns in words why a put did not succeed."""
    if isinstance(result, Unknown):
        return result.why
    if isinstance(result, ConditionFailed):
        return "the object exists, or has another version"
    return "the store has no such bucket or object" if isinstance(result, NotFound) else "another put was in its way"


@value
class GetResult:
    """The bytes of an object (or of a range of it), the size of the whole object and its version."""

    data: bytes
    size: int
    version: str


@value
class ListedObject:
    """One object of a listing. `version` is the one that `get` and `put` return. `size` counts stored bytes: an
    encrypted object has some more than `get` returns."""

    key: str
    size: int
    modified_ms: int
    version: str = ""


@value
class FileSlice:
    """Bytes `[start, start + length)` of an open file, which `sendfile` and uploads take without a copy."""

    file: ByteSource
    start: int
    length: int


class ObjectStore(Protocol):
    """A bucket with a prefix. Keys are relative to the prefix. Every call has its own deadline inside."""

    url: str

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        """Returns the bytes `[start, start + length)`; fewer only at the end of the object. Raises `Unavailable` after
        its own retries. Only the bytes of a whole object may have been checked on the way; a caller that reads a range
        checks the bytes itself."""

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        """Writes an object. With a condition: tries once, and the caller judges the outcome; raises `Unavailable` only
        if the store refused the put and nothing landed. Without a condition: retries inside."""

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        """Writes one object from many parts, as a stream: memory does not grow with the size of the object. Retries
        inside. Has no condition, because data keys are unique."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        """Returns the keys under `prefix` that come after `after`, in order: at most `limit`, perhaps fewer. The list
        is empty only if no key follows, so a caller that continues until then has all of them.

        The order is that of the keys within a folder. Some stores list a folder after the other (SeaweedFS): there all
        keys below `a/` come before `a-b`."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects; absent keys are no error."""

    async def end_old_uploads(self, prefix: str) -> int:
        """Ends uploads under `prefix` that began more than a day ago, by the clock of the store, and returns how many:
        their processes were killed. The work of one call is bounded. A store that refuses this keeps them."""

    async def close(self) -> None: ...


# -- net --------------------------------------------------------------------------------------------------------------


class Stream(Protocol):
    """A connected, non-blocking byte stream that reports readiness by callbacks on the event loop. `None` means that
    the call would block."""

    peer: str
    subject: Subject
    """Subject of the certificate that the other side has proved; empty without one."""

    def recv_into(self, buffer: memoryview) -> int | None:
        """Returns how many bytes were read; 0 at the end of the stream."""

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        """Returns how many bytes were taken. `more` means that others follow at once: the network may hold these back
        to send both together."""

    def send_file(self, slice: FileSlice) -> int | None: ...
    def has_ended(self) -> bool:
        """True if the other side has ended the stream, also while bytes of it wait to be read. False on systems that do
        not tell."""

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
        """Connects. Raises `Unavailable`, with `refused` if the other machine replied that nothing listens at the
        port."""

    def call_after_streams(self, call: Callable[[], None]) -> None:
        """Calls `call` soon: after the streams that are ready now, if one of them is served at the moment."""


@dataclass(frozen=True)
class World:
    """The five ports of one broker."""

    clock: Clock
    rng: Rng
    disk: Disk
    store: ObjectStore
    net: Net


Spawn = Callable[[str, Awaitable[None]], None]
"""Starts a named task that the broker owns: an exception in it stops the broker, and the broker cancels it when it
stops."""
