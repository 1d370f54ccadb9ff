"""Questions of clients wait while it is not known whether a broker is gone."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.unit.member_view import make_view
from tiered.broker.suspects import RECENTLY_GONE_SECONDS, SUSPECT_SECONDS, SuspectedBrokers
from tiered.metadata.changes import BrokerFenced, BrokerRegistered, BrokerStopped, BrokerStopping, Change
from tiered.metadata.image import Image


class World:
    def __init__(self) -> None:
        self.loop = SimLoop(1)
        self.view = make_view(Image().apply([registered(1, "a"), registered(2, "b")], 0))
        self.suspected: list[int] = []
        self.doubts = SuspectedBrokers(SimClock(self.loop), self.view, self.suspected.append)

    def apply(self, *changes: Change) -> None:
        """Commits changes, of which the broker does not know yet that it has applied them."""
        image = self.view.image
        self.view.loader.image = image.apply(changes, image.slot + 1)

    async def waited(self, seconds: float, *changes: Change) -> float:
        """How long a question waits when these are committed so much later."""
        start = self.loop.time()
        asked = asyncio.create_task(self.doubts.wait_resolved())
        await asyncio.sleep(seconds)
        if changes:
            self.apply(*changes)
        self.doubts.on_image()
        await asked
        return self.loop.time() - start


def registered(node_id: int, incarnation: str) -> BrokerRegistered:
    return BrokerRegistered(node_id, incarnation, "d", "", "", 0)


def test_nobody_waits_as_a_rule_nor_for_who_is_known_to_be_gone() -> None:
    world = World()

    async def scenario() -> None:
        assert await world.waited(0) == 0
        world.apply(BrokerFenced(2, "b"))
        world.doubts.connection_lost(2)
        world.doubts.connection_lost(3)
        assert await world.waited(0) == 0 and world.suspected == []

    world.loop.run(scenario())


def test_who_said_that_it_stops_is_waited_for_but_not_suspected() -> None:
    """It says itself when it has stopped; to fence it would begin what it leads anew in the middle of that."""
    world = World()

    async def scenario() -> None:
        world.apply(BrokerStopping(2, "b"))
        world.doubts.connection_lost(2)
        assert world.suspected == []
        assert 0.25 <= await world.waited(0.25, BrokerStopped(2, "b")) < 0.3
        assert world.doubts.recently_gone() == {2}

    world.loop.run(scenario())


@pytest.mark.parametrize("end", [BrokerFenced(2, "b"), BrokerStopped(2, "b"), registered(2, "again")])
def test_a_question_waits_until_the_cluster_knows_of_the_end(end: Change) -> None:
    world = World()

    async def scenario() -> None:
        world.doubts.connection_lost(2)
        assert world.suspected == [2]
        assert await world.waited(0.25, BrokerFenced(1, "a")) > 0.25, "of another one"
        world.doubts.connection_lost(2)
        world.doubts.answered(2)
        world.doubts.connection_lost(2)
        assert await world.waited(0.25, end) == 0.25

    world.loop.run(scenario())


def test_whose_connections_ended_with_it_is_still_named_for_a_while_and_is_not_when_it_is_back() -> None:
    world = World()

    def becomes(*changes: Change) -> frozenset[int]:
        world.apply(*changes)
        world.doubts.on_image()
        return world.doubts.recently_gone()

    async def scenario() -> None:
        world.doubts.connection_lost(2)
        assert world.doubts.recently_gone() == frozenset()
        assert becomes(BrokerFenced(2, "b")) == {2}
        await asyncio.sleep(RECENTLY_GONE_SECONDS / 2)
        world.doubts.connection_lost(1)
        assert becomes(BrokerStopped(1, "a")) == {1, 2}
        assert becomes(registered(1, "again")) == {2}
        assert becomes(BrokerFenced(1, "again")) == {2}, "it is not heard, and may be frozen"
        await asyncio.sleep(RECENTLY_GONE_SECONDS / 2)
        assert world.doubts.recently_gone() == frozenset()

    world.loop.run(scenario())


def test_it_waits_no_longer_than_a_moment_and_not_for_who_answers_again() -> None:
    world = World()

    async def scenario() -> None:
        world.doubts.connection_lost(2)
        await asyncio.sleep(0.5)
        assert await world.waited(0.25) == pytest.approx(SUSPECT_SECONDS - 0.5, abs=0.001)
        assert await world.waited(0) == 0, "not a second time"
        world.doubts.connection_lost(2)
        world.loop.call_later(0.1, world.doubts.answered, 2)
        assert 0.1 <= await world.waited(0.05) < 0.2

    world.loop.run(scenario())
