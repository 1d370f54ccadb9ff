"""Tests of replies to a socket: what one event sends is bounded, and all bytes leave in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tiered.ports import Buffer, FileSlice, Subject
from tiered_api.kafka.server.slots.socket_writer import MEMORY_BYTES_PER_EVENT, Part, send_parts


class Bytes:
    """A file in memory."""

    name = "bytes"

    def __init__(self, content: bytes) -> None:
        self._content = content

    def pread(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]

    def fileno(self) -> int:
        return -1


class Kernel:
    """A stream that takes at most `room` bytes of an event."""

    peer = "kernel:1"
    subject: Subject = ()

    def __init__(self, room: int) -> None:
        self.room = room
        self.left = room
        self.received = bytearray()
        self.calls: list[int] = []

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        data = b"".join(parts)
        assert data
        taken = data[: self.left]
        if not taken:
            return None
        self.calls.append(len(data))
        self.left -= len(taken)
        self.received += taken
        return len(taken)

    def send_file(self, slice: FileSlice) -> int | None:
        return self.sendmsg([slice.file.pread(slice.start, slice.length)])

    def recv_into(self, buffer: memoryview) -> int | None:
        return None

    def has_ended(self) -> bool:
        return False

    def on_readable(self, call: Callable[[], None] | None) -> None: ...
    def on_writable(self, call: Callable[[], None] | None) -> None: ...
    def close(self) -> None: ...


def test_event_sends_a_bounded_part_of_a_large_reply() -> None:
    records = Random(1).randbytes(MEMORY_BYTES_PER_EVENT * 3 + 17)
    for parts in ([records], [b"head", records, b"tail"]):
        kernel, queue = Kernel(1 << 30), list[Part](parts)
        events = 0
        while not send_parts(kernel, queue):
            events += 1
            assert len(kernel.received) == events * MEMORY_BYTES_PER_EVENT
        assert events == 3 and queue == [] and kernel.received == b"".join(parts)
        assert kernel.calls[:-1] == [MEMORY_BYTES_PER_EVENT] * 3


def test_small_parts_around_a_slice_leave_in_few_calls() -> None:
    kernel = Kernel(1 << 30)
    parts: list[Part] = [b"a" * 10, b"b" * 20, FileSlice(Bytes(b"file" * 100), 4, 300), b"c" * 30, b"d" * 40]
    assert send_parts(kernel, parts)
    assert kernel.calls == [30, 300, 70]


def test_all_parts_leave_in_order_whatever_the_kernel_takes() -> None:
    for seed in range(30):
        rng = Random(seed)
        parts: list[Part] = []
        whole = b""
        for _ in range(rng.randrange(1, 8)):
            data = rng.randbytes(rng.choice((1, 100, 70_000, 600_000)))
            parts.append(FileSlice(Bytes(data), 0, len(data)) if rng.random() < 0.3 else data)
            whole += data
        kernel = Kernel(rng.choice((1000, 65_536, 1 << 20)))
        while not send_parts(kernel, parts):
            kernel.left = kernel.room
        assert kernel.received == whole and parts == []
