"""Which request goes where: Produce, Fetch and ApiVersions are dealt with at once, every other API by a handler in a
task of its own. The outermost boundary of errors: a handler that fails ends its connection, not the broker.

Handlers are modules of `handlers/`, named after their API, with `async def handle(site, call)`, which
returns the answer, or the bytes of one. They are imported when
they are first needed: a start loads none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from struct import Struct
from typing import TYPE_CHECKING, Any

from tiered.errors import Broken
from tiered_api.kafka.protocol.apis import ALL, API_VERSIONS
from tiered_api.kafka.protocol.codec import Malformed, decode, encode
from tiered_api.kafka.protocol.headers import request_header, response_header
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.context import Call, Site
from tiered_api.kafka.server.handlers import api_versions
from tiered_api.kafka.server.handlers.fetch import Fetches
from tiered_api.kafka.server.handlers.produce import Produces
from tiered_api.kafka.server.latencies import Latencies

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import Connection, Slot
    from tiered_api.kafka.server.socket_writer import Part

log = logging.getLogger(__name__)

PRODUCE, FETCH = 0, 1

Handle = Callable[[Site, Call[Any]], Awaitable[Message | bytes]]
Work = Callable[[], Awaitable["Sequence[Part] | None"]]
"""What has to wait; begun by its task, because one that is cancelled before it ran begins nothing."""

_SIZE = Struct(">i")


class Dispatch:
    """The handlers of one server, and the tasks in which they run."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._note = Latencies(site.node.metrics).note
        self._mono_ns = site.clock.mono_ns
        self._produces = Produces(site, self)
        self.fetches = Fetches(site, self.guard)
        self.handlers: dict[int, Handle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[Connection, None] = {}
        """Connections on which an answer waits for something to happen."""

    def take(
        self, connection: Connection, frame: memoryview, key: int, version: int, correlation_id: int, body: int
    ) -> Sequence[Part] | None:
        """Deals with a request whose fields after the client id begin at `body`: its answer, or None when that comes
        later (the connection keeps its place) or never."""
        connection.key = key
        connection.since_ns = since_ns = self._mono_ns()
        answer: Sequence[Part] | None = None
        try:
            if key == PRODUCE and 3 <= version <= 13:
                answer = self._produces.take(connection, frame, version, correlation_id, body)
            elif key == FETCH and 4 <= version <= 18:
                answer = self.fetches.take(connection, frame, version, correlation_id, body)
            elif key == API_VERSIONS:
                self._site.requests[key] += 1
                answer = [api_versions.answer(frame, version, correlation_id)]
            else:
                self._begin(connection, frame)
        except Malformed as error:
            connection.refuse("malformed", f"{_name(key)} version {version}: {error}")
        except Exception as error:
            log.exception("request failed api=%s version=%d peer=%s", _name(key), version, connection.peer)
            self._failed(connection, error, _name(key))
        if answer is not None:
            self._note(connection.key, self._mono_ns() - since_ns)
        return answer

    def answered(self, slot: Slot) -> None:
        """An answer that came later is there."""
        self._note(slot.key, self._mono_ns() - slot.since_ns)

    def spawn(self, connection: Connection, work: Work, what: str) -> None:
        """Runs what has to wait, and puts what it returns into the place that is kept from now on; None ends the
        connection. When the connection ends, the work is cancelled."""
        slot = connection.reserve()
        task = asyncio.ensure_future(self._run(connection, slot, work, what))
        slot.drop = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def hurry(self) -> None:
        """The broker stops: fetches that wait are answered with what there is, who waits for events is let go."""
        self.fetches.hurry()
        for connection in list(self._waiting):
            connection.close()

    def tidy(self) -> None:
        """Forgets partitions that are led here no more; called now and then."""
        self._produces.tidy()
        self.fetches.tidy()

    def guard(self, connection: Connection, call: Callable[[], None], what: str) -> None:
        """Goes on with a request in a turn of its own; the boundary of every such turn."""
        try:
            call()
        except Exception as error:
            log.exception("request failed api=%s peer=%s", what, connection.peer)
            self._failed(connection, error, what)

    def _failed(self, connection: Connection, error: Exception, what: str) -> None:
        if isinstance(error, Broken):
            self._site.node.broke(error)
        connection.refuse("fault", what)

    async def close(self) -> None:
        """Ends all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.fetches.close()

    def _begin(self, connection: Connection, frame: memoryview) -> None:
        header = request_header(frame)
        api = header.api
        if api is None:
            connection.refuse("unsupported", f"api {header.key} version {header.version}")
            return
        if len(frame) > api.request_bytes:
            connection.refuse("frame_size", f"{api.name} of {len(frame)} bytes")
            return
        self._site.requests[api.key] += 1
        request = decode(api.request, header.version, frame, header.position)
        call = Call(
            request, header.version, header.correlation_id, header.client_id or "", connection.host, connection.listener
        )
        work = partial(self._handle, call, api.key)
        self.spawn(connection, partial(self._wait, connection, work) if api.waits else work, api.name)

    async def _wait(self, connection: Connection, work: Work) -> Sequence[Part] | None:
        self._waiting[connection] = None
        try:
            return await work()
        finally:
            self._waiting.pop(connection, None)

    async def _handle(self, call: Call[Any], key: int) -> Sequence[Part]:
        await self._site.turns.wait()
        response = await self._handler(key)(self._site, call)
        await self._site.turns.wait()
        head = response_header(key, call.version, call.correlation_id)
        body = response if isinstance(response, bytes) else encode(response, call.version)
        return [b"".join((_SIZE.pack(len(head) + len(body)), head, body))]

    async def _run(self, connection: Connection, slot: Slot, work: Work, what: str) -> None:
        """The boundary of every task."""
        try:
            parts = await work()
        except Exception as error:
            log.exception("request failed api=%s peer=%s", what, connection.peer)
            self._failed(connection, error, what)
            return
        if parts is None:
            connection.close()
        else:
            connection.answer(slot, parts)

    def _handler(self, key: int) -> Handle:
        handle = self.handlers.get(key)
        if handle is None:
            module = import_module(f"tiered_api.kafka.server.handlers.{ALL[key].module}")
            handle = self.handlers[key] = module.handle
        return handle


def _name(key: int) -> str:
    return ALL[key].name if key in ALL else str(key)
