"""Tests of second gets: past the p95 of their size, for a small share of all gets, and the first reply counts."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.cold.rig import Broker, Rig
from tiered.cold.hedge_plan import FAST_NS, HEDGE_SHARE, SAMPLES_MIN, SAVED_MAX, HedgePlan
from tiered.cold.hedged_gets import HEDGES_MAX, HedgedGets
from tiered.errors import Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.ports import GetResult

MIB = 1 << 20
MS = 1_000_000


def test_a_get_is_late_past_the_p95_of_its_size() -> None:
    plan = HedgePlan()
    for number in range(100):
        assert number >= SAMPLES_MIN or plan.find_delay_ns(8 * MIB) is None
        plan.record(8 * MIB, (60 + number) * MS)
    assert plan.find_delay_ns(8 * MIB) == (60 + 95) * MS
    assert plan.find_delay_ns(1 * MIB) is None, "nothing is known of this size"


def test_fast_store_gets_nothing_twice() -> None:
    plan = HedgePlan()
    for _ in range(1000):
        plan.record(MIB, FAST_NS - 1)
    assert plan.find_delay_ns(MIB) is None


def test_second_gets_are_a_small_share_of_all() -> None:
    plan = HedgePlan()
    taken = 0
    for _ in range(10_000):
        plan.record(MIB, 80 * MS)
        taken += plan.take()
    assert taken <= 10_000 * HEDGE_SHARE
    for _ in range(1000):
        plan.record(MIB, 80 * MS)
    assert sum(plan.take() for _ in range(1000)) <= SAVED_MAX


async def warm(rig: Rig) -> tuple[Broker, HedgedGets]:
    """Returns gets that know a store which replies after 80 ms."""
    broker = rig.broker()
    await broker.store.put("data/a", bytes(1000))
    broker.faults.first_byte_seconds = 0.08
    gets = HedgedGets(broker.store, rig.clock, broker.metrics)
    for _ in range(SAMPLES_MIN):
        await gets.get("data/a", 0, 10)
    return broker, gets


def hedged(broker: Broker, first: str) -> float:
    return broker.metrics.counter("tiered_cold_hedged_gets_total", "", ("first",)).value(first)


@in_rig(Rig)
async def test_reply_of_a_late_get_comes_from_the_second_one(rig: Rig) -> None:
    broker, gets = await warm(rig)
    calls, began = broker.store.calls["get"], rig.clock.mono_ns()
    broker.fail(FaultRule(FaultKind.DELAY, ("get",), seconds=20.0, times=1))
    got = await gets.get("data/a", 5, 10)
    assert isinstance(got, GetResult) and got.data == bytes(10)
    assert rig.clock.mono_ns() - began < 200 * MS
    assert (broker.store.calls["get"] - calls, hedged(broker, "second")) == (2, 1)
    gets.close()


@in_rig(Rig)
async def test_failure_of_one_of_two_gets_is_no_failure(rig: Rig) -> None:
    broker, gets = await warm(rig)
    broker.fail(FaultRule(FaultKind.DELAY, ("get",), seconds=0.5, times=1), FaultRule(FaultKind.THROTTLE, ("get",)))
    assert isinstance(await gets.get("data/a", 0, 10), GetResult)
    assert hedged(broker, "first") == 1


@in_rig(Rig)
async def test_get_fails_if_both_fail(rig: Rig) -> None:
    broker, gets = await warm(rig)
    for _ in range(20):
        await gets.get("data/a", 0, 10)
    broker.faults.first_byte_seconds = 0.2
    broker.fail(FaultRule(FaultKind.ERROR, ("get",)))
    with pytest.raises(Unavailable):
        await gets.get("data/a", 0, 10)


@in_rig(Rig)
async def test_slow_store_gets_few_second_requests(rig: Rig) -> None:
    """While all replies are late, second gets would only add to the load."""
    broker, gets = await warm(rig)
    broker.faults.first_byte_seconds = 3.0
    calls = broker.store.calls["get"]
    await asyncio.gather(*(gets.get("data/a", 0, 10) for _ in range(100)))
    assert broker.store.calls["get"] - calls <= 100 + SAVED_MAX <= 100 + HEDGES_MAX


@in_rig(Rig)
async def test_cancelled_get_leaves_none_behind(rig: Rig) -> None:
    broker, gets = await warm(rig)
    broker.faults.first_byte_seconds = 1000.0
    reading = asyncio.ensure_future(gets.get("data/a", 0, 10))
    await rig.clock.sleep(1)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await rig.clock.sleep(0.1)
    assert not [task for task in asyncio.all_tasks() if "cold get" in task.get_name()]
