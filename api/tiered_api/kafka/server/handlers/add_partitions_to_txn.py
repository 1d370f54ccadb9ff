"""AddPartitionsToTxn (API key 24): partitions join a transaction before its first record there.

Clients send v0-3, with one transaction. v2+ knows PRODUCER_FENCED. Brokers send v4+ to each other, with many
transactions (KIP-890): to add partitions for a producer of transaction version 2, or to verify that they were added.
Some clients send v4+ too, and may if they have a right on the cluster. One partition that does not exist refuses all of
its transaction, the others with OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.peers import TransactionPartitions
from tiered.transactions.requests import AddPartitions, CodeReply
from tiered_api.kafka.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.transaction_requests import (
    call_coordinator,
    call_coordinator_now,
    fenced_code,
    find_refused_partitions,
)
from tiered_api.kafka.server.rights.inter_broker_auth import check_credential
from tiered_api.kafka.server.slots.bounded_tasks import CONCURRENCY, run_bounded

FENCED_FROM, BATCHED_FROM = 2, 4

TIMEOUT_MS = 30_000

Codes = Mapping[TopicPartition, Code]


async def handle(context: KafkaContext, call: Call[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse:
    """Returns one code for each partition."""
    request, version = call.request, call.version
    if version >= BATCHED_FROM:
        return await _handle_batched(context, call)
    partitions, codes = await _find_partitions(context, request.v3_and_below_topics)
    if codes is None:
        name = request.v3_and_below_transactional_id
        reply = await call_coordinator(context, name, _request_of(request, partitions), CodeReply)
        codes = dict.fromkeys(partitions, _code_of(reply, version))
    results = await _results_in_turns(context, request.v3_and_below_topics, codes)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def handle_now(context: KafkaContext, call: Call[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse | None:
    """Does the same for one transaction if its coordinator replies without a wait."""
    request, version = call.request, call.version
    if version >= BATCHED_FROM:
        return None
    partitions = _partitions_of(request.v3_and_below_topics)
    codes = _refuse_all(context, partitions)
    if codes is None:
        name = request.v3_and_below_transactional_id
        reply = call_coordinator_now(context, name, _request_of(request, partitions), CodeReply)
        if reply is None:
            return None
        codes = dict.fromkeys(partitions, _code_of(reply, version))
    results = _results_of(request.v3_and_below_topics, codes)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


def _request_of(request: AddPartitionsToTxnRequest, partitions: Sequence[TopicPartition]) -> AddPartitions:
    return AddPartitions(
        request.v3_and_below_transactional_id, request.v3_and_below_producer_id, request.v3_and_below_producer_epoch,
        frozenset(partitions),
    )  # fmt: skip


def _code_of(reply: CodeReply | Code, version: int) -> Code:
    return fenced_code(reply.code if isinstance(reply, CodeReply) else reply, version, FENCED_FROM)


async def _handle_batched(context: KafkaContext, call: Call[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse:
    request = call.request
    if request.credential:
        refused = check_credential(context, call, request.credential)
        if refused is not None:
            context.refusals.record("stranger", call.client_host, refused.why)
            return AddPartitionsToTxnResponse(error_code=refused.code.number)
    codes = await run_bounded(
        [partial(_add_or_verify, context, each) for each in request.transactions],
        TIMEOUT_MS,
        lambda number: _all_late(request.transactions[number]),
        context.turns,
        concurrency=len(request.transactions) if request.credential else CONCURRENCY,
    )
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(each.transactional_id, await _results_in_turns(context, each.topics, found))
            for each, found in zip(request.transactions, codes, strict=True)
        ]
    )


def _all_late(requested: AddPartitionsToTxnTransaction) -> Codes:
    return dict.fromkeys(_partitions_of(requested.topics), Code.COORDINATOR_NOT_AVAILABLE)


async def _add_or_verify(context: KafkaContext, requested: AddPartitionsToTxnTransaction) -> Codes:
    partitions, codes = await _find_partitions(context, requested.topics)
    if codes is not None:
        return codes
    return await context.broker.transaction_verification.query_here(
        TransactionPartitions(
            requested.transactional_id,
            requested.producer_id,
            requested.producer_epoch,
            requested.verify_only,
            partitions,
        )
    )


def _refuse_all(context: KafkaContext, partitions: Sequence[TopicPartition]) -> Codes | None:
    """Returns the codes if one of the partitions cannot be in a transaction, else None."""
    refused = find_refused_partitions(context.broker.image, partitions)
    return {tp: refused.get(tp, Code.OPERATION_NOT_ATTEMPTED) for tp in partitions} if refused else None


def _partitions_of(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]


async def _find_partitions(
    context: KafkaContext, topics: Sequence[AddPartitionsToTxnTopic]
) -> tuple[list[TopicPartition], Codes | None]:
    """Returns the partitions, and what `_refuse_all` says of them. Other requests run meanwhile."""
    partitions, refused = list[TopicPartition](), dict[TopicPartition, Code]()
    for topic in topics:
        async for number in context.turns.each_of(topic.partitions):
            partitions.append(TopicPartition(topic.name, number))
            refused.update(find_refused_partitions(context.broker.image, partitions[-1:]))
    return partitions, {tp: refused.get(tp, Code.OPERATION_NOT_ATTEMPTED) for tp in partitions} if refused else None


def _results_of(topics: Sequence[AddPartitionsToTxnTopic], codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            topic.name, [_partition_result(topic.name, number, codes) for number in topic.partitions]
        )
        for topic in topics
    ]


async def _results_in_turns(
    context: KafkaContext, topics: Sequence[AddPartitionsToTxnTopic], codes: Codes
) -> list[AddPartitionsToTxnTopicResult]:
    """Does the same. Other requests run meanwhile."""
    results = []
    for topic in topics:
        found = [
            _partition_result(topic.name, number, codes) async for number in context.turns.each_of(topic.partitions)
        ]
        results.append(AddPartitionsToTxnTopicResult(topic.name, found))
    return results


def _partition_result(topic: str, number: int, codes: Codes) -> AddPartitionsToTxnPartitionResult:
    return AddPartitionsToTxnPartitionResult(number, codes[TopicPartition(topic, number)].number)
