"""ListOffsets (API key 2)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import Kind, Message, array, integer, message, string


@dataclass(slots=True)
class ListOffsetsPartition:
    partition_index: int = integer(Kind.INT32)
    current_leader_epoch: int = integer(Kind.INT32, "4+", default=-1)
    timestamp: int = integer(Kind.INT64)


@dataclass(slots=True)
class ListOffsetsTopic:
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


@message(2, "1-11", "6+")
@dataclass(slots=True)
class ListOffsetsRequest(Message):
    replica_id: int = integer(Kind.INT32)
    isolation_level: int = integer(Kind.INT8, "2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = integer(Kind.INT32, "10+")


@dataclass(slots=True)
class ListOffsetsPartitionResponse:
    partition_index: int = integer(Kind.INT32)
    error_code: int = integer(Kind.INT16)
    timestamp: int = integer(Kind.INT64, "1+", default=-1)
    offset: int = integer(Kind.INT64, "1+", default=-1)
    leader_epoch: int = integer(Kind.INT32, "4+", default=-1)


@dataclass(slots=True)
class ListOffsetsTopicResponse:
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


@message(2, "1-11", "6+")
@dataclass(slots=True)
class ListOffsetsResponse(Message):
    throttle_time_ms: int = integer(Kind.INT32, "2+")
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)
