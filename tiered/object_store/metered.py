"""A wrapper of any ObjectStore that counts requests and bytes by verb, and detects outages.

An outage is a state of the last request of its kind, not a rate: it begins with a failure and ends with the next
success of that kind. A store may reply to reads and refuse writes or lists, so each of these has its own. Code
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
    does not take the keys that this process reads. `hit` says which requests fail, if reads do not.
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
        hit = "" if READS in self.outages else " and ".join(sorted(self.outages, reverse=True))
        return oldest._replace(login_refused=any(each.login_refused for each in self.outages.values()), hit=hit)

    @property
    def takes_writes(self) -> bool:
        """False while reads or writes fail. A store that refuses only deletes takes writes."""
        return READS not in self.outages and WRITES not in self.outages

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        try:
            got = await self._inner.get(key, start, length)
        except Unavailable as error:
            raise self._record_failure("get", error) from None
        if isinstance(got, NotFound):
            self._record_reply("get", "not_found", 0)
        else:
            self._record_reply("get", "ok", len(got.data))
        return got

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        try:
            result = await self._inner.put(key, data, if_absent=if_absent, if_match=if_match)
        except Unavailable as error:
            raise self._record_failure("put", error) from None
        self._record_result("put", result, memoryview(data).nbytes)
        return result

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        try:
            result = await self._inner.upload(key, parts)
        except Unavailable as error:
            raise self._record_failure("upload", error) from None
        sizes = (part.length if isinstance(part, FileSlice) else memoryview(part).nbytes for part in parts)
        self._record_result("upload", result, sum(sizes))
        return result

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        try:
            found = await self._inner.list(prefix, after, limit)
        except Unavailable as error:
            raise self._record_failure("list", error) from None
        self._record_reply("list", "ok", 0, requests=max(-(-len(found) // PAGE_KEYS), 1))
        return found

    async def delete(self, keys: Sequence[str]) -> None:
        try:
            await self._inner.delete(keys)
        except Unavailable as error:
            raise self._record_failure("delete", error) from None
        self._record_reply("delete", "ok", 0)

    async def end_old_uploads(self, prefix: str) -> int:
        try:
            ended = await self._inner.end_old_uploads(prefix)
        except Unavailable as error:
            raise self._record_failure("list", error, READS) from None  # a right of its own, which a store may lack
        self._record_reply("list", "ok", 0)
        return ended

    async def close(self) -> None:
        await self._inner.close()

    async def ping(self, key: str) -> None:
        """Makes a request of each kind that fails, to notice the end of an outage. Changes nothing in the store: reads
        one byte of `key`, lists, writes and deletes `ABSENT_KEY`, the write under a condition that never holds."""
        with suppress(Unavailable):
            if READS in self.outages:
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

    def _record_result(self, verb: str, result: PutResult, size: int) -> None:
        if isinstance(result, Unknown):
            self._record_failure(verb, Unavailable(result.why))
        else:
            refused = not isinstance(result, Ok)
            self._record_reply(verb, "refused" if refused else "ok", 0 if refused else size)

    def _record_reply(self, verb: str, outcome: str, size: int, requests: int = 1) -> None:
        self.outages.pop(KINDS[verb], None)
        self._requests.inc(requests, verb, outcome)
        self._bytes.inc(size, verb)
        _charge(requests)

    def _record_failure(self, verb: str, error: Unavailable, kind: str = "") -> Unavailable:
        kind = kind or KINDS[verb]
        known = self.outages.get(kind)
        since = known.since_ms if known else self._clock.wall_ms()
        self.outages[kind] = Outage(since, str(error), error.refused, error.login_refused)
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
