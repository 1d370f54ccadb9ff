"""Who leads and who follows, as the controller decides it, and what survives when that changes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from tests.sim.harness.disk import DiskFault
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import TP, read_log
from tests.unit.replication.three_brokers import CLUSTER, BrokerProcess, ThreeBrokers
from tiered.broker.data_directory import DataDirectory
from tiered.controller import requests
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import encode_uuid
from tiered.metadata.changes import NO_LEADER, PartitionChanged
from tiered.metadata.delta import Lead
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica


async def until(done: Callable[[], object], seconds: float = 30) -> None:
    """Looks again until it is so; virtual time passes meanwhile."""
    for _ in range(int(seconds * 100)):
        if done():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


async def led(town: ThreeBrokers) -> LeaderReplica:
    await until(lambda: town.leader() is not None)
    leader = town.leader()
    assert leader is not None
    return leader


async def written(town: ThreeBrokers) -> LeaderReplica:
    """The leader of a topic with ten acknowledged batches."""
    await town.start()
    leader = await led(town)
    for number in range(10):
        await leader.append(batch(number), acks=ACKS_ALL)
    return leader


def nobody_found(town: ThreeBrokers) -> contextlib.AbstractContextManager[object]:
    """No broker finds another one: nothing is copied meanwhile."""
    return patch.object(town.peers, "find_replica", lambda *_: None)


def alike(town: ThreeBrokers, *nodes: int) -> bool:
    """Whether these have the same log, led or followed."""
    logs = [held.log for node in nodes for held in town.members[node].partitions.list_replicas()]
    return len(logs) == len(nodes) and len({read_log(log) for log in logs}) == 1


def test_all_copies_of_a_new_topic_are_in_sync() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start(min_insync_replicas="3")
        leader = await led(town)
        for number in range(20):
            await leader.append(batch(number), acks=ACKS_ALL)
        assert set(town.partition.isr) == {1, 2, 3}
        assert alike(town, 1, 2, 3)

    town.run(scenario)


def test_a_dead_follower_leaves_and_comes_back() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start()
        leader = await led(town)
        await leader.append(batch(0), acks=ACKS_ALL)
        gone = next(node for node in (1, 2, 3) if node != town.partition.leader)
        await town.members[gone].kill()
        started = town.rig.clock.mono_ns()
        await leader.append(batch(1), acks=ACKS_ALL)  # waits until the follower has lagged for long enough
        assert 2e9 < town.rig.clock.mono_ns() - started < 6e9
        assert gone not in town.partition.isr
        await town.members[gone].start()
        await until(lambda: gone in town.partition.isr)
        await until(lambda: alike(town, 1, 2, 3))

    town.run(scenario)


def test_another_one_leads_when_the_leader_dies_and_has_everything() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start(min_insync_replicas="2")
        first = await led(town)
        for number in range(20):
            await first.append(batch(number), acks=ACKS_ALL)
        old = town.partition.leader
        first.append_now(batch(20), 1)  # nobody may have heard of it
        await town.members[old].kill()
        await town.fence(old)
        second = await led(town)
        assert town.partition.leader != old
        assert second.log.end_offset >= 20
        await until(lambda: second.high_watermark >= 20)
        await second.append(batch(21), acks=ACKS_ALL)
        await town.members[old].start()
        await until(lambda: old in town.partition.isr)
        await until(lambda: alike(town, 1, 2, 3))

    town.run(scenario)


def test_a_new_leader_knows_at_once_what_was_committed() -> None:
    """Readers that ask for the end may not be told an earlier one than before (KIP-207)."""
    town = ThreeBrokers()

    async def scenario() -> None:
        await written(town)
        await asyncio.sleep(1)  # followers hear of it with their next question
        heir = next(node for node in (1, 2, 3) if node != town.partition.leader)
        town.peers.unreachable.update(f"{node}:0" for node in (1, 2, 3))
        old = town.partition.leader
        await town.fence(old)
        await until(lambda: town.leader() is not None and town.partition.leader != old)
        leader = town.leader()
        assert leader is not None and leader.high_watermark == 10, heir

    town.run(scenario)


def test_leadership_that_goes_and_comes_back_is_another_one() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start()
        first = await led(town)
        await first.append(batch(0), acks=ACKS_ALL)
        node = town.partition.leader
        town.metadata_delay_seconds = 0.0
        await town.members[node].partitions.wait_applied()
        await town.fence(node)
        second = await led(town)
        await until(lambda: first.is_stopped)
        await town.submit(requests.UnfenceBroker(node, town.members[node].incarnation))
        with pytest.raises(Refused):
            first.append_now(batch(1), 1)
        await second.append(batch(1), acks=ACKS_ALL)
        await until(lambda: node in town.partition.isr)
        await town.submit(requests.ElectLeaders(True))
        third = await led(town)
        assert third.state.node_id == node and third is not first
        await third.append(batch(2), acks=ACKS_ALL)
        assert third.log.end_offset == 3

    town.run(scenario)


def test_an_unanswered_wish_does_not_stop_what_is_committed() -> None:
    """The question for the join is lost on its way, then the one who was to join dies: the high watermark may neither
    wait for it for ever, nor go on before it is sure that it did not join."""
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start()
        leader = await led(town)
        await leader.append(batch(0), acks=ACKS_ALL)
        gone = next(node for node in (1, 2, 3) if node != town.partition.leader)
        await town.members[gone].kill()
        await town.fence(gone)
        await town.members[gone].start()
        asked: list[str] = []

        def lose() -> str:
            asked.append("ask")
            return "ask"

        town.lost_message = lose
        await until(lambda: asked)
        await town.members[gone].kill()
        town.lost_message = lambda: ""
        await town.fence(gone)
        started = town.rig.clock.mono_ns()
        await leader.append(batch(1), acks=ACKS_ALL)
        assert town.rig.clock.mono_ns() - started < 20e9

    town.run(scenario)


def test_a_deleted_topic_is_neither_led_nor_followed() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start()
        leader = await led(town)
        await leader.append(batch(0), acks=ACKS_ALL)
        await town.submit(requests.DeleteTopic("t"))
        await until(lambda: all(not member.partitions.list_replicas() for member in town.members.values()))
        with pytest.raises(Refused) as refused:
            leader.append_now(batch(1), ACKS_ALL)
        assert refused.value.code is Code.UNKNOWN_TOPIC_OR_PARTITION

    town.run(scenario)


class Storm:
    """A producer, and what happens to brokers meanwhile."""

    def __init__(self, seed: int) -> None:
        self.town = ThreeBrokers(seed)
        self.rng = random.Random(f"{seed}/storm")
        self.acked: list[int] = []
        self.working = True

    async def play(self) -> None:
        town = self.town
        await town.start(min_insync_replicas="2")
        task = town.rig.loop.create_task(self._produce())
        town.lost_message = lambda: self.rng.choice(["", "", "", "ask", "answer"])
        for _ in range(12):
            await asyncio.sleep(self.rng.uniform(0.5, 4.0))
            await self._trouble()
        town.lost_message = lambda: ""
        town.peers.unreachable.clear()
        self.working = False
        await task
        for member in town.members.values():
            if not member.running:
                await member.start()
        for node, member in town.members.items():
            await town.submit(requests.UnfenceBroker(node, member.incarnation))
        await until(lambda: set(town.partition.isr) == {1, 2, 3}, 120)
        await until(lambda: alike(town, 1, 2, 3), 60)
        log = (await led(town)).log
        said = read_log(log)
        for number in self.acked:
            assert b"%d." % number in said, f"record {number} was acknowledged and is gone"

    async def _produce(self) -> None:
        number = 10_000
        while self.working:
            number += 1
            leader = self.town.leader()
            if leader is not None:
                with contextlib.suppress(Refused):
                    await leader.append(batch(number), acks=ACKS_ALL, timeout_ms=2000)
                    self.acked.append(number)
            await asyncio.sleep(self.rng.uniform(0, 0.1))

    async def _trouble(self) -> None:
        town = self.town
        running = [node for node, member in town.members.items() if member.running]
        node = self.rng.choice(running)
        match self.rng.choice(["kill", "kill", "fence", "cut", "heal", "start"]):
            case "kill" if len(running) > 1:
                await town.members[node].kill()
                await self._settle(town.fence(node))
            case "fence":
                await self._settle(town.fence(node))
                await asyncio.sleep(self.rng.uniform(0, 1))
                await self._settle(town.submit(requests.UnfenceBroker(node, town.members[node].incarnation)))
            case "cut":
                town.peers.unreachable.add(f"{node}:0")
            case "heal":
                town.peers.unreachable.clear()
            case _:
                for member in town.members.values():
                    if not member.running:
                        lost, town.lost_message = town.lost_message, lambda: ""
                        await member.start()
                        town.lost_message = lost

    @staticmethod
    async def _settle(asked: Awaitable[object]) -> None:
        with contextlib.suppress(Refused):
            await asked


@pytest.mark.parametrize("seed", range(12))
def test_what_was_acknowledged_survives(seed: int) -> None:
    storm = Storm(seed)
    storm.town.run(storm.play)
    assert storm.acked


def test_a_new_leader_settles_what_it_cut_as_a_follower_before_it_writes() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        leader = await written(town)
        old = leader.state.node_id
        await town.members[old].kill()
        for member in town.members.values():
            for held in member.partitions.list_replicas() if member.running else ():
                held.log.truncations.made += 1
        await town.fence(old)
        await led(town)
        assert town.partition.leader != old
        assert not (await led(town)).log.truncations.is_unsettled

    town.run(scenario)


def test_what_a_copy_cut_is_settled_also_by_the_copy_after_it() -> None:
    """The cut is noted with those of all logs, and was not durable when the leader changed."""
    town = ThreeBrokers()

    async def scenario() -> None:
        leader = await written(town)
        (copy,) = (each for each in town.members[other_than(leader)].partitions.list_replicas())
        assert isinstance(copy, FollowerReplica) and copy.is_durable
        copy.log.truncate_to(5)
        await town.members[other_than(leader)].partitions.save_offsets()
        copy.stop()
        after = FollowerReplica(
            copy.tp, copy.topic_id, copy.log, copy.leader, copy.leader_epoch + 1, high_watermark=0,
            clock=town.rig.clock, disk=town.members[other_than(leader)].broker.state, save_offsets=nothing,
        )  # fmt: skip
        assert not after.is_durable
        await after.make_durable()
        assert after.is_durable

    town.run(scenario)


def test_a_log_whose_cut_failed_half_way_is_durable_before_it_grows() -> None:
    """The point up to which it was durable would vouch for records that were copied since and never synced."""
    town = ThreeBrokers()

    async def scenario() -> None:
        leader = await written(town)
        member = town.members[other_than(leader)]
        there, disk = member.partitions, member.broker.disk
        (copy,) = there.list_replicas()
        assert isinstance(copy, FollowerReplica)
        await copy.log.flush()
        await there.save_offsets()
        with nobody_found(town):
            disk.faults.append(DiskFault("append", ".snapshot", "ENOSPC"))
            with pytest.raises(Unavailable):
                copy.log.truncate_to(0)
            there._on_truncation_failed(copy, final=False)
            await there.retry_unopened(lambda: town.controller.image)
            assert [held.log.end_offset for held in there.list_replicas()] == [0]
        await until(lambda: alike(town, leader.state.node_id, member.node_id))
        (again,) = there.list_replicas()
        assert again.log.flushed_offset == 0
        await member.kill()
        directory = DataDirectory(member.broker.disk)
        found = await directory.open(CLUSTER, member.node_id, encode_uuid(uuid.UUID(int=member.node_id, version=4)))
        assert found.recovery_points.get(TP, 0) == 0

    town.run(scenario)


async def nothing() -> None:
    return


def other_than(leader: LeaderReplica) -> int:
    return next(node for node in (1, 2, 3) if node != leader.state.node_id)


def test_a_log_that_left_and_comes_back_empty_has_nothing_noted_of_it() -> None:
    """A point up to which the old one was durable would vouch for what a kill tears in the new one."""
    town = ThreeBrokers()

    async def scenario() -> None:
        leader = await written(town)
        other = next(node for node in (2, 3) if node != leader.state.node_id)
        there = town.members[other].partitions
        for held in there.list_replicas():
            await held.log.flush()
        await there.save_offsets()
        stay = tuple(node for node in (1, 2, 3) if node != other)
        assert await move(town, *stay) == (None,)
        await until(lambda: not there.list_replicas())
        with nobody_found(town):
            assert await move(town, *stay, other) == (None,)
            await until(there.list_replicas)
            assert [held.log.end_offset for held in there.list_replicas()] == [0]
            await town.members[other].kill()
        directory = DataDirectory(town.members[other].broker.disk)
        found = await directory.open(CLUSTER, other, encode_uuid(uuid.UUID(int=other, version=4)))
        assert found.recovery_points.get(TP, 0) == 0

    town.run(scenario)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_clean_stop_settles_the_past_only_of_what_nobody_else_can_have_led(copies: int) -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start(copies)
        member = town.members[(await led(town)).state.node_id]
        await stop(town, member)
        epoch = town.partition.leader_epoch
        await member.start()
        assert member.partitions.has_clean_predecessor(TP, epoch + 1) is (copies == 1)

    town.run(scenario)


def test_a_clean_stop_says_what_is_cold_only_as_the_last_leader() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        await town.start(1)
        leader = await led(town)
        member, other = town.members[leader.state.node_id], town.members[other_than(leader)]
        await stop(town, member)
        later = town.partition.leader_epoch + 1
        changed = PartitionChanged(leader.topic_id, 0, NO_LEADER, later, (), (leader.state.node_id,))
        town.controller.apply((changed,), town.controller.image.slot + 1)
        cold = await other.broker.cold.manifests.take_over(leader.partition_id, leader.topic, later)
        await member.start()
        assert (await led(town)).manifest == cold

    town.run(scenario)


async def stop(town: ThreeBrokers, member: BrokerProcess) -> None:
    """Stops the log as a broker does that is told to stop."""
    assert await member.partitions.close_clean()
    incarnation = member.incarnation
    await member.kill()
    await town.submit(requests.StopBroker(member.node_id, incarnation))


def test_a_log_in_doubt_stays_so_until_there_is_a_leader_to_copy_from() -> None:
    town = ThreeBrokers()

    async def scenario() -> None:
        leader = await written(town)
        member = town.members[other_than(leader)]
        there, before = member.partitions, member.image
        there.suspect_partitions = frozenset({TP})
        now = town.partition
        nobody = PartitionChanged(leader.topic_id, 0, NO_LEADER, now.leader_epoch + 1, (), now.isr)
        image = before.apply((nobody,), before.slot + 1)
        await there.apply_image(before, image, member.settings)
        assert there.suspect_partitions == {TP}
        somebody = PartitionChanged(leader.topic_id, 0, now.leader, now.leader_epoch + 2, now.isr, ())
        await there.apply_image(image, image.apply((somebody,), image.slot + 1), member.settings)
        assert not there.suspect_partitions

    town.run(scenario)


async def move(town: ThreeBrokers, *target: int) -> object:
    topic = next(iter(town.controller.image.topics.values()))
    return await town.submit(requests.Reassign((requests.Move(topic.topic_id, 0, target),)))


def test_a_leadership_that_is_over_is_not_begun_late() -> None:
    """What could not be opened when it was due is tried again, and the image may have gone on by then."""
    town = ThreeBrokers()

    async def scenario() -> None:
        leader = await written(town)
        node, epoch = leader.state.node_id, leader.leader_epoch
        await town.fence(node)
        await until(lambda: leader.is_stopped)
        partitions = town.members[node].partitions
        partitions.unopened_leaders[TP] = (Lead(TP, leader.topic_id, epoch, False), "the bucket was away")
        await partitions.retry_unopened(lambda: town.controller.image)
        assert partitions.find_leader(TP) is None

    town.run(scenario)
