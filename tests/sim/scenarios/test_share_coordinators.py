"""Share state over three simulated brokers: coordinators that move, topics that go, disks that are lost (I39)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.scenario import run_by
from tests.sim.scenarios.test_transactions import lose_all_disks
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tests.sim.scenarios.transactions import create_topic, find_leader, running
from tiered.controller.requests import DeleteTopic, FeatureUpdate, UpdateFeatures
from tiered.coordination.snapshot_stores import SHARE_SNAPSHOTS
from tiered.coordinator.host import SNAPSHOT_SECONDS
from tiered.coordinator.routing import partition_of
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.features import FEATURES, METADATA_VERSION, SHARE_GROUPS, FeatureLevels
from tiered.metadata.topic_names import SHARE_STATE_TOPIC
from tiered.share.requests import (
    InitializeState,
    KeyedRequest,
    ReadReply,
    ReadState,
    SharePartitionKey,
    StateReply,
    SummarizeState,
    SummaryReply,
    WriteState,
)
from tiered.share.state import RecordState, StateBatch

SETTINGS = {"share_coordinator_state_topic_num_partitions": 2}
WAIT_SECONDS = 30.0
ACCEPTED = (StateBatch(3, 4, RecordState.ACKNOWLEDGED, 1), StateBatch(8, 8, RecordState.AVAILABLE, 2))


def find_coordinator(three: ThreeBrokers, key: SharePartitionKey) -> SimBroker | None:
    """Returns the broker that coordinates a share partition."""
    tp = TopicPartition(SHARE_STATE_TOPIC, partition_of(key.coordinator_key, 2))
    leader = find_leader(three, tp)
    return three.brokers[leader.state.node_id] if leader is not None else None


async def ask(three: ThreeBrokers, request: KeyedRequest) -> Any:
    """Returns the coordinator's reply, wherever it is; retries as a leader does."""
    start = three.now
    while True:
        assert three.now - start < WAIT_SECONDS, request
        broker = find_coordinator(three, request.key) or running(three)[0]
        try:
            return await broker.node.share_coordinators.submit(request)
        except Refused as refused:
            assert refused.code.retriable, refused
        await asyncio.sleep(0.05)


async def begin(three: ThreeBrokers) -> SharePartitionKey:
    """Creates the topic `t`, and returns a share partition of it that has state."""
    await create_topic(three, (1, 2, 3))
    key = SharePartitionKey("g", three.newest_image().topics["t"].topic_id, 0)
    assert await ask(three, InitializeState(key, 1, 3)) == StateReply()
    assert await ask(three, WriteState(key, 1, 5, -1, 2, ACCEPTED)) == StateReply()
    return key


@run_by(run_scenario, **SETTINGS)
async def test_state_and_fences_survive_the_death_of_the_coordinator(three: ThreeBrokers) -> None:
    key = await begin(three)
    reply = await ask(three, ReadState(key, 7))
    assert reply == ReadReply(state_epoch=1, start_offset=3, batches=ACCEPTED)
    coordinator = find_coordinator(three, key)
    assert coordinator is not None
    await coordinator.kill()
    refused = await ask(three, WriteState(key, 1, 6, 5, 0, ()))
    assert refused.code is Code.FENCED_LEADER_EPOCH
    assert await ask(three, WriteState(key, 1, 7, 8, 0, ())) == StateReply()
    reply = await ask(three, ReadState(key, 7))
    assert reply == ReadReply(state_epoch=1, start_offset=8, batches=ACCEPTED[1:])


@run_by(run_scenario, **SETTINGS)
async def test_state_comes_back_from_the_bucket_after_the_loss_of_all_disks(three: ThreeBrokers) -> None:
    key = await begin(three)
    await three.wait_until(lambda: any(map(SHARE_SNAPSHOTS.parse_key, three.bucket.objects)), 2 * SNAPSHOT_SECONDS)
    await lose_all_disks(three)
    reply = await ask(three, ReadState(key, 5))
    assert reply == ReadReply(state_epoch=1, start_offset=3, batches=ACCEPTED)
    assert await ask(three, SummarizeState(key)) == SummaryReply(Code.NONE, "", 1, 5, 3, 2)


@run_by(run_scenario, **SETTINGS)
async def test_deleted_topic_takes_its_share_partitions_along(three: ThreeBrokers) -> None:
    key = await begin(three)
    await three.controller.node.submit(DeleteTopic("t"))
    coordinator = find_coordinator(three, key)
    assert coordinator is not None
    shards = coordinator.node.share_coordinators.host.shards
    await three.wait_until(lambda: not any(shard.state.partitions for shard in shards()), 10)
    reply = await ask(three, InitializeState(key, 1, 3))
    assert reply.code is Code.UNKNOWN_TOPIC_OR_PARTITION


def test_topic_of_share_state_waits_for_brokers_of_an_earlier_program(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(three: ThreeBrokers) -> None:
        monkeypatch.undo()
        await create_topic(three, (1, 2, 3))
        node = three.controller.node
        with pytest.raises(Refused, match=r"from tiered\.metadata\.version=6 on") as refused:
            await node.share_coordinators.ensure_topic()
        assert refused.value.code is Code.COORDINATOR_NOT_AVAILABLE
        assert SHARE_STATE_TOPIC not in node.image.topics
        await asyncio.sleep(10)  # each broker says in a heartbeat which level it supports
        await node.submit(UpdateFeatures((FeatureUpdate(METADATA_VERSION, SHARE_GROUPS),)))
        await node.share_coordinators.ensure_topic()
        assert SHARE_STATE_TOPIC in node.image.topics

    monkeypatch.setitem(FEATURES, METADATA_VERSION, FeatureLevels(0, SHARE_GROUPS - 1, 0))
    run_scenario(scenario, **SETTINGS)
