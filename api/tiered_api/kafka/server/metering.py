"""The charge of requests against client quotas, and the pauses that follow (KIP-219).

A reply leaves at once and names the pause. Then the broker reads nothing from the connection until the pause is over.
A Produce on another connection of the same client is held until the pause ends. Otherwise a client could open
connections and write one request on each. For the same reason all requests wait while their client has used more than
its share of the time (`quota_lines`). A request in progress waits too, between two of its steps.
While no client has a quota, connections do not pass through here: they have the dispatch itself.

Produce is charged by the bytes of the request, Fetch by those of the reply. A Fetch of a client that is over its quota
gets no records, as in Kafka. The same holds for requests to the bucket, which count for the client whose request
sends them. Bytes that requests write to internal topics have a count of their own, and wait as Produce does. The time
of a request is that of the event loop, without its waits. Brokers are exempt once they have proved themselves, by a
login or by a credential.

A request that a broker sends for a client of HTTP costs that client its time here, its requests to the bucket, and its
writes to internal topics. HTTP charges the bytes of records. A read of a client that is over a quota is refused with
the pause, and HTTP names the pause to its client. The connection goes on: it has requests for other clients too.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from struct import Struct, calcsize
from typing import NamedTuple, Protocol

from tiered.access.client_quotas import ClientLimits, ClientQuotas
from tiered.errors import Code
from tiered.object_store.metered import paid_by
from tiered.ports import FileSlice
from tiered.quotas.precedence import QuotaTable
from tiered.quotas.rate import SampledRate
from tiered.quotas.validation import NAME_MAX
from tiered.security.principal import BROKER
from tiered.spending import written_by
from tiered_api.kafka.protocol.apis import ALL_APIS, INTER_BROKER_APIS
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.headers import encode_response_header
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.list_offsets import ListOffsetsResponse
from tiered_api.kafka.protocol.primitives import STRUCT_CODES
from tiered_api.kafka.protocol.schema import field_specs
from tiered_api.kafka.server.acting import ActingConnection
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.fetch import frames as fetch_frames
from tiered_api.kafka.server.fetch import replica_frames
from tiered_api.kafka.server.quota_lines import QuotaLines
from tiered_api.kafka.server.slots.response_slot import ResponseSlot
from tiered_api.kafka.server.slots.socket_writer import Part

PRODUCE, FETCH, LIST_OFFSETS = 0, 1, 2
CREDENTIAL_APIS = frozenset((18, 24, 27))
"""ApiVersions, AddPartitionsToTxn and WriteTxnMarkers: those that brokers send first on a connection, beside their own
APIs."""
INTERNAL_WRITES = frozenset((8, 11, 13, 14, 22, 24, 25, 26, 28, 47))
"""APIs of groups and transactions: OffsetCommit, JoinGroup, LeaveGroup, SyncGroup, InitProducerId, AddPartitionsToTxn,
AddOffsetsToTxn, EndTxn, TxnOffsetCommit and OffsetDelete write to internal topics."""
CLIENT_ID_BYTES = 4 * NAME_MAX
"""The limits of a longer client id are found anew for each request: a connection keeps no long one."""
NO_REPLICA_ID_FROM = 15
LONG_NS = 10_000_000
"""A request that took so long waits between its steps. A shorter one ends, and its reply has the pause."""
HELD_SECONDS = 60.0
"""A request in a line waits until its turn: the connection ends earlier than this."""
HEADER_BYTES = 10
"""Bytes of a request before its client id."""

_INT = Struct(">i")
_NO_TAGS_END = bytes(5)
"""End of a flexible Produce reply without tagged fields of its own: the throttle time, then their number."""
AT_THE_END = -2
"""Stands for the place of a throttle time that is the last field of a reply."""

Dispatched = Callable[..., Sequence[Part] | None]


class MeteredConnection(ActingConnection, Protocol):
    """A connection whose requests count against quotas."""

    closed: bool
    """True once the connection has ended."""
    is_broker: bool
    """True if a request has proved by its credential that a broker sends the requests."""
    meter: Meter | None
    """The limits of the last client id on the connection."""

    @property
    def pending(self) -> int:
        """Number of requests whose replies are missing."""

    @property
    def newest_slot(self) -> ResponseSlot:
        """Place of the reply that leaves last, while any is pending."""

    def mute(self, seconds: float) -> None:
        """Reads nothing for so long."""

    def hold_request(self, frame: memoryview, seconds: float, on_end: Callable[[], object] | None = None) -> None:
        """Handles a request that just arrived after so long, or once the quotas change. `on_end` is called then, or
        when the connection ends."""

    def serve_held(self) -> None:
        """Handles the request that waits, now."""


class Meter:
    """The limits of one client, as long as the table of quotas and the caller are the same."""

    __slots__ = ("caller", "client_id", "limits", "produced", "table")

    def __init__(self, table: QuotaTable, caller: object, client_id: bytes, limits: ClientLimits | None) -> None:
        self.table = table
        self.caller = caller
        self.client_id = client_id
        self.limits = limits
        self.produced: SampledRate | None = None
        """Rate with bytes that are counted ahead, if nothing but its bytes counts of a Produce request."""


class Charge:
    """One request that is served now, and what it has used so far."""

    __slots__ = (
        "_charged_ns",
        "_lines",
        "_produce_pause_ms",
        "_quotas",
        "_table",
        "api_key",
        "connection",
        "limits",
        "size",
        "version",
    )

    def __init__(
        self, quotas: ClientQuotas, connection: MeteredConnection, limits: ClientLimits, api_key: int, version: int,
        size: int, lines: QuotaLines | None = None,
    ) -> None:  # fmt: skip
        self._quotas = quotas
        self._table = quotas.table
        self._lines = lines
        self.connection = connection
        self.limits = limits
        self.api_key = api_key
        self.version = version
        self.size = size
        self._produce_pause_ms = 0
        self._charged_ns = 0

    def spend(self, spent_ns: int) -> None:
        """Charges the time of a step of the request at once, so that other requests of the client find it."""
        limit = self.limits.requests
        if spent_ns and limit is not None and (self.connection.is_acting or not self.connection.is_broker):
            self._charged_ns += spent_ns
            self._quotas.charge_request_time(limit, spent_ns)

    def find_wait(self) -> Awaitable[None] | None:
        """Returns the wait before the next step, None if there is none. Those of a broker's connection do not wait:
        replies to other clients leave behind this one. Nor do those that began under other quotas."""
        limit, lines = self.limits.requests, self._lines
        if limit is None or lines is None or self._table is not self._quotas.table or self._charged_ns < LONG_NS:
            return None
        if self.connection.is_acting or self.connection.is_broker:
            return None
        return lines.find_wait(self, limit)

    def charge_produced(self) -> None:
        """Charges the records of a Produce request once: before the reply, because the client may leave meanwhile."""
        limit, size = self.limits.produced, self.size
        if self.api_key == PRODUCE and limit is not None and size:
            self.size = 0
            self._produce_pause_ms = self._quotas.record(limit, size)

    def settle(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Charges the client, and mutes its connection if it is over a quota. Returns the reply with the pause."""
        quotas, limits = self._quotas, self.limits
        if limits.requests is not None and self._lines is not None:
            self._lines.end(self, limits.requests)
            self._lines = None
        if self.connection.is_acting or self.connection.is_broker:
            return parts
        pause_ms = 0 if self.api_key in (PRODUCE, FETCH) else read_throttle_ms(self.api_key, self.version, parts)
        self.charge_produced()
        pause_ms = max(pause_ms, self._produce_pause_ms)
        first = parts[0] if parts else None
        if self.api_key == FETCH and limits.fetched is not None and first and not isinstance(first, FileSlice):
            fetch_pause_ms = quotas.find_pause(limits.fetched)
            if fetch_pause_ms > 0:  # others of the client waited with it for the same records
                correlation_id = _INT.unpack_from(first, 4)[0]
                parts = fetch_frames.encode_response(self.version, correlation_id, (), 0)
                pause_ms = max(pause_ms, fetch_pause_ms)
        if self.api_key == FETCH and limits.fetched is not None:
            size = sum(each.length if isinstance(each, FileSlice) else len(each) for each in parts)
            pause_ms = max(pause_ms, quotas.record(limits.fetched, size))
        pause_ms = max(pause_ms, quotas.record_request_time(limits.requests, 0))
        written = limits.written if self.api_key in INTERNAL_WRITES else None
        stored = limits.stored if self.api_key != PRODUCE else None
        pause_ms = max(pause_ms, quotas.find_pause(written, stored))
        return _pause(self.connection, self.api_key, self.version, parts, pause_ms)

    def charge_sending(self, send: Callable[[], object]) -> None:
        """Sends the reply, and charges the time of it. The pause follows at the next request."""
        limit = self.limits.requests
        if limit is None or (self.connection.is_broker and not self.connection.is_acting):
            send()
            return
        begun_ns = self._quotas.mono_ns()
        send()
        self.spend(self._quotas.mono_ns() - begun_ns)


class MeteredRequest(NamedTuple):
    """One request of a client that has quotas, as it came."""

    connection: MeteredConnection
    limits: ClientLimits
    frame: memoryview
    api_key: int
    version: int
    correlation_id: int
    body: int
    """Position of the end of the header."""


class Metering:
    """Serves requests as the dispatch does, and charges them."""

    def __init__(self, context: KafkaContext, dispatch: Dispatched) -> None:
        self._context = context
        self._quotas = context.broker.client_quotas
        self._mono_ns = context.clock.mono_ns
        self._dispatch = dispatch
        self._lines = QuotaLines(get_running_loop(), context.clock, self._quotas)
        self._quotas.subscribe(self._lines.clear)

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
        size, meter = len(frame) + 4, connection.meter
        if (
            api_key == PRODUCE
            and meter is not None
            and (rate := meter.produced) is not None
            and rate.spare >= size
            and meter.table is self._quotas.table
            and meter.caller is connection.caller
            and meter.client_id == frame[HEADER_BYTES:body]
        ):  # the usual case: each step of what follows costs a part of such a request
            rate.spare -= size
            return self._dispatch(connection, frame, api_key, version, correlation_id, body)
        limits = self._find_limits(connection, frame[HEADER_BYTES:body])
        if limits is None or (connection.is_broker and not connection.is_acting):
            return self._dispatch(connection, frame, api_key, version, correlation_id, body)
        if connection.is_acting:  # HTTP charges the bytes of records
            limits = limits._replace(produced=None, fetched=None)
        request = MeteredRequest(connection, limits, frame, api_key, version, correlation_id, body)
        if self._hold_over_quota(request):
            return None
        refusal = self._refuse_read(request)
        return self._serve(request) if refusal is None else refusal

    def _hold_over_quota(self, request: MeteredRequest) -> bool:
        """Holds a request whose client is over a quota that another connection of it would evade. True if it is held,
        or the connection ended. Requests of HTTP are not held: HTTP held its client."""
        connection, limits, frame, api_key, version, _, _ = request
        if connection.is_acting:
            return False
        if (
            limits.requests is not None
            and self._lines.must_wait(connection, limits.requests)
            and not _may_be_broker(frame, api_key, version)
        ):
            connection.hold_request(frame, HELD_SECONDS, partial(self._lines.remove, connection, limits.requests))
            if not connection.closed:
                self._lines.append(connection, limits.requests)
            return True
        written = limits.written if api_key in INTERNAL_WRITES else None
        pause_ms = self._quotas.find_pause(limits.produced if api_key == PRODUCE else written)
        if pause_ms > 0:
            connection.hold_request(frame, pause_ms / 1000)
        return pause_ms > 0

    def _refuse_read(self, request: MeteredRequest) -> Sequence[Part] | None:
        """Returns the reply to a read whose client is over a quota; None if the request may go on. Then a Fetch asks
        for no more than the quota of a window."""
        connection, limits, frame, api_key, version, correlation_id, body = request
        fetched, stored = limits.fetched, limits.stored
        if connection.is_acting:
            is_read = api_key in (FETCH, LIST_OFFSETS)
            pause_ms = self._quotas.find_pause(stored, limits.requests) if is_read else 0
            return _refuse_acting_read(api_key, version, correlation_id, pause_ms) if pause_ms > 0 else None
        if api_key != FETCH or (fetched is None and stored is None):
            return None
        if not 4 <= version <= 18 or _may_be_follower(frame, version):
            return None
        pause_ms = self._quotas.find_pause(stored, fetched)
        if pause_ms > 0:
            empty = fetch_frames.encode_response(version, correlation_id, (), 0)
            return _pause(connection, FETCH, version, empty, pause_ms)
        if fetched is not None:
            limit_fetch(frame, version, body, self._quotas.window_bytes(fetched))
        return None

    def _serve(self, request: MeteredRequest) -> Sequence[Part] | None:
        """Dispatches a request, and charges what it uses: now, or with the reply that comes later."""
        connection, limits, frame, api_key, version, correlation_id, body = request
        payer = None if limits.stored is None else partial(self._quotas.record, limits.stored, 1)
        written = None
        if limits.written is not None and api_key in INTERNAL_WRITES:
            written = partial(self._quotas.record, limits.written)
        is_timed, is_acting = limits.requests is not None, connection.is_acting
        before, since_ns = connection.pending, self._mono_ns() if is_timed else 0
        with paid_by(payer), nullcontext() if written is None else written_by(written):
            reply = self._dispatch(connection, frame, api_key, version, correlation_id, body)
        if connection.is_broker and not is_acting:
            return reply
        if api_key == PRODUCE and reply is not None and not is_timed:
            # The usual case, without an object for the charge: that costs as much as the rest of it.
            limit = limits.produced
            pause_ms = 0 if limit is None else self._quotas.record(limit, len(frame) + 4)
            if not pause_ms:
                self._count_ahead(connection, limits)
            return _pause(connection, PRODUCE, version, reply, pause_ms) if pause_ms else reply
        charge = Charge(self._quotas, connection, limits, api_key, version, len(frame) + 4, self._lines)
        if is_timed:
            charge.spend(self._mono_ns() - since_ns)
        if reply is not None:
            return charge.settle(reply)
        if connection.pending > before:
            charge.charge_produced()
            if api_key == PRODUCE and not is_timed:
                self._count_ahead(connection, limits)
            connection.newest_slot.charge = charge
        else:
            charge.settle(())  # acks=0, or the connection has ended
        return None

    def _count_ahead(self, connection: MeteredConnection, limits: ClientLimits) -> None:
        """Counts bytes of the next Produce requests of a client, if nothing but its bytes counts of them."""
        meter = connection.meter  # that of an earlier client id, if this one is too long to be kept
        if limits.produced is not None and limits.stored is None and meter is not None and meter.limits is limits:
            meter.produced = self._quotas.count_ahead(limits.produced)

    def _find_limits(self, connection: MeteredConnection, client_id: memoryview) -> ClientLimits | None:
        """Returns the limits of the client that a request names; None if it has none."""
        meter = connection.meter
        if (
            meter is None
            or meter.table is not self._quotas.table
            or meter.client_id != client_id
            or meter.caller is not connection.caller
        ):
            meter = self._make_meter(connection, bytes(client_id))
        return meter.limits

    def _make_meter(self, connection: MeteredConnection, client_id: bytes) -> Meter:
        caller, limits = connection.caller, None
        if caller.principal.kind != BROKER:
            named = caller.client_id if connection.is_acting else client_id.decode(errors="replace")
            limits = self._quotas.find_limits(caller.principal.name, named)
        meter = Meter(self._quotas.table, caller, client_id, limits)
        if len(client_id) <= CLIENT_ID_BYTES:
            connection.meter = meter
        return meter


def _refuse_acting_read(api_key: int, version: int, correlation_id: int, pause_ms: int) -> Sequence[Part]:
    """Returns the reply to a read of a client that is over a quota."""
    response: FetchResponse | ListOffsetsResponse
    if api_key == FETCH:
        response = FetchResponse(error_code=Code.THROTTLING_QUOTA_EXCEEDED.number)
    else:
        response = ListOffsetsResponse()
    response.throttle_time_ms = min(pause_ms, 2**31 - 1)
    head, data = encode_response_header(api_key, version, correlation_id), encode(response, version)
    return [b"".join((_INT.pack(len(head) + len(data)), head, data))]


def _pause(
    connection: MeteredConnection, api_key: int, version: int, parts: Sequence[Part], pause_ms: int
) -> Sequence[Part]:
    """Mutes a connection for a pause. Returns the reply, which names it."""
    if pause_ms <= 0:
        return parts
    connection.mute(pause_ms / 1000)
    return with_throttle_ms(api_key, version, parts, min(pause_ms, 2**31 - 1))


def _may_be_broker(frame: memoryview, api_key: int, version: int) -> bool:
    """True if the dispatch may find that a broker sent a request. A broker must not wait for the quota of clients. If
    it was none, it is charged, and its connection pauses."""
    if api_key == FETCH:
        return _may_be_follower(frame, version)
    return api_key in CREDENTIAL_APIS or api_key in INTER_BROKER_APIS


def _may_be_follower(frame: memoryview, version: int) -> bool:
    """True if the dispatch may find that a follower sent a Fetch. If it does not find so, the Fetch is charged."""
    return version == replica_frames.VERSION and replica_frames.is_replica_fetch(frame)


def limit_fetch(frame: memoryview, version: int, body: int, most: int) -> None:
    """Lowers `max_bytes` and `min_bytes` of a Fetch in its frame. So one reply has no more than the quota of a window,
    as in Kafka; only the first batch of a reply may be larger."""
    at = body + (8 if version >= NO_REPLICA_ID_FROM else 12)
    if version >= fetch_frames.FLEXIBLE_FROM:
        if len(frame) <= body or frame[body]:
            return  # tagged fields in the header, which no client sends
        at += 1
    if len(frame) < at + 4:
        return
    for place in (at, at - 4):
        if _INT.unpack_from(frame, place)[0] > most:
            _INT.pack_into(frame, place, most)


@lru_cache(512)
def _throttle_at(api_key: int, version: int) -> int:
    """Returns the position of the throttle time in a reply, -1 if fields of unknown size stand before it, and
    `AT_THE_END` if it also is the last field."""
    api = ALL_APIS.get(api_key)
    if api is None or api_key == PRODUCE or version not in api.served_versions:
        return -1
    at = 9 if api.is_flexible(version) else 8
    rows = [row for row in field_specs(api.response_type) if version in row.versions]
    for row in rows:
        if row.name == "throttle_time_ms":
            return at
        if row.is_array or row.kind not in STRUCT_CODES:
            return AT_THE_END if rows[-1].name == "throttle_time_ms" else -1
        at += calcsize(f">{STRUCT_CODES[row.kind]}")
    return -1


def _find_throttle(api_key: int, version: int, parts: Sequence[Part]) -> int:
    """Returns the position of the throttle time in the first part of a reply, -1 if it has no known place there."""
    at = _throttle_at(api_key, version)
    if at == -1 or not parts or isinstance(parts[0], FileSlice):
        return -1
    size = len(parts[0])
    if at == AT_THE_END:
        is_flexible = ALL_APIS[api_key].is_flexible(version)
        if len(parts) > 1 or (is_flexible and parts[0][-1]):
            return -1
        at = size - (5 if is_flexible else 4)
    return at if size >= at + 4 else -1


def read_throttle_ms(api_key: int, version: int, parts: Sequence[Part]) -> int:
    """Returns the throttle time that a handler has put into a reply; 0 if there is none."""
    at = _find_throttle(api_key, version, parts)
    if at < 0 or isinstance(parts[0], FileSlice):
        return 0
    found: int = _INT.unpack_from(parts[0], at)[0]
    return found


def with_throttle_ms(api_key: int, version: int, parts: Sequence[Part], pause_ms: int) -> Sequence[Part]:
    """Returns a reply with its throttle time. A reply whose throttle time has no fixed place stays as it is."""
    if not parts:
        return parts
    first, *rest = parts
    if isinstance(first, FileSlice):
        return parts
    changed = bytearray(first)
    if api_key == PRODUCE:
        is_flexible = ALL_APIS[PRODUCE].is_flexible(version)
        if rest or (is_flexible and changed[-5:] != _NO_TAGS_END):
            return parts
        at = len(changed) - (5 if is_flexible else 4)
    else:
        at = _find_throttle(api_key, version, parts)
        if at < 0:
            return parts
    _INT.pack_into(changed, at, pause_ms)
    return [bytes(changed), *rest]
