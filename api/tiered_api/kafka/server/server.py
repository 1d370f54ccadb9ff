"""The listeners of the Kafka protocol: connection limits, timeouts and shutdown.

One sweep a second over all connections finds those that idle, send an incomplete frame for too long, or do not take
their replies. So no connection needs a timer.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter as Tally
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

from tiered.broker.broker import Broker
from tiered.config.ip_overrides import read_ip_overrides
from tiered.config.listeners import Endpoint
from tiered.config.settings import Settings
from tiered.errors import Refused
from tiered.ports import Listener, Net, Stream
from tiered.quotas.rate import TokenBucket
from tiered.security import sasl_plain
from tiered.security.distinguished_names import Subject
from tiered.security.principal import ANONYMOUS, Principal
from tiered.security.principal_mapping import map_subject
from tiered.system.tls import TlsNet
from tiered_api.kafka.protocol.apis import INTER_BROKER_APIS
from tiered_api.kafka.server.connection import ClientConnection
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.dispatch import Dispatch
from tiered_api.kafka.server.request_buffers import RequestBuffers
from tiered_api.kafka.server.slots.latencies import FOLLOWER_FETCH

log = logging.getLogger(__name__)

K = TypeVar("K")

SCRATCH_BYTES = 64 << 10
SWEEP_SECONDS = 1.0
TRIM_SWEEPS = 10
RESPONSES_PER_FLUSH = 16
"""At most so many replies wait for the end of the turn, so that clients can work meanwhile."""
FLUSH_MIN_CONNECTIONS = 4
"""With fewer connections, replies leave at once."""
FIRST_REQUEST_SECONDS = 10.0
"""A new connection that sends nothing for so long is closed."""
STALLED_BYTES_PER_SECOND = 64 << 10
"""Slowest rate of a large frame while other frames wait for memory."""
UNPROVEN_MAX = 100
"""Connections to the listener between brokers that have not proved to be brokers, from which on another one takes no
place of a client. They are a quarter of `max.connections` at most."""
IDLE_SECONDS = 1.0
"""A connection that idles or waits for a reply for so long may be closed in favour of one from another address."""
STOP_SECONDS = 2.0
"""Longest time for pending replies when the broker stops."""


def _make_openings(rate: int, now: float) -> TokenBucket:
    """Returns tokens for new connections: those of a second may be opened at once."""
    return TokenBucket(1, 1000, rate, int(now * 1000))


class KafkaServer:
    """All connections of one broker. `addresses` has the address of each listener by name."""

    def __init__(self, broker: Broker, *, paused: bool = False) -> None:
        settings = broker.settings
        self._paused = paused
        self.context = KafkaContext(broker)
        self.addresses: dict[str, Endpoint] = {}
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """Memory into which all connections read small frames; nothing in it outlives one event."""
        self.buffers = RequestBuffers(settings.queued_max_request_bytes)
        self.max_request_bytes = settings.socket_request_max_bytes
        self.pending_requests = 0
        """Requests without a reply, over all connections."""
        self.pending_requests_max = settings.queued_max_requests
        """From so many pending requests on, each connection may have only one."""
        self.unsent_bytes = 0
        """Bytes of replies in memory, over all connections: clients do not take them, or they wait for earlier ones."""
        self.unsent_bytes_max = settings.queued_max_request_bytes
        if settings.processes > 1:  # the share of one process may be less than one reply with cold records
            self.unsent_bytes_max = max(self.unsent_bytes_max, 2 * settings.fetch_max_bytes)
        self.dispatch = Dispatch(self.context)
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time()
        """Time of the last sweep, the base of all time limits."""
        self._idle_seconds = settings.connections_max_idle_ms / 1000
        self._frame_seconds = settings.tiered_frame_timeout_ms / 1000
        self._sweep_seconds = min(SWEEP_SECONDS, self._idle_seconds / 4, self._frame_seconds / 4)
        self.connections: dict[ClientConnection, None] = {}
        self._connections_by_host: Tally[tuple[bool, str]] = Tally()
        """Connections that count for `max.connections.per.ip`: those of the listener between brokers (True) apart from
        those of other listeners."""
        self._hosts_by_listener: defaultdict[str, Tally[str]] = defaultdict(Tally)
        between = settings.inter_broker_endpoint()
        self._inter_broker_listener = "" if between is None else between.name
        self._listener_settings: dict[str, tuple[Settings, Settings]] = {}
        """Settings of the broker with those of a listener that were made of them."""
        self._listeners: list[Listener] = []
        self._shared_listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweeps = 0
        self._unopened: dict[str, deque[ClientConnection]] = {}
        """Connections that wait for a token, by listener."""
        self._openings = _make_openings(settings.max_connection_creation_rate, self.now)
        self._listener_openings: dict[str, TokenBucket] = {}
        self._closing, self._all_closed = False, asyncio.Event()
        self._to_flush: list[ClientConnection] = []
        """Connections whose replies leave at the end of this turn."""
        self._flush_scheduled = False
        broker.client_quotas.subscribe(self._on_quotas)
        broker.request_traces.subscribe(self._on_traces)
        broker.delegation_tokens.subscribe(self._on_tokens)
        broker.subscribe_to_logins(self._on_logins)
        metrics = broker.metrics
        metrics.gauge("tiered_kafka_connections", "Open connections.").set_function(
            lambda: float(len(self.connections))
        )
        metrics.gauge("tiered_kafka_requests_pending", "Requests that wait for a reply.").set_function(
            lambda: float(self.pending_requests)
        )
        metrics.gauge("tiered_kafka_frame_bytes_free", "What is left of queued.max.request.bytes.").set_function(
            lambda: float(self.buffers.free_bytes)
        )

    async def listen(self, endpoint: Endpoint, shared: Net | None = None) -> None:
        """Opens one listener. `Unavailable` if the address cannot be bound, `Refused` without a certificate for TLS.

        With `shared`, which listens at an address that processes of this machine share, the listener gets the
        connections of that address too.
        """
        broker = self.context.broker
        net = shared or broker.world.net
        if endpoint.is_encrypted:
            tls = broker.tls.of_listener(endpoint.name)
            tls.check()
            net = TlsNet(
                net,
                tls.accept,
                on_failure=partial(self.context.refusals.record, "tls_handshake", listener=endpoint.name),
            )
        requires_login = endpoint.requires_login
        mechanisms = broker.settings.for_listener(endpoint.name).sasl_enabled_mechanisms
        if requires_login and not endpoint.is_encrypted and sasl_plain.MECHANISM in mechanisms:
            log.warning("PLAIN without TLS: passwords cross the network in clear listener=%s", endpoint.name)
        if shared is None:
            rate = broker.settings.for_listener(endpoint.name).max_connection_creation_rate
            self._listener_openings[endpoint.name] = _make_openings(rate, self._loop.time())
            self._unopened[endpoint.name] = deque()
        listener = await net.listen(
            endpoint.host, endpoint.port, lambda stream: self._accept(stream, endpoint.name, requires_login)
        )
        (self._listeners if shared is None else self._shared_listeners).append(listener)
        if shared is None:
            self.addresses[endpoint.name] = endpoint._replace(host=listener.host, port=listener.port)

    @property
    def address(self) -> str:
        """HOST:PORT of the first listener."""
        return next(iter(self.addresses.values())).address

    # -- replies ------------------------------------------------------------------------------------------------------

    def schedule_flush(self, connection: ClientConnection) -> bool:
        """True if the replies of the connection leave a little later, together with those of others. Each send may wake
        a client process, and a client that is awake already costs half. With few connections there are no others."""
        if len(self.connections) < FLUSH_MIN_CONNECTIONS:
            return False
        replied = self._to_flush
        replied.append(connection)
        if len(replied) >= RESPONSES_PER_FLUSH:
            self._flush_connections()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self.context.broker.world.net.call_after_streams(self._on_turn_end)
        return True

    def _on_turn_end(self) -> None:
        self._flush_scheduled = False
        self._flush_connections()

    def _flush_connections(self) -> None:
        replied, self._to_flush = self._to_flush, []
        for connection in replied:
            self.dispatch.run_guarded(connection, connection.flush, "send")

    def end_slowest_readers(self) -> None:
        """Closes connections with unsent bytes until their sum is within its limit: those of the client that has most,
        and among them the one with most. Brokers are last. So a client that reads nothing ends no other connection."""
        while self.unsent_bytes > self.unsent_bytes_max:
            slow = [each for each in self.connections if each.unsent_bytes]
            by_holder = Tally[str]()
            for each in slow:
                by_holder[each.holder] += each.unsent_bytes
            greediest = max(by_holder, key=lambda holder: (holder != "", by_holder[holder]), default=None)
            if greediest is None:
                return
            ended = max((each for each in slow if each.holder == greediest), key=lambda each: each.unsent_bytes)
            ended.refuse("unsent", f"{self.unsent_bytes} bytes of replies that clients do not take")

    # -- connection limits --------------------------------------------------------------------------------------------

    def _accept(self, stream: Stream, listener: str, requires_login: bool) -> None:
        settings = self.context.broker.settings
        try:
            has_name = bool(stream.subject) and not requires_login
            principal = self._map_subject(listener, stream.subject) if has_name else ANONYMOUS
        except Refused as refused:
            self._reject(stream, "certificate", refused.why, listener)
            return
        connection = ClientConnection(self, stream, listener, self._loop, requires_login, principal)
        host = connection.host
        of_listener = self._settings_of(listener).max_connections
        overrides = read_ip_overrides(settings.max_connections_per_ip_overrides)
        of_host = overrides.get(host, settings.max_connections_per_ip)
        if host in overrides:
            connection.counted_as = host
        counted = connection.counted_as
        if self._connections_by_host[self._place_of(connection)] >= of_host:
            self._reject(stream, "too_many_of_one", f"max.connections.per.ip of its address is {of_host}")
        elif self._closing or not self._has_room(listener, counted, of_listener):
            why = f"max.connections is {settings.max_connections}, and that of the listener is {of_listener}"
            self._reject(stream, "too_many", why, listener)
        elif not self.context.broker.client_quotas.admit_connection(host):
            self._reject(stream, "connection_rate", "its address opens more connections than its quota allows")
        else:
            now = self._loop.time()
            # Counts as idle for some time already: the first request makes it an ordinary connection.
            connection.last_activity = now - max(0.0, self._idle_seconds - FIRST_REQUEST_SECONDS)
            self.connections[connection] = None
            self.context.broker.audit.record_certificate(connection.caller, listener)
            log.debug("kafka connection opened peer=%s listener=%s", stream.peer, listener)
            self._connections_by_host[self._place_of(connection)] += 1
            self._hosts_by_listener[listener][counted] += 1
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(self._sweep_seconds, self._sweep)
                self.now = now
            waiting = self._unopened[listener]
            if self._paused:
                waiting.append(connection)
            elif not waiting and self._take_token(listener):
                connection.open()
            else:
                waiting.append(connection)
                self.context.refusals.record("delayed", stream.peer, "more connections a second than are allowed")

    def _place_of(self, connection: ClientConnection) -> tuple[bool, str]:
        """Returns where a connection counts. Clients on the host of a broker leave that broker its own connections."""
        return connection.listener == self._inter_broker_listener, connection.counted_as

    def uncount_broker(self, connection: ClientConnection) -> None:
        """Counts a connection for its address no longer. A broker opens one for each long poll of an HTTP client. So
        clients of one broker could use up the connections of its address, and the broker could not reconnect."""
        if connection.is_counted and connection in self.connections:
            connection.is_counted = False
            self._uncount(self._connections_by_host, self._place_of(connection))

    @staticmethod
    def _uncount(tally: Tally[K], place: K) -> None:
        tally[place] -= 1
        if not tally[place]:
            del tally[place]

    def _map_subject(self, listener: str, subject: Subject) -> Principal:
        """Returns the principal of a certificate. Raises `Refused` if no rule makes one."""
        return map_subject(self.context.broker.settings.for_listener(listener).ssl_principal_mapping_rules, subject)

    def _on_quotas(self) -> None:
        for connection in self.connections:
            connection.on_quotas()

    def _on_traces(self) -> None:
        for connection in self.connections:
            connection.on_dispatch()

    def _on_tokens(self) -> None:
        for connection in list(self.connections):
            self.dispatch.login_handler.follow_token(connection)

    def _on_logins(self) -> None:
        for connection in list(self.connections):
            self.dispatch.login_handler.end_revoked(connection)

    def _settings_of(self, listener: str) -> Settings:
        settings = self.context.broker.settings
        known = self._listener_settings.get(listener)
        if known is None or known[0] is not settings:
            known = self._listener_settings[listener] = settings, settings.for_listener(listener)
        return known[1]

    def _is_protected(self, listener: str) -> bool:
        """True for the listener between brokers if clients have another one: as in Kafka, the limits of the broker hold
        for the others alone."""
        return listener == self._inter_broker_listener and len(self.addresses) > 1

    def _has_room(self, listener: str, host: str, of_listener: int) -> bool:
        """True if one more connection is below the limits of the listener and of the broker, or takes the place of
        another one.

        Above the limit of the broker the listener between brokers takes places of clients, the address with most first.
        It takes none while many of its connections have not proved to be brokers: anybody may open those.
        """
        most = self.context.broker.settings.max_connections
        if self._hosts_by_listener[listener].total() >= of_listener:
            return self._make_room(host, [listener], of_listener)
        if len(self.connections) < most:
            return True
        unprotected = [name for name in self.addresses if not self._is_protected(name)]
        if self._make_room(host, unprotected, most):
            return True
        if not self._is_protected(listener):
            return False
        unproven = sum(count for (is_between, _), count in self._connections_by_host.items() if is_between)
        unproven_max = min(UNPROVEN_MAX, max(most // 4, 1))
        if unproven >= unproven_max:
            return self._make_room(host, [listener], unproven_max)
        others = [each for each in self.connections if each.listener in unprotected]
        if others:
            hosts = sum((self._hosts_by_listener[each] for each in unprotected), Tally[str]())
            longest = min(others, key=lambda each: (-hosts[each.counted_as], each.pending > 0, each.last_activity))
            longest.refuse("crowded_out", "a broker needs its place, and max.connections are in use")
        return True

    def _make_room(self, host: str, listeners: Sequence[str], most: int) -> bool:
        """Closes a connection of the address with most connections in favour of the new address. True if it did so.

        Connections of `listeners` may be closed, `most` is their limit. The address gives up its longest idle
        connection, or else the one that waits longest for a reply. If it has neither, the address with next most
        connections does. An address keeps its fair share of the connections, and one more than the new address has. So
        a client that connects and waits shuts out no clients, brokers or operators.
        """
        hosts = sum((self._hosts_by_listener[each] for each in listeners), Tally[str]())
        addresses = len(hosts) + (host not in hosts)
        kept = max(most // addresses, hosts[host] + 1)
        if max(hosts.values(), default=0) <= kept:
            return False
        longest: dict[str, tuple[bool, float, ClientConnection]] = {}
        for each in self.connections:
            if each.listener not in listeners or hosts[each.counted_as] <= kept:
                continue
            waits = each.pending > 0
            since = self._waiting_since(each) if waits else each.last_activity
            best = longest.get(each.counted_as)
            if since < self._loop.time() - IDLE_SECONDS and (best is None or (waits, since) < best[:2]):
                longest[each.counted_as] = waits, since, each
        if not longest:
            return False
        longest[max(longest, key=hosts.__getitem__)][2].refuse("crowded_out", "its address has most of max.connections")
        return True

    def _waiting_since(self, connection: ClientConnection) -> float:
        """Returns since when the oldest request of a connection waits, in the time of the event loop.

        Returns infinity for a request of another broker.
        """
        slot = connection.oldest_slot
        if slot.api_key == FOLLOWER_FETCH or slot.api_key in INTER_BROKER_APIS:
            return math.inf
        return self._loop.time() - (self.context.clock.mono_ns() - slot.started_ns) / 1e9

    def start_serving(self) -> None:
        """Serves the connections that came while the server was paused, and all later ones."""
        self._paused = False
        self._open_unopened()

    def _open_unopened(self) -> None:
        """Opens connections that wait, one of each listener in turn."""
        listeners = [] if self._paused else [name for name, waiting in self._unopened.items() if waiting]
        while listeners:
            listeners = [name for name in listeners if self._open_next(name)]

    def _open_next(self, listener: str) -> bool:
        """Opens the connection of a listener that waits longest. False if none does, or if no token is left."""
        waiting = self._unopened[listener]
        while waiting and waiting[0].closed:
            waiting.popleft()
        if not waiting or not self._take_token(listener):
            return False
        waiting.popleft().open()
        return True

    def _take_token(self, listener: str) -> bool:
        """True if a connection of a listener may be opened now, by the rates of the listener and of the broker."""
        buckets = [(self._listener_openings[listener], self._settings_of(listener).max_connection_creation_rate)]
        if not self._is_protected(listener):
            buckets.append((self._openings, self.context.broker.settings.max_connection_creation_rate))
        now_ms = int(self._loop.time() * 1000)
        if any(bucket.measure(rate, now_ms) < 1 for bucket, rate in buckets):
            return False
        for bucket, rate in buckets:
            bucket.record(1, rate, now_ms)
        return True

    def _reject(self, stream: Stream, reason: str, why: str, listener: str = "") -> None:
        self.context.refusals.record(reason, stream.peer, why, listener)
        stream.close()

    def remove_connection(self, connection: ClientConnection) -> None:
        """Forgets a closed connection."""
        self.connections.pop(connection, None)
        log.debug("kafka connection closed peer=%s", connection.peer)
        self._uncount(self._hosts_by_listener[connection.listener], connection.counted_as)
        if connection.is_counted:
            self._uncount(self._connections_by_host, self._place_of(connection))
        if not self.connections:
            self._all_closed.set()

    # -- timeouts -----------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        now, passed = self._loop.time(), self._sweep_seconds
        self.now = now
        scarce, least = self.buffers.has_waiting, int(STALLED_BYTES_PER_SECOND * passed)
        for connection in list(self.connections):
            if connection.close_if_left():
                log.debug("kafka client left while it waited peer=%s", connection.peer)
            elif 0 <= connection.login_ends < now:
                connection.on_login_end()
            elif connection.write_blocked_since >= 0:
                if now - connection.write_blocked_since > self._frame_seconds:
                    connection.refuse("slow_reader", "does not take its replies")
            elif connection.is_reading and 0 <= connection.frame_started < now - self._frame_seconds:
                connection.refuse("slow_frame", "a frame that is not complete in time")
            elif connection.has_stalled(least) and scarce:
                connection.refuse("stalled_frame", "a frame that makes no progress while others wait for memory")
            elif connection.pending or not (connection.is_reading or connection.is_muted):
                connection.last_activity = now
            elif now - connection.last_activity > self._idle_seconds:
                self.context.refusals.record_unlogged("idle")
                connection.close()
        self._open_unopened()
        self.context.broker.audit.write_folded()
        self._sweeps += 1
        if self._sweeps % TRIM_SWEEPS == 0:
            self.buffers.trim()
            self.dispatch.evict_stale()
        more = self.connections or self.buffers.pooled_bytes
        self._sweeper = self._loop.call_later(passed, self._sweep) if more else None

    # -- shutdown -----------------------------------------------------------------------------------------------------

    def leave_shared(self) -> None:
        """Leaves new connections to the other processes of this machine."""
        while self._shared_listeners:
            self._shared_listeners.pop().close()

    async def close(self) -> None:
        """Closes the listeners, reads no more requests, waits a moment for pending replies, and cuts the rest off.
        Idempotent."""
        self._closing = True
        self.leave_shared()
        while self._listeners:
            self._listeners.pop().close()
        for connection in list(self.connections):
            connection.drain()
        self.dispatch.drain()
        if self.connections:
            self._all_closed.clear()
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self._all_closed.wait()
            except TimeoutError:
                log.info("kafka connections cut off at shutdown count=%d", len(self.connections))
        for connection in list(self.connections):
            connection.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.dispatch.close()


async def serve_kafka(
    broker: Broker, endpoints: Mapping[str, Endpoint] | None = None, *, paused: bool = False
) -> KafkaServer:
    """Serves `broker` on every listener of its settings, or on `endpoints`; `.addresses` has the addresses. If
    `paused`, connections wait for `start_serving`. So no client gets metadata that does not know this broker's address
    yet."""
    server = KafkaServer(broker, paused=paused)
    chosen = broker.settings.effective_listeners() if endpoints is None else tuple(endpoints.values())
    try:
        for endpoint in chosen:
            await server.listen(endpoint)
    except BaseException:
        await server.close()
        raise
    return server
