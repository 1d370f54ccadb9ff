"""InitializeShareGroupState (API key 83): begins share partitions, or begins them again after a reset of offsets."""

from __future__ import annotations

from typing import Any

from tiered.share.requests import InitializeState, SharePartitionKey
from tiered_api.kafka.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionData,
    PartitionResult,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.share_state_requests import ask_each


async def handle(
    context: KafkaContext, call: Call[InitializeShareGroupStateRequest]
) -> InitializeShareGroupStateResponse:
    """Returns one code for each partition, once its state is committed."""
    found = await ask_each(context, call, _request_of, _result_of)
    return InitializeShareGroupStateResponse([InitializeStateResult(*each) for each in found])


def _request_of(key: SharePartitionKey, row: PartitionData) -> InitializeState:
    return InitializeState(key, row.state_epoch, row.start_offset)


def _result_of(partition: int, code: int, why: str | None, reply: Any) -> PartitionResult:
    return PartitionResult(partition, code, why)
