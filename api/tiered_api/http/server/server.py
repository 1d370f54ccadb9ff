"""The listener: aiohttp's low-level server with our own routes and limits, and the outermost error boundary."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections import Counter as Tally

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from tiered.broker.broker import Node
from tiered.errors import Broken, Corrupt
from tiered.log_limiter import Quiet
from tiered_api.http.consumers.instances import Instances
from tiered_api.http.group_lags import GroupLags
from tiered_api.http.partitions import fast_produce
from tiered_api.http.partitions.fast_produce import Heads
from tiered_api.http.server.allowed_hosts import AllowedHosts
from tiered_api.http.server.context import Site
from tiered_api.http.server.errors import BROKER_NOT_AVAILABLE, NAMED, HttpError, from_named
from tiered_api.http.server.limits import Limits
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import refusal
from tiered_api.http.server.router import Table
from tiered_api.http.server.routes import table

log = logging.getLogger(__name__)

BACKLOG = 1024
AT_ONCE = ("healthz", "metrics", "get_node")
"""What is answered before the broker serves; the rest has to be known first."""
ALWAYS = ("healthz", "metrics")
"""What is answered when connections have run out: a broker that is only busy must not be taken for a dead one."""
SPARE = 16
"""Connections above a limit that are open at once."""
TOO_MANY = "too many connections; tiered.http.connections.max and tiered.http.connections.max.per.ip bound them"


class Connection(web.RequestHandler):
    """aiohttp's connection: counted, with errors below HTTP (a head that does not parse) in our form, and with the
    short way for known requests (`quick.py`).

    `is_spare`: it is above a limit, and for health and metrics only. `_opening` closes it where no request comes.
    `_between`: aiohttp's parser holds nothing, the next byte begins a request. `_piece`: the bytes that came then, as
    long as nothing came after them; if they turn out to be exactly one request, the parser holds nothing again.
    """

    __slots__ = ("_between", "_counted_as", "_opening", "_piece", "is_spare")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._manager
        assert isinstance(listener, Listener) and isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self._counted_as = str(peer[0]) if peer else ""
        super().connection_made(transport)
        self._opening: asyncio.TimerHandle | None
        self._opening = self._loop.call_later(listener.site.limits.first_seconds, self.force_close)
        self.is_spare = not listener.admit(self, self._counted_as)
        self._between, self._piece = fast_produce.POSSIBLE and not self.is_spare, b""

    def connection_lost(self, exc: BaseException | None) -> None:
        listener = self._manager
        if isinstance(listener, Listener):
            listener.leave(self, self._counted_as)
            listener.site.end_stream(self._counted_as, self)
        self.opened()
        super().connection_lost(exc)

    def opened(self) -> None:
        """A request has come, or none will."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def data_received(self, data: bytes) -> None:
        if not data:
            self._parse(data)
        elif not self._between:
            self._piece = b""
            self._parse(data)
        elif not self._answered(data):
            self._between, self._piece = False, data
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Bytes that are not HTTP may break off a body that somebody waits for: aiohttp tells the next request only."""
        super().data_received(data)
        message = self._messages[-1][0] if self._messages else None
        if message is None or isinstance(message, RawRequestMessage):
            return
        bodies = [body for _, body in self._messages]
        if self._current_request is not None:
            bodies.append(self._current_request.content)
        for body in bodies:
            if not body.is_eof() and body.exception() is None:
                body.set_exception(malformed_head(400, message.message))

    def _answered(self, data: bytes) -> bool:
        """Takes the short way, when nothing else is under way here."""
        waiter, listener, transport = self._waiter, self._manager, self.transport
        if waiter is None or waiter.done() or self._messages or transport is None:
            return False
        assert isinstance(listener, Listener)
        answer = listener.heads.answer(data) if not transport.get_write_buffer_size() else None
        if answer is None:
            return False
        self.opened()
        transport.write(answer)
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        return True

    def answered(self, request: Request, response: web.StreamResponse) -> None:
        """A request was answered the full way; looks whether its bytes are worth remembering."""
        piece, self._piece = self._piece, b""
        end = piece.find(b"\r\n\r\n") + 4
        if not piece or "Transfer-Encoding" in request.headers or len(piece) - end != (request.content_length or 0):
            return
        self._between = True
        listener = self._manager
        if isinstance(listener, Listener) and fast_produce.is_learned(request, response):
            listener.heads.learn(piece[:end], request)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Writes an answer; what the request held of the memory budget is free once it is out."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if isinstance(request, Request):
                request.settle(0)

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Nothing to resume, nothing to do: aiohttp would parse no bytes again after each body."""
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        log.debug("request refused status=%d peer=%s reason=%r", status, self._counted_as, message)
        if status < 500:
            return refusal(malformed_head(status, message), close=True)
        return refusal(HttpError(500, "internal error"), close=True)


def malformed_head(status: int, message: str | None) -> HttpError:
    """What does not parse as HTTP, in the words of the parser."""
    reason = (message or "bad head").splitlines()[0]
    return HttpError(status, f"malformed request: {reason}")


class Listener(web.Server):
    """Makes connections and requests, and sends each request through the table."""

    def __init__(self, site: Site, routes: Table, hosts: AllowedHosts) -> None:
        limits = site.limits
        super().__init__(
            self.answer,  # type: ignore[arg-type]
            request_factory=self.request,
            keepalive_timeout=limits.idle_seconds,
            access_log=None,
            max_line_size=limits.line_bytes,
            max_field_size=limits.line_bytes,
            max_headers=limits.headers,
            auto_decompress=False,
            lingering_time=2.0,
            logger=log,
        )
        self.site = site
        self.table = routes
        self._hosts = hosts
        self.heads = Heads(site)
        self._peers: Tally[str] = Tally()
        self._spare: dict[Connection, None] = {}
        """Connections above a limit, the oldest one first."""
        self._quiet = Quiet(site.clock)

    def __call__(self) -> web.RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)

    def admit(self, connection: Connection, peer: str) -> bool:
        """Counts a connection. False when it is above a limit: then it is a spare one, and may take the place of the
        oldest of those."""
        limits = self.site.limits
        if self._peers.total() < limits.connections and self._peers[peer] < limits.connections_per_peer:
            self._peers[peer] += 1
            return True
        self.site.refused_connections.inc()
        unsaid = self._quiet.unsaid()
        if unsaid is not None:
            log.warning("http connection refused peer=%s open=%d unsaid=%d", peer, self._peers.total(), unsaid)
        if len(self._spare) >= SPARE:
            oldest = next(iter(self._spare))
            del self._spare[oldest]
            oldest.force_close()
        self._spare[connection] = None
        return False

    def leave(self, connection: Connection, peer: str) -> None:
        """Counts a connection out."""
        if connection.is_spare:
            self._spare.pop(connection, None)
            return
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    def open_connections(self) -> int:
        return self._peers.total() + len(self._spare)

    def request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> Request:
        """What aiohttp calls for each parsed head."""
        assert isinstance(protocol, Connection)
        protocol.opened()
        return Request(self.site, message, payload, protocol, writer, task, self._loop)

    async def answer(self, request: Request) -> web.StreamResponse:
        """Finds the route and runs its handler. Whatever goes wrong ends here, as an error in the one form."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        begun_ns = self.site.clock.mono_ns()
        try:
            self._hosts.check(request.headers, request.version)
            route, request.args = self.table.match(request.method, request.target)
            request.operation = route.operation
            if connection.is_spare and route.operation not in ALWAYS:
                raise HttpError(503, TOO_MANY, (("Retry-After", "10"),), close=True)
            route.check_body_type(request)
            if route.operation not in AT_ONCE and not self.site.node.served.is_set():
                raise HttpError(BROKER_NOT_AVAILABLE, "the broker is starting; see /healthz", close=True)
            response = await route.handler(request)
        except NAMED as error:
            response = self._refused(request, from_named(error), error)
        except (ConnectionError, asyncio.CancelledError):
            request.settle(0)
            raise
        except Exception as error:
            if isinstance(error, Broken):
                self.site.node.broke(error)
            log.exception("request failed operation=%s target=%r", request.operation, request.target)
            response = refusal(HttpError(500, "internal error; the broker's log says more"), close=True)
        self.site.requests.inc(1, request.operation, str(response.status))
        self.site.seconds.observe((self.site.clock.mono_ns() - begun_ns) * 1e-9, request.operation)
        if connection.is_spare:
            response.force_close()
        connection.answered(request, response)
        return response

    @staticmethod
    def _refused(request: Request, answer: HttpError, error: Exception) -> web.StreamResponse:
        if isinstance(error, Corrupt):
            log.error("stored data is corrupt operation=%s target=%r why=%s", request.operation, request.target, error)
        elif answer.status >= 500:
            log.debug("request failed operation=%s status=%d reason=%s", request.operation, answer.status, error)
        return refusal(answer, close=answer.close or not request.content.is_eof())


class HttpServer:
    """A listener that serves."""

    def __init__(self, listener: Listener, server: asyncio.Server, url: str) -> None:
        self.url = url
        self._listener = listener
        self._server = server

    async def close(self) -> None:
        """Stops listening, lets requests finish for a moment, ends the rest."""
        self._server.close()
        self._listener.site.hurry()
        self._listener.pre_shutdown()
        await self._listener.shutdown(5.0)
        await self._server.wait_closed()
        await self._listener.site.instances.close()
        await self._listener.site.close()


async def serve_http(node: Node, host: str, port: int, *, limits: Limits | None = None) -> HttpServer:
    """Serves `node` on host and port (0: any free one); `.url` says where."""
    site = Site(node, limits or Limits.of(node.settings))
    site.instances = Instances(site)
    site.group_lags = GroupLags(site)
    listener = Listener(site, table(), AllowedHosts(node.settings, socket.gethostname()))
    site.connections.read(listener.open_connections)
    server = await asyncio.get_running_loop().create_server(listener, host, port, backlog=BACKLOG, reuse_address=True)
    bound_host, bound_port = server.sockets[0].getsockname()[:2]
    if not is_loopback(bound_host):
        log.warning("http is reachable from other machines and there is no login yet host=%s", bound_host)
    shown = f"[{bound_host}]" if ":" in bound_host else bound_host
    return HttpServer(listener, server, f"http://{shown}:{bound_port}")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
