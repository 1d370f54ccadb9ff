"""The client quotas of this broker: what each entity has used of it, and how long the entity has to wait.

The quotas are those of the image. Use is counted on each broker on its own, as in Kafka. The processes of one machine
count together: each reports its use to the others (`quota_reports`). Without quotas nothing is counted, and nobody is
asked who sends a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import NamedTuple, Protocol

from tiered.config.settings import Settings
from tiered.errors import Code, Refused
from tiered.metadata.image import Image
from tiered.metrics import OTHERS, Metrics
from tiered.networks import network_of
from tiered.peers import QuotaUse
from tiered.ports import Clock
from tiered.quotas.entity import CLIENT_ID, USER, QuotaEntity
from tiered.quotas.precedence import Limit, QuotaTable
from tiered.quotas.rate import SampledRate, TokenBucket
from tiered.quotas.sensors import Sensors
from tiered.quotas.validation import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    NAME_MAX,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    STORE_REQUEST_RATE,
)
from tiered.security.principal import Caller

SHOWN_MAX = 100
"""Most counts by quota and entity in the metrics: those of the entities that were throttled last."""
SHOWN_TEXT_MAX = 100
UNREPORTED_MAX = 2_000
"""Most entities whose use waits for a report. The use of others until then counts on this process alone."""
AHEAD_PART = 100
"""Part of what a quota allows at once that is counted ahead."""
AHEAD_MAX = 4 << 20
"""Most bytes that are counted ahead: few enough that a lower quota does not make the client wait for them."""
LARGE_PART = 20
"""Part of what a quota allows at once from which on use is reported without delay."""
THROTTLED = "The throttling quota has been exceeded."
"""Kafka's text of THROTTLING_QUOTA_EXCEEDED."""


class Submitter(Protocol):
    """The client whose request changes metadata: it pays for the change (KIP-599)."""

    @property
    def caller(self) -> Caller:
        """Its principal and host."""

    def admit_changes(self, count: int) -> None:
        """Charges changes of metadata. Raises the refusal of a client that has to wait."""

    def charge_time(self, spent_ns: int) -> None:
        """Charges the time of the event loop that these changes cost, beside that of the request itself."""


INTERNAL_BYTES = "internal_bytes"
"""Key of what clients write to internal topics, within `producer_byte_rate` but apart from what they produce: a
producer over its quota holds up no commits of its user."""
RATE_QUOTAS = (
    PRODUCER_BYTE_RATE, INTERNAL_BYTES, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONNECTION_CREATION_RATE,
    STORE_REQUEST_RATE,
)  # fmt: skip


class ClientLimits(NamedTuple):
    """The limits of one user with one client id."""

    produced: Limit | None
    fetched: Limit | None
    requests: Limit | None
    mutations: Limit | None
    stored: Limit | None
    written: Limit | None
    """That of the bytes of internal topics."""


NO_LIMITS = ClientLimits(None, None, None, None, None, None)


class ClientQuotas:
    """The quotas in force. `table` is another object after each change of them."""

    def __init__(self, settings: Settings, clock: Clock, metrics: Metrics) -> None:
        self.mono_ns = clock.mono_ns
        self.window_ms = settings.quota_window_size_seconds * 1000
        samples, window_ms = settings.quota_window_num, self.window_ms
        self._full_windows = max(1, samples - 1)
        bucket_samples, bucket_ms = (
            settings.controller_quota_window_num,
            settings.controller_quota_window_size_seconds * 1000,
        )
        self._rates = {
            key: Sensors(lambda bound, now_ms: SampledRate(samples, window_ms, now_ms)) for key in RATE_QUOTAS
        }
        """A table by quota: many client ids under one quota push nobody out of another."""
        self._buckets = Sensors(lambda bound, now_ms: TokenBucket(bucket_samples, bucket_ms, bound, now_ms))
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._on_change: list[Callable[[], object]] = []
        self._has_siblings = settings.processes > 1
        self._unreported: dict[Limit, float] = {}
        self.unreportable = 0
        """Uses that found no room in the next report."""
        self._large_seconds = self._full_windows * self.window_ms / 1000 / LARGE_PART
        self.on_use: Callable[[bool], object] = lambda is_large: None
        """Called when there is something to report. True: a client used a large part of its quota since."""
        rate = settings.tiered_store_request_rate
        self._defaults = {STORE_REQUEST_RATE: rate} if rate else {}
        self.table = QuotaTable({}, self._defaults)
        self._throttled = metrics.counter(
            "tiered_throttled_total",
            "Requests and connections that a client quota delayed or refused.",
            ("quota", "entity"),
        )
        self._shown: dict[tuple[str, str], None] = {}
        """Quotas and entities with a count of their own, the one that was throttled last at the end."""

    def subscribe(self, on_change: Callable[[], object]) -> None:
        """Calls a function after each change of quotas."""
        self._on_change.append(on_change)

    def apply_image(self, image: Image) -> None:
        """Takes the quotas of an image."""
        if image.quotas is self._quotas or image.quotas == self._quotas:
            return
        self._quotas = image.quotas
        self.table = QuotaTable(image.quotas, self._defaults)
        for on_change in self._on_change:
            on_change()

    def find_limits(self, user: str, client_id: str) -> ClientLimits | None:
        """Returns the limits of a client, or None if it has none. A long client id counts by its first `NAME_MAX`
        characters: a request may name anything, and the table of sensors keeps the name."""
        find, client_id = self.table.find_limit, client_id[:NAME_MAX]
        produced = find(PRODUCER_BYTE_RATE, user, client_id)
        limits = ClientLimits(
            produced,
            find(CONSUMER_BYTE_RATE, user, client_id),
            find(REQUEST_PERCENTAGE, user, client_id),
            find(CONTROLLER_MUTATION_RATE, user, client_id),
            find(STORE_REQUEST_RATE, user, client_id),
            None if produced is None else produced._replace(key=INTERNAL_BYTES),
        )
        return None if limits == NO_LIMITS else limits

    # -- the other processes of this machine --------------------------------------------------------------------------

    def take_unreported(self) -> list[QuotaUse]:
        """Returns the use since the last call, for the other processes of this machine."""
        taken, self._unreported = self._unreported, {}
        return [QuotaUse(limit.key, limit.user, limit.client_id, value, limit.bound) for limit, value in taken.items()]

    def count_reported(self, uses: Iterable[QuotaUse]) -> None:
        """Counts use at another process of this machine as that of this one."""
        now_ms = self._now_ms()
        for key, user, client_id, value, bound in uses:
            limit = Limit(bound, user, client_id, key)
            if not (isfinite(value) and isfinite(bound) and bound > 0):
                continue
            if key in self._rates:
                self._find_rate(limit, now_ms).record(value, now_ms)
            elif key == CONTROLLER_MUTATION_RATE:
                self._find_bucket(limit, now_ms).record(value, bound, now_ms)

    def _note_use(self, limit: Limit, value: float) -> None:
        """Adds to the next report."""
        known = self._unreported.get(limit)
        if known is None and len(self._unreported) >= UNREPORTED_MAX:
            self.unreportable += 1
            return
        used = self._unreported[limit] = value if known is None else known + value
        is_large = used > limit.bound * self._large_seconds
        if known is None or is_large:
            self.on_use(is_large)

    # -- use of bytes and time: each returns the pause in ms ----------------------------------------------------------

    def record(self, limit: Limit | None, value: float) -> int:
        """Counts the use of a quota: bytes, or requests to the bucket."""
        if limit is None:
            return 0
        now_ms = self._now_ms()
        rate = self._find_rate(limit, now_ms)
        value, rate.spare = value - rate.spare, 0.0
        rate.record(value, now_ms)
        if self._has_siblings:
            self._note_use(limit, value)
        pause_ms = rate.throttle_ms(limit.bound, now_ms)
        if pause_ms:
            self._count(limit)
        return pause_ms

    def count_ahead(self, limit: Limit) -> SampledRate:
        """Counts some bytes of a client far below its quota before it uses them. The caller takes them from `spare` of
        the returned rate without another call; what is left is given back by the next `record`."""
        now_ms = self._now_ms()
        rate = self._find_rate(limit, now_ms)
        if not rate.spare and rate.is_low(limit.bound):
            ahead = float(min(AHEAD_MAX, self.window_bytes(limit) // AHEAD_PART))
            rate.record(ahead, now_ms)
            if self._has_siblings:
                self._note_use(limit, ahead)
            rate.spare = ahead
        return rate

    def record_request_time(self, limit: Limit | None, spent_ns: int) -> int:
        """Counts time of the event loop. The pause is one window at most, as in Kafka."""
        return min(self.window_ms, self.record(limit, spent_ns * 100 / 1e9))

    def charge_request_time(self, limit: Limit, spent_ns: int) -> None:
        """Counts time of a request that goes on. Its reply has the pause."""
        now_ms = self._now_ms()
        self._find_rate(limit, now_ms).record(spent_ns * 100 / 1e9, now_ms)
        if self._has_siblings:
            self._note_use(limit, spent_ns * 100 / 1e9)

    def find_pause(self, *limits: Limit | None) -> int:
        """Returns the time after which a client is within all of these quotas; 0 if it is now."""
        longest = 0
        for limit in limits:
            rate = None if limit is None else self._rates[limit.key].peek((limit.key, limit.user, limit.client_id))
            if limit is not None and rate is not None:
                longest = max(longest, rate.throttle_ms(limit.bound, self._now_ms()))
        return longest

    def window_bytes(self, limit: Limit) -> int:
        """Returns the bytes that a client may have at once: its quota of all samples but the current one."""
        return max(1, int(min(2**31 - 1, limit.bound * self._full_windows * self.window_ms / 1000)))

    def _find_rate(self, limit: Limit, now_ms: int) -> SampledRate:
        return self._rates[limit.key].find((limit.key, limit.user, limit.client_id), limit.bound, now_ms)

    def _find_bucket(self, limit: Limit, now_ms: int) -> TokenBucket:
        return self._buckets.find((limit.key, limit.user, limit.client_id), limit.bound, now_ms)

    # -- mutations and connections ------------------------------------------------------------------------------------

    def charge_mutations(self, limit: Limit, count: int, *, is_strict: bool) -> int:
        """Counts changes of metadata (KIP-599), and returns the pause in ms.

        A strict charge is refused while the client has a debt. Others grow the debt up to a bound: else a client that
        opens a connection for each request would never wait.
        """
        now_ms = self._now_ms()
        bucket = self._find_bucket(limit, now_ms)
        if bucket.measure(limit.bound, now_ms) < 0 if is_strict else bucket.is_overdrawn(limit.bound, now_ms):
            self._count(limit)
            raise Refused(Code.THROTTLING_QUOTA_EXCEEDED, THROTTLED)
        bucket.record(count, limit.bound, now_ms)
        if self._has_siblings:
            self._note_use(limit, count)
        return 0 if is_strict else bucket.throttle_ms(limit.bound, now_ms)

    def find_mutation_pause(self, limit: Limit) -> int:
        """Returns the time after which a client has no debt."""
        now_ms = self._now_ms()
        bucket = self._buckets.peek((limit.key, limit.user, limit.client_id))
        return 0 if bucket is None else bucket.throttle_ms(limit.bound, now_ms)

    def admit_connection(self, host: str) -> bool:
        """True if an address may open one more connection now. A refused connection does not count. The default quota
        is that of each network."""
        bound = self.table.find_ip_bound(host)
        if bound is None:
            return True
        counted, now_ms = host if self.table.has_ip(host) else network_of(host), self._now_ms()
        limit = Limit(bound, counted, "", CONNECTION_CREATION_RATE)
        rate = self._find_rate(limit, now_ms)
        rate.record(1, now_ms)
        if rate.measure(now_ms) <= bound:
            if self._has_siblings:
                self._note_use(limit, 1)
            return True
        rate.record(-1, now_ms)
        self._count_entity(CONNECTION_CREATION_RATE, f"ip {counted}")
        return False

    def _count(self, limit: Limit) -> None:
        key = PRODUCER_BYTE_RATE if limit.key == INTERNAL_BYTES else limit.key
        parts = ((CLIENT_ID, limit.client_id), (USER, limit.user))
        self._count_entity(key, ", ".join(f"{kind} {name}"[:SHOWN_TEXT_MAX] for kind, name in parts if name))

    def _count_entity(self, key: str, entity: str) -> None:
        self._shown.pop((key, entity), None)
        if len(self._shown) >= SHOWN_MAX:
            oldest = next(iter(self._shown))
            del self._shown[oldest]
            self._throttled.inc(self._throttled.remove(*oldest), oldest[0], OTHERS)
        self._shown[key, entity] = None
        self._throttled.inc(1, key, entity)

    def _now_ms(self) -> int:
        return self.mono_ns() // 1_000_000
