"""A broker that starts while its way to the controller is cut."""

from __future__ import annotations

import asyncio

from tests.sim.test_controllers import Three, told


def test_a_broker_that_starts_behind_a_cut_serves_soon_after_it_is_mended() -> None:
    async def story(three: Three) -> None:
        controller, late = three.controller, three.others()[0]
        await late.kill()
        await three.until(lambda: not controller.node.image.brokers[late.node_id].live, 10)
        for source, target in ((controller, late), (late, controller)):
            three.network.cut(source.name, target.name)
        starting = asyncio.create_task(late.start())
        await asyncio.sleep(10)
        assert not starting.done()
        three.network.heal()
        await three.until(lambda: starting.done() and controller.node.image.brokers[late.node_id].live, 5)
        await starting

    told(story)
