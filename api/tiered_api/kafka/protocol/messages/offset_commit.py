"""OffsetCommit (API key 8)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string, uuid


@dataclass(slots=True)
class OffsetCommitRequestPartition:
    partition_index: int = integer(FieldType.INT32)
    committed_offset: int = integer(FieldType.INT64)
    committed_leader_epoch: int = integer(FieldType.INT32, "6+", default=-1)
    committed_metadata: str | None = string(nullable="0+")


@dataclass(slots=True)
class OffsetCommitRequestTopic:
    name: str = string("0-9")
    topic_id: str = uuid("10+")
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


@message(8, "2-10", "8+")
@dataclass(slots=True)
class OffsetCommitRequest(Message):
    group_id: str = string()
    generation_id_or_member_epoch: int = integer(FieldType.INT32, "1+", default=-1)
    member_id: str = string("1+")
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = integer(FieldType.INT64, "2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


@dataclass(slots=True)
class OffsetCommitResponsePartition:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)


@dataclass(slots=True)
class OffsetCommitResponseTopic:
    name: str = string("0-9")
    topic_id: str = uuid("10+")
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


@message(8, "2-10", "8+")
@dataclass(slots=True)
class OffsetCommitResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "3+")
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
