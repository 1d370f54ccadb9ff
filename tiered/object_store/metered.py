"""A wrapper of any ObjectStore that counts requests and bytes by verb, and detects outages.

An outage is a state of the last request of its kind, not a rate: it begins with a request that fails and ends with the
next success of that kind. A store may reply to reads and refuse writes or lists, so each of these has its own. Code
that retries sends requests often enough for that. A broker without requests of its own sends `ping` while an outage
lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import NamedTuple

from tiered.errors import Unavailable
from tiered.metrics import Metrics
from tiered.object_store.probe import FOLDER, NO_VERSION
from tiered.ports import (
    Buffer,
    Clock,
    FileSlice,
    GetResult,
    ListedObject,
    NotFound,
    ObjectStore,
    Ok,
    PutResult,
    Unknown,
)
from tiered.request_trace import timed

PAYER: ContextVar[Callable[[], object] | None] = ContextVar("payer", default=None)
"""Called for each request to the store that a task sends for a client. None for the requests of the broker itself."""

VERBS = ("get", "list", "put", "upload", "delete")
READS, LISTS, WRITES, DELETES = "reads", "lists", "writes", "deletes"
KINDS = {"get": READS, "list": LISTS, "put": WRITES, "upload": WRITES, "delete": DELETES}
OUTCOMES = ("ok", "not_found", "refused", "failed")
ABSENT_KEY = f"{FOLDER}/absent"
"""The key of an object that nobody ever creates."""
PAGE_KEYS = 1000
"""Keys of one request for a list. A longer list counts as several requests."""


@contextmanager
def paid_by(payer: Callable[[], object] | None) -> Iterator[None]:
    """Charges a client for the requests to the store in this context, and in tasks that begin in it."""
    token = PAYER.set(payer)
    try:
        yield
    finally:
        PAYER.reset(token)


class Outage(NamedTuple):
    """An outage of the store since `since_ms` (wall clock).

    `why` is the newest failure. `refused` is True if the store replies, but refuses. `login_refused` is True if it
    does not take the keys that this process reads. `hit` says which requests fail, if the store replies to others.
    """

    since_ms: int
    why: str
    refused: bool = False
    login_refused: bool = False
    hit: str = ""


class MeteredStore:
    """The store `inner` with counters."""

    def __init__(self, inner: ObjectStore, clock: Clock, metrics: Metrics) -> None:
        self.url = inner.url
        self.outages: dict[str, Outage] = {}
        """The outage of each kind of request that fails now."""
        self._replied_ms: dict[str, int] = {}
        """The time of the last reply to each kind of request."""
        self._partial: set[str] = set()
        """Kinds that fail while the store has replied to another kind since."""
        self._inner = inner
        self._clock = clock
        labels = ("verb", "outcome")
        self._requests = metrics.counter("tiered_store_requests_total", "Requests to the bucket.", labels)
        self._bytes = metrics.counter("tiered_store_bytes_total", "Bytes to and from the bucket.", ("verb",))
        metrics.gauge(
            "tiered_store_unavailable_seconds", "How long the bucket has not replied, 0 when it does."
        ).set_function(self._outage_seconds)

    @property
    def outage(self) -> Outage | None:
        """The outage that began first; None while the store replies to all kinds of requests."""
        if not self.outages:
            return None
        oldest = min(self.outages.values(), key=lambda each: each.since_ms)
        is_partial = oldest.refused or not self._partial.isdisjoint(self.outages)
        hit = " and ".join(sorted(self.outages, reverse=True)) if is_partial and READS not in self.outages else ""
        return oldest._replace(login_refused=any(each.login_refused for each in self.outages.values()), hit=hit)

    @property
    def takes_writes(self) -> bool:
        """False while reads or writes fail. A store that refuses only deletes takes writes."""
        return READS not in self.outages and WRITES not in self.outages

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        began_ms = self._clock.wall_ms()
        try:
            got = await timed("bucket get", self._inner.get(key, start, length))
        except Unavailable as error:
            raise self._record_failure("get", error, began_ms) from None
        if isinstance(got, NotFound):
            self._record_reply("get", "not_found", 0)
        else:
            self._record_reply("get", "ok", len(got.data))
        return got

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        began_ms = self._clock.wall_ms()
        try:
            result = await timed("bucket put", self._inner.put(key, data, if_absent=if_absent, if_match=if_match))
        except Unavailable as error:
            raise self._record_failure("put", error, began_ms) from None
        self._record_result("put", result, memoryview(data).nbytes, began_ms)
        return result

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        began_ms = self._clock.wall_ms()
        try:
            result = await timed("bucket upload", self._inner.upload(key, parts))
        except Unavailable as error:
            raise self._record_failure("upload", error, began_ms) from None
        sizes = (part.length if isinstance(part, FileSlice) else memoryview(part).nbytes for part in parts)
        self._record_result("upload", result, sum(sizes), began_ms)
        return result

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        began_ms = self._clock.wall_ms()
        try:
            found = await timed("bucket list", self._inner.list(prefix, after, limit))
        except Unavailable as error:
            raise self._record_failure("list", error, began_ms) from None
        self._record_reply("list", "ok", 0, requests=max(-(-len(found) // PAGE_KEYS), 1))
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        began_ms = self._clock.wall_ms()
        try:
            await timed("bucket delete", self._inner.delete(keys))
        except Unavailable as error:
            raise self._record_failure("delete", error, began_ms) from None
        self._record_reply("delete", "ok", 0)

    async def end_old_uploads(self, prefix: str) -> int:
        began_ms = self._clock.wall_ms()
        try:
            ended = await self._inner.end_old_uploads(prefix)
        except Unavailable as error:
            raise self._record_failure(
                "list", error, began_ms, READS
            ) from None  # a right of its own, which a store may lack
        self._record_reply("list", "ok", 0)
        return ended

    async def close(self) -> None:
        await self._inner.close()

    async def ping(self, key: str) -> None:
        """Makes a request of each kind that fails, to notice the end of an outage, and a read, which tells if the store
        replies at all. Changes nothing in the store: reads one byte of `key`, lists, writes and deletes `ABSENT_KEY`,
        the write under a condition that never holds."""
        with suppress(Unavailable):
            if self.outages:
                await self.get(key, 0, 1)
            if LISTS in self.outages:
                await self.list(ABSENT_KEY, "", 1)
            if WRITES in self.outages:
                await self.put(ABSENT_KEY, b"", if_match=NO_VERSION)
            if DELETES in self.outages:
                await self.delete([ABSENT_KEY])

    def request_count(self) -> int:
        """Returns the number of requests so far."""
        return int(self._requests.total())

    def count_by_verb(self) -> dict[str, int]:
        """Returns the number of requests so far by verb, without verbs that were not used."""
        counted = {verb: sum(int(self._requests.value(verb, outcome)) for outcome in OUTCOMES) for verb in VERBS}
        return {verb: count for verb, count in counted.items() if count}

    def _record_result(self, verb: str, result: PutResult, size: int, began_ms: int) -> None:
        if isinstance(result, Unknown):
            self._record_failure(verb, Unavailable(result.why), began_ms)
        else:
            refused = not isinstance(result, Ok)
            self._record_reply(verb, "refused" if refused else "ok", 0 if refused else size)

    def _record_reply(self, verb: str, outcome: str, size: int, requests: int = 1) -> None:
        kind = KINDS[verb]
        self.outages.pop(kind, None)
        self._replied_ms[kind] = self._clock.wall_ms()
        self._partial.discard(kind)
        self._partial.update(self.outages)
        self._requests.inc(requests, verb, outcome)
        self._bytes.inc(size, verb)
        _charge(requests)

    def _record_failure(self, verb: str, error: Unavailable, began_ms: int, kind: str = "") -> Unavailable:
        """Records a failure. The outage began with the request that failed, which may have waited long for a reply, or
        with the last reply to one of its kind."""
        kind = kind or KINDS[verb]
        known, since = self.outages.get(kind), max(began_ms, self._replied_ms.get(kind, 0))
        self.outages[kind] = Outage(
            min(since, known.since_ms) if known else since, str(error), error.refused, error.login_refused
        )
        self._requests.inc(1, verb, "failed")
        _charge(1)
        return error

    def _outage_seconds(self) -> float:
        outage = self.outage
        return max(0.0, (self._clock.wall_ms() - outage.since_ms) / 1000) if outage else 0.0


def _charge(requests: int) -> None:
    payer = PAYER.get()
    if payer is not None:
        for _ in range(requests):
            payer()
