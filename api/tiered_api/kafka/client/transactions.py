"""Transactions of a cluster: one that a producer writes, and those of others, listed, described and aborted
(KIP-98, KIP-664)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tiered.config.setting import shorten
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient, code_from_number, to_refused
from tiered_api.kafka.client.leader_routing import (
    TRANSACTION,
    PartitionOutcomes,
    find_coordinator,
    send_to_coordinator,
    send_to_leaders,
)
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
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
from tiered_api.kafka.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tiered_api.kafka.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tiered_api.kafka.protocol.schema import Message

ADD_PARTITIONS_MAX, END_MAX, PRODUCE_MAX = 3, 4, 11
"""Highest versions of requests in a transaction whose producer names its partitions itself."""
ENDED = frozenset(("CompleteCommit", "CompleteAbort"))
"""States of an id whose last transaction has ended. Brokers return its start time until the next one begins."""
FENCE_TIMEOUT_MS = 1
"""Timeout for a producer id that nobody uses."""

A = TypeVar("A", bound=Message)


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


class PartitionTransaction(NamedTuple):
    """An open transaction as the leader of a partition sees it."""

    tp: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


class ProducerTransaction:
    """One transaction of a producer: begun, extended by partitions, and ended. It works with every broker since Kafka
    0.11, because it names its partitions itself (transaction version 0 and 1)."""

    def __init__(self, client: KafkaClient, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self._client = client
        self._timeout_ms = timeout_ms
        self._identity = (-1, -1)
        self._partitions: set[TopicPartition] = set()

    async def begin(self) -> tuple[int, int]:
        """Returns producer id and epoch. An open transaction of the id is aborted first, and its producer fenced."""
        request = InitProducerIdRequest(self.transactional_id, self._timeout_ms)
        reply = await self._send(request, InitProducerIdResponse, lambda reply: reply.error_code)
        self._identity = (reply.producer_id, reply.producer_epoch)
        return self._identity

    async def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Adds the partitions that are not in the transaction yet, before their first record is written."""
        new = set(partitions) - self._partitions
        if not new:
            return
        topics: dict[str, AddPartitionsToTxnTopic] = {}
        for name, number in sorted(new):
            topics.setdefault(name, AddPartitionsToTxnTopic(name)).partitions.append(number)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._identity[0],
            v3_and_below_producer_epoch=self._identity[1],
            v3_and_below_topics=list(topics.values()),
        )
        await self._send(request, AddPartitionsToTxnResponse, _add_error_code, ADD_PARTITIONS_MAX)
        self._partitions |= new

    async def end(self, *, commit: bool) -> None:
        """Commits or aborts. Does nothing if no partition was added."""
        if self._partitions:
            request = EndTxnRequest(self.transactional_id, *self._identity, commit)
            await self._send(request, EndTxnResponse, lambda reply: reply.error_code, END_MAX)
            self._partitions.clear()

    async def _send(
        self,
        request: Message,
        response_type: type[A],
        read_error_code: Callable[[A], int],
        version_max: int | None = None,
    ) -> A:
        """Sends a request to the coordinator, again after a code that permits it, or a lost reply: each of these
        requests may be repeated."""
        name, deadline = self.transactional_id, self._client.new_deadline()
        for pause in self._client.backoffs():
            try:
                reply = await send_to_coordinator(
                    self._client, name, request, response_type, read_error_code, kind=TRANSACTION,
                    version_max=version_max,
                )  # fmt: skip
            except Unavailable as fault:
                if fault.final or self._client.has_passed(deadline):
                    raise
            else:
                number = read_error_code(reply)
                if not number:
                    return reply
                if not code_from_number(number).retriable or self._client.has_passed(deadline):
                    raise to_refused(number, _describe_id(name))
            await pause()
        raise AssertionError("pauses never end")


def _describe_id(transactional_id: str) -> str:
    return f"transactional id {shorten(transactional_id)}"


def _add_error_code(reply: AddPartitionsToTxnResponse) -> int:
    """Returns the first error. OPERATION_NOT_ATTEMPTED only says that another partition has one."""
    found = [
        each.partition_error_code
        for topic in reply.results_by_topic_v3_and_below
        for each in topic.results_by_partition
        if each.partition_error_code
    ]
    causes = [number for number in found if number != Code.OPERATION_NOT_ATTEMPTED.number]
    return next(iter(causes or found), 0)


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
        raise to_refused(found.error_code, _describe_id(transactional_id))
    return DescribedTransaction(
        transactional_id,
        await find_coordinator(client, transactional_id, kind=TRANSACTION),
        found.producer_id,
        found.producer_epoch,
        found.transaction_state,
        found.transaction_timeout_ms,
        -1 if found.transaction_state in ENDED else found.transaction_start_time_ms,
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
            raise to_refused(reply.error_code, _describe_id(transactional_id))
        await pause()


async def list_open_transactions(
    client: KafkaClient, partitions: Iterable[TopicPartition]
) -> PartitionOutcomes[list[PartitionTransaction]]:
    """Returns the open transactions of partitions, as their leaders see them."""
    return await send_to_leaders(
        client, dict.fromkeys(partitions), make_producers_request, DescribeProducersResponse, read_open_transactions
    )


def make_producers_request(partitions: Iterable[TopicPartition]) -> DescribeProducersRequest:
    """Returns the request for the producers of partitions that one broker leads."""
    topics: dict[str, TopicRequest] = {}
    for name, number in partitions:
        topics.setdefault(name, TopicRequest(name)).partition_indexes.append(number)
    return DescribeProducersRequest(list(topics.values()))


def read_open_transactions(
    reply: DescribeProducersResponse,
) -> Iterator[tuple[TopicPartition, int, list[PartitionTransaction]]]:
    """Yields each partition of a reply with its error number and its open transactions."""
    for topic in reply.topics:
        for row in topic.partitions:
            tp = TopicPartition(topic.name, row.partition_index)
            found = [
                PartitionTransaction(
                    tp, each.producer_id, each.producer_epoch, each.coordinator_epoch,
                    each.current_txn_start_offset, each.last_timestamp,
                )
                for each in row.active_producers
                if each.current_txn_start_offset >= 0
            ]  # fmt: skip
            yield tp, row.error_code, found


def read_held_partitions(reply: DescribeTransactionsResponse) -> set[tuple[int, TopicPartition]]:
    """Returns producer id and partition of the transactions that a coordinator describes. An id that is gone holds
    nothing. Raises `Refused` for any other error: then it is not known what the id holds."""
    held: set[tuple[int, TopicPartition]] = set()
    for each in reply.transaction_states:
        if each.error_code not in (0, Code.TRANSACTIONAL_ID_NOT_FOUND.number):
            raise to_refused(each.error_code, _describe_id(each.transactional_id))
        held |= {
            (each.producer_id, TopicPartition(topic.topic, number))
            for topic in each.topics
            for number in topic.partitions
        }
    return held


async def find_hanging_transactions(
    client: KafkaClient, opened: Sequence[PartitionTransaction]
) -> list[PartitionTransaction]:
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


async def abort_transaction(client: KafkaClient, found: PartitionTransaction) -> None:
    """Writes an abort marker for a hanging transaction to its partition. Raises `Refused`."""

    def make(share: Mapping[TopicPartition, None]) -> Message:
        return make_abort_request(found)

    outcomes = await send_to_leaders(client, {found.tp: None}, make, WriteTxnMarkersResponse, read_markers)
    outcome = outcomes[found.tp]
    if isinstance(outcome, Refused):
        raise outcome


def make_abort_request(found: PartitionTransaction) -> WriteTxnMarkersRequest:
    """Returns the request that writes an abort marker to the partition of a transaction."""
    topics = [WritableTxnMarkerTopic(found.tp.topic, [found.tp.partition])]
    epoch = max(found.coordinator_epoch, 0)
    return WriteTxnMarkersRequest([WritableTxnMarker(found.producer_id, found.producer_epoch, False, topics, epoch)])


def read_markers(reply: WriteTxnMarkersResponse) -> Iterator[tuple[TopicPartition, int, None]]:
    """Yields each partition of a reply with its error number."""
    for marker in reply.markers:
        for topic in marker.topics:
            for row in topic.partitions:
                yield TopicPartition(topic.name, row.partition_index), row.error_code, None
