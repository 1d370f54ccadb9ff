"""WriteShareGroupState (API key 85): changes of share partitions, by the leader of a partition.

v1+ has the number of records that are done (KIP-1226). The coordinator joins the batches with those that it has.
"""

from __future__ import annotations

from typing import Any

from tiered.share.requests import SharePartitionKey, WriteState
from tiered.share.state import StateBatch
from tiered_api.kafka.protocol.messages.write_share_group_state import (
    PartitionData,
    PartitionResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.share_state_requests import ask_each


async def handle(context: KafkaContext, call: Call[WriteShareGroupStateRequest]) -> WriteShareGroupStateResponse:
    """Returns one code for each partition, once its change is committed."""
    found = await ask_each(context, call, _request_of, _result_of)
    return WriteShareGroupStateResponse([WriteStateResult(*each) for each in found])


def _request_of(key: SharePartitionKey, row: PartitionData) -> WriteState:
    batches = tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in row.state_batches
    )
    return WriteState(key, row.state_epoch, row.leader_epoch, row.start_offset, row.delivery_complete_count, batches)


def _result_of(partition: int, code: int, why: str | None, reply: Any) -> PartitionResult:
    return PartitionResult(partition, code, why)
