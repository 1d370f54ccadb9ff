"""Tests of a broker that is cut off from the controller: its pending requests are sent soon after the cut heals."""

from __future__ import annotations

import asyncio

from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic


def cut_from_controller(three: ThreeBrokers, broker: SimBroker) -> SimBroker:
    """Cuts both directions between the broker and the controller; returns the controller."""
    controller = three.controller
    for source, target in ((controller, broker), (broker, controller)):
        three.network.cut(source.name, target.name)
    return controller


async def wait_known(
    controller: SimBroker, broker: SimBroker, three: ThreeBrokers, *, live: bool, seconds: float
) -> None:
    await three.wait_until(lambda: controller.node.image.brokers[broker.node_id].live is live, seconds)


def test_broker_that_starts_behind_a_cut_serves_soon_after_it_heals() -> None:
    async def scenario(three: ThreeBrokers) -> None:
        late = three.others()[0]
        await late.kill()
        await wait_known(three.controller, late, three, live=False, seconds=10)
        controller = cut_from_controller(three, late)
        starting = asyncio.create_task(late.start())
        await asyncio.sleep(10)
        assert not starting.done()
        three.network.heal()
        await wait_known(controller, late, three, live=True, seconds=5)
        await starting

    run_scenario(scenario)


def test_undelivered_request_is_repeated_soon_after_a_cut_heals() -> None:
    """No broker received the request, so that it does not count as possibly done."""

    async def scenario(three: ThreeBrokers) -> None:
        asker = three.others()[0]
        cut_from_controller(three, asker)
        await three.wait_until(lambda: not asker.node.cluster.has_controller_contact, 30)
        asked = asyncio.create_task(asker.node.submit(CreateTopic("t")))
        await asyncio.sleep(10)
        assert not asked.done()
        three.network.heal()
        await three.wait_until(asked.done, 5)
        assert (await asked).name == "t"

    run_scenario(scenario)
