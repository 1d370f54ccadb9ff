"""Tests of offsets in transactions over real sockets: visible with the commit only, fenced, and kept by restarts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tests.e2e.group_calls import QUICK, join, sync, versions
from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tests.e2e.transaction_calls import CLIENTS, JAVA_3_9, JAVA_4_2, LIBRDKAFKA, TransactionalClient, Versions
from tests.peer.kafka import tool
from tests.scenario import run_by
from tiered.coordination import group_coordinators
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.records.marker import TransactionMarker
from tiered.system.clock import SystemClock
from tiered.system.network import SocketNet
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.group_offsets import fetch_committed_offsets
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tiered_api.kafka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tiered_api.kafka.server.requests import group_requests

SETTINGS = {**QUICK, "transaction_state_log_num_partitions": 2}
UNSTABLE = Code.UNSTABLE_OFFSET_COMMIT.number


async def offset_of(client: RawClient, *, stable: bool, version: int = 9) -> tuple[int, int]:
    """Returns (offset, error code) of the first partition of topic a."""
    named = [OffsetFetchRequestTopics("a", partition_indexes=[0])]
    groups = [OffsetFetchRequestGroup("g", topics=named)]
    old = [OffsetFetchRequestTopic("a", [0])]
    got = await client.ask(OffsetFetchRequest("g", old, groups, stable), version, OffsetFetchResponse)
    topic = got.topics[0] if version < 8 else got.groups[0].topics[0]
    part = topic.partitions[0]
    return part.committed_offset, part.error_code


@pytest.mark.parametrize("client_versions", CLIENTS.values(), ids=CLIENTS.keys())
@run_by(run, "tmp_path", **SETTINGS)
async def test_offsets_of_a_transaction_are_visible_with_its_commit(
    site: KafkaBroker, *, client_versions: Versions
) -> None:
    replica = await site.create("a")
    client = await site.client()
    producer = TransactionalClient(client, versions=client_versions)
    assert await producer.init() is Code.NONE
    assert await producer.write(replica, b"copy") is Code.NONE
    assert await producer.commit_offsets("g", 7) is Code.NONE
    assert await offset_of(client, stable=False) == (-1, 0)
    assert await offset_of(client, stable=True) == (-1, UNSTABLE)
    assert await producer.end(True) is Code.NONE
    for commit, offset in ((False, 8), (True, 9)):
        assert await producer.commit_offsets("g", offset) is Code.NONE
        assert await producer.end(commit) is Code.NONE
    while await offset_of(client, stable=True) != (9, 0):
        assert (await offset_of(client, stable=True))[1] in (0, UNSTABLE)


@pytest.mark.parametrize("version", versions(28))
@run_by(run, "tmp_path", **SETTINGS)
async def test_every_version_is_answered_per_partition(site: KafkaBroker, *, version: int) -> None:
    await site.create("a")
    client = await site.client()
    base = JAVA_4_2 if version >= 5 else JAVA_3_9
    producer = TransactionalClient(client, versions=base._replace(offsets=version))
    assert await producer.init() is Code.NONE
    assert await producer.commit_offsets("g", 7) is Code.NONE
    assert await producer.commit_offsets("g", 7, topic="nowhere") is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.end(True) is Code.NONE
    while await offset_of(client, stable=True) != (7, 0):
        pass


def test_offsets_of_many_partitions_join_a_transaction_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_requests, "PENDING_PIECE_PARTITIONS", 1)

    async def scenario(site: KafkaBroker) -> None:
        await site.create("a", 3)
        client = await site.client()
        producer = TransactionalClient(client)
        assert await producer.init() is Code.NONE
        rows = [TxnOffsetCommitRequestPartition(number, 7 + number) for number in (2, 5, 0)]
        request = TxnOffsetCommitRequest(
            producer.name, "g", producer.producer_id, producer.epoch, topics=[TxnOffsetCommitRequestTopic("a", rows)]
        )
        retried = (Code.CONCURRENT_TRANSACTIONS.number, Code.COORDINATOR_LOAD_IN_PROGRESS.number)
        codes = [retried[0]]
        while set(codes).intersection(retried):
            got = await client.ask(request, 5, TxnOffsetCommitResponse)
            codes = [each.error_code for each in got.topics[0].partitions]
        assert codes == [0, Code.UNKNOWN_TOPIC_OR_PARTITION.number, 0]
        assert await producer.end(True) is Code.NONE
        named = [OffsetFetchRequestTopics("a", partition_indexes=[0, 1, 2])]
        fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=named)])
        offsets: list[int] = []
        while offsets != [7, -1, 9]:
            found = await client.ask(fetch, 9, OffsetFetchResponse)
            offsets = [each.committed_offset for each in found.groups[0].topics[0].partitions]
            assert offsets in ([-1, -1, -1], [7, -1, 9])

    run(tmp_path, scenario, **SETTINGS)


def test_transactions_of_many_offsets_end_in_turns_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_coordinators, "SLICE_OFFSETS", 0)

    async def scenario(site: KafkaBroker) -> None:
        await site.create("a")
        producers = [TransactionalClient(await site.client(), f"t{number}") for number in range(4)]
        for number, producer in enumerate(producers):
            assert await producer.init() is Code.NONE
            assert await producer.commit_offsets(f"g{number}", 7) is Code.NONE
        groups = site.broker.group_coordinators
        partitions = [await groups.host.partition_for(f"g{number}") for number in range(4)]

        def count_open() -> int:
            places = zip(partitions, producers, strict=True)
            return sum(groups.pending_epoch_of(place, producer.producer_id) >= 0 for place, producer in places)

        ending = asyncio.gather(
            *(
                groups.write_marker(place, TransactionMarker(each.producer_id, each.epoch, True, 0))
                for place, each in zip(partitions, producers, strict=True)
            )
        )
        counts = [count_open()]
        while not ending.done():
            await asyncio.sleep(0)
            counts.append(count_open())
        await ending
        assert list(dict.fromkeys(counts)) == [4, 3, 2, 1, 0]

    run(tmp_path, scenario, **SETTINGS)


@pytest.mark.parametrize("version", range(7, 10))
@run_by(run, "tmp_path", **SETTINGS)
async def test_unstable_offset_is_refused_in_every_version_that_can_ask(site: KafkaBroker, *, version: int) -> None:
    await site.create("a")
    client = await site.client()
    producer = TransactionalClient(client)
    await producer.init()
    await producer.commit_offsets("g", 7)
    assert await offset_of(client, stable=True, version=version) == (-1, UNSTABLE)
    assert await offset_of(client, stable=False, version=version) == (-1, 0)


@run_by(run, "tmp_path", **SETTINGS)
async def test_offsets_outside_of_a_transaction_are_refused(site: KafkaBroker) -> None:
    await site.create("a")
    client = await site.client()
    for each, code in (
        (JAVA_3_9, Code.TRANSACTION_ABORTABLE), (LIBRDKAFKA, Code.INVALID_TXN_STATE)
    ):  # fmt: skip
        producer = TransactionalClient(client, versions=each)
        await producer.init()
        assert await producer.commit_offsets_only("g", 7) is code, "the partition was not added"
    unknown = TransactionalClient(client, "unknown")
    unknown.producer_id, unknown.epoch = 4711, 0
    assert await unknown.commit_offsets_only("g", 7) is Code.INVALID_PRODUCER_ID_MAPPING
    assert await offset_of(client, stable=True) == (-1, 0)


@pytest.mark.parametrize("client_versions", [JAVA_3_9, JAVA_4_2])
@run_by(run, "tmp_path", **SETTINGS)
async def test_fenced_producer_commits_no_offsets(site: KafkaBroker, *, client_versions: Versions) -> None:
    await site.create("a")
    client = await site.client()
    old = TransactionalClient(client, versions=client_versions)
    await old.init()
    assert await old.commit_offsets("g", 7) is Code.NONE
    new = TransactionalClient(client, versions=client_versions)
    assert await new.init() is Code.NONE
    assert await offset_of(client, stable=True) == (-1, 0), "InitProducerId aborted it"
    assert await old.commit_offsets_only("g", 8) is Code.INVALID_PRODUCER_EPOCH
    assert await offset_of(client, stable=True) == (-1, 0)


@run_by(run, "tmp_path", **SETTINGS)
async def test_member_of_an_earlier_generation_is_fenced(site: KafkaBroker) -> None:
    await site.create("a")
    client = await site.client()
    joined = await join(client, "g")
    await sync(client, "g", joined)
    producer = TransactionalClient(client)
    await producer.init()
    member, generation = joined.member_id, joined.generation_id
    commit = producer.commit_offsets
    assert await commit("g", 7, member_id=member, generation=generation - 1) is Code.ILLEGAL_GENERATION
    assert await commit("g", 7, member_id="else", generation=generation) is Code.UNKNOWN_MEMBER_ID
    assert await commit("g", 7, member_id=member, generation=generation) is Code.NONE
    assert await producer.end(True) is Code.NONE


def test_open_transaction_survives_a_restart_and_ends_with_its_commit(tmp_path: Path) -> None:
    producers: list[TransactionalClient] = []

    async def begin(site: KafkaBroker) -> None:
        await site.create("a")
        producer = TransactionalClient(await site.client())
        await producer.init()
        assert await producer.commit_offsets("g", 7) is Code.NONE
        producers.append(producer)

    async def end(site: KafkaBroker) -> None:
        client = await site.client()
        before, producer = producers[0], TransactionalClient(client)
        producer.producer_id, producer.epoch = before.producer_id, before.epoch
        while (found := await offset_of(client, stable=True))[1] == Code.COORDINATOR_LOAD_IN_PROGRESS.number:
            pass
        assert found == (-1, UNSTABLE)
        assert await producer.end(True) is Code.NONE
        while await offset_of(client, stable=True) != (7, 0):
            pass
        replica = site.broker.hosted_replicas.list_leaders()
        offsets = [each for each in replica if each.topic == OFFSETS_TOPIC]
        assert all(each.last_stable_offset == each.log.end_offset for each in offsets)

    run(tmp_path, begin, **SETTINGS)
    run(tmp_path, end, **SETTINGS)


@run_by(run, "tmp_path", **SETTINGS)
async def test_our_client_waits_for_a_stable_offset(site: KafkaBroker) -> None:
    await site.create("a")
    producer = TransactionalClient(await site.client())
    await producer.init()
    assert await producer.commit_offsets("g", 7) is Code.NONE
    assert await producer.end(True) is Code.NONE
    assert await producer.commit_offsets("g", 8) is Code.NONE
    host, port = site.address.rsplit(":", 1)
    client = KafkaClient(SocketNet(), SystemClock(), [Address(host, int(port))])
    waiting = asyncio.ensure_future(fetch_committed_offsets(client, "g", require_stable=True))
    assert await fetch_committed_offsets(client, "g") == {TopicPartition("a", 0): 7}
    assert not waiting.done()
    assert await producer.end(True) is Code.NONE
    assert await waiting == {TopicPartition("a", 0): 8}
    await client.close()


@pytest.mark.java
def test_kafkas_dump_tool_reads_transactional_offsets_and_markers(tmp_path: Path) -> None:
    partitions: list[int] = []

    async def scenario(site: KafkaBroker) -> None:
        await site.create("a")
        producer = TransactionalClient(await site.client())
        await producer.init()
        for commit in (True, False):
            assert await producer.commit_offsets("g", 7) is Code.NONE
            assert await producer.end(commit) is Code.NONE
        assert await producer.commit_offsets("g", 8) is Code.NONE
        assert await producer.end(True) is Code.NONE
        partitions.append(await site.broker.group_coordinators.host.partition_for("g"))
        while await offset_of(producer.client, stable=True) != (8, 0):
            pass

    run(tmp_path, scenario, **SETTINGS)
    (file,) = tmp_path.glob(f"**/{OFFSETS_TOPIC}-{partitions[0]}/*.log")
    text = tool("dump-log", "--offsets-decoder", "--files", str(file))
    batches = [line for line in text.splitlines() if line.startswith("baseOffset")]
    assert [("isTransactional: true" in each, "isControl: true" in each) for each in batches] == [
        (True, False), (True, True)
    ] * 3  # fmt: skip
    assert all("isvalid: true" in each for each in batches)
    assert text.count('"group":"g","topic":"a","partition":0') == 3 and text.count('"offset":8') == 1
    assert re.findall(r"endTxnMarker: (\w+)", text) == ["COMMIT", "ABORT", "COMMIT"]
