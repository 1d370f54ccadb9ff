"""The balancer: the pause between two plans, the batches, and the time of the next plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.unit.member_view import make_view
from tiered.config.settings import Settings
from tiered.controller.balancer import SETTLE_SECONDS, Balancer, BalancingPlan
from tiered.controller.member_view import MemberView
from tiered.controller.missing_replicas import MissingReplicas
from tiered.controller.preferred_leaders import PreferredLeaders
from tiered.controller.requests import ElectLeaders, Reassign
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata.changes import BrokerRegistered, PartitionChanged, TopicCreated
from tiered.metadata.image import Image

TOPIC = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
Asked = ElectLeaders | Reassign


def joined(*nodes: int) -> Image:
    """Returns an image of these brokers."""
    return Image().apply([BrokerRegistered(node, f"i{node}", f"d{node}", "", "", 1) for node in nodes])


def misled(image: Image, partitions: int) -> Image:
    """Adds a topic with the replicas 1 and 2, which broker 2 leads."""
    changed = [PartitionChanged(TOPIC, p, 2, 0, (2, 1), ()) for p in range(partitions)]
    return image.apply([TopicCreated("t", TOPIC, ((1, 2),) * partitions, {}, 1), *changed])


def short(image: Image, partitions: int) -> Image:
    """Adds a topic with one replica of the two that it is to have."""
    changed = [PartitionChanged(TOPIC, p, 1, 0, (1,), ()) for p in range(partitions)]
    return image.apply([TopicCreated("t", TOPIC, ((1,),) * partitions, {}, 1, 2), *changed])


@dataclass
class Desk:
    """A running balancer, the image that it reads, and the requests that it has submitted, with their times."""

    clock: SimClock
    view: MemberView
    requests: list[tuple[float, Asked]] = field(default_factory=list)
    refuses: bool = False
    changed: Callable[[], None] = lambda: None

    async def submit(self, request: Asked) -> None:
        self.requests.append((self.clock.mono_ns() / 1e9, request))
        if self.refuses:
            raise Refused(Code.REQUEST_TIMED_OUT, "no slot")

    def show(self, image: Image) -> None:
        self.view.loader.image = image
        self.changed()

    def sizes(self) -> list[int]:
        return [
            len((each.partitions or ()) if isinstance(each, ElectLeaders) else each.moves) for _, each in self.requests
        ]


def run(plan: BalancingPlan[Any], scenario: Callable[[Desk], Coroutine[Any, Any, None]], **settings: Any) -> None:
    loop = SimLoop(1)

    async def main() -> None:
        desk = Desk(SimClock(loop), make_view(settings=Settings(**settings)))
        balancer = Balancer(plan, desk.submit, desk.view, desk.clock)
        desk.changed = balancer.on_image
        running = asyncio.create_task(balancer.run())
        await scenario(desk)
        running.cancel()

    loop.run(main())


def test_preferred_leaders_are_elected_after_the_pause() -> None:
    async def scenario(desk: Desk) -> None:
        begun = desk.clock.mono_ns() / 1e9
        desk.show(misled(joined(1, 2), 3))
        await asyncio.sleep(SETTLE_SECONDS - 0.1)
        assert not desk.requests
        await asyncio.sleep(0.2)
        request = ElectLeaders(preferred=True, partitions=tuple((TOPIC, p) for p in range(3)))
        ((when, submitted),) = desk.requests
        assert submitted == request and when == pytest.approx(begun + SETTLE_SECONDS)

    run(PreferredLeaders(), scenario)


def test_preferred_leader_that_is_electable_only_briefly_is_not_elected() -> None:
    async def scenario(desk: Desk) -> None:
        desk.show(misled(joined(1, 2), 3))
        await asyncio.sleep(SETTLE_SECONDS / 2)
        desk.show(Image())
        await asyncio.sleep(5 * SETTLE_SECONDS)
        assert not desk.requests

    run(PreferredLeaders(), scenario)


def test_refused_election_is_repeated_after_the_pause() -> None:
    async def scenario(desk: Desk) -> None:
        desk.refuses = True
        desk.show(misled(joined(1, 2), PreferredLeaders.batch_max + 1))
        await asyncio.sleep(1.5 * SETTLE_SECONDS)
        assert desk.sizes() == [PreferredLeaders.batch_max], "the rest would be refused too"
        desk.refuses = False
        await asyncio.sleep(SETTLE_SECONDS)
        assert desk.sizes()[1:] == [PreferredLeaders.batch_max, 1]

    run(PreferredLeaders(), scenario)


def test_preferred_leaders_are_planned_at_the_interval_without_a_change() -> None:
    async def scenario(desk: Desk) -> None:
        desk.view.loader.image = misled(joined(1, 2), 3)  # nobody calls on_image
        await asyncio.sleep(10 + SETTLE_SECONDS / 2)
        assert not desk.requests
        await asyncio.sleep(SETTLE_SECONDS)
        assert desk.sizes() == [3]

    run(PreferredLeaders(), scenario, leader_imbalance_check_interval_seconds=10)


def test_preferred_leaders_stay_where_the_operator_forbids_it() -> None:
    async def scenario(desk: Desk) -> None:
        desk.show(misled(joined(1, 2), 3))
        await asyncio.sleep(5 * SETTLE_SECONDS)
        assert not desk.requests

    run(PreferredLeaders(), scenario, auto_leader_rebalance_enable=False)


def test_replicas_are_added_once_after_a_broker_joins() -> None:
    async def scenario(desk: Desk) -> None:
        desk.show(short(joined(1), 3))
        await asyncio.sleep(5 * SETTLE_SECONDS)
        assert not desk.requests
        image = desk.view.image.apply([BrokerRegistered(2, "i2", "d2", "", "", 1)])
        desk.show(image)
        await asyncio.sleep(SETTLE_SECONDS / 2)
        desk.show(image.apply([BrokerRegistered(3, "i3", "d3", "", "", 1)]))
        await asyncio.sleep(SETTLE_SECONDS)
        assert desk.sizes() == [3], "brokers that start together lead to one plan"
        ((_, request),) = desk.requests
        assert isinstance(request, Reassign) and {each.replicas for each in request.moves} == {(1, 2), (1, 3)}
        desk.show(desk.view.image)
        await asyncio.sleep(5 * SETTLE_SECONDS)
        assert desk.sizes() == [3], "a reassignment that is cancelled does not start again"

    run(MissingReplicas(), scenario)


def test_refused_replicas_are_planned_again_with_the_next_broker() -> None:
    async def scenario(desk: Desk) -> None:
        desk.refuses = True
        desk.show(short(joined(1, 2), MissingReplicas.batch_max + 1))
        await asyncio.sleep(5 * SETTLE_SECONDS)
        assert desk.sizes() == [MissingReplicas.batch_max]
        desk.refuses = False
        desk.show(desk.view.image.apply([BrokerRegistered(3, "i3", "d3", "", "", 1)]))
        await asyncio.sleep(5 * SETTLE_SECONDS)
        assert desk.sizes()[1:] == [MissingReplicas.batch_max, 1]

    run(MissingReplicas(), scenario)
