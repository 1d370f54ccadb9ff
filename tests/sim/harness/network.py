"""Simulated Net port: streams between named hosts, with latency, chunks, cuts and resets.

A stream loses nothing, as in TCP: bytes that are sent during a cut arrive after it heals. A cut may be one-way. A dead
process resets its connections, as far as the resets get through. A machine without power is silent, and does not know
its connections when it is back: they are half open until their peers use them. Ports and hosts belong to one
`SimNetwork`; each broker gets its own `SimNet`. Callbacks run in the context of the process that registered them, so
that a frozen one finds full buffers when it resumes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context

from tests.sim.harness.loop import SimLoop
from tests.sim.harness.streams import SimStream
from tiered.errors import Unavailable
from tiered.ports import Stream

FIRST_PORT = 20_000
CHUNK_BYTES = 16 * 1024
LATENCY_FACTORS = (0.2, 0.5, 1.0, 3.0)
"""Factors by which the latency of a skewed link differs from the drawn one."""
LOCAL = ("127.0.0.1", "localhost", "0.0.0.0", "")


class SimNetwork:
    """All hosts and the links between them. Latency and chunking are drawn from the seed."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop = loop
        self._draw = rng.random
        self.latency_seconds = (0.0001, 0.002)
        self.is_asymmetric = False
        """True if each direction between two hosts has its own latency."""
        self.chunk_bytes_max = CHUNK_BYTES
        self.small_chunk_share = 0.0
        """Share of the connections that deliver chunks of any size down to one byte."""
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._powered_off: set[str] = set()
        self._streams: dict[SimStream, None] = {}
        self._next_port = FIRST_PORT
        self._latency_factors: dict[tuple[str, str], float] = {}
        self._small_chunk_rng = random.Random(f"{loop.seed}/fine-chunks")
        self.context = copy_context()
        """Context of bytes in flight: their sender may be frozen when they arrive."""

    def host(self, name: str) -> SimNet:
        return SimNet(self, name)

    def cut(self, source: str, target: str) -> None:
        """Stops all bytes from source to target until `heal`."""
        self._cuts[source, target] = None

    def mend(self, source: str, target: str) -> None:
        """Opens the link from source to target again, and delivers the waiting bytes."""
        self._cuts.pop((source, target), None)
        self._flush()

    def heal(self) -> None:
        """Opens every link again, and delivers the waiting bytes."""
        self._cuts.clear()
        self._flush()

    def _flush(self) -> None:
        for stream in list(self._streams):
            stream.flush()

    def reset(self, host: str) -> None:
        """Breaks all connections of a host and closes its listeners: the process died. A peer that is cut off learns it
        later."""
        for stream in [stream for stream in self._streams if host in (stream.host, stream.far.host)]:
            if stream.half_open:
                continue
            if not self.is_cut(host, stream.far.host if stream.host == host else stream.host):
                stream.reset_both()
            elif stream.host == host:
                stream.forget()
                stream.send_reset()
        self._close_listeners(host)

    def power_off(self, host: str) -> None:
        """Cuts the power: no peer is notified. The host sends nothing before `power_on`, and no connection to
        it succeeds."""
        self._powered_off.add(host)
        for stream in [stream for stream in self._streams if stream.host == host]:
            stream.forget()
        self._close_listeners(host)

    def power_on(self, host: str) -> None:
        """The host has power again. It answers what still comes on its old connections with resets."""
        if host in self._powered_off:
            self._powered_off.remove(host)
            self._flush()
            for stream in [stream for stream in self._streams if stream.host == host]:
                stream.on_reachable()

    def is_powered_off(self, host: str) -> bool:
        return host in self._powered_off

    def _close_listeners(self, host: str) -> None:
        for listener in [listener for (name, _), listener in self._listeners.items() if name == host]:
            listener.close()

    def break_between(self, one: str, other: str) -> None:
        """Resets the connections between two hosts; both stay up."""
        for stream in [stream for stream in self._streams if (stream.host, stream.far.host) == (one, other)]:
            stream.reset_both()

    @property
    def has_cuts(self) -> bool:
        return bool(self._cuts)

    @property
    def has_faults(self) -> bool:
        """True if a link is cut, or a host has no power."""
        return bool(self._cuts or self._powered_off)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def latency(self, source: str, target: str) -> float:
        """Returns the seconds that the next chunk takes from one host to another."""
        least, most = self.latency_seconds
        seconds = least + (most - least) * self._draw()
        return seconds * self._latency_factor(source, target) if self.is_asymmetric else seconds

    def _latency_factor(self, source: str, target: str) -> float:
        known = self._latency_factors.get((source, target))
        if known is None:
            known = random.Random(f"{self.loop.seed}/pace/{source}/{target}").choice(LATENCY_FACTORS)
            self._latency_factors[source, target] = known
        return known

    def chunk_size(self, is_small: bool) -> int:
        """Returns the maximum size of the next chunk in bytes. Small chunks are log-uniform: a few hundred bytes arrive
        in about six chunks, cut anywhere, instead of byte by byte."""
        drawn = self._draw()
        return int(self.chunk_bytes_max**drawn) if is_small else 1 + int(self.chunk_bytes_max * drawn)

    def next_has_small_chunks(self) -> bool:
        """True if a new connection delivers small chunks."""
        return self.small_chunk_share > 0 and self._small_chunk_rng.random() < self.small_chunk_share

    def allocate_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def listener(self, host: str, port: int) -> SimListener | None:
        return self._listeners.get((host, port))

    def add_listener(self, host: str, port: int, listener: SimListener) -> None:
        self._listeners[host, port] = listener

    def drop_listener(self, host: str, port: int) -> None:
        self._listeners.pop((host, port), None)

    def open_streams(self) -> Counter[str]:
        """Returns how many ends of connections each host has that it did not close, and whose loss it did not learn.
        Half-open ones do not count: their peer lost power, which only a use or an idle limit shows."""
        return Counter(stream.host for stream in self._streams if stream.is_open and not stream.half_open)

    def add_stream(self, stream: SimStream) -> None:
        self._streams[stream] = None

    def drop_stream(self, stream: SimStream) -> None:
        self._streams.pop(stream, None)


class SimNet:
    """One host's access to the network. Loopback names mean the host itself."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self._network = network
        self._host = host

    async def listen(self, host: str, port: int, on_accept: Callable[[Stream], None]) -> SimListener:
        port = port or self._network.allocate_port()
        if self._network.listener(self._host, port):
            raise Unavailable(f"cannot listen on {host}:{port}: Address already in use")
        listener = SimListener(self._network, self._host, host, port, on_accept)
        self._network.add_listener(self._host, port, listener)
        return listener

    def call_after_streams(self, call: Callable[[], None]) -> None:
        self._network.loop.call_soon(call)

    async def connect(self, host: str, port: int, timeout: float) -> SimStream:
        network, target = self._network, self._host if host in LOCAL else host
        delay = network.latency(self._host, target) + network.latency(target, self._host)
        cut = network.is_cut(self._host, target) or network.is_cut(target, self._host) or delay > timeout
        if not cut:
            await _pause(network.loop, delay)
        if cut or network.is_powered_off(target):
            await _pause(network.loop, timeout if cut else timeout - delay)
            raise Unavailable(f"cannot connect to {host}:{port}: timeout")
        listener = network.listener(target, port)
        if listener is None:
            raise Unavailable(f"cannot connect to {host}:{port}: Connection refused", refused=True)
        fine = network.next_has_small_chunks()
        near = SimStream(network, self._host, f"{host}:{port}", copy_context(), fine)
        far = SimStream(network, target, f"{self._host}:{network.allocate_port()}", listener.context, fine)
        near.connect_to(far)
        far.connect_to(near)
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
