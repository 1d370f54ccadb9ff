"""Tests of the deletion of write-ahead chains: nobody deletes what a newer metadata log may name (I38)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.scenario import in_rig
from tests.sim.harness.clock import SimRng
from tests.unit.controller.test_controller import controller, decide
from tests.unit.member_view import make_view
from tests.unit.wal.rig import ONE, Rig
from tiered.controller import requests
from tiered.controller.member_view import MemberView
from tiered.errors import Fenced
from tiered.hosting.chains import Chains
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.object_store.faulty import Faults
from tiered.ports import World
from tiered.replication.leader_replica import LeaderReplica
from tiered.upkeep.chain_deletion import ChainDeletion
from tiered.wal.layout import ChainId


@dataclass
class Controller:
    """The controller of a broker, which another one may have replaced."""

    is_controller: bool = True
    is_newest: bool = True
    asked: int = 0
    meanwhile: Callable[[], Awaitable[None]] | None = None
    """Runs while the reply is on its way."""

    async def confirm_controller(self) -> bool:
        self.asked += 1
        if self.meanwhile is not None:
            await self.meanwhile()
        return self.is_newest


class NoLeaders:
    """A broker that leads nothing."""

    def list_leaders(self) -> list[LeaderReplica]:
        return []

    def on_fenced(self, replica: LeaderReplica, error: Fenced) -> None:
        raise AssertionError(f"{replica} is not led: {error}")


def make_deletion(rig: Rig, view: MemberView, controller: Controller) -> ChainDeletion:
    store = rig.bucket.store(Faults(), rig.clock)
    world = World(rig.clock, SimRng(9), None, store, None)  # type: ignore[arg-type]
    chains = Chains(view, store, world, Metrics(), lambda: "cluster")
    return ChainDeletion(view, chains, NoLeaders(), controller, rig.clock)


async def put_windows(rig: Rig, incarnation: str) -> None:
    """A dead broker leaves two windows."""
    owner = rig.broker(1, incarnation)
    owner.lead(ONE, 1)
    for number in range(2):
        owner.append(ONE, b"a")
        await owner.wait_stored(ONE, number + 1)


def image_with_a_chain(*later: str) -> Image:
    """Returns the metadata of a cluster with a topic in the bucket. Broker 1 registers again, once for each `later`."""
    shard = controller(1)
    decide(shard, requests.CreateTopic("t", 1, 1, configs={"flush": "bucket"}))
    for incarnation in later:
        decide(shard, requests.RegisterBroker(1, incarnation, "d", "127.0.0.1:1", whole=False))
    return shard.image


@in_rig(Rig)
async def test_controller_deletes_windows_of_dead_brokers_and_keeps_fences(rig: Rig) -> None:
    await put_windows(rig, "dead")
    await rig.broker(2, "j").take_over(ChainId(1, "dead"), 2, ONE)
    local = Controller()
    await make_deletion(rig, make_view(image_with_a_chain()), local).delete_dead()
    assert rig.slots() == ["02"], "a frozen process would find the fence in its next slot"
    assert local.asked == 1


@in_rig(Rig)
async def test_controller_that_was_replaced_deletes_nothing(rig: Rig) -> None:
    """It may not know the broker yet that puts into the chain."""
    await put_windows(rig, "dead")
    view = make_view(image_with_a_chain())
    await make_deletion(rig, view, Controller(is_newest=False)).delete_dead()
    await make_deletion(rig, view, Controller(is_controller=False)).delete_dead()
    assert rig.slots() == ["00", "01"]


@in_rig(Rig)
async def test_window_of_a_broker_that_comes_back_meanwhile_stays(rig: Rig) -> None:
    """The controller is frozen until a later one lets the broker lead again, under the same incarnation."""
    await put_windows(rig, "back")
    owner = rig.broker(1, "back")
    local = Controller()

    async def come_back() -> None:
        owner.writer._next_slot = owner.writer._decided.next_slot = 2
        owner.lead(ONE, 3)
        owner.append(ONE, b"b")
        await owner.wait_stored(ONE, 1)

    local.meanwhile = come_back
    await make_deletion(rig, make_view(image_with_a_chain()), local).delete_dead()
    assert rig.slots() == ["02"]


@in_rig(Rig)
async def test_chain_of_fences_alone_costs_no_look_for_another_controller(rig: Rig) -> None:
    """The fences of all brokers that ever died stay."""
    await put_windows(rig, "dead")
    await rig.broker(2, "j").take_over(ChainId(1, "dead"), 2, ONE)
    view, local = make_view(image_with_a_chain()), Controller()
    for _ in range(3):  # three controllers, one after the other
        await make_deletion(rig, view, local).delete_dead()
    assert (rig.slots(), local.asked) == (["02"], 1)


@in_rig(Rig)
async def test_cluster_without_chains_lists_none(rig: Rig) -> None:
    local = Controller()
    await make_deletion(rig, make_view(), local).delete_dead()
    assert local.asked == 0


@in_rig(Rig)
async def test_chain_that_a_partition_names_stays(rig: Rig) -> None:
    await put_windows(rig, "i1")
    image = image_with_a_chain("later")
    assert image.topics["t"].partitions[0].chains[0][1:] == (1, "i1"), "it may have records of the topic"
    await make_deletion(rig, make_view(image), Controller()).delete_dead()
    assert rig.slots() == ["00", "01"]
