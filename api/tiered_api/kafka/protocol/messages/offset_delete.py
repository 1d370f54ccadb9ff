"""OffsetDelete (API key 47)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class OffsetDeleteRequestPartition:
    partition_index: int = integer(FieldType.INT32)


@dataclass(slots=True)
class OffsetDeleteRequestTopic:
    name: str = string()
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition)


@message(47, "0")
@dataclass(slots=True)
class OffsetDeleteRequest(Message):
    group_id: str = string()
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic)


@dataclass(slots=True)
class OffsetDeleteResponsePartition:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)


@dataclass(slots=True)
class OffsetDeleteResponseTopic:
    name: str = string()
    partitions: list[OffsetDeleteResponsePartition] = array(OffsetDeleteResponsePartition)


@message(47, "0")
@dataclass(slots=True)
class OffsetDeleteResponse(Message):
    error_code: int = integer(FieldType.INT16)
    throttle_time_ms: int = integer(FieldType.INT32)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic)
