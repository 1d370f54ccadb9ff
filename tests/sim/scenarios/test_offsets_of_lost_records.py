"""Offsets that a group committed for records that are lost are no offsets of the records that follow (R5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.e2e.site import SimBrokerRig, batch, fill, run
from tests.sim.groups import GROUP_SETTINGS, fetch_committed, snapshots, wait_groups_loaded
from tests.sim.harness.machine import SimMachine
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.broker.broker import Broker
from tiered.broker.group_snapshots import GROUP_SNAPSHOTS
from tiered.cold.layout import manifest_key
from tiered.controller.requests import CreateTopic, ElectLeaders
from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    FetchOffsets,
    FetchOffsetsReply,
    PartitionOffset,
)
from tiered.hot.checkpoints import BOOT_MARK
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import PartitionImage
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.object_store.faulty import FaultKind, FaultRule

AT = TopicPartition("t", 0)
G = "g"
SECONDS = 60
SYNCED, WRITTEN = 10, 20
BIG = {"segment.bytes": "1048576", "retention.ms": "-1"}


async def commit_at(broker: Broker, group: str, offset: int, epoch: int = -1) -> None:
    request = CommitOffsets(group, (PartitionOffset("t", 0, offset, epoch),))
    reply = await broker.group_coordinators.submit(group, request)
    assert isinstance(reply, CommitOffsetsReply) and reply.codes == (Code.NONE,)


async def committed(broker: Broker, group: str) -> tuple[int, int]:
    """Returns the committed offset of a group and its leader epoch, once its coordinator is loaded."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                reply = await broker.group_coordinators.submit(group, FetchOffsets(group, (AT,)))
            except Refused:
                await asyncio.sleep(0.1)
            else:
                assert isinstance(reply, FetchOffsetsReply)
                return reply.offsets[0].offset, reply.offsets[0].leader_epoch


def lose_tail(machine: SimMachine, size: int) -> None:
    """Leaves `size` bytes of the log, as a power cut may do: the next start cannot prove that the log is whole."""
    machine.disk.open(f"log/t-0/{0:020d}.log").truncate(size)
    machine.disk.remove(f"log/{BOOT_MARK}")


@pytest.mark.parametrize("epoch", [-1, 0])
def test_offset_is_cut_back_though_new_records_reach_it_first(epoch: int) -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        replica = await site.create("t", segment_bytes="1048576", retention_ms="-1")
        await fill(replica, SYNCED)
        size = replica.log.size_bytes
        await fill(replica, WRITTEN - SYNCED)
        await commit_at(site.node, G, WRITTEN, epoch)
        partition = partition_of(G, 2)
        await site.wait_until(lambda: snapshots(site, partition) != [])
        await site.crash(site.machine.kill)
        lose_tail(site.machine, size)
        for each in snapshots(site, partition):
            site.machine.faults.rules.append(FaultRule(FaultKind.DELAY, ("get",), key=each.key, seconds=10))
        await site.start(GROUP_SETTINGS)
        await fill(site.node.leader_replica("t", 0), WRITTEN)
        assert site.node.group_coordinators.host.count_loading()
        await wait_groups_loaded(site)
        assert await fetch_committed(site, G) == SYNCED
        await site.stop()

    run(scenario)


def test_offset_of_the_new_records_stays_when_the_groups_are_loaded_anew() -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start(GROUP_SETTINGS)
        await fill(await site.create("t", segment_bytes="1048576", retention_ms="-1"), 20)
        await commit_at(site.node, G, 20)
        await site.wait_until(lambda: snapshots(site, partition_of(G, 2)) != [])
        await site.crash(site.machine.lose_disk)
        await site.start(GROUP_SETTINGS)
        await wait_groups_loaded(site)
        replica = site.node.leader_replica("t", 0)
        await fill(replica, 25)
        await commit_at(site.node, G, 15)
        await commit_at(site.node, "h", 25, replica.leader_epoch)
        host = site.node.group_coordinators.host
        for each in host.led_partitions.values():
            host._on_append_failed(each, Refused(Code.KAFKA_STORAGE_ERROR, "a log that refused a change"))
        await wait_groups_loaded(site)
        assert (await fetch_committed(site, G), await fetch_committed(site, "h")) == (15, 25)
        await site.stop()

    run(scenario)


class Lost:
    """A cluster whose coordinator is broker `home`. The only replica of the topic is on `away`, which loses records."""

    def __init__(self, three: ThreeBrokers) -> None:
        self.three = three
        self.home, self.away = three.others()
        self.size = 0

    async def create(self) -> None:
        submit = self.three.controller.node.submit
        await submit(CreateTopic("t", assignments=[[self.away.node_id]], configs=BIG))
        await submit(CreateTopic(OFFSETS_TOPIC, assignments=[[self.home.node_id]]))
        await self.three.wait_until(self.is_led(self.away, AT), SECONDS)
        await self.three.wait_until(self.is_led(self.home, TopicPartition(OFFSETS_TOPIC, 0)), SECONDS)
        replica = self.away.node.leader_replica("t", 0)
        await fill(replica, SYNCED)
        self.size = replica.log.size_bytes
        await fill(replica, WRITTEN - SYNCED)

    async def lose_records(self) -> None:
        """Loses the newest records of `away`, and writes others when it is back."""
        await self.away.kill()
        lose_tail(self.away.machine, self.size)
        await self.away.start()
        await self.three.wait_until(self.is_led(self.away, AT), SECONDS)
        replica = self.away.node.leader_replica("t", 0)
        await replica.wait_loss_reported()
        while replica.log.end_offset < WRITTEN + 5:
            await replica.append(batch([b"new"]))
        assert self.away.node.image.losses[PartitionId(replica.topic_id, 0)][-1].from_offset == SYNCED

    @staticmethod
    def is_led(broker: SimBroker, tp: TopicPartition) -> Callable[[], bool]:
        return lambda: broker.node.hosted_replicas.find_leader(tp) is not None


def test_offset_is_cut_back_when_another_broker_reports_a_loss() -> None:
    """The coordinator was there all the time, and the client commits no leader epoch."""

    async def scenario(three: ThreeBrokers) -> None:
        lost = Lost(three)
        await lost.create()
        node = lost.home.node
        await commit_at(node, G, WRITTEN)
        await commit_at(node, "h", SYNCED - 1, 0)
        await lost.lose_records()
        await three.wait_until(lambda: bool(node.image.losses), SECONDS)
        epoch = node.image.topics["t"].partitions[0].leader_epoch
        async with asyncio.timeout(SECONDS):
            while await committed(node, G) != (SYNCED, -1):
                await asyncio.sleep(0.1)
        await commit_at(node, G, WRITTEN, epoch)
        await asyncio.sleep(5)
        assert await committed(node, G) == (WRITTEN, epoch)
        assert await committed(node, "h") == (SYNCED - 1, 0)

    run_scenario(scenario)


def test_offset_is_cut_back_if_its_coordinator_was_down_during_the_loss() -> None:
    async def scenario(three: ThreeBrokers) -> None:
        lost = Lost(three)
        await lost.create()
        await commit_at(lost.home.node, G, WRITTEN, 0)
        await lost.home.kill()
        await lost.lose_records()
        await lost.home.start()
        assert await committed(lost.home.node, G) == (SYNCED, -1)

    run_scenario(scenario)


def test_offset_is_cut_back_though_its_coordinator_is_loaded_first() -> None:
    """One image makes a broker the leader of both, and the other log opens late. The controller does not know which
    records are lost: only the new leader does."""

    async def scenario(three: ThreeBrokers) -> None:
        submit, (before, heir) = three.controller.node.submit, three.others()
        for topic, configs in (
            ("t", {"remote.storage.enable": "false"}),
            (OFFSETS_TOPIC, {"min.insync.replicas": "1"}),
        ):
            await submit(CreateTopic(topic, assignments=[[before.node_id, heir.node_id]], configs=configs))
        topics = [three.controller.node.image.topics[name] for name in ("t", OFFSETS_TOPIC)]

        def partitions() -> list[PartitionImage]:
            return [three.controller.node.image.topics[each.name].partitions[0] for each in topics]

        await three.wait_until(lambda: all(len(each.isr) == 2 for each in partitions()), SECONDS)
        replica = before.node.leader_replica("t", 0)
        await fill(replica, SYNCED)
        await heir.kill()
        await three.wait_until(lambda: all(each.isr == (before.node_id,) for each in partitions()), SECONDS)
        await fill(replica, WRITTEN - SYNCED)
        await commit_at(before.node, G, WRITTEN, 0)
        await three.wait_until(lambda: any(map(GROUP_SNAPSHOTS.parse_key, three.bucket.objects)), 2 * SECONDS)
        await before.kill()
        await three.wait_until(lambda: all(each.leader == NO_LEADER for each in partitions()), SECONDS)
        await heir.start()
        manifest = manifest_key(replica.partition_id)
        slow = FaultRule(FaultKind.DELAY, ("get",), key=manifest, times=1, seconds=5)
        heir.machine.faults.rules.append(slow)
        await submit(ElectLeaders(False, tuple((each.topic_id, 0) for each in topics)))
        assert (await committed(heir.node, G), slow.times) == ((SYNCED, -1), 0)

    run_scenario(scenario)
