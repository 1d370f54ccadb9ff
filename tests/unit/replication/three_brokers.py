"""A cluster without a wire: roles, copies and in-sync sets of several brokers under the real controller's decisions.

What the metadata log and the network do stands in for by calls: a decision is committed when it is made, and each
broker hears of it a little later, in order.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from tests.unit.replication.rig import AT, Broker, DirectPeers, Rig
from tiered.broker.data_directory import DataDirectory
from tiered.broker.hosted_replicas import Partitions
from tiered.broker.isr_updater import InSyncSets
from tiered.broker.suspects import Doubts
from tiered.config.settings import Settings, TopicConfig
from tiered.controller import requests
from tiered.controller.controller import Controller
from tiered.coordinator.snapshot_store import GroupImages
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import incarnation_number, text_id
from tiered.metadata.image import Image, PartitionImage
from tiered.metrics import Metrics
from tiered.peers import FetchFrom, ReplicaFetch
from tiered.ports import World
from tiered.replication.leader_replica import Replica

NODES = (1, 2, 3)
CLUSTER = "cluster"


class Member:
    """One broker process after the other on one disk."""

    def __init__(self, town: Town, node_id: int) -> None:
        self.node_id = node_id
        self.broker: Broker = town.rig.brokers[node_id]
        self.incarnation = ""
        self.image = Image()
        self.running = False
        self._town = town
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Registers a new incarnation, and runs."""
        town, broker = self._town, self.broker
        self.incarnation = text_id(uuid.UUID(int=town.draw.getrandbits(128), version=4))
        self.settings = Settings(node_id=self.node_id, replica_lag_time_max_ms=3_000, replica_fetch_wait_max_ms=200)
        rng = broker.rng
        world = World(broker.clock, rng, broker.disk, broker.store, town.rig.network.host(str(self.node_id)))
        directory = DataDirectory(broker.disk)
        self.metrics = Metrics()
        self.image = town.controller.image
        self.partitions = Partitions(
            self.settings, world, self.metrics, incarnation=self.incarnation, disk=broker.state, directory=directory,
            cold=broker.cold, images=GroupImages(broker.store, broker.clock, self.metrics), peers=town.peers,
            begun=lambda replica: None, closed=lambda replica: None, configured=lambda replica: None,
            forgotten=lambda replica: None, joinable=lambda replica: self.sets.wake(replica), in_touch=lambda: True,
            heard=lambda: town.controller.image, doubts=Doubts(broker.clock, lambda: self.image, lambda node_id: None),
        )  # fmt: skip
        self.sets = InSyncSets(
            town.ask, self.partitions.led, lambda: (), lambda: self.image, lambda: self.settings, self.incarnation,
            broker.clock, self.metrics,
        )  # fmt: skip
        found = await directory.open(CLUSTER, self.node_id, text_id(uuid.UUID(int=self.node_id, version=4)))
        await self.partitions.recover(self.image, found)
        self._images: asyncio.Queue[Image] = asyncio.Queue(maxsize=10_000)
        self.running = True
        await town.ask(
            requests.RegisterBroker(
                self.node_id, self.incarnation, "d", "", whole=found.whole, listeners={"PLAINTEXT": f"{self.node_id}:0"}
            )
        )
        for run in (self._follow, self.partitions.copy, self.sets.run):
            self._tasks.append(town.rig.loop.create_task(run(), name=f"{self.node_id}-{run.__name__}"))
        await directory.trust()

    def hear(self, image: Image) -> None:
        """What is committed, on its way."""
        if self.running:
            self._images.put_nowait(image)

    async def _follow(self) -> None:
        while True:
            image = await self._images.get()
            await asyncio.sleep(self._town.draw.uniform(0, self._town.hears_seconds))
            old, self.image = self.image, image
            await self.partitions.follow(old, image, self.settings)

    async def kill(self) -> None:
        """The process dies; the page cache lives."""
        self.running = False
        self.broker.store.revoke()
        self.broker.disk.revoke()
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            assert isinstance(result, asyncio.CancelledError | Unavailable | None), result
        self._tasks.clear()
        self.broker.replace(self.broker.disk.after_kill())


class Wire(DirectPeers):
    """Finds the replica of a broker that runs, for an incarnation that it knows."""

    def __init__(self, town: Town) -> None:
        super().__init__(town.rig)
        self._town = town

    def find(self, address: str, ask: ReplicaFetch, asked: FetchFrom) -> Replica | None:
        member = self._town.members[int(address.split(":")[0])]
        known = member.image.brokers.get(ask.node_id)
        if not member.running or known is None or incarnation_number(known.incarnation) != ask.incarnation:
            return None
        return member.partitions.get(AT)


class Town:
    """Three brokers, one topic of one partition."""

    def __init__(self, seed: int = 1, config: TopicConfig | None = None) -> None:
        self.rig = Rig(seed, config)
        self.draw = random.Random(f"{seed}/town")
        self.hears_seconds = 0.05
        self.lost: Callable[[], str] = lambda: ""
        """What is lost of a question to the controller: "ask", "answer" or nothing."""
        ids = iter(range(1, 1 << 30))
        self.controller = Controller(Image(), Settings(), lambda: text_id(uuid.UUID(int=next(ids))))
        self.members = {node: Member(self, node) for node in NODES}
        self.peers = Wire(self)

    def run(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.rig.loop.run(story())

    async def begin(self, copies: int = 3, **configs: str) -> None:
        """All run, and the topic is there."""
        for member in self.members.values():
            await member.start()
        given = {name.replace("_", "."): text for name, text in configs.items()}
        await self.ask(requests.CreateTopic("t", 1, copies, configs=given))

    async def ask(self, request: Any, timeout: float = 10.0) -> Any:
        """As `Node.submit`."""
        lost = self.lost()
        await asyncio.sleep(self.draw.uniform(0, 0.05))
        if lost == "ask":
            await asyncio.sleep(timeout)
            raise Refused(Code.REQUEST_TIMED_OUT, "no answer")
        decision = self.controller.decide(request, self.rig.clock.wall_ms())
        if decision.changes:
            self.controller.apply(decision.changes, self.controller.image.slot + 1)
            for member in self.members.values():
                member.hear(self.controller.image)
        await asyncio.sleep(self.draw.uniform(0, 0.05))
        if lost == "answer":
            await asyncio.sleep(timeout)
            raise Refused(Code.REQUEST_TIMED_OUT, "no answer")
        return decision.reply

    async def fence(self, node: int) -> None:
        """The controller misses it."""
        known = self.controller.image.brokers[node]
        await self.ask(requests.FenceBroker(node, known.incarnation))

    @property
    def partition(self) -> PartitionImage:
        return self.controller.image.topics["t"].partitions[0]

    def leader(self) -> Replica | None:
        """Who leads by the controller's word, and knows it."""
        member = self.members.get(self.partition.leader)
        replica = member.partitions.get(AT) if member is not None and member.running else None
        return replica if replica is not None and replica.leader_epoch == self.partition.leader_epoch else None
