"""Tests of ListOffsets, OffsetForLeaderEpoch, InitProducerId, DescribeProducers and DescribeLogDirs over real
sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from unittest.mock import patch

import pytest

from tests.e2e.kafka_site import TEST_SECONDS, KafkaBroker, RawClient, kafka_broker, run, wait_until
from tests.scenario import run_alone, run_by
from tests.sim.rig.broker_rig import batch
from tiered.errors import Code
from tiered.object_store.faulty import Faults, faulty
from tiered.ports import World
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
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

LATEST, EARLIEST, NEWEST, LOCAL, COLD, PENDING = range(-1, -7, -1)
NOWHERE = (0, -1, -1, -1)
Found = tuple[int, int, int, int]
"""Error code, offset, timestamp, leader epoch."""


async def list_offset(
    client: RawClient, timestamp: int, topic: str = "t", *, version: int = 11, partition: int = 0, epoch: int = -1,
    committed: bool = False,
) -> Found:  # fmt: skip
    asked = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, epoch, timestamp)])
    request = ListOffsetsRequest(-1, int(committed), [asked], 5_000)
    (found,) = (await client.ask(request, version, ListOffsetsResponse)).topics[0].partitions
    assert found.partition_index == partition
    return found.error_code, found.offset, found.timestamp, found.leader_epoch


async def move_to_bucket(site: KafkaBroker, replica: LeaderReplica) -> None:
    """Uploads all records and deletes their local copies."""
    replica.roll()
    await wait_until(lambda: replica.cold_end_offset == replica.log.end_offset)
    await replica.log.drop_local_below(replica.cold_end_offset)


@run_by(run, "tmp_path")
async def test_empty_log_begins_and_ends_at_zero(site: KafkaBroker) -> None:
    await site.create("t")
    client = await site.client()
    for name in (LATEST, EARLIEST, LOCAL, PENDING):
        assert await list_offset(client, name) == (0, 0, -1, 0)
    for name in (NEWEST, COLD, 0, 1 << 60):
        assert await list_offset(client, name) == NOWHERE


@run_by(run, "tmp_path")
async def test_offsets_are_found_by_name_and_by_time_hot_and_cold(site: KafkaBroker) -> None:
    replica = await site.create("t", retention_ms="-1")
    client = await site.client()
    await replica.append(batch([b"a"] * 5, 1_000))  # offsets 0-4 at 1000-1004
    await replica.append(batch([b"b"] * 5, 5_000))  # 5-9
    await move_to_bucket(site, replica)
    await replica.append(batch([b"c"] * 5, 3_000))  # 10-14, hot, older than some of what is cold
    await replica.append(batch([b"d"] * 5, 7_000))  # 15-19
    names = {LATEST: 20, EARLIEST: 0, LOCAL: 10, COLD: 9, PENDING: 10}
    assert {name: (await list_offset(client, name))[1] for name in names} == names
    assert await list_offset(client, NEWEST) == (0, 19, 7_004, 0)
    times = {0: (0, 1_000), 1_003: (3, 1_003), 1_005: (5, 5_000), 5_002: (7, 5_002), 5_005: (15, 7_000)}
    assert {time: (await list_offset(client, time))[1:3] for time in times} == times
    assert await list_offset(client, 7_005) == NOWHERE
    await replica.deletion.delete_records(7)
    assert (await list_offset(client, EARLIEST))[1] == 7
    assert [(await list_offset(client, time))[1] for time in (0, 5_001, 5_003)] == [7, 7, 8], (
        "never below the log's start"
    )
    assert (await list_offset(client, LATEST, committed=True))[1] == 20


@run_by(run, "tmp_path")
async def test_newest_record_may_be_cold(site: KafkaBroker) -> None:
    replica = await site.create("t", retention_ms="-1")
    await replica.append(batch([b"a"] * 3, 9_000))
    await move_to_bucket(site, replica)
    await replica.append(batch([b"b"], 1_000))
    assert await list_offset(await site.client(), NEWEST) == (0, 2, 9_002, 0)


@run_by(run, "tmp_path")
async def test_each_version_has_its_special_timestamps(site: KafkaBroker) -> None:
    await site.create("t")
    client = await site.client()
    since = {LATEST: 1, EARLIEST: 1, NEWEST: 7, LOCAL: 8, COLD: 9, PENDING: 11, -7: 12}
    for version in range(1, 12):
        for name, first in since.items():
            code, _, _, epoch = await list_offset(client, name, version=version)
            assert code == (0 if version >= first else Code.UNSUPPORTED_VERSION.number), (version, name)
            missing, *_ = await list_offset(client, name, "no", version=version)
            assert missing == (3 if version >= first else Code.UNSUPPORTED_VERSION.number), (version, name)
            if name == LATEST:
                assert epoch == (0 if version >= 4 else -1)


@run_by(run, "tmp_path")
async def test_lookups_are_fenced_and_refused_per_partition(site: KafkaBroker) -> None:
    await site.create("t", 2)
    client = await site.client()
    assert (await list_offset(client, LATEST, epoch=0))[0] == 0
    assert (await list_offset(client, LATEST, epoch=1))[0] == Code.UNKNOWN_LEADER_EPOCH.number
    assert (await list_offset(client, LATEST, partition=7))[0] == (await list_offset(client, LATEST, "no"))[0] == 3
    twice = [
        ListOffsetsPartition(0, -1, LATEST),
        ListOffsetsPartition(1, -1, LATEST),
        ListOffsetsPartition(0, -1, 0),
    ]
    request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic("t", twice)])
    answer = await client.ask(request, 9, ListOffsetsResponse)
    codes = {each.partition_index: each.error_code for each in answer.topics[0].partitions}
    assert codes == {0: Code.INVALID_REQUEST.number, 1: 0} and len(answer.topics[0].partitions) == 2


def test_lookup_in_a_silent_bucket_times_out_and_delays_no_other(tmp_path: Path) -> None:
    faults = Faults()

    def ports(world: World) -> World:
        return replace(world, store=faulty(world.store, faults, world.clock))

    async def scenario() -> None:
        async with kafka_broker(tmp_path, ports=ports) as site:
            await list_while_slow(site)

    async def list_while_slow(site: KafkaBroker) -> None:
        replica = await site.create("t", retention_ms="-1")
        await replica.append(batch([b"a"] * 5, 1_000))
        await move_to_bucket(site, replica)
        await site.create("hot")

        faults.first_byte_seconds = 10 * TEST_SECONDS
        slow, quick = await site.client(), await site.client()
        asked = [ListOffsetsTopic(name, [ListOffsetsPartition(0, -1, 0)]) for name in ("t", "hot")]
        await slow.send(slow.frame(ListOffsetsRequest(-1, 0, asked, 300), 11))
        assert await list_offset(quick, 0, "hot") == NOWHERE
        answer = await slow.receive(ListOffsetsResponse, 11)
        faults.first_byte_seconds = 0.0
        assert [topic.partitions[0].error_code for topic in answer.topics] == [Code.REQUEST_TIMED_OUT.number, 0]

    asyncio.run(scenario())


async def epoch_end_offsets(client: RawClient, *epochs: int, current: int = -1) -> list[tuple[int, int, int]]:
    """Returns (error code, epoch, end offset) of each epoch of partition t-0."""
    found = []
    for epoch in epochs:
        asked = [OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, current, epoch)])]
        reply = await client.ask(OffsetForLeaderEpochRequest(-1, asked), 4, OffsetForLeaderEpochResponse)
        (each,) = reply.topics[0].partitions
        found.append((each.error_code, each.leader_epoch, each.end_offset))
    return found


@run_by(run, "tmp_path")
async def test_partition_named_twice_has_no_epoch_end(site: KafkaBroker) -> None:
    """Otherwise a small request could make the broker look up the same partition very often."""
    await site.create("t", 2)
    first, second = (OffsetForLeaderPartition(number, -1, 0) for number in range(2))
    asked = [OffsetForLeaderTopic("t", [first, second]), OffsetForLeaderTopic("t", [first])]
    reply = await (await site.client()).ask(OffsetForLeaderEpochRequest(-1, asked), 4, OffsetForLeaderEpochResponse)
    (topic,) = reply.topics
    codes = {each.partition: each.error_code for each in topic.partitions}
    assert codes == {0: Code.INVALID_REQUEST.number, 1: 0} and len(topic.partitions) == 2


@run_by(run_alone)
async def test_epoch_ends_where_the_next_began_hot_and_cold(*, tmp_path: Path) -> None:
    """Each start of the broker is a leader epoch; local copies of the first ones are gone."""
    async with kafka_broker(tmp_path) as site:  # epoch 0: [0, 3)
        await (await site.create("t", retention_ms="-1")).append(batch([b"a"] * 3))
        assert await epoch_end_offsets(await site.client(), 0, 1, -1) == [(0, 0, 3), (0, -1, -1), (0, -1, -1)]
    async with kafka_broker(tmp_path) as site:  # epoch 1 writes nothing
        assert await epoch_end_offsets(await site.client(), 0, 1) == [(0, 0, 3), (0, 1, 3)]
    async with kafka_broker(tmp_path) as site:  # epoch 2: [3, 5), all of it cold
        replica = site.broker.leader_replica("t", 0)
        await replica.append(batch([b"b"] * 2))
        replica.roll()
        await wait_until(lambda: replica.cold_end_offset == 5)
    rmtree(tmp_path / "log")
    async with kafka_broker(tmp_path) as site:
        replica = site.broker.leader_replica("t", 0)
        await replica.append(batch([b"c"]))
        now = replica.leader_epoch
        client = await site.client()
        assert await epoch_end_offsets(client, 0, 1, 2, now, now + 1) == [
            (0, 0, 3), (0, 0, 3), (0, 2, 5), (0, now, 6), (0, -1, -1),
        ]  # fmt: skip
        assert (await epoch_end_offsets(client, 0, current=now))[0][0] == 0
        assert (await epoch_end_offsets(client, 0, current=now - 1))[0][0] == Code.FENCED_LEADER_EPOCH.number
        assert (await epoch_end_offsets(client, 0, current=now + 1))[0][0] == Code.UNKNOWN_LEADER_EPOCH.number


@run_by(run_alone)
async def test_every_producer_gets_its_own_id(*, tmp_path: Path) -> None:
    seen: list[int] = []
    for _ in range(2):
        async with kafka_broker(tmp_path) as site:
            client = await site.client()
            for version in range(6):
                plain = InitProducerIdRequest(None, 60_000)
                answer = await client.ask(plain, version, InitProducerIdResponse)
                assert (answer.error_code, answer.producer_epoch) == (0, 0)
                seen.append(answer.producer_id)
            bumped = InitProducerIdRequest(None, 60_000, seen[-1], 3)
            answer = await client.ask(bumped, 5, InitProducerIdResponse)
            seen.append(answer.producer_id)
            for wrong, code in (
                (InitProducerIdRequest("", 60_000), Code.INVALID_REQUEST),
                (InitProducerIdRequest(None, 60_000, 5, -1), Code.INVALID_REQUEST),
            ):
                refused = await client.ask(wrong, 5, InitProducerIdResponse)
                assert (refused.error_code, refused.producer_id) == (code.number, -1)
    assert len(set(seen)) == len(seen) and min(seen) >= 0


def test_others_have_turns_while_producers_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiered.system.turns.PIECE_SECONDS", 0.0)

    async def scenario(site: KafkaBroker) -> None:
        await site.create("t", 6)
        for partition in range(6):
            replica = site.broker.leader_replica("t", partition)
            for producer in range(4):
                records = [(1_000, None, b"v", ())]
                data = encode_batch(records, producer_id=producer, producer_epoch=0, base_sequence=0)
                await replica.append(bytearray(data))
        client, turns = await site.client(), site.server.context.turns
        with patch.object(turns, "wait_turn", wraps=turns.wait_turn) as waited:
            asked = DescribeProducersRequest([TopicRequest("t", list(range(6)))])
            (topic,) = (await client.ask(asked, 0, DescribeProducersResponse)).topics
        assert [len(each.active_producers) for each in topic.partitions] == [4] * 6
        assert waited.await_count == 2 + 1 + 6, "before and after the request, after the topic and each partition"

    run(tmp_path, scenario)


@run_by(run, "tmp_path")
async def test_producers_and_log_sizes_are_described(site: KafkaBroker, *, tmp_path: Path) -> None:
    replica = await site.create("t", 2)
    for sequence in (0, 3):
        records = [(1_000 + n, None, b"v", ()) for n in range(3)]
        await replica.append(bytearray(encode_batch(records, producer_id=7, producer_epoch=1, base_sequence=sequence)))
    client = await site.client()
    asked = DescribeProducersRequest([TopicRequest("t", [0, 1, 0, 9]), TopicRequest("no", [0])])
    known, unknown = (await client.ask(asked, 0, DescribeProducersResponse)).topics
    assert [each.error_code for each in (*known.partitions, *unknown.partitions)] == [0, 0, 3, 3]
    (producer,) = known.partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 1, 5)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (1_002, -1)
    assert known.partitions[1].active_producers == []

    for version in range(1, 5):
        (directory,) = (await client.ask(DescribeLogDirsRequest(None), version, DescribeLogDirsResponse)).results
        assert (directory.error_code, directory.log_dir) == (0, str(tmp_path))
        sizes = {each.partition_index: each.partition_size for each in directory.topics[0].partitions}
        assert sizes == {0: replica.log.segments.size_bytes, 1: 0} and sizes[0] > 0
        remote = [each.remote_size for each in directory.topics[0].partitions]
        assert remote == ([0, 0] if version >= 2 else [-1, -1])
        assert (directory.total_bytes > directory.usable_bytes > 0) == (version >= 4)
    some = DescribeLogDirsRequest([DescribableLogDirTopic("t", [1, 9]), DescribableLogDirTopic("no", [0])])
    (directory,) = (await client.ask(some, 4, DescribeLogDirsResponse)).results
    assert [[each.partition_index for each in topic.partitions] for topic in directory.topics] == [[1]]
