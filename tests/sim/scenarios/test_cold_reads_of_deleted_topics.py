"""A request waits for the bucket while its topic is deleted and another one is created under its name.

The reply of the bucket is of the first topic. The caller is told that its topic is gone, and gets nothing of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.recreated_topic import AT, SECONDS, RecreatedTopic, code_of
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.errors import Code, Refused
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

COLD = {"local.retention.bytes": "1", "internal.segment.bytes": "1024"}
BATCHES = 20
BUCKET_SECONDS = 1.0
GONE = (Code.UNKNOWN_TOPIC_OR_PARTITION, Code.UNKNOWN_TOPIC_ID, Code.NOT_LEADER_OR_FOLLOWER)


async def make_cold(again: RecreatedTopic, replica: LeaderReplica) -> None:
    """Appends batches and waits until the first of them are in the bucket only."""
    start = replica.log.end_offset
    for _ in range(BATCHES):
        await replica.append(batch([b"x" * 300]), acks=ACKS_ALL)
    replica.roll()
    await again.three.wait_until(lambda: replica.local_start_offset > start + BATCHES // 2, 120)


def run_cold(request: Callable[[RecreatedTopic], Awaitable[Code]], epochs: int = 1) -> None:
    """Sends a request that waits for the bucket, recreates its topic meanwhile, and checks the code of its reply."""

    async def scenario(three: ThreeBrokers) -> None:
        again = RecreatedTopic(three, 1, COLD)
        again.slow.node.cold_tier.manifests._fan = 2  # look-ups read sub-manifests
        await again.create_first()
        await make_cold(again, again.old_replica)
        for _ in range(epochs - 1):
            await again.slow.kill()
            await again.slow.start()
            again.slow.node.cold_tier.manifests._fan = 2
            await three.wait_until(lambda: again.slow.node.hosted_replicas.find_leader(AT) is not None, SECONDS)
            again.old_replica = again.slow.node.leader_replica(*AT)
            await make_cold(again, again.old_replica)
        again.old_replica.log.epochs.truncate_start(again.old_replica.local_start_offset)  # the bucket knows the others
        again.slow.node.cold_tier.manifests._submanifests.clear()
        again.slow.machine.faults.first_byte_seconds = BUCKET_SECONDS
        reply = asyncio.create_task(_code(request(again)))
        await asyncio.sleep(BUCKET_SECONDS / 10)
        await again.recreate()
        assert not reply.done(), "it waits for the bucket"
        code = await reply
        await again.release_slow()
        await again.end()
        assert code in GONE

    run_scenario(scenario)


async def _code(request: Awaitable[Code]) -> Code:
    try:
        return await request
    except Refused as refused:
        return refused.code


@run_by(run_cold)
async def test_read_of_cold_records_is_refused(again: RecreatedTopic) -> Code:
    fetched = await again.old_replica.reads.read(0, 1 << 20)
    assert fetched.size
    return Code.NONE


@run_by(run_cold)
async def test_look_up_by_timestamp_is_refused(again: RecreatedTopic) -> Code:
    assert await again.old_replica.reads.offset_for_timestamp(1) is not None
    return Code.NONE


@pytest.mark.parametrize("timestamp", [1, -3, -2], ids=["time", "greatest-time", "first"])
def test_list_offsets_is_refused(timestamp: int) -> None:
    async def list_offset(again: RecreatedTopic) -> Code:
        topic = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])
        request = ListOffsetsRequest(-1, 0, [topic], 20_000)
        reply = await (await again.link(again.slow)).send(request, ListOffsetsResponse, SECONDS, 10)
        return code_of(reply.topics[0].partitions[0].error_code)

    run_cold(list_offset, epochs=2 if timestamp == -2 else 1)


@run_by(run_cold, epochs=2)
async def test_end_of_a_leader_epoch_is_refused(again: RecreatedTopic) -> Code:
    topic = OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, -1, 0)])
    request = OffsetForLeaderEpochRequest(-1, [topic])
    reply = await (await again.link(again.slow)).send(request, OffsetForLeaderEpochResponse, SECONDS, 4)
    return code_of(reply.topics[0].partitions[0].error_code)
