"""AddOffsetsToTxn (API key 25): a transaction will commit offsets of a group.

The partition of `__consumer_offsets` that has the offsets of the group joins the transaction. v2+ knows
PRODUCER_FENCED.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.transactions.requests import AddPartitions, CodeReply
from tiered_api.kafka.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.group_requests import coordinator_code
from tiered_api.kafka.server.requests.transaction_requests import call_coordinator, fenced_code

FENCED_FROM = 2


async def handle(context: KafkaContext, call: Call[AddOffsetsToTxnRequest]) -> AddOffsetsToTxnResponse:
    """Returns one code."""
    request = call.request
    try:
        partition = await context.broker.group_coordinators.host.partition_for(request.group_id)
    except Refused as refused:
        return AddOffsetsToTxnResponse(error_code=coordinator_code(refused).number)
    added = AddPartitions(
        request.transactional_id, request.producer_id, request.producer_epoch,
        frozenset((TopicPartition(OFFSETS_TOPIC, partition),)),
    )  # fmt: skip
    reply = await call_coordinator(context, request.transactional_id, added, CodeReply)
    code: Code = reply.code if isinstance(reply, CodeReply) else reply
    return AddOffsetsToTxnResponse(error_code=fenced_code(code, call.version, FENCED_FROM).number)
