"""The listener: aiohttp's low-level server with our own routes and limits, and the outermost error boundary."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import Counter as Tally
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from tiered.broker.broker import Broker
from tiered.config.exposure import is_loopback
from tiered.config.ip_overrides import read_ip_overrides
from tiered.errors import Corrupt, InvariantViolation, Refused
from tiered.log_limiter import LogLimiter
from tiered.networks import network_of
from tiered.object_store.metered import paid_by
from tiered.quotas.rate import TokenBucket
from tiered.quotas.timed_steps import TimedSteps
from tiered.security.distinguished_names import Subject
from tiered.security.principal import ANONYMOUS, Caller
from tiered.security.principal_mapping import map_subject
from tiered.spending import spent_by, written_by
from tiered.system.descriptors import limit_accept_failures
from tiered_api.http.audit_topic import AuditTopic
from tiered_api.http.console.messages import check_messages
from tiered_api.http.console.pages import ROOT as CONSOLE
from tiered_api.http.console.read_only import check_read_only
from tiered_api.http.consumers.instances import ConsumerInstances
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import BROKER_NOT_AVAILABLE, EXPECTED_ERRORS, HttpError, to_http_error
from tiered_api.http.exchange.limits import HttpLimits, max_connections
from tiered_api.http.exchange.metering import CLIENT_ID, find_meter
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, error_response
from tiered_api.http.group_lags import GroupLags
from tiered_api.http.overview.unread import UnreadTimes
from tiered_api.http.overview.usage_log import UsageLog
from tiered_api.http.overview.warehouse import WarehouseReports
from tiered_api.http.partitions.idempotency import IdempotencyKeys
from tiered_api.http.server.allowed_hosts import AllowedHosts
from tiered_api.http.server.authentication import HTTP, Authenticator
from tiered_api.http.server.handshakes import Handshakes
from tiered_api.http.server.rights import check_route
from tiered_api.http.server.router import Route, RouteTable
from tiered_api.http.server.routes import table
from tiered_api.http.transactions.transactional_ids import TransactionalIds
from tiered_api.http.v3 import fast_produce
from tiered_api.http.v3.fast_produce import HeadCache

if TYPE_CHECKING:
    from tiered.registry.state import RegistryState

log = logging.getLogger(__name__)

BACKLOG = 1024
REQUEST_ID = "Tiered-Request-Id"
"""Header of an error with the id under which the log of the broker has it."""
ANSWERED_WHILE_STARTING = ("healthz", "metrics", "get_node")
"""Operations that work before the broker serves."""
ANSWERED_OVER_LIMIT = ("healthz", "metrics")
"""Operations that work when connections have run out, so that a busy broker is not taken for a dead one."""
SPARE_CONNECTIONS_MAX = 16
"""Most connections above a limit that are open at the same time."""
TOO_MANY = (
    "too many connections, or too many new ones: tiered.http.connections.max and other limits bound them"
    " (docs/reference/limits.md)"
)


class HttpConnection(web.RequestHandler):
    """aiohttp's connection with counts, with our form of errors for heads that do not parse, and with the short path
    for known requests (`fast_produce.py`).

    `is_spare`: the connection is above a limit, and serves health and metrics only. `_first_request_timer` closes the
    connection if no request comes. `_is_between_requests`: aiohttp's parser holds no bytes, and the next byte begins a
    request. `_request_bytes` has the bytes that came then, until more come. If they are exactly one request, the parser
    is empty again. `principal`: the name in the client's certificate. `_origin`: the connection as the short path
    tells it from others. `counted_as`: the address or network that the connection counts for.
    """

    __slots__ = (
        "_first_request_timer", "_is_between_requests", "_origin", "_peer_address", "_request_bytes", "counted_as",
        "has_short_path", "is_spare", "principal",
    )  # fmt: skip

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._manager
        assert isinstance(listener, HttpListener) and isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self._peer_address = str(peer[0]) if peer else ""
        self.counted_as = network_of(self._peer_address)
        super().connection_made(transport)
        self._first_request_timer: asyncio.TimerHandle | None
        self._first_request_timer = self._loop.call_later(
            listener.context.limits.first_request_seconds, self.force_close
        )
        self.is_spare = not listener.admit_connection(self, self._peer_address)
        try:
            rules = listener.context.broker.settings.ssl_principal_mapping_rules
            self.principal = map_subject(rules, _subject_of(transport))
            listener.context.broker.audit.record_certificate(Caller(self.principal, self._peer_address), HTTP)
        except Refused as refused:
            self.principal = ANONYMOUS
            listener.context.broker.audit.record_refused_login(self._peer_address, HTTP, refused.why)
            transport.abort()
        self._origin = listener.head_cache.describe_origin(Caller(self.principal, self._peer_address))
        self.has_short_path = fast_produce.IS_SUPPORTED and not self.is_spare
        self._is_between_requests, self._request_bytes = self.has_short_path, b""

    def connection_lost(self, exc: BaseException | None) -> None:
        listener = self._manager
        if isinstance(listener, HttpListener):
            listener.remove_connection(self)
            listener.context.end_stream(self._peer_address, self)
        self.cancel_first_request_timer()
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """True between two requests, and before the first one."""
        return self._current_request is None and not self._messages

    def end(self) -> None:
        """Closes the connection at once."""
        self.force_close()
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()  # a client that reads nothing would keep it otherwise

    def cancel_first_request_timer(self) -> None:
        """Stops the timer: a request has come, or the connection is lost."""
        if self._first_request_timer is not None:
            self._first_request_timer.cancel()
            self._first_request_timer = None

    def data_received(self, data: bytes) -> None:
        if not data:
            self._parse(data)
        elif not self._is_between_requests:
            self._request_bytes = b""
            self._parse(data)
        elif not self._try_fast_produce(data):
            self._is_between_requests, self._request_bytes = False, data
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Passes bytes to aiohttp. Bytes that are not HTTP may end a body that a handler waits for, but aiohttp reports
        them only to the next request. So this method fails the body. A client with a quota pays for the time: a body of
        very small chunks takes long."""
        request = self._current_request
        if not data or not isinstance(request, HttpRequest) or request.meter is None:
            super().data_received(data)  # without data: the handler reads on, in a step that is timed
        else:
            begun_ns = request.context.clock.mono_ns()
            super().data_received(data)
            request.meter.spend(request.context.clock.mono_ns() - begun_ns)
        message = self._messages[-1][0] if self._messages else None
        if message is None or isinstance(message, RawRequestMessage):
            return
        bodies = [body for _, body in self._messages]
        if self._current_request is not None:
            bodies.append(self._current_request.content)
        for body in bodies:
            if not body.is_eof() and body.exception() is None:
                body.set_exception(malformed_head(400, message.message))

    def _try_fast_produce(self, data: bytes) -> bool:
        """Serves a request by the short path, if the connection has no other work."""
        waiter, listener, transport = self._waiter, self._manager, self.transport
        if waiter is None or waiter.done() or self._messages or transport is None:
            return False
        assert isinstance(listener, HttpListener)
        if transport.get_write_buffer_size():
            return False
        answer = listener.head_cache.try_produce(data, self._origin)
        if answer is None:
            return False
        self.cancel_first_request_timer()
        transport.write(answer)
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        return True

    def on_response(self, request: HttpRequest, response: web.StreamResponse) -> None:
        """Handles a response of the full path: remembers the head of the request for the short path, if that is
        possible."""
        piece, self._request_bytes = self._request_bytes, b""
        end = piece.find(b"\r\n\r\n") + 4
        if not self.has_short_path or not piece or "Transfer-Encoding" in request.headers:
            return
        if len(piece) - end != (request.content_length or 0):
            return
        self._is_between_requests = True
        listener = self._manager
        if isinstance(listener, HttpListener) and fast_produce.is_cacheable(request, response):
            listener.head_cache.remember(piece[:end], request, self._origin)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Writes a response, and releases the memory that the request held."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if isinstance(request, HttpRequest):
                request.set_held_memory(0)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Does nothing unless reading is paused: aiohttp would parse no bytes after each body."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        log.debug("request refused status=%d peer=%s reason=%r", status, self._peer_address, message)
        if isinstance(exc, LineTooLong):
            return error_response(HttpError(431, "a line of the head is too long"), close=True)
        if status < 500:
            return error_response(malformed_head(status, message), close=True)
        return error_response(HttpError(500, "internal error"), close=True)


def malformed_head(status: int, message: str | None) -> HttpError:
    """Returns the error for a head that does not parse, with the parser's reason."""
    reason = (message or "bad head").splitlines()[0]
    return HttpError(status, f"malformed request: {reason}")


class HttpListener(web.Server):
    """Makes connections and requests, and dispatches each request by the table."""

    def __init__(self, context: HttpContext, routes: RouteTable, hosts: AllowedHosts) -> None:
        limits = context.limits
        super().__init__(
            self.handle_request,  # type: ignore[arg-type]
            request_factory=self.make_request,
            keepalive_timeout=limits.idle_seconds,
            access_log=None,
            max_line_size=limits.line_bytes,
            max_field_size=limits.line_bytes,
            max_headers=limits.headers,
            auto_decompress=False,
            lingering_time=2.0,
            logger=log,
        )
        self.context = context
        self.table = routes
        self._hosts = hosts
        self.authenticator = Authenticator(context)
        self.head_cache = HeadCache(context, has_logins=self.authenticator.is_required)
        self._peers: Tally[str] = Tally()
        self._open: dict[str, dict[HttpConnection, None]] = {}
        """The connections that count, by their address or network, the oldest one first."""
        rate = context.broker.settings.tiered_http_max_connection_creation_rate
        self._openings = TokenBucket(1, 1000, rate, int(self._loop.time() * 1000))
        """New connections that may be opened now: those of a second at once."""
        self._spare_connections: dict[HttpConnection, None] = {}
        """Connections above a limit, the oldest one first."""
        self._log_limiter = LogLimiter(context.clock)

    def __call__(self) -> web.RequestHandler:
        return HttpConnection(self, loop=self._loop, **self._kwargs)

    def admit_connection(self, connection: HttpConnection, peer: str) -> bool:
        """Counts a connection. Returns False if it is above a limit: it is a spare one then, and may replace the oldest
        spare one."""
        if peer in read_ip_overrides(self.context.broker.settings.max_connections_per_ip_overrides):
            connection.counted_as = peer
        if self._has_room(peer, connection.counted_as):
            self._peers[connection.counted_as] += 1
            self._open.setdefault(connection.counted_as, {})[connection] = None
            return True
        self.record_refusal(peer)
        if len(self._spare_connections) >= SPARE_CONNECTIONS_MAX:
            oldest = next(iter(self._spare_connections))
            del self._spare_connections[oldest]
            oldest.force_close()
        self._spare_connections[connection] = None
        return False

    def record_refusal(self, peer: str) -> None:
        """Counts and logs a connection above a limit."""
        self.context.refused_connections.inc()
        suppressed = self._log_limiter.admit()
        if suppressed is not None:
            log.warning("http connection refused peer=%s open=%d suppressed=%d", peer, self._peers.total(), suppressed)

    def _has_room(self, peer: str, counted: str) -> bool:
        broker = self.context.broker
        settings = broker.settings
        most = settings.tiered_http_connections_max
        if self._peers[counted] >= max_connections(settings, peer):
            return False
        rate, now_ms = settings.tiered_http_max_connection_creation_rate, int(self._loop.time() * 1000)
        if self._openings.measure(rate, now_ms) < 1 or not broker.client_quotas.admit_connection(peer):
            return False
        if self._peers.total() >= most and not self._make_room(counted, most):
            return False
        self._openings.record(1, rate, now_ms)
        return True

    def _make_room(self, counted: str, most: int) -> bool:
        """Ends a connection of the address with most connections in favour of another address. True if it did so.

        It is the oldest one between two requests, or else the oldest one. An address keeps, as on the Kafka listeners,
        its fair share of the connections, and one more than the new address has.
        """
        addresses = len(self._peers) + (counted not in self._peers)
        greediest = max(self._peers, key=self._peers.__getitem__)
        if self._peers[greediest] <= max(most // addresses, self._peers[counted] + 1):
            return False
        held = self._open[greediest]
        ended = next((each for each in held if each.is_idle), next(iter(held)))
        self.remove_connection(ended)
        self.record_refusal(greediest)
        ended.end()
        return True

    def remove_connection(self, connection: HttpConnection) -> None:
        """Removes a connection from the count, if it counts."""
        if connection.is_spare:
            self._spare_connections.pop(connection, None)
            return
        counted = connection.counted_as
        held = self._open.get(counted, {})
        if connection not in held:
            return
        del held[connection]
        self._peers[counted] -= 1
        if not held:
            del self._open[counted]
            del self._peers[counted]

    def open_connections(self) -> int:
        return self._peers.total() + len(self._spare_connections)

    def make_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> HttpRequest:
        """Makes the request of a parsed head, for aiohttp."""
        assert isinstance(protocol, HttpConnection)
        protocol.cancel_first_request_timer()
        request = HttpRequest(self.context, message, payload, protocol, writer, task, self._loop)
        if protocol.principal != ANONYMOUS:
            request.caller = request.caller._replace(principal=protocol.principal)
        return request

    async def handle_request(self, request: HttpRequest) -> web.StreamResponse:
        """Finds the route and runs its handler. Every error ends here, as a response in the form of all errors."""
        connection = request.protocol
        assert isinstance(connection, HttpConnection)
        begun_ns = self.context.clock.mono_ns()
        try:
            is_console = request.method == "GET" and request.target.startswith(CONSOLE)
            self._hosts.check(request.headers, request.version, is_console=is_console)
            if self.context.broker.settings.tiered_console_read_only:
                check_read_only(request.method, request.headers)
            if request.target.startswith("/contexts/"):
                request.target = _strip_context(request.target)
            route, request.args = self.table.match(request.method, request.target)
            request.operation = route.operation
            if not self.context.broker.settings.tiered_console_messages:
                check_messages(route.operation, request.headers)
            if connection.is_spare and route.operation not in ANSWERED_OVER_LIMIT:
                raise HttpError(503, TOO_MANY, (("Retry-After", "10"),), close=True)
            await self.authenticator.authenticate(request)
            authorization = self.context.broker.authorization
            request.check_rights = partial(check_route, authorization, request.caller, route.operation, request.args)
            request.check_rights()
            route.check_body_type(request)
            if route.operation not in ANSWERED_WHILE_STARTING and not self.context.broker.served.is_set():
                raise HttpError(BROKER_NOT_AVAILABLE, "the broker is starting; see /healthz", close=True)
            quotas, user = self.context.broker.client_quotas, request.caller.principal.name
            client_id = request.headers.get(CLIENT_ID, "")
            request.meter = find_meter(quotas, route.operation, user, client_id)
            if request.meter is not None and request.meter.has_client_id:
                request.caller = request.caller._replace(client_id=client_id)
            response = await (route.handle(request) if request.meter is None else _serve_metered(route, request))
        except EXPECTED_ERRORS as error:
            response = self._refuse(request, to_http_error(error), error, self._request_id(begun_ns))
            # Frames of its traceback refer to it: they would keep the data of the request until the next collection.
            error.__traceback__ = error.__context__ = None
        except (ConnectionError, asyncio.CancelledError):
            request.set_held_memory(0)
            raise
        except Exception as error:
            if isinstance(error, InvariantViolation):
                self.context.broker.on_invariant_violation(error)
            request_id = self._request_id(begun_ns)
            log.exception(
                "request failed request_id=%s operation=%s target=%r", request_id, request.operation, request.target
            )
            why = HttpError(500, "internal error; the broker's log says more", ((REQUEST_ID, request_id),))
            response = error_response(why, close=True, target=request.target)
        self.context.requests.inc(1, request.operation, str(response.status))
        seconds = (self.context.clock.mono_ns() - begun_ns) * 1e-9
        self.context.seconds.observe(seconds, request.operation)
        log.debug(
            "http request handled method=%s target=%.200r operation=%s status=%d ms=%.1f",
            request.method, request.target, request.operation, response.status, seconds * 1e3,
        )  # fmt: skip
        if connection.is_spare:
            response.force_close()
        connection.on_response(request, response)
        return response

    def _request_id(self, begun_ns: int) -> str:
        """Returns the id by which the log of the broker names a request that failed."""
        return f"{self.context.broker.settings.node_id}-{begun_ns:x}"

    @staticmethod
    def _refuse(request: HttpRequest, answer: HttpError, error: Exception, request_id: str) -> web.StreamResponse:
        if isinstance(error, Corrupt):
            log.error(
                "stored data is corrupt request_id=%s operation=%s target=%r why=%s",
                request_id, request.operation, request.target, error,
            )  # fmt: skip
        else:
            log.debug(
                "request refused request_id=%s operation=%s status=%d reason=%s",
                request_id, request.operation, answer.status, error,
            )  # fmt: skip
        must_close = answer.close or not request.content.is_eof()
        response = error_response(answer, close=must_close, target=request.target)
        response.extra_headers += ((REQUEST_ID, request_id),)
        return response


def _strip_context(target: str) -> str:
    """Returns a target of the schema registry without a context. Few brokers need the package that knows how."""
    from tiered.registry.context_paths import strip_context

    return strip_context(target)


async def _serve_metered(route: Route, request: HttpRequest) -> web.StreamResponse:
    """Runs the handler of a client that has a quota. A request that fails is charged too: its records may be there."""
    meter, sent = request.meter, 0
    assert meter is not None
    meter.check(route.operation)
    try:
        with paid_by(meter.charge_store_request), spent_by(meter), written_by(meter.charge_written):
            response: web.StreamResponse = await TimedSteps(route.handle(request), meter, request.context.clock.mono_ns)
        sent = response.body_bytes if isinstance(response, HttpResponse) else 0
        return response
    finally:
        meter.charge(route.operation, max(request.content.total_bytes, request.inflated_bytes), sent)


class HttpServer:
    """A listener that serves."""

    def __init__(self, listener: HttpListener, server: asyncio.Server, url: str, handshakes: Handshakes | None) -> None:
        self.url = url
        self._handshakes = handshakes
        self.open_connections = listener.open_connections
        self._listener = listener
        self._servers = [server]
        self._shared: asyncio.Server | None = None

    async def share(self, sock: socket.socket) -> None:
        """Serves the connections of an address too that processes of this machine share."""
        self._listener.context.shared_port = sock.getsockname()[1]
        self._shared = await asyncio.get_running_loop().create_server(
            self._handshakes or self._listener, sock=sock, backlog=BACKLOG
        )
        self._servers.append(self._shared)

    def leave_shared(self) -> None:
        """Leaves new connections to the other processes of this machine."""
        if self._shared is not None:
            self._shared.close()

    async def close(self) -> None:
        """Stops listening, lets requests finish for a moment, and ends the others."""
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            await self._handshakes.close()
        self._listener.context.drain()
        self._listener.pre_shutdown()
        await self._listener.shutdown(5.0)
        for server in self._servers:
            await server.wait_closed()
        await self._listener.context.service(ConsumerInstances).close()
        await self._listener.context.service(AuditTopic).close()
        await self._listener.context.service(WarehouseReports).close()
        await self._listener.context.service(UsageLog).close()
        await self._listener.context.close()
        self._listener.authenticator.close()


async def serve_http(
    broker: Broker, host: str, port: int, *, limits: HttpLimits | None = None, has_tls: bool = False
) -> HttpServer:
    """Serves `broker` on host and port (0: any free one); the result's `url` has the address. Raises `Refused` without
    a certificate for TLS."""
    context = HttpContext(broker, limits or HttpLimits.from_settings(broker.settings))
    context.add_service(ConsumerInstances(context))
    context.add_service(GroupLags(context))
    context.add_service(UnreadTimes(context))
    context.add_service(WarehouseReports(context))
    context.add_service(UsageLog(context))
    context.add_service(AuditTopic(context))
    context.add_service(TransactionalIds(context))
    context.add_service(IdempotencyKeys(context))
    broker.schema_validation.connect(partial(_read_registry, context))
    listener = HttpListener(context, table(), AllowedHosts(broker.settings, socket.gethostname()))
    context.connections.set_function(listener.open_connections)
    handshakes = Handshakes(broker.tls.shared.make_renewing(), listener, listener.record_refusal) if has_tls else None
    loop = asyncio.get_running_loop()
    limit_accept_failures(loop, LogLimiter(broker.world.clock))
    server = await loop.create_server(
        handshakes or listener,
        host,
        port,
        backlog=BACKLOG,
        reuse_address=True,
    )
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    if not is_loopback(bound_host):
        if not listener.authenticator.is_required:
            log.warning("http is reachable from other machines without a login host=%s", bound_host)
        elif not has_tls:
            log.warning("http is reachable from other machines without TLS: passwords can be read host=%s", bound_host)
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    return HttpServer(listener, server, f"{'https' if has_tls else 'http'}://{shown}:{bound_port}", handshakes)


async def _read_registry(context: HttpContext) -> RegistryState:
    """Returns the newest state of the schema registry. Raises `Refused`."""
    from tiered_api.http.registry.schema_log import SchemaLog  # most brokers never need it

    return await context.lazy_service(SchemaLog).read_for_records()


def _subject_of(transport: asyncio.BaseTransport) -> Subject:
    """Returns the name in the client's certificate, if OpenSSL has verified one."""
    session: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = session.getpeercert() if session is not None else None
    return certificate.get("subject", ()) if certificate else ()  # type: ignore[return-value]
