"""The listener: aiohttp's low-level server with our own routes and limits, and the outermost error boundary."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections import Counter as Tally

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from tiered.node import Node
from tiered_api.http.answers import refusal
from tiered_api.http.errors import NAMED, HttpError, from_named
from tiered_api.http.limits import Limits
from tiered_api.http.request import Request
from tiered_api.http.routes import table
from tiered_api.http.routing import Table
from tiered_api.http.site import Site

log = logging.getLogger(__name__)

BACKLOG = 1024


class Connection(web.RequestHandler):
    """aiohttp's connection, counted, and with errors below HTTP (a head that does not parse) in our form."""

    __slots__ = ("_counted_as",)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self._manager
        assert isinstance(listener, Listener) and isinstance(transport, asyncio.Transport)
        peer = transport.get_extra_info("peername")
        self._counted_as = str(peer[0]) if peer else ""
        if not listener.admit(self._counted_as):
            transport.abort()
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        listener = self._manager
        if isinstance(listener, Listener):
            listener.leave(self._counted_as)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        log.debug("request refused status=%d peer=%s reason=%r", status, self._counted_as, message)
        if status < 500:
            return refusal(
                HttpError(status, f"malformed request: {(message or 'bad head').splitlines()[0]}"), close=True
            )
        return refusal(HttpError(500, "internal error"), close=True)


class Listener(web.Server):
    """Makes connections and requests, and sends each request through the table."""

    def __init__(self, site: Site, routes: Table) -> None:
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
        self._peers: Tally[str] = Tally()

    def __call__(self) -> web.RequestHandler:
        return Connection(self, loop=self._loop, **self._kwargs)

    def admit(self, peer: str) -> bool:
        """Counts a connection; whether it may stay."""
        self._peers[peer] += 1
        limits = self.site.limits
        if self._peers.total() <= limits.connections and self._peers[peer] <= limits.connections_per_peer:
            return True
        self.site.refused_connections.inc()
        return False

    def leave(self, peer: str) -> None:
        """Counts a connection out."""
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    def open_connections(self) -> int:
        return self._peers.total()

    def request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> Request:
        """What aiohttp calls for each parsed head."""
        return Request(self.site, message, payload, protocol, writer, task, self._loop)

    async def answer(self, request: Request) -> web.StreamResponse:
        """Finds the route and runs its handler. Whatever goes wrong ends here, as an error in the one form."""
        operation = "none"
        try:
            route, request.args = self.table.match(request.method, request.target)
            operation = route.operation
            response = await route.handler(request)
        except NAMED as error:
            response = self._refused(request, operation, from_named(error), error)
        except ConnectionError:
            raise
        except Exception:
            log.exception("request failed operation=%s method=%s target=%r", operation, request.method, request.target)
            response = refusal(HttpError(500, "internal error; the broker's log says more"), close=True)
        finally:
            if request.held:
                self.site.budget.give(request.held)
                request.held = 0
        self.site.requests.inc(1, operation, str(response.status))
        return response

    def _refused(self, request: Request, operation: str, answer: HttpError, error: Exception) -> web.StreamResponse:
        if answer.status >= 500:
            log.warning("request failed operation=%s status=%d reason=%s", operation, answer.status, error)
        return refusal(answer, close=not request.content.is_eof())


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
        self._listener.site.close()


async def serve_http(node: Node, host: str, port: int, *, limits: Limits | None = None) -> HttpServer:
    """Serves `node` on host and port (0: any free one); `.url` says where."""
    site = Site(node, limits or Limits.of(node.settings))
    listener = Listener(site, table())
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
