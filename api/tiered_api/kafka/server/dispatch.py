"""The dispatch of requests to handlers.

Produce, Fetch and ApiVersions run at once, every other API in a task of its own. A task costs as much as a small
request. So a handler that seldom waits also has a function that replies without a task.

It is the outermost error boundary: a handler that fails ends its connection, not the broker.

Handlers are modules of `handlers/`, named after their API, with `async def handle(context, call)`, which returns the
reply as a message or as bytes. `handle_now(context, call)`, if there is one, returns the reply if it is there without a
wait. Otherwise it returns None and has no effect. The modules are imported on first use, so that a start imports none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from struct import Struct
from typing import Any, Protocol

from tiered.errors import InvariantViolation
from tiered.quotas.timed_steps import TimedSteps
from tiered.security.principal import Caller
from tiered.spending import SPENDER
from tiered.system.turns import CLIENT, FIND_WAIT
from tiered_api.kafka.protocol.apis import ALL_APIS, API_VERSIONS
from tiered_api.kafka.protocol.codec import Malformed, decode, decode_in_pieces, encode, encode_in_pieces, has_pieces
from tiered_api.kafka.protocol.headers import RequestHeader, decode_request_header, encode_response_header
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.acting import TIERED_ACT_FOR, handle_act_for
from tiered_api.kafka.server.context.context import Call, KafkaContext, R
from tiered_api.kafka.server.fetch.fetch_context import FetchConnection
from tiered_api.kafka.server.handlers import api_versions
from tiered_api.kafka.server.handlers.fetch import FetchHandler
from tiered_api.kafka.server.handlers.produce import ProduceConnection, ProduceHandler
from tiered_api.kafka.server.login import SASL_AUTHENTICATE, SASL_HANDSHAKE, LoginHandler
from tiered_api.kafka.server.metering import Dispatched, MeteredConnection, Metering
from tiered_api.kafka.server.rights.verdict import ALLOWED, Verdict, run_without_pause
from tiered_api.kafka.server.slots.latencies import Latencies
from tiered_api.kafka.server.slots.response_slot import RequestConnection, ResponseSlot, Work
from tiered_api.kafka.server.slots.socket_writer import Part
from tiered_api.kafka.server.tracing import Tracing

log = logging.getLogger(__name__)

PRODUCE, FETCH = 0, 1
LARGE_FRAME_BYTES = 4 << 10
"""Size from which a request is decoded in turns with others, and in pieces: those of many connections that arrive
together take the time of a turn."""
SMALL_FRAME_BYTES = 1 << 10
"""Size up to which a request is handled at once, if nothing has to be waited for. It waits for no turn, as a small
Produce request does not."""

Handler = Callable[[KafkaContext, Call[Any]], Awaitable[Message | bytes]]
ImmediateHandler = Callable[[KafkaContext, Call[Any]], Message | None]

_SIZE = Struct(">i")


class DispatchConnection(FetchConnection, ProduceConnection, MeteredConnection, Protocol):
    """The connection of a client, with what any handler uses of it."""

    started_ns: int
    """Time at which the request began, by the monotonic clock."""

    @property
    def pending(self) -> int:
        """Number of earlier requests whose replies are missing."""


class Dispatch:
    """The handlers of one server, and the tasks in which they run."""

    def __init__(self, context: KafkaContext) -> None:
        self._context = context
        latencies = Latencies(context.broker.metrics)
        self._record_latency = latencies.record
        self._mono_ns = context.clock.mono_ns
        self.produce_handler = ProduceHandler(context, self.spawn)
        self.fetch_handler = FetchHandler(context, self.run_guarded)
        self.login_handler = LoginHandler(context, self.spawn)
        self.handlers: dict[int, Handler] = {}
        self._immediate_handlers: dict[int, ImmediateHandler] = {}
        self._metering = Metering(context, self.handle_request)
        self.serve_request: Dispatched = self.handle_request
        """Serves a request. Charges it if any client has a quota, and traces it if an operator wants that."""
        self._traces = context.broker.request_traces
        self._tracing = Tracing(self._traces, latencies, context.clock)
        context.broker.client_quotas.subscribe(self._choose_path)
        self._traces.subscribe(self._choose_path)
        self._choose_path()
        self._tasks: set[asyncio.Task[None]] = set()
        self._long_polls: dict[RequestConnection, None] = {}
        """Connections with a request that waits for an event."""

    def handle_request(
        self,
        connection: DispatchConnection,
        frame: memoryview,
        api_key: int,
        version: int,
        correlation_id: int,
        body: int,
    ) -> Sequence[Part] | None:
        """Handles a request whose fields after the client id begin at `body`. Returns the reply, or None if it comes
        later or never. If the reply comes later, its slot is reserved."""
        connection.api_key = api_key
        connection.started_ns = since_ns = self._mono_ns()
        reply: Sequence[Part] | None = None
        try:
            if api_key == PRODUCE and 3 <= version <= 13:
                reply = self.produce_handler.handle_request(connection, frame, version, correlation_id, body)
            elif api_key == FETCH and 4 <= version <= 18:
                reply = self.fetch_handler.handle_request(connection, frame, version, correlation_id, body)
            elif api_key == API_VERSIONS:
                self._context.requests[api_key] += 1
                reply = [api_versions.encode_response(frame, version, correlation_id, self._context.broker.image)]
            elif api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
                reply = self.login_handler.handle_again(connection, frame)
            elif api_key == TIERED_ACT_FOR:
                reply = handle_act_for(self._context, connection, frame)
            else:
                reply = self._start_handler(connection, frame)
        except Malformed as error:
            connection.refuse("malformed", f"{_api_name(api_key)} version {version}: {error}")
        except Exception as error:
            log.exception("request failed api=%s version=%d peer=%s", _api_name(api_key), version, connection.peer)
            self._on_failure(connection, error, _api_name(api_key))
        if reply is not None:
            self._record_latency(connection.api_key, self._mono_ns() - since_ns)
        return reply

    def handle_expired(
        self,
        connection: DispatchConnection,
        frame: memoryview,
        api_key: int,
        version: int,
        correlation_id: int,
        body: int,
    ) -> Sequence[Part] | None:
        """Handles a request of a connection whose time since its login is over: another login, or nothing."""
        if api_key in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            return self.handle_request(connection, frame, api_key, version, correlation_id, body)
        connection.refuse("login_timeout", "it was used, and did not log in again in time")
        return None

    def _choose_path(self) -> None:
        has_quotas = self._context.broker.client_quotas.table.has_client_quotas
        self._tracing.serve = self._metering.handle_request if has_quotas else self.handle_request
        self.serve_request = self._tracing.handle_request if self._traces.is_on else self._tracing.serve

    def on_response(self, slot: ResponseSlot) -> None:
        """Records the latency of a reply that came later."""
        self._record_latency(slot.api_key, self._mono_ns() - slot.started_ns)

    def spawn(self, connection: RequestConnection, work: Work, what: str) -> None:
        """Runs work in a task, and fills a slot that is reserved now with its result. None closes the connection. When
        the connection closes, the task is cancelled."""
        slot = connection.reserve_slot()
        task = asyncio.get_running_loop().create_task(self._run(connection, slot, work, what))
        slot.on_close = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> None:
        """Completes parked fetches and closes connections that wait for events, because the broker stops."""
        self.fetch_handler.drain()
        for connection in list(self._long_polls):
            connection.close()

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped. The server calls it now and then."""
        self.produce_handler.evict_stale()
        self.fetch_handler.evict_stale()

    def run_guarded(self, connection: RequestConnection, call: Callable[[], None], what: str) -> None:
        """Runs a later step of a request. An error in it ends the connection."""
        try:
            call()
        except Exception as error:
            log.exception("request failed api=%s peer=%s", what, connection.peer)
            self._on_failure(connection, error, what)

    def _on_failure(self, connection: RequestConnection, error: Exception, what: str) -> None:
        if isinstance(error, InvariantViolation):
            self._context.broker.on_invariant_violation(error)
        connection.refuse("fault", what)

    async def close(self) -> None:
        """Cancels all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.fetch_handler.close()

    def _start_handler(self, connection: DispatchConnection, frame: memoryview) -> Sequence[Part] | None:
        begun_ns, header = self._mono_ns(), decode_request_header(frame)
        api = header.api
        if api is None:
            connection.refuse("unsupported", f"api {header.key} version {header.version}")
            return None
        if len(frame) > api.max_request_bytes:
            connection.refuse("frame_size", f"{api.name} of {len(frame)} bytes")
            return None
        self._context.requests[api.key] += 1
        if len(frame) >= LARGE_FRAME_BYTES:
            held = connection.retain_request(frame)
            self.spawn(connection, partial(self._handle_large, connection, connection.caller, held, header), api.name)
            return None
        call = _make_call(
            connection, connection.caller, header, decode(api.request_type, header.version, frame, header.position)
        )
        verdict: Verdict | None = ALLOWED
        if self._context.broker.authorization.authorizer is not None:
            verdict = self._check_now(call, api.name) if len(frame) <= SMALL_FRAME_BYTES else None
        if verdict is not None and verdict.response is not None:
            return self._encode_response(call, api.key, verdict.response, begun_ns)
        handle_now = self._immediate_handlers.get(api.key)
        # An earlier request of this client that has not ended comes first.
        if (
            handle_now is not None
            and verdict is not None
            and len(frame) <= SMALL_FRAME_BYTES
            and not connection.pending
        ):
            response = handle_now(self._context, call)
            if response is not None:
                if verdict.finish is not None:
                    run_without_pause(verdict.finish(response))
                return self._encode_response(call, api.key, response, begun_ns)
        work = partial(self._handle, call, api.key, verdict)
        self.spawn(connection, partial(self._run_long_poll, connection, work) if api.is_long_poll else work, api.name)
        return None

    async def _handle_large(
        self, connection: DispatchConnection, caller: Caller, frame: memoryview, header: RequestHeader
    ) -> Sequence[Part] | None:
        """Handles a large request in a task. It is decoded in pieces, in turns with other requests. The connection
        reads no further request meanwhile: it would overtake this one. `caller` is the one of its arrival."""
        assert header.api is not None
        decoding = decode_in_pieces(header.api.request_type, header.version, bytes(frame), header.position)
        try:
            call = _make_call(connection, caller, header, await self._context.turns.run_steps(decoding))
        except Malformed as error:
            connection.refuse("malformed", f"{header.api.name} version {header.version}: {error}")
            return None
        finally:
            del decoding, frame
            connection.release_request()
        is_allowed = self._context.broker.authorization.authorizer is None
        work = partial(self._handle, call, header.key, ALLOWED if is_allowed else None)
        return await (self._run_long_poll(connection, work) if header.api.is_long_poll else work())

    async def _run_long_poll(self, connection: RequestConnection, work: Work) -> Sequence[Part] | None:
        self._long_polls[connection] = None
        try:
            return await work()
        finally:
            self._long_polls.pop(connection, None)

    async def _handle(self, call: Call[Any], key: int, verdict: Verdict | None) -> Sequence[Part]:
        """Handles a request in a task. Without a verdict its rights are checked here, in turns with other requests."""
        begun_ns, turns = self._mono_ns(), self._context.turns
        await turns.wait_turn()
        if verdict is None:
            verdict = await self._rights().check_call(self._context, call, ALL_APIS[key].name)
        if verdict.response is None:
            response = await self._find_handler(key)(self._context, call)
            if verdict.finish is not None:
                await verdict.finish(response)
        else:
            response = verdict.response
        if not isinstance(response, bytes) and has_pieces(response):
            response = await turns.run_steps(encode_in_pieces(response, call.version))
        await turns.wait_turn()
        return self._encode_response(call, key, response, begun_ns)

    def _encode_response(self, call: Call[Any], key: int, response: Message | bytes, begun_ns: int) -> Sequence[Part]:
        head = encode_response_header(key, call.version, call.correlation_id)
        if call.pause_ms and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = call.pause_ms
        body = response if isinstance(response, bytes) else encode(response, call.version)
        log.debug(
            "kafka request handled api=%s version=%d peer=%s client=%.100s bytes=%d ms=%.1f",
            _api_name(key), call.version, call.peer, call.client_id, len(body), (self._mono_ns() - begun_ns) / 1e6,
        )  # fmt: skip
        return [b"".join((_SIZE.pack(len(head) + len(body)), head, body))]

    async def _run(self, connection: RequestConnection, slot: ResponseSlot, work: Work, what: str) -> None:
        """Runs the work of a task; the error boundary of every task."""
        CLIENT.set(connection.turn_share)
        try:
            charge = slot.charge
            if charge is not None:
                SPENDER.set(charge)
                FIND_WAIT.set(charge.find_wait)
            parts = await (work() if charge is None else TimedSteps(work(), charge, self._mono_ns))
        except Exception as error:
            log.exception("request failed api=%s peer=%s", what, connection.peer)
            self._on_failure(connection, error, what)
            return
        if parts is None:
            connection.close()
        else:
            slot.reply(parts)

    def _check_now(self, call: Call[Any], api_name: str) -> Verdict:
        verdict: Verdict = self._rights().check_call_now(self._context, call, api_name)
        return verdict

    def _rights(self) -> Any:
        """Returns the table of rights. It is imported on first use, as handlers are."""
        return import_module("tiered_api.kafka.server.rights.operations")

    def _find_handler(self, key: int) -> Handler:
        handle = self.handlers.get(key)
        if handle is None:
            module = import_module(f"tiered_api.kafka.server.handlers.{ALL_APIS[key].module_name}")
            handle = self.handlers[key] = module.handle
            if hasattr(module, "handle_now"):
                self._immediate_handlers[key] = module.handle_now
        return handle


def _make_call(connection: RequestConnection, caller: Caller, header: RequestHeader, request: R) -> Call[R]:
    return Call(
        request, header.version, header.correlation_id, header.client_id or "", connection.peer, connection.listener,
        caller, connection.on_credential,
    )  # fmt: skip


def _api_name(key: int) -> str:
    return ALL_APIS[key].name if key in ALL_APIS else str(key)
