"""Tests of the metered store: its counters, and the begin and end of an outage."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tiered.errors import Unavailable
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultKind, FaultRule, Faults, FaultyStore
from tiered.object_store.memory import MemoryStore
from tiered.object_store.metered import MeteredStore, Outage
from tiered.ports import GetResult, NotFound


def test_outage_lasts_from_the_first_failure_to_the_next_success() -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        clock, faults, metrics = SimClock(loop), Faults(), Metrics()
        store = MeteredStore(FaultyStore(MemoryStore(clock), faults, clock), clock, metrics)
        await store.put("a", b"12345")
        assert store.outage is None
        faults.outage = True
        await asyncio.sleep(10)
        with pytest.raises(Unavailable):
            await store.get("a")
        began = store.outage
        assert began is not None and "a" in began.why
        await asyncio.sleep(10)
        await store.put("b", b"1")
        await store.ping("a")
        assert store.outage is not None and store.outage.since_ms == began.since_ms
        assert "tiered_store_unavailable_seconds 13" in metrics.render()
        faults.outage = False
        await store.ping("a")
        assert store.outage is None
        assert "tiered_store_unavailable_seconds 0" in metrics.render()

    loop.run(scenario())


@pytest.mark.parametrize(
    ("verbs", "hit"), [(("put", "upload"), "writes"), (("delete",), "deletes"), (("list",), "lists")]
)
def test_outage_of_one_kind_lasts_while_others_succeed(verbs: tuple[str, ...], hit: str) -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        clock, faults = SimClock(loop), Faults()
        inner = MemoryStore(clock)
        store = MeteredStore(FaultyStore(inner, faults, clock), clock, Metrics())
        await store.put("a", b"12345")
        faults.rules = [FaultRule(FaultKind.ERROR, verbs)]
        await store.put("b", b"1")
        for call in (lambda: store.delete(["b"]), lambda: store.list("")):
            with suppress(Unavailable):
                await call()
        assert store.outage is not None
        await store.get("a")
        began = store.outage
        assert began is not None and began.hit == hit
        assert store.takes_writes is (hit != "writes")
        await asyncio.sleep(60)
        await store.get("a")
        with suppress(Unavailable):
            await store.list("")
        await store.ping("a")
        assert store.outage is not None and store.outage.since_ms == began.since_ms
        faults.rules = []
        await store.ping("a")
        assert store.outage is None and store.takes_writes
        assert [each.key for each in await inner.list("meta")] == [], "a ping leaves nothing in the store"

    loop.run(scenario())


def test_outage_begins_with_the_request_that_got_no_reply() -> None:
    """A request waits for its timeout first, and many may wait at once."""
    loop, replies = SimLoop(1), dict[str, float]()

    class Slow(MemoryStore):
        async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
            await asyncio.sleep(replies[key])
            if key.startswith("lost"):
                raise Unavailable("no reply within 20 s")
            return NotFound()

    async def scenario() -> None:
        clock = SimClock(loop)
        store = MeteredStore(Slow(clock), clock, Metrics())
        began_ms = clock.wall_ms()
        replies.update({"lost": 20, "good": 3, "lost-too": 30})
        async with asyncio.TaskGroup() as group:
            for key in replies:
                group.create_task(_try(store, key))
            await asyncio.sleep(25)
            assert store.outage is not None and store.outage.since_ms == began_ms + 3_000, "the last reply"
        assert store.outage.since_ms == began_ms + 3_000
        replies["lost"] = 0
        replies["good"] = 0
        await store.get("good")
        assert store.outage is None

    async def _try(store: MeteredStore, key: str) -> None:
        with suppress(Unavailable):
            await store.get(key)

    loop.run(scenario())


def test_outage_names_a_kind_only_if_another_kind_gets_replies() -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        clock, faults = SimClock(loop), Faults()
        inner = MemoryStore(clock)
        store = MeteredStore(FaultyStore(inner, faults, clock), clock, Metrics())
        await store.get("a")
        faults.rules = [FaultRule(FaultKind.ERROR, ("put",))]
        await store.put("b", b"1")
        assert store.outage is not None and store.outage.hit == "", "nothing was read since"
        await store.ping("a")
        assert store.outage is not None and store.outage.hit == "writes"
        faults.outage = True
        await store.ping("a")
        assert store.outage is not None and store.outage.hit == ""

    loop.run(scenario())


def test_refusal_of_keys_is_seen_although_another_kind_began_first() -> None:
    clock = SimClock(SimLoop(1))
    store = MeteredStore(MemoryStore(clock), clock, Metrics())
    store.outages["writes"] = Outage(5, "AccessDenied", refused=True)
    assert store.outage == Outage(5, "AccessDenied", refused=True, hit="writes")
    store.outages["reads"] = Outage(9, "InvalidAccessKeyId", refused=True, login_refused=True)
    assert store.outage == Outage(5, "AccessDenied", refused=True, login_refused=True)


def test_requests_and_bytes_are_counted_by_outcome() -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        clock, metrics = SimClock(loop), Metrics()
        store = MeteredStore(MemoryStore(clock), clock, metrics)
        await store.put("a", b"12345")
        await store.put("a", b"other", if_absent=True)
        await store.upload("b", [b"123", b"4567"])
        await store.get("a", 1, 2)
        await store.get("nothing")
        await store.list("")
        await store.delete(["a"])
        await store.ping("a")
        text = metrics.render()
        for line in (
            'tiered_store_requests_total{verb="put",outcome="ok"} 1',
            'tiered_store_requests_total{verb="put",outcome="refused"} 1',
            'tiered_store_requests_total{verb="upload",outcome="ok"} 1',
            'tiered_store_requests_total{verb="get",outcome="ok"} 1',
            'tiered_store_requests_total{verb="get",outcome="not_found"} 1',
            'tiered_store_bytes_total{verb="put"} 5',
            'tiered_store_bytes_total{verb="upload"} 7',
            'tiered_store_bytes_total{verb="get"} 2',
        ):
            assert line in text, line
        assert store.request_count() == 7

    loop.run(scenario())


@pytest.mark.parametrize(("keys", "requests"), [(0, 1), (1000, 1), (1001, 2), (2000, 2)])
def test_long_list_counts_as_one_request_for_a_thousand_keys(keys: int, requests: int) -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        clock, metrics = SimClock(loop), Metrics()
        inner = MemoryStore(clock)
        for number in range(keys):
            await inner.put(f"{number:04d}", b"")
        store = MeteredStore(inner, clock, metrics)
        assert len(await store.list("", limit=5000)) == keys
        assert store.count_by_verb() == {"list": requests}

    loop.run(scenario())


def test_refusal_and_timeout_of_a_store_are_distinguished() -> None:
    class Locked(MemoryStore):
        async def get(self, key: str, start: int = 0, length: int | None = None) -> GetResult | NotFound:
            raise Unavailable("AccessDenied", refused=True)

    async def scenario() -> None:
        clock = SimClock(loop)
        store = MeteredStore(Locked(clock), clock, Metrics())
        with pytest.raises(Unavailable):
            await store.get("a")
        assert store.outage is not None and store.outage.refused

    loop = SimLoop(1)
    loop.run(scenario())
