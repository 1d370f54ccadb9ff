"""The trace of requests: their phases from the whole request to the reply.

While no request is traced, connections do not pass through here. A request that a client of HTTP makes is traced at the
broker that leads the partition, if another broker has sent it there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tiered.broker.request_traces import RequestTraces
from tiered.metrics import Exemplar
from tiered.ports import Clock
from tiered.request_trace import APPEND, HANDLE, READ, REPLY, TRACE, WAIT, RequestTrace
from tiered_api.kafka.protocol.apis import ALL_APIS
from tiered_api.kafka.server.metering import HEADER_BYTES, Dispatched, MeteredConnection
from tiered_api.kafka.server.slots.latencies import Latencies
from tiered_api.kafka.server.slots.response_slot import SlotCharge
from tiered_api.kafka.server.slots.socket_writer import Part

PRODUCE, FETCH, JOIN_GROUP, SYNC_GROUP = 0, 1, 11, 14
LONG_POLLS = frozenset((FETCH, JOIN_GROUP, SYNC_GROUP))
"""Requests of clients that wait for records, or for the members of a group."""
FIRST_PHASES = {PRODUCE: APPEND, FETCH: READ}
"""The phase in the turn that brings the request. From then on until its reply the request waits. The phases in that
time say for what: followers, an fsync, the bucket, a turn."""
CLIENT_ID_CHARACTERS = 100
"""A longer client id is cut: a trace keeps no long one."""


class TracedSlot:
    """Ends the trace of a request whose reply comes later. Charges the request as `charge` does, if it has one."""

    __slots__ = ("_charge", "_connection", "_end", "_is_long_poll", "_since_ns", "_trace")

    def __init__(
        self, end: Callable[[bool], object], trace: RequestTrace, connection: MeteredConnection,
        charge: SlotCharge | None, is_long_poll: bool,
    ) -> None:  # fmt: skip
        self._end = end
        self._trace = trace
        self._connection = connection
        self._charge = charge
        self._since_ns = trace.mono_ns()
        self._is_long_poll = is_long_poll

    def spend(self, spent_ns: int) -> None:
        """Charges time of the event loop that a step of the request took."""
        if self._charge is not None:
            self._charge.spend(spent_ns)

    def find_wait(self) -> Awaitable[None] | None:
        """Returns the wait before the next step of the request, for the quota of its client; None if there is none."""
        return None if self._charge is None else self._charge.find_wait()

    def settle(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Charges the client. Returns the reply with the pause of the client. The trace of a connection that has closed
        ends here: nobody gets its reply."""
        trace = self._trace
        if self._is_long_poll and len(trace.phases) == 1:  # it waited for nothing but what the client waits for
            trace.idle_ns = trace.mono_ns() - self._since_ns
        trace.add(WAIT, self._since_ns)
        if self._charge is not None:
            parts = self._charge.settle(parts)
        if self._connection.closed:
            self._end(False)
        return parts

    def charge_sending(self, send: Callable[[], object]) -> None:
        """Sends the reply, and charges the time of it. The trace ends with it."""
        trace, since_ns = self._trace, self._trace.mono_ns()
        if self._charge is None:
            send()
        else:
            self._charge.charge_sending(send)
        trace.add(REPLY, since_ns)
        self._end(True)


class Tracing:
    """Serves requests as `serve` does, and traces them."""

    def __init__(self, traces: RequestTraces, latencies: Latencies, clock: Clock) -> None:
        self._traces = traces
        self._latencies = latencies
        self._clock = clock
        self.serve: Dispatched | None = None
        """Serves a request without a trace."""

    def handle_request(
        self,
        connection: MeteredConnection,
        frame: memoryview,
        api_key: int,
        version: int,
        correlation_id: int,
        body: int,
    ) -> Sequence[Part] | None:
        """Handles a request, as `Dispatch.handle_request` does."""
        assert self.serve is not None
        client_id = bytes(frame[HEADER_BYTES : min(body, HEADER_BYTES + CLIENT_ID_CHARACTERS)])
        trace = RequestTrace(
            self._clock.mono_ns, self._clock.wall_ms(), ALL_APIS[api_key].name if api_key in ALL_APIS else str(api_key),
            version, len(frame), client_id.decode(errors="replace"), str(connection.caller.principal), connection.peer,
        )  # fmt: skip
        before, token = connection.pending, TRACE.set(trace)
        try:
            reply = self.serve(connection, frame, api_key, version, correlation_id, body)
        finally:
            TRACE.reset(token)
        trace.add(FIRST_PHASES.get(api_key, HANDLE), trace.began_ns)
        if reply is None and connection.pending > before and not connection.closed:
            slot, api = connection.newest_slot, ALL_APIS.get(api_key)
            is_long_poll = api_key in LONG_POLLS or (api is not None and api.is_long_poll)
            slot.charge = TracedSlot(
                partial(self._end, trace, slot.api_key), trace, connection, slot.charge, is_long_poll
            )
        else:
            self._end(trace, connection.api_key, reply is not None)
        return reply

    def _end(self, trace: RequestTrace, api_key: int, has_reply: bool) -> None:
        """Ends a trace, once. A request without a reply is in no bucket of the latencies."""
        if trace.end_ns < 0:
            trace.end_ns = trace.mono_ns()
            if self._traces.add(trace) and has_reply:
                self._latencies.keep_exemplar(api_key, Exemplar(trace.trace_id, trace.total_ns, self._clock.wall_ms()))
