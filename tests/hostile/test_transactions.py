"""Tests of many transactional ids, of transactions that are begun and ended all the time, and of foreign markers."""

from __future__ import annotations

import asyncio

from tests.e2e.transaction_calls import JAVA_2_8, JAVA_4_2, TransactionalClient
from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, rounds, scale
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tiered_api.kafka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

CLIENTS, ID_BYTES = 4, 4_096
BYTES = scale(1, 16) << 20
"""Maximum bytes of all transactional ids."""
PARTITIONS = scale(200, 2_000)


@attack(tiered_transactions_max_bytes=BYTES)
async def test_transactional_ids_are_bounded_in_memory(to: AttackedBroker) -> None:
    """Each id is as long as is allowed. Ids beyond the bound are refused, and the others go on."""
    codes: list[int] = []

    async def init(client_number: int) -> None:
        client = await to.client()
        for number in range(client_number, scale(600, 8_000), CLIENTS):
            request = InitProducerIdRequest(to.name("").ljust(ID_BYTES - 8, "x") + f"{number:08}", 60_000, -1, -1)
            codes.append((await client.ask(request, 4, InitProducerIdResponse)).error_code)

    async with to.attack("transactional ids", memory=scale(100, 250)):
        kept = TransactionalClient(await to.client(), to.name("kept"), JAVA_2_8)
        assert await kept.init() is Code.NONE
        await asyncio.gather(*map(init, range(CLIENTS)))
        assert codes.count(0) * ID_BYTES <= BYTES < len(codes) * ID_BYTES
        assert set(codes) <= {0, Code.COORDINATOR_NOT_AVAILABLE.number}, set(codes)
        assert await kept.init() is Code.NONE


@attack()
async def test_transactions_of_many_partitions_delay_nobody(to: AttackedBroker) -> None:
    """Each of several clients adds all partitions to its transaction and aborts it, again and again."""
    await to.create(CreatableTopic(to.name("t"), PARTITIONS, 1))

    async def repeat(number: int) -> None:
        own = TransactionalClient(await to.client(), to.name(f"id-{number}"), JAVA_2_8)
        assert await own.init() is Code.NONE
        topic = AddPartitionsToTxnTopic(to.name("t"), list(range(PARTITIONS)))
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=own.name,
            v3_and_below_producer_id=own.producer_id,
            v3_and_below_producer_epoch=own.epoch,
            v3_and_below_topics=[topic],
        )
        end = EndTxnRequest(own.name, own.producer_id, own.epoch, committed=False)
        for _ in rounds(2, 10):
            codes = {Code.CONCURRENT_TRANSACTIONS.number}
            while codes == {Code.CONCURRENT_TRANSACTIONS.number}:
                added = await own.client.ask(add, 2, AddPartitionsToTxnResponse)
                (result,) = added.results_by_topic_v3_and_below
                codes = {each.partition_error_code for each in result.results_by_partition}
            assert codes == {0}
            assert (await own.client.ask(end, 2, EndTxnResponse)).error_code == 0

    async with to.attack("transactions of many partitions", memory=scale(80, 200)):
        await asyncio.gather(*map(repeat, range(CLIENTS)))


@attack()
async def test_markers_of_a_client_delay_nobody(to: AttackedBroker) -> None:
    """Each marker of a request names all partitions. None of these has a transaction, and none gets a record."""
    await to.create(CreatableTopic(to.name("t"), PARTITIONS, 1))
    topics = [WritableTxnMarkerTopic(to.name("t"), list(range(PARTITIONS)))]
    markers = [WritableTxnMarker(number, 0, False, topics) for number in range(19)]

    async def repeat(_: int) -> None:
        client = await to.client()
        for _ in rounds(1, 5):
            got = await client.ask(WriteTxnMarkersRequest(markers), 1, WriteTxnMarkersResponse)
            codes = {each.error_code for marker in got.markers for topic in marker.topics for each in topic.partitions}
            assert 0 not in codes, codes

    async with to.attack("unauthorized markers", memory=scale(80, 250)):
        await asyncio.gather(*map(repeat, range(CLIENTS)))


@attack()
async def test_lists_of_many_transactions_delay_nobody(to: AttackedBroker) -> None:
    """Each of several clients lists all ids with each filter, and describes ids that exist and many that do not."""
    ids, described = scale(200, 20_000), scale(500, 90_000)

    async def init(client_number: int) -> None:
        client = await to.client()
        for number in range(client_number, ids, CLIENTS):
            request = InitProducerIdRequest(to.name(f"id-{number}"), 60_000, -1, -1)
            assert (await client.ask(request, 4, InitProducerIdResponse)).error_code == 0

    await asyncio.gather(*map(init, range(CLIENTS)))
    lists = [
        ListTransactionsRequest(),
        ListTransactionsRequest(transactional_id_pattern=".*-.*9"),
        ListTransactionsRequest(["Ongoing"], list(range(1000)), 1),
    ]
    names = [to.name(f"id-{number}") for number in range(described)]
    known = set(names)

    async def read(_: int) -> None:
        client = await to.client()
        for _ in rounds(1, 5):
            found = [(await client.ask(each, 2, ListTransactionsResponse)).transaction_states for each in lists]
            own = [sum(row.transactional_id in known for row in rows) for rows in found]
            assert own == [ids, ids // 10, 0]
            got = await client.ask(DescribeTransactionsRequest(names), 0, DescribeTransactionsResponse)
            codes = [each.error_code for each in got.transaction_states]
            assert codes.count(0) == min(ids, described) and len(codes) == described

    async with to.attack("lists of many transactions", memory=scale(80, 300)):
        await asyncio.gather(*map(read, range(CLIENTS)))


@attack(tiered_partitions_max_per_broker=20_000)
async def test_transactional_offsets_of_many_partitions_delay_nobody(to: AttackedBroker) -> None:
    """Each of several clients commits the offsets of all partitions in a transaction, and ends it."""
    partitions = scale(200, 10_000)
    await to.create(CreatableTopic(to.name("t"), partitions, 1))
    rows = [TxnOffsetCommitRequestPartition(number, 7, -1, "") for number in range(partitions)]
    topics = [TxnOffsetCommitRequestTopic(to.name("t"), rows)]

    async def repeat(number: int) -> None:
        own = TransactionalClient(await to.client(), to.name(f"id-{number}"), JAVA_4_2)
        found = FindCoordinatorRequest(coordinator_keys=[f"g{number}"])
        assert (await own.client.ask(found, 4, FindCoordinatorResponse)).coordinators[0].error_code == 0
        assert await own.init() is Code.NONE
        for turn in rounds(1, 6):
            request = TxnOffsetCommitRequest(own.name, f"g{number}", own.producer_id, own.epoch, -1, "", None, topics)
            codes = {Code.CONCURRENT_TRANSACTIONS.number}
            while codes & {Code.CONCURRENT_TRANSACTIONS.number, Code.COORDINATOR_LOAD_IN_PROGRESS.number}:
                got = await own.client.ask(request, own.versions.offsets, TxnOffsetCommitResponse)
                codes = {each.error_code for each in got.topics[0].partitions}
            assert codes == {0}
            assert await own.end(turn % 2 == 0) is Code.NONE

    async with to.attack("transactional offsets of many partitions", memory=scale(80, 150)):
        await asyncio.gather(*map(repeat, range(CLIENTS)))
