"""A wrapper of any ObjectStore that injects faults: errors, lost replies, late writes, slow links, damaged bytes.

The wrapper uses the given clock, so the same faults serve benchmarks (real time) and simulation (virtual time). Late
writes wait in a list, and are applied in the order of their due times, before the next call reaches the store.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from tiered.errors import Unavailable
from tiered.object_store.upload_body import UploadBody
from tiered.ports import (
    Buffer,
    Clock,
    Conflict,
    FileSlice,
    GetResult,
    ListedObject,
    NotFound,
    ObjectStore,
    Ok,
    PutResult,
    Unknown,
)

Apply = Callable[[], Awaitable[PutResult]]
ALL_VERBS = ("get", "put", "upload", "list", "delete")


class FaultKind(Enum):
    """The kinds of faults."""

    ERROR = "nothing happens, the caller learns only that it failed"
    LOST_REPLY = "it happens, the caller learns only that it failed"
    LATE_APPLY = "a put that fails for the caller, and is applied `seconds` later"
    CONFLICT = "409 for a put, nothing happens"
    DELAY = "it takes `seconds` longer"
    TRUNCATED = "a get returns only half of its bytes"
    FLIPPED = "a get returns one wrong bit"
    STALE_LIST = "a list does not show what was written in the last `seconds`"
    THROTTLE = "nothing happens, and the caller gets SlowDown at once (see `RequestThrottle`)"


NO_REPLY = (FaultKind.ERROR, FaultKind.LOST_REPLY, FaultKind.THROTTLE)
SLOW_DOWN = "SlowDown: please reduce your request rate"


@dataclass
class FaultRule:
    """One rule: the calls that it affects, how often, and the fault. `times=-1` means without end."""

    kind: FaultKind
    verbs: tuple[str, ...] = ALL_VERBS
    key: str = ""
    """Affects keys that contain this."""
    probability: float = 1.0
    skip: int = 0
    """Matching calls to let pass first."""
    times: int = -1
    seconds: float = 0.0

    def hits(self, verb: str, key: str, draw: Callable[[], float]) -> bool:
        """True if this call is affected; counts it. A rule with probability 1 draws no random number."""
        if self.times == 0 or verb not in self.verbs or self.key not in key:
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.probability < 1.0 and draw() >= self.probability:
            return False
        self.times -= 1 if self.times > 0 else 0
        return True


@dataclass
class RequestThrottle:
    """A store that takes `rate` calls per second and `burst` at once. If there are more, it refuses all for `seconds`.

    Several stores on one bucket may share it.
    """

    rate: float
    burst: float
    seconds: float
    refused_count: int = 0
    _used: float = 0.0
    _last_call_ns: int = 0
    _refuse_until_ns: int = 0

    def refuses(self, now_ns: int) -> bool:
        """True if a call is refused; counts it."""
        self._used = max(0.0, self._used - max(0, now_ns - self._last_call_ns) / 1e9 * self.rate)
        self._last_call_ns = now_ns
        if now_ns >= self._refuse_until_ns:
            self._used += 1
            if self._used <= self.burst:
                return False
            self._refuse_until_ns = now_ns + round(self.seconds * 1e9)
        self.refused_count += 1
        return True


@dataclass
class Faults:
    """The rules in force (the first match wins) and the speed of the link. May be changed at any time."""

    rules: list[FaultRule] = field(default_factory=list)
    random: random.Random = field(default_factory=lambda: random.Random(0))
    first_byte_seconds: float = 0.0
    bytes_per_second: float = 0.0
    """Limit for one call; 0 means none."""
    reply_seconds: float = 1.0
    """Time after which a caller gives up on a lost reply."""
    outage: bool = False
    throttle: RequestThrottle | None = None
    list_keys: int = 0
    """Limit on the keys of one list reply, below that of the caller; 0 means none."""

    def find_fault(self, verb: str, key: str) -> FaultRule | None:
        return next((rule for rule in self.rules if rule.hits(verb, key, self.random.random)), None)


@dataclass(frozen=True)
class LateWrite:
    """A put in flight whose caller has given up."""

    due_ns: int
    number: int
    apply: Apply


LateWrites = list[LateWrite]


def faulty(inner: ObjectStore, faults: Faults, clock: Clock) -> FaultyStore:
    """Returns `inner` with `faults`."""
    return FaultyStore(inner, faults, clock)


class FaultyStore:
    """A store with injected faults. `calls` counts requests by verb, `hits` faults by kind."""

    def __init__(
        self,
        inner: ObjectStore,
        faults: Faults,
        clock: Clock,
        late: LateWrites | None = None,
        written_ns: dict[str, int] | None = None,
    ) -> None:
        """Shares `late` with all stores on one bucket: a write in flight outlives the process that sent it.

        `written_ns` is shared too. It has the time of the last write of each key: a stale list hides writes of any
        process.
        """
        self.url = inner.url
        self.inner = inner
        self.faults = faults
        self.calls = dict.fromkeys(ALL_VERBS, 0)
        self.hits = dict.fromkeys(FaultKind, 0)
        self._clock = clock
        self._late: LateWrites = [] if late is None else late
        self._written_ns: dict[str, int] = {} if written_ns is None else written_ns

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        fault = await self._begin("get", key)
        if fault and fault.kind in NO_REPLY:
            raise await self._no_reply("get", key, fault)
        got = await self.inner.get(key, start, length)
        if isinstance(got, NotFound):
            return got
        await self._pace(len(got.data))
        if fault and fault.kind is FaultKind.TRUNCATED:
            return GetResult(got.data[: len(got.data) // 2], got.size, got.version)
        if fault and fault.kind is FaultKind.FLIPPED and got.data:
            return GetResult(self._flip_bit(got.data), got.size, got.version)
        return got

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        body = bytes(data)

        def apply() -> Awaitable[PutResult]:
            return self.inner.put(key, body, if_absent=if_absent, if_match=if_match)

        return await self._write("put", key, len(body), apply, lambda: apply)

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        whole = UploadBody(parts)

        def frozen() -> Apply:
            body = whole.join()  # the files may be deleted before the put is applied
            return lambda: self.inner.put(key, body)

        return await self._write("upload", key, whole.size, lambda: self.inner.upload(key, parts), frozen)

    async def _list_stale(self, prefix: str, after: str, limit: int, since_ns: int) -> list[ListedObject]:
        """Returns full pages of objects that were written by `since_ns`, as a store with an inconsistent list does."""
        shown: list[ListedObject] = []
        while len(shown) < limit and (page := await self.inner.list(prefix, after)):
            shown += [entry for entry in page if self._written_ns.get(entry.key, since_ns) <= since_ns]
            after = page[-1].key
        return shown[:limit]

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        fault = await self._begin("list", prefix)
        if fault and fault.kind in NO_REPLY:
            raise await self._no_reply("list", prefix, fault)
        limit = min(limit, self.faults.list_keys or limit)
        if fault and fault.kind is FaultKind.STALE_LIST:
            return await self._list_stale(prefix, after, limit, self._clock.mono_ns() - round(fault.seconds * 1e9))
        return await self.inner.list(prefix, after, limit)

    async def delete(self, keys: Sequence[str]) -> None:
        fault = await self._begin("delete", keys[0] if keys else "")
        if fault is None or fault.kind not in (FaultKind.ERROR, FaultKind.THROTTLE):
            await self.inner.delete(keys)
        if fault and fault.kind in NO_REPLY:
            raise await self._no_reply("delete", keys[0] if keys else "", fault)

    async def end_old_uploads(self, prefix: str) -> int:
        fault = await self._begin("list", prefix)
        if fault and fault.kind in NO_REPLY:
            raise await self._no_reply("list", prefix, fault)
        return await self.inner.end_old_uploads(prefix)

    async def close(self) -> None:
        await self._apply_late_writes()
        await self.inner.close()

    # -- one call -----------------------------------------------------------------------------------------------------

    async def _write(
        self, verb: str, key: str, size: int, apply: Apply, make_late_apply: Callable[[], Apply]
    ) -> PutResult:
        fault = await self._begin(verb, key)
        kind = fault.kind if fault else None
        if kind is FaultKind.CONFLICT:
            return Conflict()
        if kind is FaultKind.THROTTLE:
            return Unknown(SLOW_DOWN)
        if kind in (FaultKind.ERROR, FaultKind.LATE_APPLY):
            if fault and kind is FaultKind.LATE_APPLY:
                due_ns = self._clock.mono_ns() + round(fault.seconds * 1e9)
                self._late.append(LateWrite(due_ns, sum(self.calls.values()), make_late_apply()))
            await self._clock.sleep(self.faults.reply_seconds)
            return Unknown("no reply")
        await self._pace(size)
        result = await apply()
        if isinstance(result, Ok):
            self._written_ns[key] = self._clock.mono_ns()
        if kind is FaultKind.LOST_REPLY:
            await self._clock.sleep(self.faults.reply_seconds)
            return Unknown("no reply")
        return result

    async def _begin(self, verb: str, key: str) -> FaultRule | None:
        self.calls[verb] += 1
        throttle = self.faults.throttle
        if self.faults.outage:
            fault: FaultRule | None = FaultRule(FaultKind.ERROR)
        elif throttle is not None and throttle.refuses(self._clock.mono_ns()):
            fault = FaultRule(FaultKind.THROTTLE)
        else:
            fault = self.faults.find_fault(verb, key)
        if fault:
            self.hits[fault.kind] += 1
        delay = self.faults.first_byte_seconds + (fault.seconds if fault and fault.kind is FaultKind.DELAY else 0.0)
        if delay:
            await self._clock.sleep(delay)
        await self._apply_late_writes()
        return fault

    async def _pace(self, size: int) -> None:
        if self.faults.bytes_per_second:
            await self._clock.sleep(size / self.faults.bytes_per_second)

    async def _no_reply(self, verb: str, key: str, fault: FaultRule) -> Unavailable:
        if fault.kind is FaultKind.THROTTLE:
            return Unavailable(f"{verb} failed store={self.url} key={key} error={SLOW_DOWN}")
        await self._clock.sleep(self.faults.reply_seconds)
        return Unavailable(f"{verb} failed store={self.url} key={key} error=no reply")

    async def _apply_late_writes(self) -> None:
        """Applies late writes that are due, oldest first."""
        now_ns = self._clock.mono_ns()
        due = sorted(
            (late for late in self._late if late.due_ns <= now_ns), key=lambda late: (late.due_ns, late.number)
        )
        self._late[:] = [late for late in self._late if late.due_ns > now_ns]
        for late in due:
            await late.apply()

    def _flip_bit(self, data: bytes) -> bytes:
        bit = self.faults.random.randrange(len(data) * 8)
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        return bytes(spoiled)
