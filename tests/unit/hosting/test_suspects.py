"""Tests of suspected brokers: requests of clients wait until it is known that a broker is gone."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.unit.member_view import make_view
from tiered.hosting.suspects import RECENTLY_GONE_SECONDS, SUSPECT_SECONDS, SuspectedBrokers
from tiered.metadata.changes import BrokerFenced, BrokerRegistered, BrokerStopped, BrokerStopping, Change
from tiered.metadata.image import Image


class World:
    def __init__(self) -> None:
        self.loop = SimLoop(1)
        self.view = make_view(Image().apply([registered(1, "a"), registered(2, "b")], 0))
        self.suspected: list[int] = []
        self.suspects = SuspectedBrokers(SimClock(self.loop), self.view, self.suspected.append)

    def apply(self, *changes: Change) -> None:
        """Commits changes, of which the broker does not know yet that it has applied them."""
        image = self.view.image
        self.view.loader.image = image.apply(changes, image.slot + 1)

    async def waited(self, seconds: float, *changes: Change) -> float:
        """Returns how long a request waits if these changes are committed so much later."""
        start = self.loop.time()
        asked = asyncio.create_task(self.suspects.wait_resolved())
        await asyncio.sleep(seconds)
        if changes:
            self.apply(*changes)
        self.suspects.on_image()
        await asked
        return self.loop.time() - start


def registered(node_id: int, incarnation: str) -> BrokerRegistered:
    return BrokerRegistered(node_id, incarnation, "d", "", "", 0)


def test_no_request_waits_without_a_suspect_or_for_a_dead_broker() -> None:
    world = World()

    async def scenario() -> None:
        assert await world.waited(0) == 0
        world.apply(BrokerFenced(2, "b"))
        world.suspects.connection_lost(2)
        world.suspects.connection_lost(3)
        assert await world.waited(0) == 0 and world.suspected == []

    world.loop.run(scenario())


def test_stopping_broker_is_awaited_and_not_suspected() -> None:
    """It reports its own stop. A fence would restart its leaderships in the middle of the stop."""
    world = World()

    async def scenario() -> None:
        world.apply(BrokerStopping(2, "b"))
        world.suspects.connection_lost(2)
        assert world.suspected == []
        assert 0.25 <= await world.waited(0.25, BrokerStopped(2, "b")) < 0.3
        assert world.suspects.recently_gone() == {2}

    world.loop.run(scenario())


@pytest.mark.parametrize("end", [BrokerFenced(2, "b"), BrokerStopped(2, "b"), registered(2, "again")])
def test_request_waits_until_the_cluster_knows_of_the_death(end: Change) -> None:
    world = World()

    async def scenario() -> None:
        world.suspects.connection_lost(2)
        assert world.suspected == [2]
        assert await world.waited(0.25, BrokerFenced(1, "a")) > 0.25, "of another one"
        world.suspects.connection_lost(2)
        world.suspects.on_reply(2)
        world.suspects.connection_lost(2)
        assert await world.waited(0.25, end) == 0.25

    world.loop.run(scenario())


def test_dead_broker_is_named_for_a_while_unless_it_is_back() -> None:
    world = World()

    def becomes(*changes: Change) -> frozenset[int]:
        world.apply(*changes)
        world.suspects.on_image()
        return world.suspects.recently_gone()

    async def scenario() -> None:
        world.suspects.connection_lost(2)
        assert world.suspects.recently_gone() == frozenset()
        assert becomes(BrokerFenced(2, "b")) == {2}
        await asyncio.sleep(RECENTLY_GONE_SECONDS / 2)
        world.suspects.connection_lost(1)
        assert becomes(BrokerStopped(1, "a")) == {1, 2}
        assert becomes(registered(1, "again")) == {2}
        assert becomes(BrokerFenced(1, "again")) == {2}, "it is not heard, and may be frozen"
        await asyncio.sleep(RECENTLY_GONE_SECONDS / 2)
        assert world.suspects.recently_gone() == frozenset()

    world.loop.run(scenario())


def test_wait_is_bounded_and_ends_when_the_suspect_answers() -> None:
    world = World()

    async def scenario() -> None:
        world.suspects.connection_lost(2)
        await asyncio.sleep(0.5)
        assert await world.waited(0.25) == pytest.approx(SUSPECT_SECONDS - 0.5, abs=0.001)
        assert await world.waited(0) == 0, "not a second time"
        world.suspects.connection_lost(2)
        world.loop.call_later(0.1, world.suspects.on_reply, 2)
        assert 0.1 <= await world.waited(0.05) < 0.2

    world.loop.run(scenario())
