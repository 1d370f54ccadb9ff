"""ReadShareGroupState (API key 84): the state of share partitions, for the leader of a partition.

The leader epoch of the reader fences the writes of earlier leaders. A reader of leader epoch -1 fences nobody.
"""

from __future__ import annotations

from typing import Any

from tiered.share.requests import ReadReply, ReadState, SharePartitionKey
from tiered_api.kafka.protocol.messages.read_share_group_state import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.share_state_requests import ask_each


async def handle(context: KafkaContext, call: Call[ReadShareGroupStateRequest]) -> ReadShareGroupStateResponse:
    """Returns the state of each partition, once all of it is committed."""
    found = await ask_each(context, call, _request_of, _result_of)
    return ReadShareGroupStateResponse([ReadStateResult(*each) for each in found])


def _request_of(key: SharePartitionKey, row: PartitionData) -> ReadState:
    return ReadState(key, row.leader_epoch)


def _result_of(partition: int, code: int, why: str | None, reply: Any) -> PartitionResult:
    if not isinstance(reply, ReadReply):
        return PartitionResult(partition, code, why)
    batches = [StateBatch(*each) for each in reply.batches]
    return PartitionResult(partition, code, why, reply.state_epoch, reply.start_offset, batches)
