"""OffsetForLeaderEpoch (API key 23)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class OffsetForLeaderPartition:
    partition: int = integer(FieldType.INT32)
    current_leader_epoch: int = integer(FieldType.INT32, "2+", default=-1)
    leader_epoch: int = integer(FieldType.INT32)


@dataclass(slots=True)
class OffsetForLeaderTopic:
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


@message(23, "2-4", "4+")
@dataclass(slots=True)
class OffsetForLeaderEpochRequest(Message):
    replica_id: int = integer(FieldType.INT32, "3+", default=-2)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)


@dataclass(slots=True)
class EpochEndOffset:
    error_code: int = integer(FieldType.INT16)
    partition: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32, "1+", default=-1)
    end_offset: int = integer(FieldType.INT64, default=-1)


@dataclass(slots=True)
class OffsetForLeaderTopicResult:
    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


@message(23, "2-4", "4+")
@dataclass(slots=True)
class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "2+")
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)
