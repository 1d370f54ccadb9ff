"""Tests of a broker that hangs: with the default settings, all partitions can be written again within three seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.scenarios.test_cut_off import PARTITIONS, create_topic, try_append
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario

GOAL_SECONDS = 3.0
Hang = Callable[[ThreeBrokers, SimBroker], None]


def freeze(three: ThreeBrokers, broker: SimBroker) -> None:
    three.loop.freeze(broker.process)


def cut_from(three: ThreeBrokers, broker: SimBroker) -> None:
    for other in three.brokers.values():
        if other is not broker:
            three.network.cut(broker.name, other.name)


def cut_towards(three: ThreeBrokers, broker: SimBroker) -> None:
    for other in three.brokers.values():
        if other is not broker:
            three.network.cut(other.name, broker.name)


HANGS: dict[str, Hang] = {"frozen": freeze, "one-way cut from it": cut_from, "one-way cut towards it": cut_towards}


async def await_writable(three: ThreeBrokers, without: SimBroker) -> float:
    """Writes to all partitions by the word of the other brokers; returns the seconds until each has taken a record."""
    began, left = three.now, set(range(PARTITIONS))
    others = [each for each in three.brokers.values() if each is not without]

    async def write(number: int) -> None:
        while not await try_append(three, number, others[number % len(others)]):
            await asyncio.sleep(0.02)
        left.discard(number)

    tasks = [asyncio.create_task(write(number)) for number in sorted(left)]
    await three.wait_until(lambda: not left, 30)
    await asyncio.gather(*tasks)
    return three.now - began


@pytest.mark.parametrize("seed", first_seeds(1, of=4))
@pytest.mark.parametrize("role", ["controller", "broker"])
@pytest.mark.parametrize("hang", list(HANGS))
@run_by(run_scenario, seed=GIVEN)
async def test_all_is_writable_within_the_goal_after_a_broker_hangs(
    three: ThreeBrokers, *, hang: str, role: str
) -> None:
    await create_topic(three)
    await asyncio.sleep(1 + 0.1 * three.loop.seed)
    broker = three.controller if role == "controller" else three.others()[0]
    HANGS[hang](three, broker)
    seconds = await await_writable(three, broker)
    assert seconds <= GOAL_SECONDS
    three.network.heal()
    three.loop.resume(broker.process)
    await three.wait_until(lambda: len(three.controller_ids()) == 1 and three.is_everyone_known(), 20)


@pytest.mark.parametrize("role", ["controller", "broker"])
@run_by(run_scenario, seed=1)
async def test_broker_that_pauses_again_and_again_is_fenced_a_few_times_only(three: ThreeBrokers, *, role: str) -> None:
    """A machine that stalls for three seconds now and then must not move all leaders each time: it keeps its session
    once it was back soon after a fence or two."""
    await create_topic(three)
    slow = three.controller if role == "controller" else three.others()[0]
    fences = []
    for _ in range(8):
        await three.wait_until(lambda: len(three.controller_ids()) == 1 and three.is_everyone_known(), 20)
        await asyncio.sleep(20)
        before = three.newest_image()
        three.loop.freeze(slow.process)
        await asyncio.sleep(5)
        after = three.newest_image()
        fences.append(after.brokers[slow.node_id].fenced or after.controller_epoch > before.controller_epoch)
        three.loop.resume(slow.process)
    assert fences[0] and not any(fences[2:])
