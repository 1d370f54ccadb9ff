"""Transactional ids and open transactions of a cluster: listed, described and aborted (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient, code_from_number, to_refused
from tiered_api.kafka.client.leader_routing import (
    TRANSACTION,
    PartitionOutcomes,
    find_coordinator,
    send_to_coordinator,
    send_to_leaders,
)
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tiered_api.kafka.protocol.schema import Message

ONGOING = "Ongoing"
FENCE_TIMEOUT_MS = 1
"""Timeout for a producer id that nobody uses."""


class ListedTransactionalId(NamedTuple):
    """A transactional id and its coordinator."""

    coordinator: int
    transactional_id: str
    producer_id: int
    state: str


class DescribedTransaction(NamedTuple):
    """The transaction of a transactional id. `started_ms` is -1 if none is open."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


class OpenTransaction(NamedTuple):
    """An open transaction as the leader of a partition sees it."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


async def list_transactional_ids(
    client: KafkaClient, states: Sequence[str] = (), producer_ids: Iterable[int] = (), duration_ms: int = -1
) -> list[ListedTransactionalId]:
    """Returns the transactional ids of all brokers that pass the filters. Raises `Refused` if a broker lacks some."""
    await client.fetch_metadata([])
    found: list[ListedTransactionalId] = []
    request = ListTransactionsRequest(list(states), list(producer_ids), duration_ms)
    for node in sorted(client.brokers):
        reply = await client.send(request, ListTransactionsResponse, node_id=node)
        if reply.error_code:
            raise to_refused(reply.error_code, f"transactions of broker {node}")
        if reply.unknown_state_filters:
            raise Refused(Code.INVALID_REQUEST, f"there is no state {', '.join(reply.unknown_state_filters)}")
        found += [
            ListedTransactionalId(node, each.transactional_id, each.producer_id, each.transaction_state)
            for each in reply.transaction_states
        ]
    return found


async def describe_transaction(client: KafkaClient, transactional_id: str) -> DescribedTransaction:
    """Returns the transaction of an id. Raises `Refused` with TRANSACTIONAL_ID_NOT_FOUND for an unknown id."""
    reply = await send_to_coordinator(
        client, transactional_id, DescribeTransactionsRequest([transactional_id]), DescribeTransactionsResponse,
        lambda reply: reply.transaction_states[0].error_code, kind=TRANSACTION,
    )  # fmt: skip
    found = reply.transaction_states[0]
    if found.error_code:
        raise to_refused(found.error_code, f"transactional id {transactional_id}")
    return DescribedTransaction(
        transactional_id,
        await find_coordinator(client, transactional_id, kind=TRANSACTION),
        found.producer_id,
        found.producer_epoch,
        found.transaction_state,
        found.transaction_timeout_ms,
        found.transaction_start_time_ms,
        tuple(sorted(TopicPartition(each.topic, number) for each in found.topics for number in each.partitions)),
    )


async def fence_producer(client: KafkaClient, transactional_id: str) -> None:
    """Gives the producer of an id a new epoch: its open transaction is aborted, and it cannot go on.

    Raises `Refused` for an unknown id.
    """
    await describe_transaction(client, transactional_id)  # a new epoch would create the id
    request = InitProducerIdRequest(transactional_id, FENCE_TIMEOUT_MS)
    deadline = client.new_deadline()
    for pause in client.backoffs():
        reply = await send_to_coordinator(
            client, transactional_id, request, InitProducerIdResponse, lambda reply: reply.error_code, kind=TRANSACTION
        )
        if not reply.error_code:
            return
        # CONCURRENT_TRANSACTIONS: the abort has begun.
        if not code_from_number(reply.error_code).retriable or client.has_passed(deadline):
            raise to_refused(reply.error_code, f"transactional id {transactional_id}")
        await pause()


async def list_open_transactions(
    client: KafkaClient, partitions: Iterable[TopicPartition]
) -> PartitionOutcomes[list[OpenTransaction]]:
    """Returns the open transactions of partitions, as their leaders see them."""

    def make(share: Mapping[TopicPartition, None]) -> Message:
        topics: dict[str, TopicRequest] = {}
        for name, number in share:
            topics.setdefault(name, TopicRequest(name)).partition_indexes.append(number)
        return DescribeProducersRequest(list(topics.values()))

    def read(reply: DescribeProducersResponse) -> Iterable[tuple[TopicPartition, int, list[OpenTransaction]]]:
        for topic in reply.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                found = [
                    OpenTransaction(
                        tp, each.producer_id, each.producer_epoch, each.coordinator_epoch,
                        each.current_txn_start_offset, each.last_timestamp,
                    )
                    for each in row.active_producers
                    if each.current_txn_start_offset >= 0
                ]  # fmt: skip
                yield tp, row.error_code, found

    return await send_to_leaders(client, dict.fromkeys(partitions), make, DescribeProducersResponse, read)


async def find_hanging_transactions(client: KafkaClient, opened: Sequence[OpenTransaction]) -> list[OpenTransaction]:
    """Returns those of these transactions that no coordinator knows as open in their partition."""
    by_producer = {each.producer_id for each in opened}
    if not by_producer:
        return []
    listed = await list_transactional_ids(client, producer_ids=sorted(by_producer))
    held: set[tuple[int, TopicPartition]] = set()
    for known in listed:
        try:
            described = await describe_transaction(client, known.transactional_id)
        except Refused as refused:
            if refused.code is not Code.TRANSACTIONAL_ID_NOT_FOUND:
                raise
            continue
        held |= {(described.producer_id, tp) for tp in described.partitions}
    return [each for each in opened if (each.producer_id, each.tp) not in held]


async def abort_transaction(client: KafkaClient, found: OpenTransaction) -> None:
    """Writes an abort marker for a hanging transaction to its partition. Raises `Refused`."""

    def make(share: Mapping[TopicPartition, None]) -> Message:
        topics = [WritableTxnMarkerTopic(tp.topic, [tp.partition]) for tp in share]
        marker = WritableTxnMarker(
            found.producer_id, found.producer_epoch, False, topics, max(found.coordinator_epoch, 0)
        )
        return WriteTxnMarkersRequest([marker])

    def read(reply: WriteTxnMarkersResponse) -> Iterable[tuple[TopicPartition, int, None]]:
        for marker in reply.markers:
            for topic in marker.topics:
                for row in topic.partitions:
                    yield TopicPartition(topic.name, row.partition_index), row.error_code, None

    outcome = (await send_to_leaders(client, {found.tp: None}, make, WriteTxnMarkersResponse, read))[found.tp]
    if isinstance(outcome, Refused):
        raise outcome
