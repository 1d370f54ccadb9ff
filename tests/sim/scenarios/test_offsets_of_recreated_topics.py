"""Offsets that a group committed in a deleted topic are no offsets of the topic that has its name now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.scenario import run_by
from tests.sim.rig.broker_rig import SimBrokerRig, run
from tests.sim.rig.group_requests import GROUP_SETTINGS, commit, fetch_committed, wait_groups_loaded
from tests.sim.scenarios.recreated_topic import AT, SECONDS, RecreatedTopic, run_recreated
from tiered.controller.requests import CreateTopic, DeleteTopic
from tiered.errors import Code, Refused
from tiered.groups.requests import (
    NO_OFFSET,
    CommitOffsets,
    CommitOffsetsReply,
    FetchOffsets,
    FetchOffsetsReply,
    PartitionOffset,
)
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC

G = "g"


async def commit_with_id(rig: SimBrokerRig, offset: int, topic_id: str) -> Code:
    request = CommitOffsets(G, (PartitionOffset("t", 0, offset, topic_id=topic_id),))
    reply = await rig.broker.group_coordinators.submit(G, request)
    assert isinstance(reply, CommitOffsetsReply)
    return reply.codes[0]


async def recreate_without_coordinator(rig: SimBrokerRig) -> None:
    """The coordinator does nothing about the deletion, and its process is killed after it."""
    coordinators = rig.broker.group_coordinators
    coordinators.on_topics_deleted = lambda names: None  # type: ignore[method-assign]
    coordinators.on_image = lambda old, new: None  # type: ignore[method-assign]
    await rig.broker.submit(DeleteTopic("t"))
    await rig.create("t")


async def restart(rig: SimBrokerRig) -> None:
    await rig.crash(rig.machine.kill)
    await rig.start(GROUP_SETTINGS)
    await wait_groups_loaded(rig)


@pytest.mark.parametrize("has_id", [False, True])
@run_by(run)
async def test_offset_of_the_deleted_topic_is_removed_at_the_load(rig: SimBrokerRig, *, has_id: bool) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    old_id = rig.broker.image.topics["t"].topic_id
    assert await commit_with_id(rig, 7, old_id if has_id else "") is Code.NONE
    await recreate_without_coordinator(rig)
    await restart(rig)
    assert await fetch_committed(rig, G) == NO_OFFSET
    (shard,) = [each for each in rig.broker.group_coordinators.host.shards() if G in each.state.groups]
    await rig.wait_until(lambda: shard.log_state.committed_offset(G, "t", 0) is None)


@run_by(run)
async def test_offsets_of_the_second_topic_stay_at_the_load(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 7)
    await commit(rig, "h", 7)
    await recreate_without_coordinator(rig)
    await commit(rig, "h", 2)
    await restart(rig)
    assert (await fetch_committed(rig, G), await fetch_committed(rig, "h")) == (NO_OFFSET, 2)


@run_by(run)
async def test_offset_of_the_second_topic_stays_if_the_coordinator_acts_late(rig: SimBrokerRig) -> None:
    """It hears of the deletion of the first topic after a commit in the second one."""
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 7)
    await commit(rig, "h", 7)
    coordinators = rig.broker.group_coordinators
    on_deleted, deleted = coordinators.on_topics_deleted, list[Any]()
    coordinators.on_topics_deleted = lambda names: deleted.append(names)  # type: ignore[method-assign]
    await rig.broker.submit(DeleteTopic("t"))
    await rig.create("t")
    assert await commit_with_id(rig, 2, rig.broker.image.topics["t"].topic_id) is Code.NONE
    for names in deleted:
        on_deleted(names)
    await asyncio.sleep(1)
    assert deleted and (await fetch_committed(rig, G), await fetch_committed(rig, "h")) == (2, NO_OFFSET)


@run_by(run)
async def test_offset_of_the_deleted_topic_is_not_shown_before_it_is_removed(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    await commit(rig, G, 7)
    await recreate_without_coordinator(rig)
    assert await fetch_committed(rig, G) == NO_OFFSET
    reply = await rig.broker.group_coordinators.submit(G, FetchOffsets(G, None))
    assert isinstance(reply, FetchOffsetsReply) and reply.offsets == ()


@run_by(run)
async def test_commit_for_the_deleted_topic_is_refused(rig: SimBrokerRig) -> None:
    await rig.start(GROUP_SETTINGS)
    await rig.create("t")
    old_id = rig.broker.image.topics["t"].topic_id
    await rig.broker.submit(DeleteTopic("t"))
    await rig.create("t")
    await commit(rig, G, 2)
    assert await commit_with_id(rig, 7, old_id) is Code.UNKNOWN_TOPIC_ID
    assert await fetch_committed(rig, G) == 2


def test_group_has_no_offset_if_its_coordinator_missed_the_deletion() -> None:
    async def scenario(again: RecreatedTopic) -> None:
        three, quick = again.three, again.quick
        await three.controller.node.submit(CreateTopic(OFFSETS_TOPIC, assignments=[[quick.node_id]]))
        await three.wait_until(is_led(again, TopicPartition(OFFSETS_TOPIC, 0)), SECONDS)
        await quick.node.group_coordinators.submit(G, CommitOffsets(G, (PartitionOffset("t", 0, 3),)))
        await quick.kill()
        await three.controller.node.submit(DeleteTopic("t", again.old_replica.topic_id))
        again.new_id = await again._create_topic()
        await quick.start()
        assert await ask_when_loaded(again) == NO_OFFSET

    def is_led(again: RecreatedTopic, tp: TopicPartition) -> Callable[[], bool]:
        return lambda: again.quick.node.hosted_replicas.find_leader(tp) is not None

    async def ask_when_loaded(again: RecreatedTopic) -> int:
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    reply = await again.quick.node.group_coordinators.submit(G, FetchOffsets(G, (AT,)))
                except Refused:
                    await asyncio.sleep(0.1)
                else:
                    assert isinstance(reply, FetchOffsetsReply)
                    return reply.offsets[0].offset

    run_recreated(scenario)
