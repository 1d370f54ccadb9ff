"""Tests of a controller that is frozen while clients write. When it goes on, all is live again after a bounded number
of bucket requests."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_by
from tests.sim.scenarios.test_cut_off import PARTITIONS, create_topic, try_append
from tests.sim.scenarios.three import SESSION, SUSPECT, SimBroker, ThreeBrokers, run_scenario
from tiered.object_store.faulty import FaultKind, FaultRule

REQUESTS_MAX = 16
"""Bucket requests in sequence: the old controller reads what it missed, it is taken back, each leader adds it to its
in-sync sets, and it leads again. Each of these changes is an entry, and its writer reads the boundary after it (M3)."""


async def write(three: ThreeBrokers, number: int, frozen: list[SimBroker]) -> None:
    """Appends to a partition without end, by the word of any broker that is not frozen."""
    while True:
        for broker in three.brokers.values():
            if broker not in frozen and await try_append(three, number, broker):
                break
        await asyncio.sleep(0.05)


def is_in_sync(three: ThreeBrokers) -> bool:
    """True if there is one controller, and every broker sees all replicas in sync."""
    seen = [part for each in three.brokers.values() for part in each.node.image.topics["t"].partitions]
    return len(three.controller_ids()) == 1 and all(len(part.isr) == 3 for part in seen)


@pytest.mark.parametrize("sessions", [1.3, 2.5])
@pytest.mark.parametrize("seconds", [0.0, pytest.param(0.1, marks=pytest.mark.also("values")), 0.5])
@run_by(run_scenario)
async def test_recovery_of_a_thawed_controller_takes_few_bucket_requests(
    three: ThreeBrokers, *, seconds: float, sessions: float
) -> None:
    """A chaos run took 14.6 s once, on a store whose fsyncs other processes delayed."""
    await create_topic(three)
    old, frozen = three.controller, list[SimBroker]()
    writers = [asyncio.create_task(write(three, number, frozen)) for number in range(PARTITIONS)]
    await asyncio.sleep(1)
    for each in three.brokers.values():
        each.machine.faults.rules.append(FaultRule(FaultKind.DELAY, ("get", "put", "list"), seconds=seconds))
    frozen.append(old)
    three.loop.freeze(old.process)
    await asyncio.sleep(sessions * SESSION)
    three.loop.resume(old.process)
    began = three.now
    assert not is_in_sync(three), "the others have taken it out"
    await three.wait_until(lambda: is_in_sync(three), REQUESTS_MAX * seconds + 1)
    left = set(range(PARTITIONS))
    while left:
        left -= {number for number in sorted(left) if await try_append(three, number, three.others()[0])}
        await asyncio.sleep(0.01)
    assert three.now - began < REQUESTS_MAX * seconds + 1
    for writer in writers:
        writer.cancel()


@run_by(run_scenario)
async def test_controller_that_was_paused_says_so_until_it_reads_the_bucket(three: ThreeBrokers) -> None:
    old = three.controller
    await asyncio.sleep(1)
    old.machine.faults.outage = True
    three.loop.freeze(old.process)
    await asyncio.sleep(0.7 * SUSPECT)
    three.loop.resume(old.process)
    await asyncio.sleep(0.1)
    assert old.node.cluster.is_controller and not old.node.cluster.has_controller_contact
    [said] = [each for each in old.node.health().own_problems if "controller" in each]
    assert said.startswith("this broker was paused while it was controller: "), said
    old.machine.faults.outage = False
    await three.wait_until(lambda: old.node.cluster.describe_contact() == "", 60)
