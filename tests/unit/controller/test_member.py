"""Tests of a broker's role in the cluster: it takes over alone, decides, and steps down for a newer controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from random import Random

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.clock import EPOCH_MS
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket
from tiered.config.settings import Settings
from tiered.controller.member import ClusterMember
from tiered.controller.requests import AnnounceBroker, RegisterBroker
from tiered.errors import Code, Fenced, Refused
from tiered.ids import TopicId
from tiered.metadata.dynamic_config import DynamicBrokerConfig
from tiered.metadata.image import Image
from tiered.metadata.log_writer import MetadataLog
from tiered.metrics import Metrics
from tiered.peers import MetadataFetch

Scenario = Callable[["MemberRig"], Coroutine[None, None, None]]


async def apply_nothing(old: Image, new: Image) -> None:
    return None


class MemberRig:
    """A broker without peers, in a bucket of its own."""

    def __init__(self, loop: SimLoop) -> None:
        self.bucket = SimBucket(loop)
        self.network = SimNetwork(loop, Random(loop.seed))
        self._loop = loop
        self._numbers = count()
        self.member, self.metadata = self.make("m", 1)

    def make(self, name: str, node_id: int) -> tuple[ClusterMember, MetadataLog]:
        world = SimMachine(self._loop, name, self.bucket, self.network).process()
        metadata = MetadataLog(world.store, world.clock, world.rng, Metrics())
        config = DynamicBrokerConfig(Settings(node_id=node_id))
        return ClusterMember(
            f"i{node_id}", config, world, None, metadata, apply_nothing, lambda changes, old, new: None,
            lambda: TopicId(f"{next(self._numbers):022d}"), lambda compared: None,
        ), metadata  # fmt: skip

    async def start(self) -> None:
        await self.metadata.load_or_create_format()
        await self.member.start(await self.metadata.load())


def run(scenario: Scenario) -> None:
    loop = SimLoop(1)

    async def main() -> None:
        await scenario(MemberRig(loop))

    loop.run(main())


def fetch_of(epoch: int, slot: int = 0) -> MetadataFetch:
    return MetadataFetch(2, "i2", slot, -1, epoch, 0)


@run_by(run)
async def test_broker_alone_becomes_controller_and_has_contact(rig: MemberRig) -> None:
    member = rig.member
    assert not member.is_controller
    await rig.start()
    assert member.is_controller and member.has_controller_contact and member.describe_contact() == ""
    view = member.controller_view()
    assert (view.controller, view.heard_ms_ago, view.node_id, view.incarnation) == (1, 0, 1, "i1")
    assert member.clock_comparisons() == {} and member.describe_clocks() == ([], [])


@run_by(run)
async def test_standby_refuses_the_requests_of_others(rig: MemberRig) -> None:
    for refused in (
        rig.member.decide(RegisterBroker(2, "i2", "d", ""), 1),
        rig.member.handle_metadata_fetch(fetch_of(0)),
    ):
        with refuses(Code.NOT_CONTROLLER):
            await refused
    assert rig.member.pending == 0


@run_by(run)
async def test_controller_decides_and_hands_out_its_entries(rig: MemberRig) -> None:
    await rig.start()
    running = asyncio.ensure_future(rig.member.run())
    await rig.member.decide(RegisterBroker(1, "i1", "d", ""), 10)
    image = rig.member.view.image
    assert image.brokers[1].incarnation == "i1" and image.controller == 1
    reply = await rig.member.handle_metadata_fetch(fetch_of(image.controller_epoch, image.slot))
    assert (reply.controller_epoch, reply.next_slot) == (image.controller_epoch, image.slot + 1)
    assert len(reply.entries) == 1 and not reply.too_old and reply.wall_ms >= EPOCH_MS
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not rig.member.is_controller and rig.member.loader.has_ended
    with pytest.raises(Refused):
        await rig.member.decide(RegisterBroker(1, "i1", "d", ""), 1)


@run_by(run)
async def test_fetch_of_a_newer_epoch_ends_the_controller(rig: MemberRig) -> None:
    await rig.start()
    epoch = rig.member.view.image.controller_epoch
    with pytest.raises(Refused, match="is newer"):
        await rig.member.handle_metadata_fetch(fetch_of(epoch + 1))
    assert not rig.member.has_controller_contact, "it acknowledges nothing from now on"
    with pytest.raises(Fenced):  # without peers it can follow nobody
        await rig.member.run()
    assert not rig.member.is_controller


@run_by(run)
async def test_controller_steps_down_once_another_has_written_to_the_log(rig: MemberRig) -> None:
    await rig.start()
    other, others_log = rig.make("other", 2)
    await others_log.load_or_create_format()
    other.loader.load_image(await others_log.load())
    await other.try_take_over()
    assert other.is_controller
    running = asyncio.ensure_future(rig.member.run())
    with pytest.raises(Refused):
        await rig.member.decide(RegisterBroker(1, "i1", "d", ""), 10)
    with pytest.raises(Fenced):
        await running
    image = rig.member.view.image
    assert not rig.member.is_controller and image.controller == 2
    assert rig.member.describe_contact() == "no contact with the controller (broker 2) for 0 s"


@run_by(run)
async def test_controller_that_was_frozen_is_confirmed_by_no_look(rig: MemberRig) -> None:
    """Looks in turn come before, so that the next one would look at something else than the newest slot."""
    await rig.start()
    await rig.member.check_store()
    assert await rig.member.confirm_controller()
    _, metadata = rig.make("n", 2)
    await metadata.load_or_create_format()
    await metadata.take_over(await metadata.load(), 2, "i2")
    assert not await rig.member.confirm_controller()


@run_by(run)
async def test_announcement_of_this_broker_needs_no_check_of_its_address(rig: MemberRig) -> None:
    await rig.start()
    running = asyncio.ensure_future(rig.member.run())
    await rig.member.decide(RegisterBroker(1, "i1", "d", ""), 10)
    await rig.member.decide(AnnounceBroker(1, "i1", "", {"PLAINTEXT": "nowhere:1"}), 10)
    assert rig.member.view.image.brokers[1].listeners == {"PLAINTEXT": "nowhere:1"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
