"""Tests of offsets that a new leader reports: no end of the log before it knows what is committed (KIP-207), and the
ends of epochs that only the bucket knows."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.scenario import run_by
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, fill, run
from tiered.config.listeners import Endpoint
from tiered.controller.requests import CreateTopic, ElectLeaders, Move, Reassign, RegisterBroker
from tiered.errors import Code
from tiered.ids import incarnation_number
from tiered.peers import PartitionFetch
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.offset_lookup import end_offset_for_epoch
from tiered_api.kafka.client.connection import open_connection
from tiered_api.kafka.client.leader_routing import EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tiered_api.kafka.server.server import serve_kafka

SESSION_SECONDS = 20
OTHER = RegisterBroker(2, "B" * 21 + "A", "d", "two:1", "", True)
"""A broker that never fetches."""


@pytest.mark.parametrize(
    ("version", "code"),
    [(4, Code.LEADER_NOT_AVAILABLE), (5, Code.OFFSET_NOT_AVAILABLE), (9, Code.OFFSET_NOT_AVAILABLE)],
)
@run_by(run)
async def test_new_leader_reports_no_end_before_it_knows_the_high_watermark(
    rig: SimBrokerRig, *, version: int, code: Code
) -> None:
    await rig.start(QUICK)
    await rig.broker.submit(OTHER)
    await rig.broker.submit(CreateTopic("t", assignments=[[1, 2]]))
    rig.broker.leader_replica("t", 0).append_now(batch([b"v"]), 1)
    topic_id = rig.broker.image.topics["t"].topic_id
    for order in ((2, 1), (1, 2)):
        await rig.broker.submit(Reassign((Move(topic_id, 0, order),)))
        await rig.broker.submit(ElectLeaders(preferred=True))
    await rig.wait_until(lambda: rig.broker.image.topics["t"].partitions[0].leader_epoch == 2)
    replica = rig.broker.leader_replica("t", 0)
    assert (replica.high_watermark, replica.epoch_start, sorted(replica.state.isr)) == (0, 1, [1, 2])
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    link = await open_connection(rig.network.host("far"), "one", server.addresses["PLAINTEXT"].port, "far", 5)

    async def offset(timestamp: int, replica_id: int = -1) -> tuple[int, int]:
        topic = ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, timestamp)])
        ask = ListOffsetsRequest(replica_id=replica_id, topics=[topic], timeout_ms=1_000)
        part = (await link.send(ask, ListOffsetsResponse, 5, version)).topics[0].partitions[0]
        return part.error_code, part.offset

    assert await offset(LATEST) == (code.number, -1)
    assert await offset(1_600_000_000_000) == (code.number, -1)
    assert await offset(EARLIEST) == (0, 0)
    if version >= 8:
        assert await offset(EARLIEST_LOCAL) == (0, 0)
    assert await offset(LATEST, replica_id=-2) == (0, 1), "Kafka's tool that looks at the whole log"
    assert await offset(LATEST, replica_id=2) == (Code.CLUSTER_AUTHORIZATION_FAILED.number, -1)
    await asyncio.sleep(SESSION_SECONDS)
    assert await offset(LATEST) == (0, 1)
    assert await offset(1_600_000_000_000) == (0, 0)
    link.close()
    await server.close()


@run_by(run)
async def test_end_that_moves_during_a_look_up_is_not_taken(rig: SimBrokerRig) -> None:
    """The look-up begins below the end that the leader before had told, and reads the bucket."""
    await rig.start(replace(QUICK, tiered_chunk_cache_bytes=0))
    await rig.broker.submit(OTHER)
    configs = {"local.retention.bytes": "1", "retention.ms": "-1"}
    await rig.broker.submit(CreateTopic("t", assignments=[[1, 2]], configs=configs))
    topic_id = rig.broker.image.topics["t"].topic_id

    def copy_all(replica: LeaderReplica) -> None:
        """Lets the other replica have all records."""
        end, epoch = replica.log.end_offset, replica.leader_epoch
        request = PartitionFetch(topic_id, 0, epoch, end, 0, 0, 0)
        replica.handle_follower_fetch(2, incarnation_number(OTHER.incarnation), request, 0)

    replica = rig.broker.leader_replica("t", 0)
    replica.append_now(batch([b"a"]), 1)
    copy_all(replica)
    replica.roll()
    await rig.wait_until(lambda: replica.local_start_offset == 1)
    replica.append_now(batch([b"b"]), 1)
    for order in ((2, 1), (1, 2)):
        await rig.broker.submit(Reassign((Move(topic_id, 0, order),)))
        await rig.broker.submit(ElectLeaders(preferred=True))
    await rig.wait_until(lambda: rig.broker.image.topics["t"].partitions[0].leader_epoch == 2)
    replica = rig.broker.leader_replica("t", 0)
    assert (replica.high_watermark, replica.epoch_start) == (1, 2)
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    link = await open_connection(rig.network.host("far"), "one", server.addresses["PLAINTEXT"].port, "far", 5)
    ask = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", [ListOffsetsPartition(0, -1, MAX_TIMESTAMP)])])
    rig.machine.faults.first_byte_seconds = 1.0
    asking = asyncio.create_task(link.send(ask, ListOffsetsResponse, 30, 9))
    await asyncio.sleep(0.5)
    copy_all(replica)
    assert replica.high_watermark == 2
    part = (await asking).topics[0].partitions[0]
    assert (part.error_code, part.offset) == (Code.OFFSET_NOT_AVAILABLE.number, -1)
    link.close()
    await server.close()


@run_by(run)
async def test_end_of_a_deleted_epoch_is_where_the_next_one_began(rig: SimBrokerRig) -> None:
    """A consumer that read under the earlier epoch compares its position with it. Only the bucket knows it by then."""
    await rig.start(QUICK)
    await fill(await rig.create(segment_bytes="1048576", retention_ms="-1"), 6)
    await rig.crash(rig.machine.kill)
    await rig.start(QUICK)
    replica = rig.broker.leader_replica("t", 0)
    await fill(replica, 4, 6)
    replica.roll()
    await rig.wait_until(lambda: replica.cold_end_offset == 10)
    assert await replica.deletion.delete_records(8) == 8
    await fill(replica, 1, 10)
    assert replica.log.epochs.lineage[0][0] > 0
    assert await end_offset_for_epoch(replica, 0) == (0, 6)
