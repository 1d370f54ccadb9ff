"""ReadShareGroupStateSummary (API key 87): epochs and start offsets of share partitions, without their batches.

v1+ has the number of records that are done (KIP-1226). A share partition that does not exist has the start offset -1.
"""

from __future__ import annotations

from typing import Any

from tiered.share.requests import SharePartitionKey, SummarizeState, SummaryReply
from tiered_api.kafka.protocol.messages.read_share_group_state_summary import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.share_state_requests import ask_each


async def handle(
    context: KafkaContext, call: Call[ReadShareGroupStateSummaryRequest]
) -> ReadShareGroupStateSummaryResponse:
    """Returns the summary of each partition, once its state is committed."""
    found = await ask_each(context, call, _request_of, _result_of)
    return ReadShareGroupStateSummaryResponse([ReadStateSummaryResult(*each) for each in found])


def _request_of(key: SharePartitionKey, row: PartitionData) -> SummarizeState:
    return SummarizeState(key)


def _result_of(partition: int, code: int, why: str | None, reply: Any) -> PartitionResult:
    if not isinstance(reply, SummaryReply):
        return PartitionResult(partition, code, why)
    return PartitionResult(
        partition, code, why, reply.state_epoch, reply.leader_epoch, reply.start_offset, reply.delivery_complete_count
    )
