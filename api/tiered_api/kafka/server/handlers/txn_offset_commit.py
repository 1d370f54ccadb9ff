"""TxnOffsetCommit (API key 28): offsets that a group has consumed, as a part of a producer's transaction.

They take effect with the commit marker. v2+ has the leader epoch of the consumed records (KIP-320). v3+ names the
member and its generation, which fence (KIP-447). Up to v4 the producer has added the group's partition of
`__consumer_offsets` to the transaction, and the coordinator of the group asks that of the transaction about it. In v5+
the coordinator of the group adds the partition itself (KIP-890).
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.groups.requests import CommitTransactionalOffsets, PartitionOffset
from tiered.ids import TopicPartition
from tiered.peers import TransactionPartitions
from tiered.shard import ProducerIdAndEpoch
from tiered_api.kafka.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests import group_requests
from tiered_api.kafka.server.requests.group_requests import commit_in_pieces, coordinator_code, has_partition

LOADING_FROM, ABORTABLE_FROM, ADDS_PARTITION_FROM = 2, 4, 5


async def handle(context: KafkaContext, call: Call[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse:
    """Returns one code per partition, in the order of the request."""
    request, image = call.request, context.broker.image
    rows: list[PartitionOffset] = []
    places: list[TxnOffsetCommitResponsePartition] = []
    results: list[TxnOffsetCommitResponseTopic] = []
    for topic in request.topics:
        result = TxnOffsetCommitResponseTopic(topic.name)
        results.append(result)
        async for each in context.turns.each_of(topic.partitions):
            place = TxnOffsetCommitResponsePartition(each.partition_index, Code.UNKNOWN_TOPIC_OR_PARTITION.number)
            result.partitions.append(place)
            if has_partition(image, topic.name, each.partition_index):
                places.append(place)
                rows.append(
                    PartitionOffset(
                        topic.name, each.partition_index, each.committed_offset, each.committed_leader_epoch,
                        each.committed_metadata or "",
                    )
                )  # fmt: skip
    if rows:
        codes = await _commit_offsets(context, request, tuple(rows), call.version, call.caller.holder)
        for place, code in zip(places, codes, strict=True):
            place.error_code = code.number
    return TxnOffsetCommitResponse(topics=results)


async def _commit_offsets(
    context: KafkaContext,
    request: TxnOffsetCommitRequest,
    rows: tuple[PartitionOffset, ...],
    version: int,
    holder: str,
) -> tuple[Code, ...]:
    adds_partition = version >= ADDS_PARTITION_FROM

    async def verify(tp: TopicPartition) -> Code:
        requested = TransactionPartitions(
            request.transactional_id, request.producer_id, request.producer_epoch, not adds_partition, (tp,)
        )
        return _verified_code((await context.broker.transaction_verification.query(requested))[tp], version)

    coordinators = context.broker.group_coordinators

    async def commit(piece: tuple[PartitionOffset, ...]) -> tuple[Code, ...]:
        requested = CommitTransactionalOffsets(
            request.group_id,
            piece,
            ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            holder=holder,
        )
        try:
            reply = await coordinators.commit_transactional_offsets(requested, verify, adds_partition=adds_partition)
        except Refused as refused:
            code = coordinator_code(refused)
            if code is Code.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_FROM:
                code = Code.COORDINATOR_NOT_AVAILABLE  # clients before 2.3 fail for the other one (KAFKA-7296)
            return (code,) * len(piece)
        return reply.codes

    return await commit_in_pieces(context, rows, commit, group_requests.PENDING_PIECE_PARTITIONS)


def _verified_code(code: Code, version: int) -> Code:
    """Returns the code for the client if the coordinator of the transaction refused the partition.

    A coordinator that cannot be asked makes clients try again, without a search for the coordinator of the group.
    """
    match code:
        case Code.NETWORK_EXCEPTION:
            return Code.COORDINATOR_LOAD_IN_PROGRESS
        case Code.CONCURRENT_TRANSACTIONS if version < ADDS_PARTITION_FROM:
            return Code.COORDINATOR_LOAD_IN_PROGRESS  # these clients know the other one from no answer of a group
        case Code.PRODUCER_FENCED:
            return Code.INVALID_PRODUCER_EPOCH
        case Code.TRANSACTION_ABORTABLE if version < ABORTABLE_FROM:
            return Code.INVALID_TXN_STATE
    return code
