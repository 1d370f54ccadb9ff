"""A cluster without a network: leaders, followers and ISRs of several brokers under the decisions of the real
controller.

Calls replace the metadata log and the network: a decision is committed when it is made, and each broker gets it a
little later, in order.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from tests.unit.member_view import make_view
from tests.unit.replication.rig import TP, BrokerRig, DirectPeers, RecordedEvents, ReplicationRig
from tiered.config.settings import Settings, TopicConfig
from tiered.controller import requests
from tiered.controller.controller import Controller
from tiered.coordination.snapshot_stores import make_group_snapshot_store
from tiered.durability.data_directory import DataDirectory
from tiered.durability.possible_losses import PossibleLosses
from tiered.errors import Code, Refused, Unavailable
from tiered.hosting.chains import Chains
from tiered.hosting.hosted_replicas import HostedReplicas, ReplicaStorage
from tiered.hosting.isr_updater import IsrUpdater
from tiered.hosting.schema_validation import SchemaValidation
from tiered.hosting.suspects import SuspectedBrokers
from tiered.ids import encode_uuid, incarnation_number
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.peers import PartitionFetch, ReplicaFetch
from tiered.ports import World
from tiered.replication.leader_replica import LeaderReplica

NODES = (1, 2, 3)
CLUSTER = "cluster"


class IsrEvents(RecordedEvents):
    """Wakes the updater of ISRs, as in a broker."""

    def __init__(self, isr_updater: IsrUpdater) -> None:
        super().__init__()
        self._isr_updater = isr_updater

    def on_follower_caught_up(self, replica: LeaderReplica) -> None:
        self._isr_updater.wake(replica)


class BrokerProcess:
    """The processes of one broker, one after the other on the same disk."""

    def __init__(self, cluster: ThreeBrokers, node_id: int) -> None:
        self.node_id = node_id
        self.broker: BrokerRig = cluster.rig.brokers[node_id]
        self.incarnation = ""
        self.image = Image()
        self.running = False
        self._cluster = cluster
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Registers a new incarnation, and runs it."""
        cluster, broker = self._cluster, self.broker
        self.incarnation = encode_uuid(uuid.UUID(int=cluster.rng.getrandbits(128), version=4))
        self.settings = Settings(node_id=self.node_id, replica_lag_time_max_ms=3_000, replica_fetch_wait_max_ms=200)
        rng = broker.rng
        world = World(broker.clock, rng, broker.disk, broker.store, cluster.rig.network.host(str(self.node_id)))
        directory = DataDirectory(broker.disk)
        self.metrics = Metrics()
        self.image = cluster.controller.image
        self.view = make_view(self.image, self.settings, self.incarnation)
        losses = PossibleLosses(self.view)
        self.partitions = HostedReplicas(
            self.view, world, self.metrics,
            storage=ReplicaStorage(
                broker.state, directory, broker.cold,
                {OFFSETS_TOPIC: make_group_snapshot_store(broker.store, broker.clock, self.metrics)},
                Chains(self.view, broker.store, world, self.metrics, lambda: CLUSTER),
            ),
            losses=losses, peers=cluster.peers,
            suspected_brokers=SuspectedBrokers(broker.clock, self.view, lambda node_id: None),
            has_controller_contact=lambda: True,
            schema_validation=SchemaValidation(broker.clock, self.metrics),
        )  # fmt: skip
        self.isr_updater = IsrUpdater(self.view, cluster, self.partitions, losses, broker.clock, self.metrics)
        self.partitions.subscribe(IsrEvents(self.isr_updater))
        found = await directory.open(CLUSTER, self.node_id, encode_uuid(uuid.UUID(int=self.node_id, version=4)))
        await self.partitions.recover(self.image, found)
        self._image_queue: asyncio.Queue[Image] = asyncio.Queue(maxsize=10_000)
        self.running = True
        await cluster.submit(
            requests.RegisterBroker(
                self.node_id,
                self.incarnation,
                "d",
                "",
                whole=found.is_intact,
                listeners={"PLAINTEXT": f"{self.node_id}:0"},
            )
        )
        for run in (self._apply_images, self.partitions.run_fetchers, self.isr_updater.run):
            self._tasks.append(cluster.rig.loop.create_task(run(), name=f"{self.node_id}-{run.__name__}"))
        await directory.write_boot_mark(self.incarnation)

    def receive_image(self, image: Image) -> None:
        """Delivers a committed image."""
        if self.running:
            self.view.loader.image = image
            self._image_queue.put_nowait(image)

    async def _apply_images(self) -> None:
        while True:
            image = await self._image_queue.get()
            await asyncio.sleep(self._cluster.rng.uniform(0, self._cluster.metadata_delay_seconds))
            old, self.image = self.image, image
            await self.partitions.apply_image(old, image)

    async def kill(self) -> None:
        """Kills the process; the page cache survives."""
        self.running = False
        self.broker.store.revoke()
        self.broker.disk.revoke()
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            assert isinstance(result, asyncio.CancelledError | Unavailable | None), result
        self._tasks.clear()
        self.broker.restart(self.broker.disk.after_kill())


class RoutedPeers(DirectPeers):
    """Finds the replica of a running broker, for an incarnation that it knows."""

    def __init__(self, cluster: ThreeBrokers) -> None:
        super().__init__(cluster.rig)
        self._cluster = cluster

    def find_replica(self, address: str, request: ReplicaFetch, partition: PartitionFetch) -> LeaderReplica | None:
        member = self._cluster.members[int(address.split(":")[0])]
        known = member.image.brokers.get(request.node_id)
        if not member.running or known is None or incarnation_number(known.incarnation) != request.incarnation:
            return None
        return member.partitions.find_leader(TP)


class ThreeBrokers:
    """Three brokers, one topic of one partition."""

    def __init__(self, seed: int = 1, config: TopicConfig | None = None) -> None:
        self.rig = ReplicationRig(seed, config)
        self.rng = random.Random(f"{seed}/town")
        self.metadata_delay_seconds = 0.05
        self.lost_message: Callable[[], str] = lambda: ""
        """The message to or from the controller that is lost: "ask", "answer" or none."""
        ids = iter(range(1, 1 << 30))
        self.controller = Controller(
            Image(), Settings(tiered_internal_configs_enable=True), lambda: encode_uuid(uuid.UUID(int=next(ids)))
        )
        self.members = {node: BrokerProcess(self, node) for node in NODES}
        self.peers = RoutedPeers(self)

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.rig.loop.run(scenario())

    async def start(self, replication_factor: int = 3, **configs: str) -> None:
        """Starts all brokers and creates the topic."""
        for member in self.members.values():
            await member.start()
        given = {name.replace("_", "."): text for name, text in configs.items()}
        await self.submit(requests.CreateTopic("t", 1, replication_factor, configs=given))

    async def submit(self, request: Any, timeout: float = 10.0) -> Any:
        """Submits a request, like the broker's controller channel."""
        lost_message = self.lost_message()
        await asyncio.sleep(self.rng.uniform(0, 0.05))
        if lost_message == "ask":
            await asyncio.sleep(timeout)
            raise Refused(Code.REQUEST_TIMED_OUT, "no answer")
        decision = self.controller.decide(request, self.rig.clock.wall_ms())
        if decision.changes:
            self.controller.apply(decision.changes, self.controller.image.slot + 1)
            for member in self.members.values():
                member.receive_image(self.controller.image)
        await asyncio.sleep(self.rng.uniform(0, 0.05))
        if lost_message == "answer":
            await asyncio.sleep(timeout)
            raise Refused(Code.REQUEST_TIMED_OUT, "no answer")
        return decision.reply

    async def fence(self, node: int) -> None:
        """Fences a broker, as the controller does with a silent one."""
        known = self.controller.image.brokers[node]
        await self.submit(requests.FenceBroker(node, known.incarnation))

    @property
    def partition(self) -> PartitionImage:
        return self.controller.image.topics["t"].partitions[0]

    def leader(self) -> LeaderReplica | None:
        """Returns the replica that leads by the controller's image, once its broker knows."""
        member = self.members.get(self.partition.leader)
        replica = member.partitions.find_leader(TP) if member is not None and member.running else None
        return replica if replica is not None and replica.leader_epoch == self.partition.leader_epoch else None
