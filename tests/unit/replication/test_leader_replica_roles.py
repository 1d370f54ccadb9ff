"""Tests of replicas that lead and follow as the controller decides: acknowledged records survive each change."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.seeds import first_seeds
from tests.sim.harness.disk import DiskFault
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import TP, read_log
from tests.unit.replication.three_brokers import CLUSTER, BrokerProcess, ThreeBrokers
from tiered.controller import requests
from tiered.durability.data_directory import DataDirectory
from tiered.errors import Code, Refused, Unavailable
from tiered.hosting.openings import Opening
from tiered.ids import encode_uuid
from tiered.metadata.changes import NO_LEADER, PartitionChanged
from tiered.metadata.delta import Lead
from tiered.replication.follower_replica import FollowerPorts, FollowerReplica
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica


async def wait_until(done: Callable[[], object], seconds: float = 30) -> None:
    """Waits in virtual time until the condition holds."""
    for _ in range(int(seconds * 100)):
        if done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


async def wait_for_leader(cluster: ThreeBrokers) -> LeaderReplica:
    await wait_until(lambda: cluster.leader() is not None)
    leader = cluster.leader()
    assert leader is not None
    return leader


async def start_with_records(cluster: ThreeBrokers) -> LeaderReplica:
    """Starts the cluster. Returns the leader of a topic with ten acknowledged batches."""
    await cluster.start()
    leader = await wait_for_leader(cluster)
    for number in range(10):
        await leader.append(batch(number), acks=ACKS_ALL)
    return leader


def unroutable(cluster: ThreeBrokers) -> contextlib.AbstractContextManager[object]:
    """Makes every broker unreachable for the others, so that nothing is copied meanwhile."""
    return patch.object(cluster.peers, "find_replica", lambda *_: None)


def have_equal_logs(cluster: ThreeBrokers, *nodes: int) -> bool:
    """True if these replicas have the same log, as leader or follower."""
    logs = [held.log for node in nodes for held in cluster.members[node].partitions.list_replicas()]
    return len(logs) == len(nodes) and len({read_log(log) for log in logs}) == 1


@in_rig(ThreeBrokers)
async def test_all_replicas_of_a_new_topic_are_in_sync(cluster: ThreeBrokers) -> None:
    await cluster.start(min_insync_replicas="3")
    leader = await wait_for_leader(cluster)
    for number in range(20):
        await leader.append(batch(number), acks=ACKS_ALL)
    assert set(cluster.partition.isr) == {1, 2, 3}
    assert have_equal_logs(cluster, 1, 2, 3)


@in_rig(ThreeBrokers)
async def test_dead_follower_leaves_the_isr_and_joins_again(cluster: ThreeBrokers) -> None:
    await cluster.start()
    leader = await wait_for_leader(cluster)
    await leader.append(batch(0), acks=ACKS_ALL)
    gone = next(node for node in (1, 2, 3) if node != cluster.partition.leader)
    await cluster.members[gone].kill()
    started = cluster.rig.clock.mono_ns()
    await leader.append(batch(1), acks=ACKS_ALL)  # waits until the follower has lagged for long enough
    assert 2e9 < cluster.rig.clock.mono_ns() - started < 6e9
    assert gone not in cluster.partition.isr
    await cluster.members[gone].start()
    await wait_until(lambda: gone in cluster.partition.isr)
    await wait_until(lambda: have_equal_logs(cluster, 1, 2, 3))


@in_rig(ThreeBrokers)
async def test_next_leader_has_everything_after_the_leader_dies(cluster: ThreeBrokers) -> None:
    await cluster.start(min_insync_replicas="2")
    first = await wait_for_leader(cluster)
    for number in range(20):
        await first.append(batch(number), acks=ACKS_ALL)
    old = cluster.partition.leader
    first.append_now(batch(20), 1)  # nobody may have heard of it
    await cluster.members[old].kill()
    await cluster.fence(old)
    second = await wait_for_leader(cluster)
    assert cluster.partition.leader != old
    assert second.log.end_offset >= 20
    await wait_until(lambda: second.high_watermark >= 20)
    await second.append(batch(21), acks=ACKS_ALL)
    await cluster.members[old].start()
    await wait_until(lambda: old in cluster.partition.isr)
    await wait_until(lambda: have_equal_logs(cluster, 1, 2, 3))


@in_rig(ThreeBrokers)
async def test_new_leader_knows_the_high_watermark_at_once(cluster: ThreeBrokers) -> None:
    """A client must not get a lower end offset than before (KIP-207)."""
    await start_with_records(cluster)
    await asyncio.sleep(1)  # followers hear of it with their next question
    follower = next(node for node in (1, 2, 3) if node != cluster.partition.leader)
    cluster.peers.unreachable.update(f"{node}:0" for node in (1, 2, 3))
    old = cluster.partition.leader
    await cluster.fence(old)
    await wait_until(lambda: cluster.leader() is not None and cluster.partition.leader != old)
    leader = cluster.leader()
    assert leader is not None and leader.high_watermark == 10, follower


@in_rig(ThreeBrokers)
async def test_leadership_that_returns_has_a_new_epoch(cluster: ThreeBrokers) -> None:
    await cluster.start()
    first = await wait_for_leader(cluster)
    await first.append(batch(0), acks=ACKS_ALL)
    node = cluster.partition.leader
    cluster.metadata_delay_seconds = 0.0
    await cluster.members[node].partitions.wait_applied()
    await cluster.fence(node)
    second = await wait_for_leader(cluster)
    await wait_until(lambda: first.is_stopped)
    await cluster.submit(requests.UnfenceBroker(node, cluster.members[node].incarnation))
    with pytest.raises(Refused):
        first.append_now(batch(1), 1)
    await second.append(batch(1), acks=ACKS_ALL)
    await wait_until(lambda: node in cluster.partition.isr)
    await cluster.submit(requests.ElectLeaders(True))
    third = await wait_for_leader(cluster)
    assert third.state.node_id == node and third is not first
    await third.append(batch(2), acks=ACKS_ALL)
    assert third.log.end_offset == 3


@in_rig(ThreeBrokers)
async def test_isr_change_without_reply_does_not_stop_commits(cluster: ThreeBrokers) -> None:
    """The request to join is lost on its way, and then the broker that was to join dies. The high watermark must not
    wait for that broker for ever. It must not move either before it is certain that the broker did not join."""
    await cluster.start()
    leader = await wait_for_leader(cluster)
    await leader.append(batch(0), acks=ACKS_ALL)
    gone = next(node for node in (1, 2, 3) if node != cluster.partition.leader)
    await cluster.members[gone].kill()
    await cluster.fence(gone)
    await cluster.members[gone].start()
    asked: list[str] = []

    def lose() -> str:
        asked.append("ask")
        return "ask"

    cluster.lost_message = lose
    await wait_until(lambda: asked)
    await cluster.members[gone].kill()
    cluster.lost_message = lambda: ""
    await cluster.fence(gone)
    started = cluster.rig.clock.mono_ns()
    await leader.append(batch(1), acks=ACKS_ALL)
    assert cluster.rig.clock.mono_ns() - started < 20e9


@in_rig(ThreeBrokers)
async def test_deleted_topic_is_neither_led_nor_followed(cluster: ThreeBrokers) -> None:
    await cluster.start()
    leader = await wait_for_leader(cluster)
    await leader.append(batch(0), acks=ACKS_ALL)
    await cluster.submit(requests.DeleteTopic("t"))
    await wait_until(lambda: all(not member.partitions.list_replicas() for member in cluster.members.values()))
    with refuses(Code.UNKNOWN_TOPIC_OR_PARTITION):
        leader.append_now(batch(1), ACKS_ALL)


class RandomFaults:
    """A producer, and random faults of brokers meanwhile."""

    def __init__(self, seed: int) -> None:
        self.cluster = ThreeBrokers(seed)
        self.rng = random.Random(f"{seed}/storm")
        self.acked: list[int] = []
        self.working = True

    async def run(self) -> None:
        cluster = self.cluster
        await cluster.start(min_insync_replicas="2")
        task = cluster.rig.loop.create_task(self._produce())
        cluster.lost_message = lambda: self.rng.choice(["", "", "", "ask", "answer"])
        for _ in range(12):
            await asyncio.sleep(self.rng.uniform(0.5, 4.0))
            await self._inject_fault()
        cluster.lost_message = lambda: ""
        cluster.peers.unreachable.clear()
        self.working = False
        await task
        for member in cluster.members.values():
            if not member.running:
                await member.start()
        for node, member in cluster.members.items():
            await cluster.submit(requests.UnfenceBroker(node, member.incarnation))
        await wait_until(lambda: set(cluster.partition.isr) == {1, 2, 3}, 120)
        await wait_until(lambda: have_equal_logs(cluster, 1, 2, 3), 60)
        log = (await wait_for_leader(cluster)).log
        said = read_log(log)
        for number in self.acked:
            assert b"%d." % number in said, f"record {number} was acknowledged and is gone"

    async def _produce(self) -> None:
        number = 10_000
        while self.working:
            number += 1
            leader = self.cluster.leader()
            if leader is not None:
                with contextlib.suppress(Refused):
                    await leader.append(batch(number), acks=ACKS_ALL, timeout_ms=2000)
                    self.acked.append(number)
            await asyncio.sleep(self.rng.uniform(0, 0.1))

    async def _inject_fault(self) -> None:
        cluster = self.cluster
        running = [node for node, member in cluster.members.items() if member.running]
        node = self.rng.choice(running)
        match self.rng.choice(["kill", "kill", "fence", "cut", "heal", "start"]):
            case "kill" if len(running) > 1:
                await cluster.members[node].kill()
                await self._settle(cluster.fence(node))
            case "fence":
                await self._settle(cluster.fence(node))
                await asyncio.sleep(self.rng.uniform(0, 1))
                await self._settle(cluster.submit(requests.UnfenceBroker(node, cluster.members[node].incarnation)))
            case "cut":
                cluster.peers.unreachable.add(f"{node}:0")
            case "heal":
                cluster.peers.unreachable.clear()
            case _:
                for member in cluster.members.values():
                    if not member.running:
                        lost, cluster.lost_message = cluster.lost_message, lambda: ""
                        await member.start()
                        cluster.lost_message = lost

    @staticmethod
    async def _settle(asked: Awaitable[object]) -> None:
        with contextlib.suppress(Refused):
            await asked


@pytest.mark.parametrize("seed", first_seeds(4, of=12))
def test_acknowledged_records_survive(seed: int) -> None:
    storm = RandomFaults(seed)
    storm.cluster.run(storm.run)
    assert storm.acked


@in_rig(ThreeBrokers)
async def test_new_leader_syncs_its_truncation_before_it_appends(cluster: ThreeBrokers) -> None:
    leader = await start_with_records(cluster)
    old = leader.state.node_id
    await cluster.members[old].kill()
    for member in cluster.members.values():
        for held in member.partitions.list_replicas() if member.running else ():
            held.log.truncations.made += 1
    await cluster.fence(old)
    await wait_for_leader(cluster)
    assert cluster.partition.leader != old
    assert not (await wait_for_leader(cluster)).log.truncations.is_unsettled


@in_rig(ThreeBrokers)
async def test_truncation_of_a_stopped_replica_is_synced_by_the_next_one(cluster: ThreeBrokers) -> None:
    """The truncation was noted with the offsets of all logs, and was not durable when the leader changed."""
    leader = await start_with_records(cluster)
    (copy,) = (each for each in cluster.members[another_broker(leader)].partitions.list_replicas())
    assert isinstance(copy, FollowerReplica) and copy.is_durable
    copy.log.truncate_to(5)
    await cluster.members[another_broker(leader)].partitions.save_offsets()
    copy.stop()
    after = FollowerReplica(
        copy.tp, copy.topic_id, copy.log, copy.leader, copy.leader_epoch + 1,
        FollowerPorts(cluster.rig.clock, cluster.members[another_broker(leader)].broker.state, do_nothing),
        high_watermark=0,
    )  # fmt: skip
    assert not after.is_durable
    await after.make_durable()
    assert after.is_durable


@in_rig(ThreeBrokers)
async def test_log_is_durable_before_it_grows_after_a_failed_truncation(cluster: ThreeBrokers) -> None:
    """Otherwise the old flushed offset would cover records that were copied since and never fsynced."""
    leader = await start_with_records(cluster)
    member = cluster.members[another_broker(leader)]
    there, disk = member.partitions, member.broker.disk
    (copy,) = there.list_replicas()
    assert isinstance(copy, FollowerReplica)
    await copy.log.flush()
    await there.save_offsets()
    with unroutable(cluster):
        disk.faults.append(DiskFault("append", "leader-epoch-checkpoint", "ENOSPC", skip=1))
        with pytest.raises(Unavailable):
            copy.log.truncate_to(0)
        there._on_truncation_failed(copy, final=False)
        await there.retry_unopened()
        assert [held.log.end_offset for held in there.list_replicas()] == [0]
    await wait_until(lambda: have_equal_logs(cluster, leader.state.node_id, member.node_id))
    (again,) = there.list_replicas()
    assert again.log.flushed_offset == 0
    await member.kill()
    directory = DataDirectory(member.broker.disk)
    found = await directory.open(CLUSTER, member.node_id, encode_uuid(uuid.UUID(int=member.node_id, version=4)))
    assert found.recovery_points.get(TP, 0) == 0


async def do_nothing() -> None:
    return


def another_broker(leader: LeaderReplica) -> int:
    return next(node for node in (1, 2, 3) if node != leader.state.node_id)


@in_rig(ThreeBrokers)
async def test_log_that_returns_empty_has_no_recovery_point(cluster: ThreeBrokers) -> None:
    """Otherwise the recovery point of the old log would cover bytes of the new log that a kill tears."""
    leader = await start_with_records(cluster)
    other = next(node for node in (2, 3) if node != leader.state.node_id)
    there = cluster.members[other].partitions
    for held in there.list_replicas():
        await held.log.flush()
    await there.save_offsets()
    stay = tuple(node for node in (1, 2, 3) if node != other)
    assert await move(cluster, *stay) == (None,)
    await wait_until(lambda: not there.list_replicas())
    with unroutable(cluster):
        assert await move(cluster, *stay, other) == (None,)
        await wait_until(there.list_replicas)
        assert [held.log.end_offset for held in there.list_replicas()] == [0]
        await cluster.members[other].kill()
    directory = DataDirectory(cluster.members[other].broker.disk)
    found = await directory.open(CLUSTER, other, encode_uuid(uuid.UUID(int=other, version=4)))
    assert found.recovery_points.get(TP, 0) == 0


@pytest.mark.parametrize("copies", [1, 2])
@in_rig(ThreeBrokers)
async def test_clean_stop_counts_only_if_no_other_broker_can_have_led(cluster: ThreeBrokers, *, copies: int) -> None:
    await cluster.start(copies)
    replica = await wait_for_leader(cluster)
    member = cluster.members[replica.state.node_id]
    await stop(cluster, member)
    epoch = cluster.partition.leader_epoch
    await member.start()
    assert member.partitions.has_clean_predecessor(replica.partition_id, epoch + 1) is (copies == 1)


@in_rig(ThreeBrokers)
async def test_clean_stop_vouches_for_the_manifest_only_as_last_leader(cluster: ThreeBrokers) -> None:
    await cluster.start(1)
    leader = await wait_for_leader(cluster)
    member, other = cluster.members[leader.state.node_id], cluster.members[another_broker(leader)]
    await stop(cluster, member)
    later = cluster.partition.leader_epoch + 1
    changed = PartitionChanged(leader.topic_id, 0, NO_LEADER, later, (), (leader.state.node_id,))
    cluster.controller.apply((changed,), cluster.controller.image.slot + 1)
    cold = await other.broker.cold.manifests.take_over(leader.partition_id, leader.topic, later)
    await member.start()
    assert (await wait_for_leader(cluster)).manifest == cold


async def stop(cluster: ThreeBrokers, member: BrokerProcess) -> None:
    """Stops the log as a broker does on a clean stop."""
    assert await member.partitions.close_clean()
    incarnation = member.incarnation
    await member.kill()
    await cluster.submit(requests.StopBroker(member.node_id, incarnation))


@in_rig(ThreeBrokers)
async def test_suspect_log_stays_suspect_until_it_follows_a_leader(cluster: ThreeBrokers) -> None:
    leader = await start_with_records(cluster)
    member = cluster.members[another_broker(leader)]
    there, before = member.partitions, member.image
    there.losses.set_suspect_partitions({TP})
    now = cluster.partition
    nobody = PartitionChanged(leader.topic_id, 0, NO_LEADER, now.leader_epoch + 1, (), now.isr)
    image = before.apply((nobody,), before.slot + 1)
    await there.apply_image(before, image)
    assert there.losses.suspect_partitions == {TP}
    somebody = PartitionChanged(leader.topic_id, 0, now.leader, now.leader_epoch + 2, now.isr, ())
    await there.apply_image(image, image.apply((somebody,), image.slot + 1))
    assert not there.losses.suspect_partitions


async def move(cluster: ThreeBrokers, *target: int) -> object:
    topic = next(iter(cluster.controller.image.topics.values()))
    return await cluster.submit(requests.Reassign((requests.Move(topic.topic_id, 0, target),)))


@in_rig(ThreeBrokers)
async def test_leadership_that_ended_does_not_start_late(cluster: ThreeBrokers) -> None:
    """A log that could not be opened in time is opened later, and the image may have changed by then."""
    leader = await start_with_records(cluster)
    node, epoch = leader.state.node_id, leader.leader_epoch
    await cluster.fence(node)
    await wait_until(lambda: leader.is_stopped)
    partitions = cluster.members[node].partitions
    lead = Lead(TP, leader.topic_id, epoch, False)
    unopened = (Opening(lead, cluster.controller.image), "the bucket was away")
    partitions.unopened_leaders[TP] = unopened
    await partitions.retry_unopened()
    assert partitions.find_leader(TP) is None
    assert partitions.unopened_leaders == {TP: unopened}  # nothing was tried: the log may have later epochs by now
