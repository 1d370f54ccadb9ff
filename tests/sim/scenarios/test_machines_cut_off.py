"""Tests of a machine whose two processes reach each other and the bucket, but no other machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.scenario import GIVEN, run_by
from tests.seeds import first_seeds
from tests.sim.cluster.options import ClusterOptions
from tests.sim.cluster.world import SimWorld
from tests.sim.harness.durable_logs import judged_disks
from tests.sim.harness.loop import SimLoop
from tiered.broker.broker import Broker

SESSION = 1.5
START_SECONDS = 20.0


def run(scenario: Callable[[SimWorld], Awaitable[None]], seed: int) -> None:
    """Runs a scenario with three machines of two processes."""
    loop = SimLoop(seed, seconds_max=600)
    drawn = ClusterOptions.for_seed(seed, compacts=False)
    options = drawn.with_changes(processes=2, joins=False, session_ms=round(SESSION * 1000))

    async def main() -> None:
        world = SimWorld(loop, options.settings(), fan=4, slots=200)
        for host in world.hosts.values():
            host.power_on()
        try:
            await asyncio.wait_for(wait_all_live(world), START_SECONDS)
            await scenario(world)
        finally:
            await world.shut_down()

    with judged_disks():
        loop.run(main())


async def wait_all_live(world: SimWorld) -> None:
    while not all(host.node is not None and len(host.node.image.live_ids()) == 6 for host in world.hosts.values()):
        await asyncio.sleep(0.1)


def brokers_of(world: SimWorld, machines: set[int]) -> list[Broker]:
    """Returns the running brokers of these machines."""
    return [host.node for host in world.hosts.values() if host.node is not None and host.machine_id in machines]


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@pytest.mark.parametrize("whom", ["controller", "follower"])
@run_by(run, seed=GIVEN)
async def test_machine_that_is_cut_off_does_not_disturb_the_others(world: SimWorld, *, whom: str) -> None:
    (controller,) = (host for host in world.hosts.values() if host.node is not None and host.node.cluster.is_controller)
    lost = controller.machine_id if whom == "controller" else controller.machine_id % 3 + 1
    others = {1, 2, 3} - {lost}
    for host in world.hosts.values():
        for other in world.hosts.values():
            if (host.machine_id == lost) != (other.machine_id == lost):
                world.network.cut(host.name, other.name)
    await asyncio.sleep(6 * SESSION)
    epoch = {each.image.controller_epoch for each in brokers_of(world, others)}
    assert len(epoch) == 1 and max(epoch) <= 2
    for _ in range(20):
        await asyncio.sleep(SESSION / 2)
        assert {each.image.controller_epoch for each in brokers_of(world, others)} == epoch
        live = brokers_of(world, others)[0].image.live_ids()
        assert live == {node for node in world.hosts if world.hosts[node].machine_id in others}
    world.network.heal()
    await asyncio.wait_for(wait_all_live(world), 4 * SESSION)
    assert {each.image.controller_epoch for each in brokers_of(world, {1, 2, 3})} == epoch
