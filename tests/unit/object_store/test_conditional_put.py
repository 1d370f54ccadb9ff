"""Tests of rule M1: what became of a conditional put, whatever the store replied."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from tiered.errors import Unavailable
from tiered.object_store.conditional_put import PutOutcome, SettledPut, Stored, judge_put, put_until_known
from tiered.object_store.memory import MemoryStore
from tiered.ports import Buffer, NotFound, PutResult, Unknown
from tiered.system.clock import SystemClock

KEY = "object"
OWN, OLD, OTHER = b"own", b"old", b"other"


@pytest.mark.parametrize(
    ("before", "found", "outcome"),
    [
        (None, "own", PutOutcome.LANDED),
        (None, None, PutOutcome.OPEN),
        (None, "other", PutOutcome.LOST),
        ("old", "own", PutOutcome.LANDED),
        ("old", "old", PutOutcome.OPEN),
        ("old", "other", PutOutcome.LOST),
        ("old", None, PutOutcome.DELETED),
    ],
)
def test_nonce_that_is_read_back_decides(before: str | None, found: str | None, outcome: PutOutcome) -> None:
    assert judge_put("own", before, found) is outcome


class LossyStore(MemoryStore):
    """A store that replies with `Unknown` to its first puts. `faults` says for each of them if it is applied, and what
    else happens before the object is read back."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.faults: list[tuple[bool, Callable[[], Awaitable[object]]]] = []
        self.puts = 0
        self.failing_gets = 0

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        self.puts += 1
        if not self.faults:
            return await super().put(key, data, if_absent=if_absent, if_match=if_match)
        is_applied, then = self.faults.pop(0)
        if is_applied:
            await super().put(key, data, if_absent=if_absent, if_match=if_match)
        await then()
        return Unknown("no reply")

    async def read(self) -> Stored[bytes] | None:
        """Reads the object; its content is its nonce too."""
        if self.failing_gets:
            self.failing_gets -= 1
            raise Unavailable("no reply")
        got = await self.get(KEY)
        return None if isinstance(got, NotFound) else Stored(got.data, got.data.decode(), got.version)


class Put(NamedTuple):
    """A settled put, the content of the object after it, and the failures before each of its pauses."""

    settled: SettledPut[bytes]
    content: bytes
    pauses: list[int]


def put_own(store: LossyStore, replaced: bytes | None, *, pauses_max: int = 10) -> Put:
    """Puts OWN in place of `replaced`, None for no object."""
    pauses: list[int] = []

    async def pause(failed: int, why: str) -> None:
        assert "no reply" in why or "ConditionFailed" in why
        pauses.append(failed)
        if len(pauses) > pauses_max:
            raise Unavailable("no time is left")

    async def scenario() -> Put:
        before = None
        if replaced is not None:
            await MemoryStore.put(store, KEY, replaced)
            before = await store.read()
        settled = await put_until_known(store, KEY, OWN, "own", before=before, read=store.read, pause=pause)
        got = await store.get(KEY)
        return Put(settled, b"" if isinstance(got, NotFound) else got.data, pauses)

    return asyncio.run(scenario())


async def nothing() -> None:
    """Nothing else happens."""


@pytest.mark.parametrize("replaced", [None, OLD])
def test_put_whose_reply_is_lost_has_landed(replaced: bytes | None) -> None:
    store = LossyStore()
    store.faults = [(True, nothing)]
    done = put_own(store, replaced)
    assert (done.settled.outcome, done.content, done.pauses, store.puts) == (PutOutcome.LANDED, OWN, [], 1)
    assert done.settled.version, "the next change needs no read"


@pytest.mark.parametrize("replaced", [None, OLD])
def test_put_that_did_not_land_is_repeated(replaced: bytes | None) -> None:
    store = LossyStore()
    store.faults = [(False, nothing), (False, nothing)]
    done = put_own(store, replaced)
    assert (done.settled.outcome, done.content, done.pauses, store.puts) == (PutOutcome.LANDED, OWN, [0, 1], 3)


@pytest.mark.parametrize("replaced", [None, OLD])
def test_put_after_another_write_is_lost(replaced: bytes | None) -> None:
    store = LossyStore()
    store.faults = [(False, lambda: MemoryStore.put(store, KEY, OTHER))]
    done = put_own(store, replaced)
    assert (done.settled.outcome, done.content) == (PutOutcome.LOST, OTHER)
    assert done.settled.found is not None and done.settled.found.value == OTHER


def test_put_that_lands_after_the_read_is_not_lost() -> None:
    """The second put fails its condition because the first one has landed."""
    store = LossyStore()
    read = store.read

    async def read_then_land() -> Stored[bytes] | None:
        found = await read()
        store.read = read  # type: ignore[method-assign]
        assert found is not None and found.value == OLD
        await MemoryStore.put(store, KEY, OWN, if_match=found.version)
        return found

    async def begin() -> None:
        store.read = read_then_land  # type: ignore[method-assign]

    async def scenario() -> SettledPut[bytes]:
        await MemoryStore.put(store, KEY, OLD)
        before = await store.read()
        store.faults = [(False, begin)]

        async def pause(failed: int, why: str) -> None:
            assert failed == 0, why

        return await put_until_known(store, KEY, OWN, "own", before=before, read=lambda: store.read(), pause=pause)

    assert asyncio.run(scenario()).outcome is PutOutcome.LANDED
    assert store.puts == 2


def test_object_that_was_deleted_is_not_written_again() -> None:
    store = LossyStore()
    store.faults = [(False, lambda: store.delete([KEY]))]
    done = put_own(store, OLD)
    assert (done.settled.outcome, done.content) == (PutOutcome.DELETED, b"")


def test_same_object_under_a_new_version_is_replaced() -> None:
    """Somebody has put the old object back."""
    store = LossyStore()
    store.faults = [(False, lambda: MemoryStore.put(store, KEY, OLD))]
    done = put_own(store, OLD)
    assert (done.settled.outcome, done.content, store.puts) == (PutOutcome.LANDED, OWN, 2)


def test_put_stays_undecided_while_nothing_is_read_back() -> None:
    store = LossyStore()
    store.faults, store.failing_gets = [(True, nothing)], 3
    done = put_own(store, None)
    assert (done.settled.outcome, done.pauses, store.puts) == (PutOutcome.LANDED, [0, 1, 2], 1)
    store.faults, store.failing_gets = [(True, nothing)], 3
    with pytest.raises(Unavailable, match="no time is left"):
        put_own(store, None, pauses_max=2)
