"""One end of a simulated connection: what travels, what waits to be read, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING

from tiered.errors import Unavailable
from tiered.ports import Buffer, FileSlice

if TYPE_CHECKING:
    from tests.sim.harness.network import SimNetwork

WINDOW_BYTES = 64 * 1024
SEND_FILE_BYTES = 64 * 1024


class Sign(Enum):
    """What travels a connection besides bytes."""

    END = "nothing follows"
    RESET = "the connection is unknown here"


class SimStream:
    """One end of a connection. What it sends waits in `_way` for its time, then in the far end's `_inbox`."""

    far: SimStream

    def __init__(self, network: SimNetwork, host: str, peer: str, context: Context, fine: bool) -> None:
        self.host = host
        self.peer = peer
        self._context = context
        self._fine = fine
        self._network = network
        self._inbox = bytearray()
        self._way: list[tuple[int, bytes | Sign]] = []
        self._under_way = 0
        self._ended = False
        self._error = ""
        self._closed = False
        self._forgotten = False
        self._refusing = False
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None
        self._read_due = False
        self._write_due = False
        network.add_stream(self)

    def join(self, far: SimStream) -> None:
        self.far = far

    # -- the port -----------------------------------------------------------------------------------------------------

    def recv_into(self, buffer: memoryview) -> int | None:
        self._check()
        if not self._inbox:
            return 0 if self._ended else None
        size = min(len(buffer), len(self._inbox), self._network.chunk(self._fine))
        buffer[:size] = self._inbox[:size]
        del self._inbox[:size]
        self.far.wake_writer()
        return size

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        self._check()
        data = b"".join(parts)
        room = self._room()
        if room <= 0 and data:
            return None
        data = data[: min(room, self._network.chunk(self._fine))]
        self._send(data)
        return len(data)

    def send_file(self, slice: FileSlice) -> int | None:
        return self.sendmsg([slice.file.pread(slice.start, min(slice.length, SEND_FILE_BYTES))])

    def on_readable(self, call: Callable[[], None] | None) -> None:
        self._readable = call
        self._wake()

    def on_writable(self, call: Callable[[], None] | None) -> None:
        self._writable = call
        self.wake_writer()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._readable = self._writable = None
        if not self._error:
            self._send(Sign.END)

    # -- what the network does ----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return not self._closed and not self._error

    def flush(self) -> None:
        """Delivers what is due, in order, unless the way is cut."""
        while self._way and self._way[0][0] <= self._network.loop.now_ns:
            if self._network.is_cut(self.host, self.far.host) or self._network.is_dark(self.far.host):
                return
            data = self._way.pop(0)[1]
            self._under_way -= _size(data)
            self.far.arrive(data)
        if self._closed and not self._way:
            self._network.drop_stream(self)

    def arrive(self, data: bytes | Sign) -> None:
        if self._forgotten:
            self.refuse()
            return
        if self._error:
            return
        if data is Sign.RESET:
            self.broken()
            return
        if self._closed and data is not Sign.END:
            self.far.broken_by_peer()  # a process that closed answers data with a reset
            return
        if isinstance(data, Sign):
            self._ended = True
        else:
            self._inbox += data
        self._wake()

    @property
    def half_open(self) -> bool:
        """Whether one end knows nothing of it any more."""
        return self._forgotten or self.far._forgotten

    def forget(self) -> None:
        """This end is gone, with all that it has not delivered; the far one is not told."""
        self._forgotten, self._refusing = True, False
        self._error = self._error or "the process is gone"
        self._way.clear()
        self._under_way = 0
        self._wake()
        self.wake_writer()
        if self.far._forgotten:
            self._network.drop_stream(self)
            self._network.drop_stream(self.far)

    def refuse(self) -> None:
        """Tells the far end, once, that this one is gone."""
        if not self._refusing:
            self._refusing = True
            self._network.add_stream(self)
            self._send(Sign.RESET)

    def probed(self) -> None:
        """The machine of an end that is gone can be reached: who waited for room there is asked to go on."""
        if self._forgotten:
            self._inbox.clear()
            self.far.wake_writer()

    def broken(self) -> None:
        self.broken_by_peer()
        self.far.broken_by_peer()

    def broken_by_peer(self) -> None:
        self._error = self._error or "Connection reset by peer"
        self._way.clear()
        self._under_way = 0
        self._network.drop_stream(self)
        self._wake()
        self.wake_writer()

    def wake_writer(self) -> None:
        if self._writable and not self._write_due and self._can_write():
            self._write_due = True
            self._network.loop.call_soon(self._call_writer, context=self._context)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _send(self, data: bytes | Sign) -> None:
        loop = self._network.loop
        due_ns = loop.now_ns + round(self._network.latency(self.host, self.far.host) * 1e9)
        if self._way:
            due_ns = max(due_ns, self._way[-1][0])
        self._way.append((due_ns, data))
        self._under_way += _size(data)
        loop.call_at_ns(due_ns, self.flush, self._network.context)

    def _room(self) -> int:
        return WINDOW_BYTES - self._under_way - len(self.far._inbox)

    def _check(self) -> None:
        if self._closed or self._error:
            raise Unavailable(f"connection lost peer={self.peer} error={self._error or 'closed'}", final=True)

    def _wake(self) -> None:
        if self._readable and not self._read_due and self._can_read():
            self._read_due = True
            self._network.loop.call_soon(self._call_reader, context=self._context)

    def _can_read(self) -> bool:
        return bool(self._inbox or self._ended or self._error)

    def _can_write(self) -> bool:
        return bool(self._error) or self._room() > 0

    def _call_reader(self) -> None:
        """Readiness is a level, as with `add_reader`: the call repeats while there is something to read."""
        self._read_due = False
        if self._readable and self._can_read():
            self._readable()
            self._wake()

    def _call_writer(self) -> None:
        self._write_due = False
        if self._writable and self._can_write():
            self._writable()
            self.wake_writer()


def _size(data: bytes | Sign) -> int:
    return len(data) if type(data) is bytes else 0
