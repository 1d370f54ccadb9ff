"""ReadShareGroupState (API key 84, between brokers)."""

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
    leader_epoch: int = integer(FieldType.INT32)


@dataclass(slots=True)
class ReadStateData:
    topic_id: str = uuid()
    partitions: list[PartitionData] = array(PartitionData)


@message(84, "0", "0+")
@dataclass(slots=True)
class ReadShareGroupStateRequest(Message):
    group_id: str = string()
    topics: list[ReadStateData] = array(ReadStateData)
    credential: bytes = data(tag=FIRST_PRIVATE_TAG, tagged="0+")
    """Ours: the credential of brokers."""


@dataclass(slots=True)
class PartitionResult:
    partition: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    state_epoch: int = integer(FieldType.INT32)
    start_offset: int = integer(FieldType.INT64)
    state_batches: list[StateBatch] = array(StateBatch)


@dataclass(slots=True)
class ReadStateResult:
    topic_id: str = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


@message(84, "0", "0+")
@dataclass(slots=True)
class ReadShareGroupStateResponse(Message):
    results: list[ReadStateResult] = array(ReadStateResult)
