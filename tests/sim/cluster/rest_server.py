"""The HTTP side of simulated brokers, for REST consumers: the production handlers and consumers, without sockets.

A request runs as a task of the broker's process. Its connection is an object. The client reads the reply from it at
once or late, or the connection is lost before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import orjson
from aiohttp import HttpVersion11
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tests.sim.cluster.world import SimHost, SimWorld
from tests.sim.harness.loop import process_context
from tiered.broker.broker import Broker
from tiered.errors import Unavailable
from tiered_api.http.consumers.instance import ConsumerInstance
from tiered_api.http.consumers.instances import ConsumerInstances, InstanceKey
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.errors import EXPECTED_ERRORS, to_http_error
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import HttpResponse, error_response
from tiered_api.http.server.routes import table

ROUTES = table()
PEER = ("10.0.0.9", 40_000)
HEADERS: CIMultiDictProxy[str] = CIMultiDictProxy(CIMultiDict({"Accept": "*/*", "Host": "rest:8082"}))
BODY_BYTES_MAX = 1 << 16
CLIENT_SECONDS = 8.0
"""Time after which a client gives up its request. The broker goes on with it, and then finds the client gone."""
CLOSING_SECONDS = 5.0


class RestReply(NamedTuple):
    """A reply as its client read it. `host` is the machine to which a redirect (307) leads."""

    status: int
    host: str
    content: Any


class RestCall(asyncio.Transport):
    """One request, and the connection that it came on. The client reads the reply after `read_seconds`; if
    `loses_reply`, the connection is lost then. `on_read` gets the server and the reply when the client reads it."""

    def __init__(
        self,
        method: str,
        target: str,
        content: Any = None,
        *,
        read_seconds: float = 0.0,
        loses_reply: bool = False,
        on_read: Callable[[RestServer, RestReply], None] = lambda server, reply: None,
    ) -> None:
        super().__init__()
        self.method = method
        self.target = target
        self.content = b"" if content is None else orjson.dumps(content)
        self.reply: asyncio.Future[RestReply] = asyncio.get_running_loop().create_future()
        self._read_seconds = read_seconds
        self._loses_reply = loses_reply
        self._on_read = on_read
        self._unread = b""
        self._is_lost = False
        self._server: RestServer | None = None

    def on_accepted(self, server: RestServer) -> None:
        """The connection leads to this server."""
        self._server = server

    def leave(self) -> None:
        """The client closes the connection."""
        self._is_lost = True
        self.reply.cancel()

    def on_served(self, task: asyncio.Task[None]) -> None:
        """The broker is done with the request, or its process died."""
        if not self.reply.done():
            error = None if task.cancelled() else task.exception()
            self.reply.set_exception(error or Unavailable("the connection was lost before a reply"))

    # -- the connection -----------------------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        self._unread += data
        if not self._read_seconds and not self._loses_reply and not self._is_lost:
            self._read()

    async def drain(self) -> None:
        """Returns when the client has read the reply. Raises `ConnectionResetError` if it does not."""
        await asyncio.sleep(self._read_seconds)
        if self._loses_reply or self._is_lost:
            self._is_lost = True
            raise ConnectionResetError("the client has gone")
        self._read()

    def get_write_buffer_size(self) -> int:
        return len(self._unread)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._is_lost

    def abort(self) -> None:
        self._is_lost = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def _read(self) -> None:
        head, _, body = self._unread.partition(b"\r\n\r\n")
        self._unread = b""
        lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        host = headers.get("Location", "").partition("//")[2].partition(":")[0]
        reply = RestReply(int(lines[0].split()[1]), host, orjson.loads(body) if body else None)
        assert self._server is not None
        self._on_read(self._server, reply)
        if not self.reply.done():
            self.reply.set_result(reply)


class _Connection(BaseProtocol):
    """The protocol of a connection, as far as a request of aiohttp needs it."""

    ssl_context = None
    peername = PEER
    sockname = ("10.0.0.1", 8082)


class RestServer:
    """The consumers of one process, and the requests to them."""

    def __init__(self, broker: Broker, process: str) -> None:
        self.process = process
        self.is_closed = False
        self.context = HttpContext(broker, HttpLimits())
        self._instances = ConsumerInstances(self.context)
        self.context.add_service(self._instances)
        self._tasks: dict[asyncio.Task[None], None] = {}

    def instance(self, group: str, name: str) -> ConsumerInstance | None:
        """Returns a consumer that lives here."""
        return self._instances._instances.get(InstanceKey(group, name))

    def begin(self, call: RestCall) -> None:
        """Begins to serve a request in the process of the broker."""
        call.on_accepted(self)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._serve(call), name="rest request", context=process_context(self.process))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(call.on_served)

    async def close(self) -> None:
        """Lets requests finish for a moment, and ends the others, as `HttpServer.close` does."""
        self.is_closed = True
        self.context.drain()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=CLOSING_SECONDS)
        for task in self._tasks:
            task.cancel()
        await self._instances.close()
        await self.context.close()

    async def _serve(self, call: RestCall) -> None:
        route, arguments = ROUTES.match(call.method, call.target)
        request = self._make_request(call)
        request.args, request.operation = arguments, route.operation
        try:
            try:
                response = await route.handle(request)
            except EXPECTED_ERRORS as error:
                response = error_response(to_http_error(error))
            assert isinstance(response, HttpResponse)
            await response.prepare(request)
        except ConnectionError:
            return  # the client has gone
        finally:
            request.set_held_memory(0)

    def _make_request(self, call: RestCall) -> HttpRequest:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        message = RawRequestMessage(
            call.method, call.target, HttpVersion11, HEADERS, (), False, None, False, False, URL(call.target)
        )
        connection = _Connection(loop)
        connection.transport = call
        payload = StreamReader(connection, BODY_BYTES_MAX, loop=loop)
        payload.feed_data(call.content)
        payload.feed_eof()
        return HttpRequest(self.context, message, payload, cast(Any, connection), cast(Any, call), task, loop)


class RestServers:
    """The servers of all machines. Each begins with the first request to its process."""

    def __init__(self, world: SimWorld) -> None:
        self.hosts: Mapping[str, SimHost] = {host.name: host for host in world.hosts.values()}
        self._servers: dict[str, RestServer] = {}
        """By process."""

    def find(self, host: SimHost) -> RestServer | None:
        """Returns the server of a machine; None while no broker serves there."""
        if host.node is None or not host.up:
            return None
        server = self._servers.get(host.process)
        if server is None:
            server = process_context(host.process).run(RestServer, host.node, host.process)
            self._servers[host.process] = server
            host.close_http = server.close
        return None if server.is_closed else server

    async def ask(self, host: SimHost, call: RestCall) -> RestReply:
        """Returns the reply. Raises `Unavailable` if the connection is lost, `TimeoutError` if the client gives up."""
        server = self.find(host)
        if server is None:
            raise Unavailable(f"nobody serves HTTP at {host.name}")
        server.begin(call)
        try:
            async with asyncio.timeout(CLIENT_SECONDS):
                return await call.reply
        finally:
            call.leave()

    async def close(self) -> None:
        """Closes the servers of all running brokers."""
        loop = asyncio.get_running_loop()
        for host in self.hosts.values():
            server = self._servers.get(host.process)
            if server is not None and not server.is_closed:
                context = process_context(host.process)
                await asyncio.wait([loop.create_task(server.close(), name="rest server", context=context)])
