"""The charge of HTTP requests against client quotas: 429 with Retry-After for a client over its quota, slow streams.

The entity is the user of the login and the client id in the header `X-Client-Id`. Records that are written count by the
bytes of the body, records that are read by the bytes of the response. The time of a request is that of its handler on
the event loop, without waits, that of taking its body apart, and the CPU time of threads that decompress, parse or
render for it. A body is charged while it comes: its reading pauses while the client is over its quota of time.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol, TypeVar

from tiered.access.client_quotas import NO_LIMITS, ClientLimits, ClientQuotas
from tiered.errors import Refused
from tiered.quotas.precedence import QuotaTable
from tiered.security.principal import Caller
from tiered_api.http.exchange.errors import HttpError, OverQuota

T = TypeVar("T")

CLIENT_ID = "X-Client-Id"
CLIENT_ID_MAX = 255
WRITES = frozenset(
    (
        "commit_transaction",
        "v2_produce_to_partition",
        "v2_produce_to_topic",
        "v3_produce_batch",
        "v3_produce_records",
        "write_batches",
    )
)
"""Operations that write records."""
READS = frozenset(("read_records", "v2_read_consumer"))
"""Operations that read records."""
STREAMED = frozenset(("read_records", "v3_produce_records"))
"""Operations that may be streams, which may last a day."""
UNMETERED = frozenset(("get_node", "healthz", "metrics"))
"""Operations for operators and probes, which no quota refuses."""
NAP_SECONDS = 15.0
"""A stream that is slowed looks at the quotas again after this time."""


class MeteredStream(Protocol):
    """A request whose response may take long."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection; None once it is lost."""


class HttpMeter:
    """The limits of the client of one request, and what was charged so far. A stream outlives changes of quotas, so
    the limits are those of the quotas in force."""

    def __init__(self, quotas: ClientQuotas, user: str, client_id: str) -> None:
        self._quotas = quotas
        self._user = user
        self._client_id = client_id
        self._table: QuotaTable | None = None
        self._known_limits = NO_LIMITS
        self._spent_ns = 0
        """Time of the event loop and of threads that was not charged yet."""
        self._charged = 0
        """Bytes of a stream that were charged as they came."""

    @property
    def _limits(self) -> ClientLimits:
        """The limits now."""
        if self._table is not self._quotas.table:
            self._table = self._quotas.table
            self._known_limits = self._quotas.find_limits(self._user, self._client_id) or NO_LIMITS
        return self._known_limits

    @property
    def has_client_id(self) -> bool:
        """True if the client id of the request decides which time or which requests to the bucket count together."""
        requests, stored = self._limits.requests, self._limits.stored
        return bool((requests is not None and requests.client_id) or (stored is not None and stored.client_id))

    def spend(self, spent_ns: int) -> None:
        """Counts time of the event loop or of threads. The next charge has it."""
        self._spent_ns += spent_ns

    def check(self, operation: str) -> None:
        """Raises `HttpError` 429 if the client is over a quota that the operation counts against."""
        pause_ms = self.find_pause_ms(operation)
        if pause_ms > 0:
            raise OverQuota(pause_ms)

    def charge_mutations(self, count: int) -> None:
        """Charges changes of metadata. Raises `HttpError` 429 while the client has a debt (KIP-599)."""
        limit = self._limits.mutations
        if limit is None:
            return
        try:
            self._quotas.charge_mutations(limit, count, is_strict=True)
        except Refused:
            raise OverQuota(self._quotas.find_mutation_pause(limit)) from None

    def charge(self, operation: str, received: int, sent: int) -> None:
        """Charges the time, and the bytes of a body and of a whole response, without what a stream has charged
        already."""
        self._record(operation, (received if operation in WRITES else sent) - self._charged)

    async def pace(self, operation: str, count: int, stream: MeteredStream) -> float:
        """Charges bytes of a stream. Returns after the pause that follows, or sooner: with the seconds that are left.

        0 means that the stream may go on.
        """
        self._charged += count
        self._record(operation, count)
        return await self.rest(operation, stream)

    async def pace_body(self, stream: MeteredStream) -> None:
        """Charges the time of a body so far. Returns when the client is within its quota of time, or is lost. Nothing
        is read meanwhile, so the client has to wait."""
        self._record_time()
        while (limit := self._limits.requests) is not None and stream.transport is not None:
            pause_seconds = self._quotas.find_pause(limit) / 1000
            if pause_seconds <= 0:
                return
            await asyncio.sleep(min(pause_seconds, NAP_SECONDS))

    async def rest(self, operation: str, stream: MeteredStream) -> float:
        """Waits for the pause of the client, at most `NAP_SECONDS`. Returns the seconds that are left."""
        pause_seconds = self.find_pause_ms(operation) / 1000
        if pause_seconds <= 0 or stream.transport is None:
            return 0
        await asyncio.sleep(min(pause_seconds, NAP_SECONDS))
        return max(0.0, self.find_pause_ms(operation) / 1000)

    def find_pause_ms(self, operation: str) -> int:
        """Returns the pause of the client before an operation; 0 if it may go on."""
        limits = self._limits
        if operation in WRITES:
            return self._quotas.find_pause(limits.requests, limits.written, limits.produced)
        other = limits.fetched if operation in READS else limits.written
        return self._quotas.find_pause(limits.requests, limits.stored, other)

    def charge_written(self, count: int) -> None:
        """Charges bytes that the request writes to an internal topic."""
        self._quotas.record(self._limits.written, count)

    def charge_store_request(self) -> None:
        """Charges a request to the bucket."""
        self._quotas.record(self._limits.stored, 1)

    def _record_time(self) -> None:
        spent_ns, self._spent_ns = self._spent_ns, 0
        if spent_ns:
            self._quotas.record_request_time(self._limits.requests, spent_ns)

    def _record(self, operation: str, count: int) -> None:
        self._record_time()
        if count > 0 and operation in WRITES:
            self._quotas.record(self._limits.produced, count)
        elif count > 0 and operation in READS:
            self._quotas.record(self._limits.fetched, count)


class BackgroundMeter(HttpMeter):
    """The spender of work that goes on between the requests of a client. It charges each time at once."""

    def spend(self, spent_ns: int) -> None:
        """Charges time of the event loop or of threads."""
        super().spend(spent_ns)
        self._record_time()


class HttpSubmitter(NamedTuple):
    """The caller of a request that changes metadata, and its meter if it has a quota."""

    caller: Caller
    meter: HttpMeter | None

    def admit_changes(self, count: int) -> None:
        """Charges changes. Raises `HttpError` 429 while the client has a debt."""
        if self.meter is not None and count:
            self.meter.charge_mutations(count)

    def charge_time(self, spent_ns: int) -> None:
        """Charges time of the event loop."""
        if self.meter is not None:
            self.meter.spend(spent_ns)


def find_meter(quotas: ClientQuotas, operation: str, user: str, client_id: str) -> HttpMeter | None:
    """Returns the meter of a client; None if no client has a quota, and none can get one before the request ends."""
    if operation in UNMETERED:
        return None
    has_quotas = quotas.table.has_client_quotas
    if has_quotas and len(client_id) > CLIENT_ID_MAX:
        raise HttpError(400, f"{CLIENT_ID} has {CLIENT_ID_MAX} characters at most")
    return HttpMeter(quotas, user, client_id) if has_quotas or operation in STREAMED else None
