"""ListOffsets (API key 2)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    integer,
    message,
    string,
    uuid,
)


@dataclass(slots=True)
class ListOffsetsPartition:
    partition_index: int = integer(FieldType.INT32)
    current_leader_epoch: int = integer(FieldType.INT32, "4+", default=-1)
    timestamp: int = integer(FieldType.INT64)


@dataclass(slots=True)
class ListOffsetsTopic:
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)
    topic_id: str = uuid("6+", tag=FIRST_PRIVATE_TAG, tagged="6+")
    """Set by our brokers: another topic of this name is refused with UNKNOWN_TOPIC_ID."""


@message(2, "1-11", "6+")
@dataclass(slots=True)
class ListOffsetsRequest(Message):
    replica_id: int = integer(FieldType.INT32)
    isolation_level: int = integer(FieldType.INT8, "2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = integer(FieldType.INT32, "10+")


@dataclass(slots=True)
class ListOffsetsPartitionResponse:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    timestamp: int = integer(FieldType.INT64, "1+", default=-1)
    offset: int = integer(FieldType.INT64, "1+", default=-1)
    leader_epoch: int = integer(FieldType.INT32, "4+", default=-1)


@dataclass(slots=True)
class ListOffsetsTopicResponse:
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@message(2, "1-11", "6+")
@dataclass(slots=True)
class ListOffsetsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
