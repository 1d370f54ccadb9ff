"""Rig of three brokers whose every step the reference model judges, and the faults that its scenarios combine.

Only processes die here, so that no copy loses records: each finding of the model is a broken rule.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.sim.cluster.model import ClusterModel
from tests.sim.cluster.observer import BrokenRules, Finding, Observer
from tests.sim.harness.durable_bytes import Folder, Inode
from tests.sim.harness.loop import process_context
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tests.sim.settings import SETTINGS
from tiered.controller.requests import CreateTopic
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import PartitionImage
from tiered.records.native import walk
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica

AT = TopicPartition("t", 0)
SECONDS = 60.0
LAG_MS = 2_000
SHORT = {
    "replica_lag_time_max_ms": LAG_MS,
    "replica_fetch_wait_max_ms": 500,
    "tiered_broker_suspect_timeout_ms": SETTINGS.broker_session_timeout_ms,
}
"""Followers that do not fetch leave the ISR soon."""


class Judged:
    """The topic `t` with one partition on all three brokers. `c` is the controller; `a` leads at first, then `b`."""

    def __init__(self, three: ThreeBrokers) -> None:
        self.three = three
        self.a, self.b = three.others()
        self.c = three.controller
        self.found: list[Finding] = []
        self.model = ClusterModel(
            three.bucket, SETTINGS, lambda rule, what: self.found.append(Finding(rule, what)), lambda: three.loop.now_ns
        )
        self.model.applied_slot = lambda node: three.brokers[node].node.cluster.loader.applied_slot
        self.model.is_controller = lambda node: three.brokers[node].node.cluster.is_controller
        self.written = 0

    @property
    def now(self) -> PartitionImage:
        """The partition as the metadata log has it."""
        return self.model.image.topics[AT.topic].partitions[0]

    async def create(self, *replicas: SimBroker, **configs: str) -> None:
        dotted = {name.replace("_", "."): value for name, value in configs.items()} | {"retention.ms": "-1"}
        nodes = [each.node_id for each in replicas]
        await self.c.node.submit(CreateTopic(AT.topic, assignments=[nodes], configs=dotted))
        await self.wait(lambda: all(self.has_role(each) for each in replicas))

    async def begin(self, *, replicas: int, records: int, **configs: str) -> tuple[SimBroker, SimBroker, SimBroker]:
        """Creates the topic on the first brokers, and writes records to the leader. Returns all three brokers."""
        brokers = self.a, self.b, self.c
        await self.create(*brokers[:replicas], **configs)
        await self.write(self.a, records)
        return brokers

    async def begin_alike(
        self, *, replicas: int, records: int, **configs: str
    ) -> tuple[SimBroker, SimBroker, SimBroker]:
        """Begins, and waits until all replicas are alike."""
        brokers = await self.begin(replicas=replicas, records=records, **configs)
        await self.wait_alike(*brokers[:replicas])
        return brokers

    def has_role(self, broker: SimBroker) -> bool:
        hosted = broker.node.hosted_replicas
        return hosted.find_leader(AT) is not None or hosted.find_follower(AT) is not None

    def leader(self, broker: SimBroker) -> LeaderReplica:
        return broker.node.leader_replica(*AT)

    def follower(self, broker: SimBroker) -> FollowerReplica:
        found = broker.node.hosted_replicas.find_follower(AT)
        assert found is not None, broker.name
        return found

    def leads(self, broker: SimBroker) -> bool:
        """True if the broker leads under the epoch of the metadata log."""
        replica = broker.node.hosted_replicas.find_leader(AT)
        return replica is not None and (self.now.leader, self.now.leader_epoch) == (
            broker.node_id, replica.leader_epoch
        )  # fmt: skip

    async def write(self, broker: SimBroker, count: int = 1, *, acks: int = ACKS_ALL, timeout_ms: int = 3_000) -> None:
        """Appends records, each in a batch of its own."""
        for _ in range(count):
            self.written += 1
            data = batch([b"%06d" % self.written + b"x" * 60])
            appending = self.leader(broker).append(data, acks=acks, timeout_ms=timeout_ms)
            await self.three.loop.create_task(appending, name="write", context=process_context(broker.process))

    async def wait(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Lets time pass until the condition holds; the model judges meanwhile."""
        await self.three.wait_until(lambda: self.judge() or condition(), seconds)

    async def sleep(self, seconds: float) -> None:
        end = self.three.now + seconds
        await self.wait(lambda: self.three.now >= end, seconds + 1)

    def judge(self) -> bool:
        """Judges what followers serve. Raises `BrokenRules` if any rule is broken by now; returns False."""
        for each in self.three.brokers.values():
            for held in each.node.hosted_replicas.list_replicas():
                if isinstance(held, FollowerReplica) and self.model.is_modelled(held.partition_id):
                    copies = self.model.copies_of(held.partition_id)
                    copies.on_follower_watermark(each.node_id, held.high_watermark)
        if self.found:
            raise BrokenRules(self.found)
        return False

    def cut(self, *pairs: tuple[SimBroker, SimBroker]) -> None:
        """Cuts the way from each first broker to the second one."""
        for source, target in pairs:
            self.three.network.cut(source.name, target.name)

    def isolate(self, one: SimBroker, *others: SimBroker) -> None:
        """Cuts both ways between a broker and others."""
        self.cut(*((one, each) for each in others), *((each, one) for each in others))

    def mend(self, one: SimBroker, other: SimBroker) -> None:
        """Mends both ways between two brokers."""
        self.three.network.mend(one.name, other.name)
        self.three.network.mend(other.name, one.name)

    def heal(self) -> None:
        self.three.network.heal()

    async def kill(self, broker: SimBroker) -> None:
        await broker.kill()

    async def wait_isr(self, *members: SimBroker) -> None:
        nodes = {each.node_id for each in members}
        await self.wait(lambda: {*self.now.isr} == nodes)

    async def wait_alike(self, *brokers: SimBroker) -> None:
        """Waits until all of these are in sync, then compares them: bytes, epochs, ends and high watermarks."""
        await self.wait_isr(*brokers)
        lead = self.three.brokers[self.now.leader]
        await self.wait(lambda: self.leads(lead))
        end = self.leader(lead).log.end_offset
        await self.wait(lambda: self.leader(lead).high_watermark == end)
        followers = [each for each in brokers if each is not lead]
        await self.wait(lambda: all(self.follower(each).high_watermark == end for each in followers))
        expected = held_batches(lead)
        for each in followers:
            held = held_batches(each)
            common = max(min(held, default=end), min(expected, default=end))
            found = [{at: data for at, data in one.items() if at >= common} for one in (held, expected)]
            assert found[0] == found[1], f"{each.name} differs from the leader {lead.name}"
            assert self.follower(each).log.epochs.lineage == self.leader(lead).log.epochs.lineage, each.name


def held_batches(broker: SimBroker) -> dict[int, bytes]:
    """Returns the batches on a disk by their base offsets."""
    folder = broker.machine.disk._find(f"log/{AT}")
    assert isinstance(folder, Folder)
    held: dict[int, bytes] = {}
    for name, node in sorted(folder.names.items()):
        if name.endswith(".log") and isinstance(node, Inode):
            data = bytes(node.data)
            for each in walk(data).batches:
                held[each.base_offset] = data[each.position : each.position + each.size]
    return held


def run_judged(scenario: Callable[[Judged], Awaitable[None]], seed: int = 1, **settings: Any) -> None:
    async def run_all(three: ThreeBrokers) -> None:
        judged = Judged(three)
        with Observer(judged.model).watch():
            await scenario(judged)
            judged.judge()

    run_scenario(run_all, seed, **{**SHORT, **settings})
