"""Tests of what the replies of a broker say about transactions: aborted ones in Fetch, the last stable offset, and the
state of producers."""

from __future__ import annotations

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, batch, fetch, run, wait_until
from tests.e2e.transaction_calls import transactional_batch
from tests.scenario import run_by
from tiered.records.aborted import AbortedTransactions
from tiered.records.batch import decode_records
from tiered.records.marker import TransactionMarker
from tiered.records.model import CONTROL
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tiered_api.kafka.protocol.messages.fetch import FetchResponse, PartitionData
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LONG_MS = 20_000
LOCAL_NONE = {"internal_segment_bytes": "4096", "local_retention_bytes": "1", "retention_ms": "-1"}
QUICK = {"log_retention_check_interval_ms": 50, "remote_log_manager_task_interval_ms": 50}
LATEST = -1


async def write(replica: LeaderReplica, producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> None:
    """Writes records to the open transaction of a producer, or begins one."""
    guard = replica.transactions.begin_verification(producer_id, epoch, sequence)
    await replica.append(transactional_batch(producer_id, epoch, sequence, *values), guard=guard)
    replica.transactions.end_verification(guard)


async def end(replica: LeaderReplica, producer_id: int, *, commit: bool, epoch: int = 0) -> None:
    await replica.transactions.append_marker(TransactionMarker(producer_id, epoch, commit, coordinator_epoch=3))


async def write_transactions(replica: LeaderReplica) -> None:
    """Writes `[0, 8)`: producer 1 aborts, 2 commits, 1 aborts again; producer 3 stays open from 8 on."""
    await write(replica, 2, 0, b"good")
    await write(replica, 1, 0, b"bad")
    await end(replica, 1, commit=False)
    await write(replica, 2, 1, b"too")
    await end(replica, 2, commit=True)
    await write(replica, 1, 1, b"worse")
    await end(replica, 1, commit=False)
    await replica.append(batch([b"plain"]))
    await write(replica, 3, 0, b"open")


def committed_values(part: PartitionData) -> list[bytes | None]:
    """Returns the values that a read_committed client gives to its application."""
    data = part.records or b""
    assert part.aborted_transactions is not None
    aborted = AbortedTransactions((each.producer_id, each.first_offset) for each in part.aborted_transactions)
    kept = [each for each in walk(data).batches if not aborted.has_batch(each) and not each.attributes & CONTROL]
    return [record.value for each in kept for record in decode_records(data, each.position)]


async def fetch_part(client: RawClient, replica: LeaderReplica, offset: int, version: int = 12) -> PartitionData:
    request = fetch((replica, offset))
    request.isolation_level = 1
    return (await client.ask(request, version, FetchResponse)).responses[0].partitions[0]


@pytest.mark.parametrize("version", range(4, 19))
@run_by(run, "tmp_path")
async def test_every_version_names_the_aborted_transactions(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t")
    await write_transactions(replica)
    client = await site.client()
    for _ in range(3):  # the first one misses the caches
        part = await fetch_part(client, replica, 0, version)
        assert (part.high_watermark, part.last_stable_offset) == (9, 8)
        named = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
        assert named == [(1, 1), (1, 5)]
        assert committed_values(part) == [b"good", b"too", b"plain"]
    later = await fetch_part(client, replica, 3, version)
    assert [each.first_offset for each in later.aborted_transactions or ()] == [5]
    at_end = await fetch_part(client, replica, 8, version)
    assert (at_end.records or b"", at_end.aborted_transactions) == (b"", [])
    (part,) = (await client.ask(fetch((replica, 0)), version, FetchResponse)).responses[0].partitions
    assert part.aborted_transactions is None and part.records


@run_by(run, "tmp_path")
async def test_partitions_of_one_reply_have_lists_of_their_own(site: KafkaBroker) -> None:
    first = await site.create("t", 2)
    second = site.broker.leader_replica("t", 1)
    await write_transactions(first)
    await second.append(batch([b"plain"]))
    client = await site.client()
    request = fetch((first, 0), (second, 0))
    request.isolation_level = 1
    for _ in range(2):
        one, two = (await client.ask(request, 12, FetchResponse)).responses[0].partitions
        assert len(one.aborted_transactions or ()) == 2 and two.aborted_transactions == []


@run_by(run, "tmp_path")
async def test_waiting_fetch_gets_the_records_when_the_last_stable_offset_moves(site: KafkaBroker) -> None:
    replica = await site.create("t")
    await write(replica, 1, 0, b"a")
    waiting = [await site.client() for _ in range(3)]
    request = fetch((replica, 0), wait_ms=LONG_MS)
    request.isolation_level = 1
    for client in waiting:
        await client.send(client.frame(request, 12))
    await wait_until(lambda: site.server.pending_requests == 3)
    await write(replica, 1, 1, b"b")
    asking = await site.client()
    while (await fetch_part(asking, replica, 0)).high_watermark < 2:
        pass
    assert site.server.pending_requests == 3, "the high watermark moved, and nothing is decided"
    await end(replica, 1, commit=False)
    for client in waiting:
        (part,) = (await client.receive(FetchResponse, 12)).responses[0].partitions
        assert [each.first_offset for each in part.aborted_transactions or ()] == [0]
        assert (part.last_stable_offset, committed_values(part)) == (3, [])


@pytest.mark.parametrize("version", [4, 12, 18])
@run_by(run, "tmp_path", **QUICK)
async def test_cold_fetch_names_the_aborted_transactions(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t", 1, **LOCAL_NONE)
    await write_transactions(replica)
    await end(replica, 3, commit=True)
    replica.roll()
    await wait_until(lambda: replica.local_start_offset == 10)
    client = await site.client()
    part = await fetch_part(client, replica, 0, version)
    assert [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()] == [(1, 1), (1, 5)]
    assert committed_values(part) == [b"good", b"too", b"plain", b"open"]
    (part,) = (await client.ask(fetch((replica, 0)), version, FetchResponse)).responses[0].partitions
    assert part.aborted_transactions is None and part.records


@run_by(run, "tmp_path")
async def test_end_for_a_read_committed_consumer_is_the_last_stable_offset(site: KafkaBroker) -> None:
    replica = await site.create("t")
    await write_transactions(replica)
    client = await site.client()
    for version in (2, 5, 10):
        for isolation, expected in ((0, 9), (1, 8)):
            partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
            request = ListOffsetsRequest(-1, isolation, [ListOffsetsTopic("t", [partition])])
            answer = await client.ask(request, version, ListOffsetsResponse)
            assert answer.topics[0].partitions[0].offset == expected


@run_by(run, "tmp_path")
async def test_described_producers_have_their_transaction_and_coordinator(site: KafkaBroker) -> None:
    replica = await site.create("t")
    await write_transactions(replica)
    client = await site.client()
    request = DescribeProducersRequest([TopicRequest("t", [0])])
    (topic,) = (await client.ask(request, 0, DescribeProducersResponse)).topics
    found = {
        each.producer_id: (each.last_sequence, each.coordinator_epoch, each.current_txn_start_offset)
        for each in topic.partitions[0].active_producers
    }
    assert found == {1: (1, 3, -1), 2: (1, 3, -1), 3: (0, -1, 8)}
