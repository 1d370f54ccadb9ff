"""Tests of the probe: it refuses stores that break their promises, and only these."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.fakes3 import FakeS3, HttpFault
from tests.s3_rules import BUCKET
from tests.scenario import run_alone, run_by
from tests.sim.harness.clock import SimClock, SimRng
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.store import SimBucket
from tiered.errors import Refused, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule, Faults
from tiered.object_store.memory import MemoryStore
from tiered.object_store.probe import probe, probe_at_restart
from tiered.object_store.url import open_store
from tiered.ports import Buffer, ConditionFailed, GetResult, ListedObject, NotFound, ObjectStore, Ok, PutResult
from tiered.system.clock import SystemClock, SystemRng


class IgnoresMatch(MemoryStore):
    """A store that knows If-None-Match and ignores If-Match on existing objects, as some small servers do."""

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        if if_match and isinstance(await self.get(key), NotFound):
            return ConditionFailed()
        return await super().put(key, data, if_absent=if_absent)


class LooksThenLeaps(MemoryStore):
    """A store that checks the condition in one step and writes in another."""

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        found = await self.get(key)
        await asyncio.sleep(0)
        if isinstance(found, GetResult) and if_absent:
            return await super().put(key, data, if_absent=True)
        if if_match is not None and (isinstance(found, NotFound) or found.version != if_match):
            return await super().put(key, data, if_match=if_match)
        return await super().put(key, data)


class KnowsNoConditions(MemoryStore):
    """A store that fails every request with a condition."""

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        return ConditionFailed() if if_absent or if_match else await super().put(key, data)


class CreatesOnly(MemoryStore):
    """A store that knows If-None-Match and fails every If-Match."""

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        return ConditionFailed() if if_match else await super().put(key, data, if_absent=if_absent)


class CreatesOnMatch(MemoryStore):
    """A store whose If-Match creates a missing object."""

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        absent = isinstance(await self.get(key), NotFound)
        return await super().put(key, data, if_absent=if_absent, if_match=None if absent else if_match)


class ReadsOldBytes(MemoryStore):
    """A store whose reads may come from a cache."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        got = await super().get(key, start, length)
        return got if isinstance(got, NotFound) else GetResult(b"old", 3, got.version)


class IgnoresRanges(MemoryStore):
    """A store that returns the beginning of an object for any range."""

    async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
        return await super().get(key, 0, length)


class ListsLate(MemoryStore):
    """A store whose listing is a day old."""

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ListedObject]:
        return []


class NeverDeletes(MemoryStore):
    """A store that acknowledges deletes and does nothing."""

    async def delete(self, keys: Sequence[str]) -> None:
        return


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (IgnoresMatch, "replaces an object whose version changed"),
        (CreatesOnMatch, "creates an object that should only be replaced"),
        (LooksThenLeaps, "8 puts with If-None-Match at once: 8 succeeded, one may"),
        (KnowsNoConditions, "a conditional create of a new object fails"),
        (CreatesOnly, "does not replace an object whose version matches"),
        (ReadsOldBytes, "other bytes than were written last"),
        (IgnoresRanges, "a ranged get does not return"),
        (ListsLate, "listing does not show"),
        (NeverDeletes, "can be read after it was deleted"),
    ],
)
def test_store_that_breaks_conditions_is_refused(kind: type[MemoryStore], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        asyncio.run(probe(kind(SystemClock()), SystemRng()))


@run_by(run_alone)
async def test_server_that_ignores_conditions_is_refused(*, fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.rules.ignore_conditions = True
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}/liar", SystemClock(), SystemRng())
    with pytest.raises(Refused, match=r"s3://bucket/liar cannot be used: it overwrites.*If-None-Match is ignored"):
        await probe(store, SystemRng())
    await store.close()


@run_by(run_alone)
async def test_probe_waits_with_the_error_of_a_failed_range_read(
    *, fake: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that continued would tier nothing: each upload is checked by a range read."""
    fake.faults.append(HttpFault(FaultKind.TRUNCATED, ("GET",), skip=1))  # the first get is of FORMAT
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tiered.object_store.s3.BACKOFF_SECONDS", 0.001)
    store = open_store(f"s3://{BUCKET}/ranges", SystemClock(), SystemRng())
    await store.put("k", b"held", if_absent=True)
    assert isinstance(await store.get("k"), GetResult)
    with pytest.raises(Unavailable, match=r"get failed .* error=the body breaks off: .") as caught:
        await probe_at_restart(store, "k", b"held", SystemRng())
    assert not caught.value.refused
    await store.close()


REFUSALS = {
    "deletes": HttpFault(FaultKind.ERROR, ("POST",), status=403),
    "reads": HttpFault(FaultKind.ERROR, ("GET",), status=403),
    "listings": HttpFault(FaultKind.ERROR, ("LIST",), status=403),
    "conditional puts": HttpFault(FaultKind.ERROR, ("PUT",), status=403),
    "uploads": HttpFault(FaultKind.ERROR, ("PUT",), status=403, skip=2),
}


@pytest.mark.parametrize("requests", REFUSALS)
@run_by(run_alone)
async def test_refusal_names_the_requests_that_a_start_needs(
    *, fake: FakeS3, requests: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}/refuses", SystemClock(), SystemRng())
    await store.put("k", b"held")
    fake.faults.append(replace(REFUSALS[requests]))
    told = f"start failed because {requests} are refused below s3://bucket/refuses: .*AccessDenied"
    with pytest.raises(Unavailable, match=told) as caught:
        if requests == "uploads":
            await probe_at_restart(store, "k", b"held", SystemRng())
        else:
            await probe(store, SystemRng())
    assert caught.value.refused
    await store.close()


@pytest.mark.parametrize(("code", "refused"), [("AccessDenied", True), ("InternalError", False)])
@run_by(run_alone)
async def test_deletes_that_are_denied_key_by_key_are_named(
    *, fake: FakeS3, code: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS replies so where the permission to delete is missing."""
    fake.rules.denied_deletes = code
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}/denied", SystemClock(), SystemRng())
    with pytest.raises(Unavailable, match=rf"delete failed .* error=denied \({code}\)") as caught:
        await probe(store, SystemRng())
    assert caught.value.refused == refused
    assert ("start failed because deletes are refused" in str(caught.value)) == refused
    await store.close()


def probe_with_faults(faults: Faults, seed: int) -> None:
    """Runs one probe of an honest store with faults, in virtual time."""
    loop = SimLoop(seed)
    clock = SimClock(loop)
    store: ObjectStore = SimBucket(loop).store(faults, clock)
    loop.run(probe(store, SimRng(seed)))


class Overwrites(MemoryStore):
    """A store that ignores every condition."""

    async def put(self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None) -> PutResult:
        return await super().put(key, data)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Overwrites, "overwrites an object that should only be created"),
        (IgnoresMatch, "whose version changed"),
        (IgnoresRanges, "a ranged get does not return"),
    ],
)
@run_by(run_alone)
async def test_used_store_that_breaks_conditions_is_refused_and_unchanged(
    *, kind: type[MemoryStore], reason: str
) -> None:
    store = kind(SystemClock())
    await store.put("k", b"held")
    with pytest.raises(Refused, match=reason):
        await probe_at_restart(store, "k", b"held", SystemRng())
    got = await store.get("k")
    assert isinstance(got, GetResult) and got.data == b"held"


def test_probe_of_a_used_store_takes_five_requests_without_a_change() -> None:
    loop = SimLoop(1)
    bucket = SimBucket(loop)
    store = bucket.store(Faults(), SimClock(loop))

    async def body() -> None:
        await store.put("k", b"held")
        before, version = bucket.requests, (await bucket.memory.get("k"),)
        await probe_at_restart(store, "k", b"held", SimRng(1))
        assert bucket.requests - before == 1 + 5
        assert (await bucket.memory.get("k"),) == version and list(bucket.objects) == ["k"]

    loop.run(body())


@run_by(run_alone)
async def test_read_only_access_to_a_used_store_is_refused() -> None:
    class ReadOnly(MemoryStore):
        async def put(
            self, key: str, data: Buffer, *, if_absent: bool = False, if_match: str | None = None
        ) -> PutResult:
            if if_absent or if_match is not None:  # as of a directory: whether the condition holds is looked at first
                return await super().put(key, data, if_absent=if_absent, if_match=if_match)
            raise Unavailable("Permission denied", refused=True)

    store = ReadOnly(SystemClock())
    assert isinstance(await store.put("k", b"held", if_absent=True), Ok)
    with pytest.raises(Unavailable, match="Permission denied"):
        await probe_at_restart(store, "k", b"held", SystemRng())


def test_probe_of_a_used_store_without_a_clear_result_is_repeated() -> None:
    loop = SimLoop(1)
    store = SimBucket(loop).store(Faults([FaultRule(FaultKind.CONFLICT, ("put",))]), SimClock(loop))
    with pytest.raises(Unavailable, match="no definite reply"):
        loop.run(probe_at_restart(store, "k", b"held", SimRng(1)))


@pytest.mark.parametrize("seed", range(20))
def test_lost_replies_and_conflicts_alone_are_accepted(seed: int) -> None:
    kinds = (FaultKind.ERROR, FaultKind.LOST_REPLY, FaultKind.CONFLICT)
    rules = [FaultRule(kind, ("put",), probability=0.05) for kind in kinds]
    try:
        probe_with_faults(Faults(rules, random.Random(seed)), seed)
    except Unavailable as error:
        assert "no definite reply" in str(error)


def test_silent_store_is_unavailable_and_not_refused() -> None:
    with pytest.raises(Unavailable):
        probe_with_faults(Faults(outage=True), 1)
