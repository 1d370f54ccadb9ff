"""Simulated Net port: streams between named hosts, with latency, chunks, cuts and resets.

Nothing is lost inside a stream, as in TCP: what is sent while the way is cut arrives after it heals. A cut may be one
way. Ports and hosts live in one `SimNetwork`; each node gets its own `SimNet`. Call-backs run in the context of the
process that asked for them, so that a frozen one finds full buffers when it goes on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context

from tests.sim.loop import SimLoop
from tiered.errors import Unavailable
from tiered.ports import Buffer, FileSlice, Stream

WINDOW_BYTES = 64 * 1024
SEND_FILE_BYTES = 64 * 1024
FIRST_PORT = 20_000
LOCAL = ("127.0.0.1", "localhost", "0.0.0.0", "")


class SimNetwork:
    """All hosts and the ways between them. Latency and chunking are drawn from the seed."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self._rng = rng
        self.latency_seconds = (0.0001, 0.002)
        self.chunk_bytes_max = 16 * 1024
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._streams: dict[SimStream, None] = {}
        self._next_port = FIRST_PORT
        self.context = copy_context()
        """Where bytes travel: whoever sent them may be frozen by the time they arrive."""

    def host(self, name: str) -> SimNet:
        return SimNet(self, name)

    def cut(self, source: str, target: str) -> None:
        """Nothing passes from source to target until `heal`."""
        self._cuts[source, target] = None

    def mend(self, source: str, target: str) -> None:
        """The way from source to target is open again, and what waited on it arrives."""
        self._cuts.pop((source, target), None)
        self._flush()

    def heal(self) -> None:
        """Every way is open again, and what waited arrives."""
        self._cuts.clear()
        self._flush()

    def _flush(self) -> None:
        for stream in list(self._streams):
            stream.flush()

    def reset(self, host: str) -> None:
        """All connections of a host break; its listeners are gone: the process died."""
        for stream in [stream for stream in self._streams if host in (stream.host, stream.far.host)]:
            stream.broken()
        for listener in [listener for (name, _), listener in self._listeners.items() if name == host]:
            listener.close()

    def break_between(self, one: str, other: str) -> None:
        """The connections between two hosts are reset, both live on."""
        for stream in [stream for stream in self._streams if (stream.host, stream.far.host) == (one, other)]:
            stream.broken()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def latency(self) -> float:
        least, most = self.latency_seconds
        return least + (most - least) * self._rng.random()

    def chunk(self) -> int:
        """Of how many bytes the next piece is, at most."""
        return self._rng.randrange(self.chunk_bytes_max) + 1

    def port(self) -> int:
        self._next_port += 1
        return self._next_port

    def listener(self, host: str, port: int) -> SimListener | None:
        return self._listeners.get((host, port))

    def add_listener(self, host: str, port: int, listener: SimListener) -> None:
        self._listeners[host, port] = listener

    def drop_listener(self, host: str, port: int) -> None:
        self._listeners.pop((host, port), None)

    def open_streams(self) -> Counter[str]:
        """How many ends of connections each host has that it did not close, nor learnt the loss of."""
        return Counter(stream.host for stream in self._streams if stream.is_open)

    def add_stream(self, stream: SimStream) -> None:
        self._streams[stream] = None

    def drop_stream(self, stream: SimStream) -> None:
        self._streams.pop(stream, None)


class SimNet:
    """One host's way to the network. Loopback names mean the host itself."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def listen(self, host: str, port: int, accepted: Callable[[Stream], None]) -> SimListener:
        port = port or self._network.port()
        if self._network.listener(self._host, port):
            raise Unavailable(f"cannot listen on {host}:{port}: Address already in use", final=True)
        listener = SimListener(self._network, self._host, host, port, accepted)
        self._network.add_listener(self._host, port, listener)
        return listener

    async def connect(self, host: str, port: int, timeout: float) -> SimStream:
        network, target = self._network, self._host if host in LOCAL else host
        delay = network.latency() + network.latency()
        if network.is_cut(self._host, target) or network.is_cut(target, self._host) or delay > timeout:
            await _pause(network.loop, timeout)
            raise Unavailable(f"cannot connect to {host}:{port}: timeout")
        await _pause(network.loop, delay)
        listener = network.listener(target, port)
        if listener is None:
            raise Unavailable(f"cannot connect to {host}:{port}: Connection refused", refused=True)
        near = SimStream(network, self._host, f"{host}:{port}", copy_context())
        far = SimStream(network, target, f"{self._host}:{network.port()}", listener.context)
        near.join(far)
        far.join(near)
        listener.accept(far)
        return near


async def _pause(loop: SimLoop, seconds: float) -> None:
    future = loop.create_future()
    timer = loop.call_later(seconds, lambda: None if future.done() else future.set_result(None))
    try:
        await future
    finally:
        timer.cancel()


class SimListener:
    """A listening address of one host."""

    def __init__(
        self, network: SimNetwork, owner: str, host: str, port: int, accepted: Callable[[Stream], None]
    ) -> None:
        self.host = host
        self.port = port
        self._network = network
        self._owner = owner
        self._accepted = accepted
        self.context = copy_context()

    def accept(self, stream: SimStream) -> None:
        self._network.loop.call_soon(self._accepted, stream, context=self.context)

    def close(self) -> None:
        self._network.drop_listener(self._owner, self.port)


class SimStream:
    """One end of a connection. What it sends waits in `_way` for its time, then in the far end's `_inbox`."""

    far: SimStream

    def __init__(self, network: SimNetwork, host: str, peer: str, context: Context) -> None:
        self.host = host
        self.peer = peer
        self._context = context
        self._network = network
        self._inbox = bytearray()
        self._way: list[tuple[int, bytes | None]] = []
        self._under_way = 0
        self._ended = False
        self._error = ""
        self._closed = False
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
        size = min(len(buffer), len(self._inbox), self._network.chunk())
        buffer[:size] = self._inbox[:size]
        del self._inbox[:size]
        self.far.wake_writer()
        return size

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        self._check()
        data = b"".join(parts)
        room = WINDOW_BYTES - self._under_way - self.far.unread()
        if room <= 0 and data:
            return None
        data = data[: min(room, self._network.chunk())]
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
            self._send(None)

    # -- what the network does ----------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return not self._closed and not self._error

    def unread(self) -> int:
        return len(self._inbox)

    def flush(self) -> None:
        """Delivers what is due, in order, unless the way is cut."""
        while self._way and self._way[0][0] <= self._network.loop.now_ns:
            if self._network.is_cut(self.host, self.far.host):
                return
            data = self._way.pop(0)[1]
            self._under_way -= len(data or b"")
            self.far.arrive(data)
        if self._closed and not self._way:
            self._network.drop_stream(self)

    def arrive(self, data: bytes | None) -> None:
        if self._error:
            return
        if self._closed and data:
            self.far.broken_by_peer()  # a process that closed answers data with a reset
            return
        if data is None:
            self._ended = True
        else:
            self._inbox += data
        self._wake()

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
        if self._can_write() and not self._write_due:
            self._write_due = True
            self._network.loop.call_soon(self._call_writer, context=self._context)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _send(self, data: bytes | None) -> None:
        loop = self._network.loop
        due_ns = loop.now_ns + round(self._network.latency() * 1e9)
        if self._way:
            due_ns = max(due_ns, self._way[-1][0])
        self._way.append((due_ns, data))
        self._under_way += len(data or b"")
        loop.call_later((due_ns - loop.now_ns) / 1e9, self.flush, context=self._network.context)

    def _check(self) -> None:
        if self._closed or self._error:
            raise Unavailable(f"connection lost peer={self.peer} error={self._error or 'closed'}", final=True)

    def _wake(self) -> None:
        if self._can_read() and not self._read_due:
            self._read_due = True
            self._network.loop.call_soon(self._call_reader, context=self._context)

    def _can_read(self) -> bool:
        return self._readable is not None and bool(self._inbox or self._ended or self._error)

    def _can_write(self) -> bool:
        room = WINDOW_BYTES - self._under_way - self.far.unread()
        return self._writable is not None and (room > 0 or bool(self._error))

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
