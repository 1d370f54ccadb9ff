"""Offsets that a group committed for records that are lost are no offsets of the records that follow (R5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.scenario import run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import SimBrokerRig, batch, fill, run
from tests.sim.rig.group_requests import GROUP_SETTINGS, fetch_committed, snapshots, wait_groups_loaded
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.broker.broker import Broker
from tiered.cold.layout import manifest_key
from tiered.controller.requests import CreateTopic, ElectLeaders
from tiered.coordination.group_coordinators import SLICE_OFFSETS
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS
from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused
from tiered.groups.records import OffsetValue, offset_record
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    FetchOffsets,
    FetchOffsetsReply,
    LostOffset,
    LowerOffsets,
    PartitionOffset,
)
from tiered.hot import proof_file
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.changes import NO_LEADER, LossReported
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage
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
    machine.disk.remove(f"log/{proof_file.FILE}")


@pytest.mark.parametrize("epoch", [-1, 0])
@run_by(run)
async def test_offset_is_cut_back_though_new_records_reach_it_first(rig: SimBrokerRig, *, epoch: int) -> None:
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, SYNCED)
    size = replica.log.segments.size_bytes
    await fill(replica, WRITTEN - SYNCED)
    await commit_at(rig.broker, G, WRITTEN, epoch)
    partition = partition_of(G, 2)
    await rig.wait_until(lambda: snapshots(rig, partition) != [])
    await rig.crash(rig.machine.kill)
    lose_tail(rig.machine, size)
    for each in snapshots(rig, partition):
        rig.machine.faults.rules.append(FaultRule(FaultKind.DELAY, ("get",), key=each.key, seconds=10))
    await rig.start(GROUP_SETTINGS)
    await fill(rig.broker.leader_replica("t", 0), WRITTEN)
    assert rig.broker.group_coordinators.host.count_loading()
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == SYNCED


@run_by(run)
async def test_offset_of_the_new_records_stays_when_the_groups_are_loaded_anew(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await fill(await rig.create("t", segment_bytes="1048576", retention_ms="-1"), 20)
    await commit_at(rig.broker, G, 20)
    await rig.wait_until(lambda: snapshots(rig, partition_of(G, 2)) != [])
    await rig.crash(rig.machine.lose_disk)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    replica = rig.broker.leader_replica("t", 0)
    await fill(replica, 25)
    await commit_at(rig.broker, G, 15)
    await commit_at(rig.broker, "h", 25, replica.leader_epoch)
    host = rig.broker.group_coordinators.host
    for each in host.led_partitions.values():
        host._on_append_failed(each, Refused(Code.KAFKA_STORAGE_ERROR, "a log that refused a change"))
    await wait_groups_loaded(rig)
    assert (await fetch_committed(rig, G), await fetch_committed(rig, "h")) == (15, 25)


@run_by(run)
async def test_offset_is_cut_back_to_the_earlier_of_two_losses_at_a_load(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, SYNCED)
    size = replica.log.segments.size_bytes
    await fill(replica, WRITTEN - SYNCED)
    await commit_at(rig.broker, G, WRITTEN, 0)
    await rig.wait_until(lambda: snapshots(rig, partition_of(G, 2)) != [])
    for lost in range(2):
        for each in snapshots(rig, partition_of(G, 2)):
            rig.machine.faults.rules.append(FaultRule(FaultKind.DELAY, ("get",), key=each.key, seconds=10))
        await rig.crash(rig.machine.kill)
        lose_tail(rig.machine, size)
        await rig.start(GROUP_SETTINGS)
        replica = rig.broker.leader_replica("t", 0)
        assert len(rig.broker.image.losses[replica.partition_id]) == lost + 1
        await fill(replica, 2)
        size = replica.log.segments.size_bytes
        await fill(replica, WRITTEN)
        assert rig.broker.group_coordinators.host.count_loading()
    await wait_groups_loaded(rig)
    assert await fetch_committed(rig, G) == SYNCED


@pytest.mark.parametrize("images", [1, 2])
@run_by(run)
async def test_offset_is_cut_back_by_both_losses_that_come_at_once(rig: SimBrokerRig, *, images: int) -> None:
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, 40)
    await commit_at(rig.broker, G, 25, 0)
    await commit_at(rig.broker, "later", 35, 1)
    old, groups = rig.broker.image, rig.broker.group_coordinators
    first = old.apply([LossReported(replica.topic_id, 0, 1, 10, 1)], None)
    second = first.apply([LossReported(replica.topic_id, 0, 2, 30, 2)], None)
    if images == 2:
        groups.on_image(old, first)
    groups.on_image(first if images == 2 else old, second)
    await asyncio.sleep(1)
    assert (await fetch_committed(rig, G), await fetch_committed(rig, "later")) == (10, 30)


@run_by(run)
async def test_loss_that_was_known_before_cuts_back_no_later_offset(rig: SimBrokerRig) -> None:
    """The client commits no leader epoch, and the first loss is not acknowledged."""
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, 40)
    await commit_at(rig.broker, G, SYNCED)
    old, groups = rig.broker.image, rig.broker.group_coordinators
    first = old.apply([LossReported(replica.topic_id, 0, 1, 10, 1)], None)
    groups.on_image(old, first)
    await asyncio.sleep(1)
    await commit_at(rig.broker, G, 35)
    groups.on_image(first, first.apply([LossReported(replica.topic_id, 0, 2, 30, 2)], None))
    await asyncio.sleep(1)
    assert await fetch_committed(rig, G) == 30


@run_by(run)
async def test_offset_after_a_loss_is_not_cut_back_at_the_next_start(rig: SimBrokerRig) -> None:
    """The client commits no leader epoch, and the loss is not acknowledged."""
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, SYNCED)
    size = replica.log.segments.size_bytes
    await fill(replica, WRITTEN - SYNCED)
    await commit_at(rig.broker, "other", SYNCED)
    await rig.crash(rig.machine.kill)
    lose_tail(rig.machine, size)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)
    await fill(rig.broker.leader_replica("t", 0), WRITTEN)
    await commit_at(rig.broker, G, WRITTEN)
    for _ in range(2):
        await rig.stop()
        await rig.start(GROUP_SETTINGS)
        await wait_groups_loaded(rig)
        await asyncio.sleep(1)
        assert await fetch_committed(rig, G) == WRITTEN and rig.broker.image.losses
    rig.broker.group_coordinators.on_image(Image(), rig.broker.image)
    await asyncio.sleep(1)
    assert await fetch_committed(rig, G) == WRITTEN, "groups that this image gives the broker, with the loss"


@pytest.mark.parametrize("epoch", [-1, 0])
@run_by(run)
async def test_load_goes_by_a_loss_that_comes_between_two_of_its_turns(rig: SimBrokerRig, *, epoch: int) -> None:
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, WRITTEN)
    await commit_at(rig.broker, G, SYNCED)
    groups, old = rig.broker.group_coordinators, rig.broker.image
    shard, value = groups.make_shard(), OffsetValue(WRITTEN, epoch, "", 0)
    for name in ("a", "b"):
        shard.apply([offset_record(name, "t", each, value) for each in range(SLICE_OFFSETS + 1)])
    led = groups.host.led_partitions[0]
    led.coordinator = None
    found = asyncio.ensure_future(groups.find_corrections(shard, led))
    await asyncio.sleep(0)
    groups.on_image(old, old.apply([LossReported(replica.topic_id, 0, 1, SYNCED, 1)], None))
    lost = [LostOffset(name, "t", 0, SYNCED, 1) for name in ("a", "b")]
    assert [request for request in await found if isinstance(request, LowerOffsets)] == [
        LowerOffsets((each,)) for each in lost
    ]


@pytest.mark.parametrize("epoch", [-1, 0])
@run_by(run)
async def test_offset_is_cut_back_though_the_log_refuses_that_first(rig: SimBrokerRig, *, epoch: int) -> None:
    await rig.start(GROUP_SETTINGS)
    replica = await rig.create("t", segment_bytes="1048576", retention_ms="-1")
    await fill(replica, WRITTEN)
    groups = rig.broker.group_coordinators
    names = [name for name in map("g{}".format, range(20)) if partition_of(name, 2) == 0][:2]
    offsets = tuple(PartitionOffset("t", each, WRITTEN, epoch) for each in range(SLICE_OFFSETS + 1))
    for name in names:
        await groups.submit(name, CommitOffsets(name, offsets))
    old, led = rig.broker.image, groups.host.led_partitions[0]
    capacity, rig.machine.disk.capacity = rig.machine.disk.capacity, 1
    groups.on_image(old, old.apply([LossReported(replica.topic_id, 0, 1, SYNCED, 1)], None))
    await rig.wait_until(lambda: led.coordinator is None)
    rig.machine.disk.capacity = capacity
    await asyncio.sleep(SECONDS)
    await wait_groups_loaded(rig)
    assert [await fetch_committed(rig, name) for name in names] == [SYNCED, SYNCED]


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
        self.size = replica.log.segments.size_bytes
        await fill(replica, WRITTEN - SYNCED)

    async def lose_records(self) -> None:
        """Loses the newest records of `away`, and writes others when it is back."""
        await self.away.kill()
        lose_tail(self.away.machine, self.size)
        await self.away.start()
        await self.three.wait_until(self.is_led(self.away, AT), SECONDS)
        replica = self.away.node.leader_replica("t", 0)
        await replica.admission.wait_loss_reported()
        while replica.log.end_offset < WRITTEN + 5:
            await replica.append(batch([b"new"]))
        assert self.away.node.image.losses[PartitionId(replica.topic_id, 0)][-1].from_offset == SYNCED

    @staticmethod
    def is_led(broker: SimBroker, tp: TopicPartition) -> Callable[[], bool]:
        return lambda: broker.node.hosted_replicas.find_leader(tp) is not None


@run_by(run_scenario)
async def test_offset_is_cut_back_when_another_broker_reports_a_loss(three: ThreeBrokers) -> None:
    """The coordinator was there all the time, and the client commits no leader epoch."""
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


@pytest.mark.parametrize("epoch", [-1, 0])
def test_offset_is_cut_back_though_the_loss_comes_during_the_load(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load has compared the offsets with the cluster, and writes a snapshot before it is served."""
    monkeypatch.setitem(BIG, "remote.storage.enable", "false")

    async def scenario(three: ThreeBrokers) -> None:
        lost = Lost(three)
        await lost.create()
        home = lost.home
        await commit_at(home.node, G, WRITTEN, epoch)
        await three.wait_until(lambda: any(map(GROUP_SNAPSHOTS.parse_key, three.bucket.objects)), 2 * SECONDS)
        await asyncio.sleep(SECONDS)  # the new start of the log is in its checkpoint
        await home.kill()
        slow = FaultRule(FaultKind.DELAY, ("put",), key=GROUP_SNAPSHOTS.prefix, times=1, seconds=20)
        home.machine.faults.rules.append(slow)
        await home.start()
        await three.wait_until(lambda: slow.times == 0, SECONDS)
        await lost.lose_records()
        await three.wait_until(lambda: bool(home.node.image.losses), SECONDS)
        assert home.node.group_coordinators.host.count_loading()
        assert await committed(home.node, G) == (SYNCED, -1)

    run_scenario(scenario)


@run_by(run_scenario)
async def test_offset_is_cut_back_if_its_coordinator_was_down_during_the_loss(three: ThreeBrokers) -> None:
    lost = Lost(three)
    await lost.create()
    await commit_at(lost.home.node, G, WRITTEN, 0)
    await lost.home.kill()
    await lost.lose_records()
    await lost.home.start()
    assert await committed(lost.home.node, G) == (SYNCED, -1)


@run_by(run_scenario)
async def test_offset_is_cut_back_though_its_coordinator_is_loaded_first(three: ThreeBrokers) -> None:
    """One image makes a broker the leader of both, and the other log opens late. The controller does not know which
    records are lost: only the new leader does."""
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
