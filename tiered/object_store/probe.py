"""Checks that a store honours conditional writes: fully when a cluster is created, with five requests at each later
start.

The later check is needed because the bucket may have been copied to another store. Another broker may also reach it by
another endpoint or with other credentials. Some stores reply 200 and ignore the condition of a put. On such a store two
brokers would own one partition. There is no fallback: without conditional writes no cluster starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

from tiered.errors import Code, Refused, Unavailable
from tiered.ports import (
    Buffer,
    Conflict,
    FileSlice,
    GetResult,
    ListedObject,
    NotFound,
    ObjectStore,
    Ok,
    PutResult,
    Rng,
    Unknown,
)

RACERS = 8
TRIES = 4
FOLDER = "meta/probe"
NO_VERSION = '"0123456789abcdef0123456789abcdef"'
"""A version that no object has."""
OVERWRITES = "it overwrites an object that should only be created (If-None-Match is ignored)"
REPLACES = "it replaces an object whose version changed (If-Match is ignored)"
BODY = b"0123456789abcdef"
RANGE = slice(4, 12)
"""The part of `BODY` that the ranged get reads."""


async def probe(store: ObjectStore, rng: Rng) -> None:
    """Checks a store in full. Raises `Refused` with the reason if it ignores or breaks conditions.

    Raises `Unavailable` if it does not reply. Writes a few objects under `meta/probe/` and deletes them again. After an
    undecided outcome (a timeout, a 409) the check is repeated with a new key.
    """
    random = rng.stream("probe")
    store = _NamedVerbs(store)
    for check in (_check_create, _check_swap, _check_create_race, _check_swap_race, _check_range, _check_list):
        for _ in range(TRIES):
            key = f"{FOLDER}/{random.getrandbits(64):016x}"
            if await _check_and_delete(store, key, check):
                break
        else:
            raise _unclear_reply(store)


async def probe_at_restart(store: ObjectStore, key: str, body: bytes, rng: Rng) -> None:
    """Checks a store at a later start. Raises `Refused` and `Unavailable` as `probe` does.

    Two conditional puts of `body` over the object `key`, which has that content already, must fail. A store that
    applies them has changed nothing. An upload of a new object must succeed: a broker without write permission would
    lead, and never move cold records off its disk. A part of the new object is read back.
    """
    store = _NamedVerbs(store)
    checks: tuple[tuple[Callable[[], Awaitable[PutResult]], str], ...] = (
        (lambda: store.put(key, body, if_absent=True), OVERWRITES),
        (lambda: store.put(key, body, if_match=NO_VERSION), REPLACES),
    )
    for put, problem in checks:
        for _ in range(TRIES):
            result = await put()
            if isinstance(result, Ok):
                raise _make_refusal(store, problem)
            if not _is_undecided(result):
                break
        else:
            raise _unclear_reply(store)

    own = f"{FOLDER}/{rng.stream('probe').getrandbits(64):016x}"
    await _check_and_delete(store, own, _check_range)


class _NamedVerbs:
    """A store whose refusals say which requests a start needs."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self._inner = inner

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        with self._naming("reads"):
            return await self._inner.get(key, start, length)

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        with self._naming("conditional puts" if if_absent or if_match is not None else "puts"):
            return await self._inner.put(key, data, if_absent=if_absent, if_match=if_match)

    async def upload(self, key: str, parts: Sequence[Buffer | FileSlice]) -> PutResult:
        with self._naming("uploads"):
            return await self._inner.upload(key, parts)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        with self._naming("listings"):
            return await self._inner.list(prefix, after, limit)

    async def delete(self, keys: Sequence[str]) -> None:
        with self._naming("deletes"):
            await self._inner.delete(keys)

    async def end_old_uploads(self, prefix: str) -> int:
        return await self._inner.end_old_uploads(prefix)

    async def close(self) -> None:
        await self._inner.close()

    @contextlib.contextmanager
    def _naming(self, requests: str) -> Iterator[None]:
        try:
            yield
        except Unavailable as error:
            if not error.refused and not error.final:
                raise
            why = f"start failed because {requests} are refused below {self.url}: {error}"
            raise Unavailable(
                why, final=error.final, refused=error.refused, login_refused=error.login_refused
            ) from None


async def _check_and_delete(store: ObjectStore, key: str, check: Callable[[ObjectStore, str], Awaitable[bool]]) -> bool:
    """Runs `check` with a new object and deletes the object.

    A failed delete hides neither an error of the check nor a cancellation. Otherwise its error is raised: the broker
    may lack permission to delete.
    """
    try:
        found = await check(store, key)
    except BaseException:
        with contextlib.suppress(Unavailable):
            await store.delete([key])
        raise
    await store.delete([key])
    return found


async def _check_create(store: ObjectStore, key: str) -> bool:
    first = await store.put(key, b"first", if_absent=True)
    second = await store.put(key, b"second", if_absent=True)
    if _is_undecided(first, second):
        return False
    if not isinstance(first, Ok):
        raise _make_refusal(store, "a conditional create of a new object fails")
    if isinstance(second, Ok):
        raise _make_refusal(store, OVERWRITES)
    return await _check_body(store, key, b"first")


async def _check_swap(store: ObjectStore, key: str) -> bool:
    absent = await store.put(key, b"none", if_match=NO_VERSION)
    if isinstance(absent, Ok):
        raise _make_refusal(store, "it creates an object that should only be replaced (If-Match is ignored)")
    first = await store.put(key, b"first", if_absent=True)
    if not isinstance(first, Ok):
        return False
    second = await store.put(key, b"second", if_match=first.version)
    third = await store.put(key, b"third", if_match=first.version)
    if _is_undecided(second, third):
        return False
    if not isinstance(second, Ok):
        raise _make_refusal(store, "it does not replace an object whose version matches")
    if isinstance(third, Ok):
        raise _make_refusal(store, REPLACES)
    return await _check_body(store, key, b"second")


async def _check_create_race(store: ObjectStore, key: str) -> bool:
    return await _check_race(store, key, lambda body: store.put(key, body, if_absent=True), "If-None-Match")


async def _check_swap_race(store: ObjectStore, key: str) -> bool:
    first = await store.put(key, b"first", if_absent=True)
    if not isinstance(first, Ok):
        return False
    return await _check_race(store, key, lambda body: store.put(key, body, if_match=first.version), "If-Match")


async def _check_race(
    store: ObjectStore, key: str, put: Callable[[bytes], Awaitable[PutResult]], condition: str
) -> bool:
    bodies = [b"racer %d" % number for number in range(RACERS)]
    results = await asyncio.gather(*(put(body) for body in bodies))
    winners = [body for body, result in zip(bodies, results, strict=True) if isinstance(result, Ok)]
    if len(winners) > 1:
        raise _make_refusal(store, f"{RACERS} puts with {condition} at once: {len(winners)} succeeded, one may")
    if not winners:
        return False
    return await _check_body(store, key, winners[0])


async def _check_range(store: ObjectStore, key: str) -> bool:
    if not isinstance(await store.upload(key, [BODY]), Ok):
        return False
    length = RANGE.stop - RANGE.start
    found = await store.get(key, RANGE.start, length)
    if isinstance(found, GetResult) and found.data in (BODY, BODY[:length]):
        raise _make_refusal(store, "a ranged get does not return the requested bytes")
    # Any other bytes were changed or lost in transit, which does not prove a fault of the store.
    return isinstance(found, GetResult) and found.data == BODY[RANGE]


async def _check_list(store: ObjectStore, key: str) -> bool:
    if not isinstance(await store.put(key, b"listed"), Ok):
        return False
    if key not in [entry.key for entry in await store.list(key)]:
        raise _make_refusal(store, "a listing does not show an object that was just written")
    await store.delete([key])
    if not isinstance(await store.get(key), NotFound):
        raise _make_refusal(store, "an object can be read after it was deleted")
    return True


async def _check_body(store: ObjectStore, key: str, body: bytes) -> bool:
    found = await store.get(key)
    if not isinstance(found, GetResult) or found.data != body:
        raise _make_refusal(store, "an object reads back with other bytes than were written last")
    return True


def _is_undecided(*results: PutResult) -> bool:
    return any(isinstance(result, Unknown | Conflict) for result in results)


def _unclear_reply(store: ObjectStore) -> Unavailable:
    return Unavailable(f"the store gives no definite reply to conditional writes store={store.url}")


def _make_refusal(store: ObjectStore, why: str) -> Refused:
    return Refused(Code.INVALID_CONFIG, f"store {store.url} cannot be used: {why}")
