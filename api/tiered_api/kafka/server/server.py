"""The listeners of the Kafka protocol: who may connect, how long one may take, and the end of it all.

One look a second over all connections finds those that idle, send half a frame for too long, or do not take their
answers: no timer per connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections import deque
from collections.abc import Mapping
from operator import attrgetter, itemgetter

from tiered.broker.broker import Node
from tiered.config.listeners import Endpoint
from tiered.ports import Listener, Stream
from tiered_api.kafka.server.connection import Connection
from tiered_api.kafka.server.context import Site
from tiered_api.kafka.server.dispatch import Dispatch
from tiered_api.kafka.server.request_buffers import Buffers

log = logging.getLogger(__name__)

SCRATCH_BYTES = 64 << 10
SWEEP_SECONDS = 1.0
TRIM_SWEEPS = 10
ANSWERS_TOGETHER = 16
"""More do not wait for the end of the turn: clients shall work while we do."""
FEW = 4
"""Fewer connections have their answers at once."""
FIRST_REQUEST_SECONDS = 10.0
"""A connection that sends nothing for so long after it was made is closed."""
STALLED_BYTES = 64 << 10
"""A frame has to go on so much a second while others wait for memory."""
IDLE_SECONDS = 1.0
"""A connection that is idle for so long may have to make room for one from another address."""
STOP_SECONDS = 2.0
"""How long answers under way may take when the broker stops."""


class KafkaServer:
    """All connections of one broker. `addresses` says where it listens, by listener name."""

    def __init__(self, node: Node, *, held: bool = False) -> None:
        settings = node.settings
        self._held = held
        self.site = Site(node)
        self.addresses: dict[str, Endpoint] = {}
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """Where small frames of all connections are read; nothing in it outlives one event."""
        self.buffers = Buffers(settings.queued_max_request_bytes)
        self.request_bytes = settings.socket_request_max_bytes
        self.pending = 0
        """Requests without an answer, over all connections."""
        self.pending_max = settings.queued_max_requests
        """When there are so many, a connection has one at a time."""
        self.unsent = 0
        """Bytes of answers in memory that clients do not take, over all connections."""
        self.unsent_max = settings.queued_max_request_bytes
        self.dispatch = Dispatch(self.site)
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time()
        """The clock of all time limits, as of the last sweep."""
        self._idle_seconds = settings.connections_max_idle_ms / 1000
        self._frame_seconds = settings.tiered_frame_timeout_ms / 1000
        self._sweep_seconds = min(SWEEP_SECONDS, self._idle_seconds / 4, self._frame_seconds / 4)
        self.connections: dict[Connection, None] = {}
        self._hosts: Tally[str] = Tally()
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweeps = 0
        self._early: deque[Connection] = deque()
        self._tokens = float(settings.max_connection_creation_rate)
        self._closing = False
        self._empty = asyncio.Event()
        self._answered: list[Connection] = []
        """Connections whose answers leave at the end of this turn."""
        self._sending = False
        metrics = node.metrics
        metrics.gauge("tiered_kafka_connections", "Open connections.").read(lambda: float(len(self.connections)))
        metrics.gauge("tiered_kafka_requests_pending", "Requests that wait for an answer.").read(
            lambda: float(self.pending)
        )
        metrics.gauge("tiered_kafka_frame_bytes_free", "What is left of queued.max.request.bytes.").read(
            lambda: float(self.buffers.free)
        )

    async def listen(self, endpoint: Endpoint) -> None:
        """Opens one listener. `Unavailable` when the address cannot be had."""
        net = self.site.node.world.net
        listener = await net.listen(endpoint.host, endpoint.port, lambda stream: self._accept(stream, endpoint.name))
        self._listeners.append(listener)
        self.addresses[endpoint.name] = Endpoint(endpoint.name, listener.host, listener.port)

    @property
    def address(self) -> str:
        """HOST:PORT of the first listener."""
        return next(iter(self.addresses.values())).address

    # -- answers ------------------------------------------------------------------------------------------------------

    def send_soon(self, connection: Connection) -> bool:
        """Whether what the connection has to send leaves a little later, in one go with the answers of others: each
        send may wake a client, and one that is awake already costs half. With few connections there are no others."""
        if len(self.connections) < FEW:
            return False
        answered = self._answered
        answered.append(connection)
        if len(answered) >= ANSWERS_TOGETHER:
            self._send_answers()
        elif not self._sending:
            self._sending = True
            self._loop.call_soon(self._end_turn)
        return True

    def _end_turn(self) -> None:
        self._sending = False
        self._send_answers()

    def _send_answers(self) -> None:
        answered, self._answered = self._answered, []
        for connection in answered:
            self.dispatch.guard(connection, connection.send, "send")

    # -- who may connect ----------------------------------------------------------------------------------------------

    def _accept(self, stream: Stream, listener: str) -> None:
        settings = self.site.node.settings
        connection = Connection(self, stream, listener, self._loop)
        host = connection.host
        if self._closing or (len(self.connections) >= settings.max_connections and not self._make_room(host)):
            self._turn_away(stream, "too_many", f"max.connections is {settings.max_connections}")
        elif self._hosts[host] >= settings.max_connections_per_ip:
            self._turn_away(stream, "too_many_of_one", f"max.connections.per.ip is {settings.max_connections_per_ip}")
        else:
            now = self._loop.time()
            # As if it had been idle for some time: only what it sends makes it an ordinary connection.
            connection.seen = now - max(0.0, self._idle_seconds - FIRST_REQUEST_SECONDS)
            self.connections[connection] = None
            self._hosts[host] += 1
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(self._sweep_seconds, self._sweep)
                self.now = now
            if self._held:
                self._early.append(connection)
            elif self._tokens >= 1:
                self._tokens -= 1
                connection.open()
            else:
                self._early.append(connection)
                self.site.refusals.note("delayed", stream.peer, "more connections a second than are allowed")

    def _make_room(self, host: str) -> bool:
        """Ends a connection for one from an address that has fewer: the one that is idle longest, of the address that
        has most. So neither clients nor brokers nor operators are shut out by those who only connect."""
        crowd, most = max(self._hosts.items(), key=itemgetter(1), default=("", 0))
        if most <= self._hosts[host] + 1:
            return False
        since = self._loop.time() - IDLE_SECONDS
        idle = (each for each in self.connections if each.host == crowd and not each.pending and each.seen < since)
        longest = min(idle, key=attrgetter("seen"), default=None)
        if longest is None:
            return False
        longest.refuse("crowded_out", "its address has most of max.connections")
        return True

    def release(self) -> None:
        """Serves those who came while the server was `held`, and whoever comes."""
        self._held = False
        self._open_early()

    def _open_early(self) -> None:
        while self._early and self._tokens >= 1 and not self._held:
            connection = self._early.popleft()
            if not connection.closed:
                self._tokens -= 1
                connection.open()

    def _turn_away(self, stream: Stream, reason: str, why: str) -> None:
        self.site.refusals.note(reason, stream.peer, why)
        stream.close()

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.pop(connection, None)
        left = self._hosts[connection.host] - 1
        if left > 0:
            self._hosts[connection.host] = left
        else:
            del self._hosts[connection.host]
        if not self.connections:
            self._empty.set()

    # -- how long they may take ---------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now, passed = self._loop.time(), self._sweep_seconds
        self.now = now
        scarce, least = self.buffers.waiting, int(STALLED_BYTES * passed)
        for connection in list(self.connections):
            if connection.taken_since >= 0:
                if now - connection.taken_since > self._frame_seconds:
                    connection.refuse("slow_reader", "takes nothing of its answers")
            elif connection.reading and 0 <= connection.frame_since < now - self._frame_seconds:
                connection.refuse("slow_frame", "a frame that does not end")
            elif connection.stalls(least) and scarce:
                connection.refuse("stalled_frame", "a frame that does not go on while others wait for memory")
            elif not connection.reading or connection.pending:
                connection.seen = now
            elif now - connection.seen > self._idle_seconds:
                self.site.refusals.note_usual("idle")
                connection.close()
        rate = self.site.node.settings.max_connection_creation_rate
        self._tokens = min(float(rate), self._tokens + rate * passed)
        self._open_early()
        self._sweeps += 1
        if self._sweeps % TRIM_SWEEPS == 0:
            self.buffers.trim()
            self.dispatch.tidy()
        more = self.connections or self.buffers.kept or self._tokens < rate
        self._sweeper = self._loop.call_later(passed, self._sweep) if more else None

    # -- the end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Takes no more connections or requests, lets those under way be answered for a moment, and ends the rest. May
        be called again."""
        self._closing = True
        while self._listeners:
            self._listeners.pop().close()
        for connection in list(self.connections):
            connection.finish()
        self.dispatch.hurry()
        if self.connections:
            self._empty.clear()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._empty.wait()
            except TimeoutError:
                log.info("kafka connections are cut off count=%d", len(self.connections))
        for connection in list(self.connections):
            connection.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.dispatch.close()


async def serve_kafka(
    node: Node, endpoints: Mapping[str, Endpoint] | None = None, *, held: bool = False
) -> KafkaServer:
    """Serves `node` on every listener of its settings; `.addresses` says where. `held`: connections are taken and wait
    for `release`, so that nobody is told of a cluster that does not know yet where this broker is."""
    server = KafkaServer(node, held=held)
    chosen = node.settings.listeners_in_force() if endpoints is None else tuple(endpoints.values())
    try:
        for endpoint in chosen:
            await server.listen(endpoint)
    except BaseException:
        await server.close()
        raise
    return server
