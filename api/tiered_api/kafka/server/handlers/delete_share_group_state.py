"""DeleteShareGroupState (API key 86): removes share partitions. One that does not exist is removed already."""

from __future__ import annotations

from typing import Any

from tiered.share.requests import DeleteState, SharePartitionKey
from tiered_api.kafka.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionData,
    PartitionResult,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.share_state_requests import ask_each


async def handle(context: KafkaContext, call: Call[DeleteShareGroupStateRequest]) -> DeleteShareGroupStateResponse:
    """Returns one code for each partition, once its removal is committed."""
    found = await ask_each(context, call, _request_of, _result_of)
    return DeleteShareGroupStateResponse([DeleteStateResult(*each) for each in found])


def _request_of(key: SharePartitionKey, row: PartitionData) -> DeleteState:
    return DeleteState(key)


def _result_of(partition: int, code: int, why: str | None, reply: Any) -> PartitionResult:
    return PartitionResult(partition, code, why)
