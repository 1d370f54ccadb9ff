"""A broker whose way to the controller is cut: what it has to say there is said soon after it is mended."""

from __future__ import annotations

import asyncio

from tests.sim.scenarios.three import SimBroker, Three, told
from tiered.controller.requests import CreateTopic


def cut(three: Three, broker: SimBroker) -> SimBroker:
    """Both ways between it and the controller, which is given."""
    controller = three.controller
    for source, target in ((controller, broker), (broker, controller)):
        three.network.cut(source.name, target.name)
    return controller


async def known_to(controller: SimBroker, broker: SimBroker, three: Three, *, live: bool, seconds: float) -> None:
    await three.until(lambda: controller.node.image.brokers[broker.node_id].live is live, seconds)


def test_a_broker_that_starts_behind_a_cut_serves_soon_after_it_is_mended() -> None:
    async def story(three: Three) -> None:
        late = three.others()[0]
        await late.kill()
        await known_to(three.controller, late, three, live=False, seconds=10)
        controller = cut(three, late)
        starting = asyncio.create_task(late.start())
        await asyncio.sleep(10)
        assert not starting.done()
        three.network.heal()
        await known_to(controller, late, three, live=True, seconds=5)
        await starting

    told(story)


def test_a_request_that_finds_no_way_to_the_controller_is_asked_again_and_done_soon_after_it_is_mended() -> None:
    """Nobody heard it: it is not taken for one that may have been done."""

    async def story(three: Three) -> None:
        asker = three.others()[0]
        cut(three, asker)
        await three.until(lambda: not asker.node.cluster.has_controller_contact, 30)
        asked = asyncio.create_task(asker.node.submit(CreateTopic("t")))
        await asyncio.sleep(10)
        assert not asked.done()
        three.network.heal()
        await three.until(asked.done, 5)
        assert (await asked).name == "t"

    told(story)
