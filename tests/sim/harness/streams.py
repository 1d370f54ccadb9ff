"""One end of a simulated connection: bytes in flight, bytes that wait to be read, and its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING

from tiered.errors import Unavailable
from tiered.ports import Buffer, FileSlice, Subject

if TYPE_CHECKING:
    from tests.sim.harness.network import SimNetwork

WINDOW_BYTES = 64 * 1024
SEND_FILE_BYTES = 64 * 1024


class StreamSignal(Enum):
    """Signals on a connection besides bytes."""

    END = "nothing follows"
    RESET = "the connection is unknown here"


class SimStream:
    """One end of a connection. Sent bytes wait in `_in_flight` until they are due, then in the `_inbox` of the far
    end."""

    far: SimStream

    def __init__(self, network: SimNetwork, host: str, peer: str, context: Context, has_small_chunks: bool) -> None:
        self.host = host
        self.peer = peer
        self.subject: Subject = ()
        self._context = context
        self._has_small_chunks = has_small_chunks
        self._network = network
        self._loop = network.loop
        self._inbox = bytearray()
        self._in_flight: list[tuple[int, bytes | StreamSignal]] = []
        self._in_flight_bytes = 0
        self._end_received = False
        self._error = ""
        self._closed = False
        self._is_forgotten = False
        self._reset_sent = False
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None
        self._read_due = False
        self._write_due = False
        network.add_stream(self)

    def connect_to(self, far: SimStream) -> None:
        self.far = far

    # -- the port -----------------------------------------------------------------------------------------------------

    def recv_into(self, buffer: memoryview) -> int | None:
        self._check()
        inbox = self._inbox
        if not inbox:
            return 0 if self._end_received else None
        size = min(len(buffer), len(inbox), self._network.chunk_size(self._has_small_chunks))
        buffer[:size] = inbox[:size]
        del inbox[:size]
        if self.far._writable:
            self.far.wake_writer()
        return size

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        self._check()
        data = b"".join(parts)
        room = self._free_window()
        if room <= 0 and data:
            return None
        data = data[: min(room, self._network.chunk_size(self._has_small_chunks))]
        self._send(data)
        return len(data)

    def send_file(self, slice: FileSlice) -> int | None:
        return self.sendmsg([slice.file.pread(slice.start, min(slice.length, SEND_FILE_BYTES))])

    def has_ended(self) -> bool:
        return self._end_received or bool(self._error)

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
            self._send(StreamSignal.END)

    # -- what the network does ----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return not self._closed and not self._error

    def flush(self) -> None:
        """Delivers due bytes in order, unless the link is cut."""
        in_flight, network = self._in_flight, self._network
        while in_flight and in_flight[0][0] <= self._loop.now_ns:
            if network.has_faults and (
                network.is_cut(self.host, self.far.host) or network.is_powered_off(self.far.host)
            ):
                return
            data = in_flight.pop(0)[1]
            if type(data) is bytes:
                self._in_flight_bytes -= len(data)
            self.far.receive(data)
        if self._closed and not in_flight:
            self._network.drop_stream(self)

    def receive(self, data: bytes | StreamSignal) -> None:
        if self._is_forgotten:
            self.send_reset()
            return
        if self._error:
            return
        if data is StreamSignal.RESET:
            self.reset_both()
            return
        if self._closed and data is not StreamSignal.END:
            self.far.reset()  # a process that closed answers data with a reset
            return
        if isinstance(data, StreamSignal):
            self._end_received = True
        else:
            self._inbox += data
        self._wake()

    @property
    def half_open(self) -> bool:
        """True if one end no longer knows the connection."""
        return self._is_forgotten or self.far._is_forgotten

    def forget(self) -> None:
        """Drops this end and its undelivered bytes; the far end is not notified."""
        self._is_forgotten, self._reset_sent = True, False
        self._error = self._error or "the process is gone"
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._wake()
        self.wake_writer()
        if self.far._is_forgotten:
            self._network.drop_stream(self)
            self._network.drop_stream(self.far)

    def send_reset(self) -> None:
        """Notifies the far end, once, that this end is gone."""
        if not self._reset_sent:
            self._reset_sent = True
            self._network.add_stream(self)
            self._send(StreamSignal.RESET)

    def on_reachable(self) -> None:
        """The machine of an end that is gone can be reached: wakes writers that wait for room there."""
        if self._is_forgotten:
            self._inbox.clear()
            self.far.wake_writer()

    def reset_both(self) -> None:
        self.reset()
        self.far.reset()

    def reset(self) -> None:
        self._error = self._error or "Connection reset by peer"
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._network.drop_stream(self)
        self._wake()
        self.wake_writer()

    def wake_writer(self) -> None:
        if self._writable and not self._write_due and self._can_write():
            self._write_due = True
            self._loop.call_soon(self._call_writer, context=self._context)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _send(self, data: bytes | StreamSignal) -> None:
        loop = self._loop
        due_ns = loop.now_ns + round(self._network.latency(self.host, self.far.host) * 1e9)
        if self._in_flight:
            due_ns = max(due_ns, self._in_flight[-1][0])
        self._in_flight.append((due_ns, data))
        if type(data) is bytes:
            self._in_flight_bytes += len(data)
        loop.call_at_ns(due_ns, self.flush, self._network.context)

    def _free_window(self) -> int:
        return WINDOW_BYTES - self._in_flight_bytes - len(self.far._inbox)

    def _check(self) -> None:
        if self._closed or self._error:
            raise Unavailable(f"connection lost peer={self.peer} error={self._error or 'closed'}", final=True)

    def _wake(self) -> None:
        if self._readable and not self._read_due and (self._inbox or self._end_received or self._error):
            self._read_due = True
            self._loop.call_soon(self._call_reader, context=self._context)

    def _can_write(self) -> bool:
        return bool(self._error) or self._free_window() > 0

    def _call_reader(self) -> None:
        """Readiness is a level, as with `add_reader`: the call repeats while there is something to read."""
        self._read_due = False
        if self._readable and (self._inbox or self._end_received or self._error):
            self._readable()
            if self._inbox or self._end_received or self._error:
                self._wake()

    def _call_writer(self) -> None:
        self._write_due = False
        if self._writable and self._can_write():
            self._writable()
            self.wake_writer()
