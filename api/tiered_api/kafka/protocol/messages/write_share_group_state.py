"""WriteShareGroupState (API key 85, between brokers)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    data,
    integer,
    message,
    string,
    uuid,
)


@dataclass(slots=True)
class StateBatch:
    first_offset: int = integer(FieldType.INT64)
    last_offset: int = integer(FieldType.INT64)
    delivery_state: int = integer(FieldType.INT8)
    delivery_count: int = integer(FieldType.INT16)


@dataclass(slots=True)
class PartitionData:
    partition: int = integer(FieldType.INT32)
    state_epoch: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32)
    start_offset: int = integer(FieldType.INT64)
    delivery_complete_count: int = integer(FieldType.INT32, "1+", default=-1)
    state_batches: list[StateBatch] = array(StateBatch)


@dataclass(slots=True)
class WriteStateData:
    topic_id: str = uuid()
    partitions: list[PartitionData] = array(PartitionData)


@message(85, "0-1", "0+")
@dataclass(slots=True)
class WriteShareGroupStateRequest(Message):
    group_id: str = string()
    topics: list[WriteStateData] = array(WriteStateData)
    credential: bytes = data(tag=FIRST_PRIVATE_TAG, tagged="0+")
    """Ours: the credential of brokers."""


@dataclass(slots=True)
class PartitionResult:
    partition: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)


@dataclass(slots=True)
class WriteStateResult:
    topic_id: str = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


@message(85, "0-1", "0+")
@dataclass(slots=True)
class WriteShareGroupStateResponse(Message):
    results: list[WriteStateResult] = array(WriteStateResult)
