"""A coordinator whose log has a follower: it shows nothing that its successor may not have (I18)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.scenarios.test_cut_off import isolate
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic
from tiered.errors import Code, Refused
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    DescribeGroup,
    DescribeGroupReply,
    FetchOffsets,
    FetchOffsetsReply,
    JoinGroup,
    JoinGroupReply,
    PartitionOffset,
    SyncGroup,
    SyncGroupReply,
)
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC

G = "g"
AT = TopicPartition(OFFSETS_TOPIC, 0)
SECONDS = 60.0


class ReplicatedGroups:
    """The broker `a` coordinates all groups, and `b` follows it, as `more` brokers do."""

    def __init__(self, three: ThreeBrokers) -> None:
        self.three = three
        self.a, self.b = three.others()

    async def create(self, *more: SimBroker) -> None:
        submit = self.three.controller.node.submit
        await submit(CreateTopic("t"))
        nodes = [each.node_id for each in (self.a, self.b, *more)]
        await submit(CreateTopic(OFFSETS_TOPIC, assignments=[nodes], configs={"min.insync.replicas": "1"}))
        await self.wait_served(self.a)

    async def wait_served(self, broker: SimBroker) -> None:
        await self.three.wait_until(lambda: broker.node.hosted_replicas.find_leader(AT) is not None, SECONDS)
        await self.three.wait_until(lambda: not broker.node.group_coordinators.host.count_loading(), SECONDS)

    async def commit(self, broker: SimBroker, offset: int) -> Code:
        request = CommitOffsets(G, (PartitionOffset("t", 0, offset),))
        reply = await broker.node.group_coordinators.submit(G, request)
        assert isinstance(reply, CommitOffsetsReply)
        return reply.codes[0]

    async def committed(self, broker: SimBroker) -> int:
        reply = await broker.node.group_coordinators.submit(G, FetchOffsets(G, (("t", 0),)))
        assert isinstance(reply, FetchOffsetsReply)
        return reply.offsets[0].offset

    async def fail_over(self) -> None:
        """Kills the coordinator, and waits for its successor."""
        await self.a.kill()
        await self.wait_served(self.b)


def run_groups(scenario: Callable[[ReplicatedGroups], Awaitable[None]]) -> None:
    async def run_all(three: ThreeBrokers) -> None:
        groups = ReplicatedGroups(three)
        await groups.create()
        await scenario(groups)

    run_scenario(run_all)


@run_by(run_groups)
async def test_read_shows_no_commit_that_the_follower_lacks(of: ReplicatedGroups) -> None:
    assert await of.commit(of.a, 5) is Code.NONE
    isolate(of.three, of.b)
    committing = asyncio.ensure_future(of.commit(of.a, 6))
    await asyncio.sleep(0.1)
    reading = asyncio.ensure_future(of.committed(of.a))
    await asyncio.sleep(1)
    assert not committing.done()
    assert not reading.done() or await reading == 5
    of.three.network.heal()
    assert await committing is Code.NONE
    assert await reading in (5, 6)
    await of.fail_over()
    assert await of.committed(of.b) == 6


@run_by(run_scenario)
async def test_successor_serves_once_its_log_is_committed(three: ThreeBrokers) -> None:
    """The third replica is in sync, lacks the last commit, and follows the successor late."""
    of, third = ReplicatedGroups(three), three.controller
    await of.create(third)
    assert await of.commit(of.a, 5) is Code.NONE
    for source, target in ((of.a, third), (third, of.a)):
        three.network.cut(source.name, target.name)
    committing = asyncio.ensure_future(of.commit(of.a, 6))
    follower = of.b.node.hosted_replicas.find_follower(AT)
    assert follower is not None
    end = follower.log.end_offset
    await three.wait_until(lambda: follower.log.end_offset > end, 5)
    assert not committing.done()
    await third.node.hosted_replicas._role_change_lock.acquire()
    await of.a.kill()
    await three.wait_until(lambda: of.b.node.hosted_replicas.find_leader(AT) is not None, SECONDS)
    for _ in range(20):
        await asyncio.sleep(0.1)
        with suppress(Refused):
            assert await of.committed(of.b) == 5
    third.node.hosted_replicas._role_change_lock.release()
    await of.wait_served(of.b)
    assert await of.committed(of.b) in (5, 6)
    committing.cancel()


@run_by(run_groups)
async def test_member_gets_its_assignment_once_the_follower_has_it(of: ReplicatedGroups) -> None:
    submit = of.a.node.group_coordinators.submit
    protocols = (("range", b""),)
    joined = await submit(
        G, JoinGroup(G, "", None, "c", "/h", 60_000, 60_000, "consumer", protocols, member_id_required=False)
    )
    assert isinstance(joined, JoinGroupReply)
    isolate(of.three, of.b)
    request = SyncGroup(G, joined.generation, joined.member_id, assignments=((joined.member_id, b"all"),))
    syncing = asyncio.ensure_future(submit(G, request))
    await asyncio.sleep(1)
    assert not syncing.done()
    of.three.network.heal()
    synced = await syncing
    assert isinstance(synced, SyncGroupReply) and synced.assignment == b"all"
    await of.fail_over()
    reply = await of.b.node.group_coordinators.submit(G, DescribeGroup(G))
    assert isinstance(reply, DescribeGroupReply)
    assert (reply.state, [each.member_id for each in reply.members]) == ("Stable", [joined.member_id])


@run_by(run_groups)
async def test_commit_that_the_follower_never_got_is_refused(of: ReplicatedGroups) -> None:
    """The follower hears the controller, so it stays in sync for a while. Only the coordinator cannot reach it."""
    assert await of.commit(of.a, 5) is Code.NONE
    for source, target in ((of.a, of.b), (of.b, of.a)):
        of.three.network.cut(source.name, target.name)
    with pytest.raises(Refused) as refused:
        await of.commit(of.a, 6)
    assert refused.value.code.retriable
    await of.fail_over()
    assert await of.committed(of.b) == 5
    of.three.network.heal()


@run_by(run_groups)
async def test_coordinator_that_was_replaced_answers_nothing(of: ReplicatedGroups) -> None:
    assert await of.commit(of.a, 5) is Code.NONE
    isolate(of.three, of.a)
    committing = asyncio.ensure_future(of.commit(of.a, 6))
    await of.wait_served(of.b)
    assert await of.committed(of.b) in (5, 6)
    with pytest.raises(Refused):
        await asyncio.wait_for(committing, SECONDS)
    of.three.network.heal()
    await of.three.wait_until(lambda: of.a.node.hosted_replicas.find_leader(AT) is None, SECONDS)
    with refuses(Code.NOT_COORDINATOR):
        await of.committed(of.a)
