"""TxnOffsetCommit (API key 28)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class TxnOffsetCommitRequestPartition:
    partition_index: int = integer(FieldType.INT32)
    committed_offset: int = integer(FieldType.INT64)
    committed_leader_epoch: int = integer(FieldType.INT32, "2+", default=-1)
    committed_metadata: str | None = string(nullable="0+")


@dataclass(slots=True)
class TxnOffsetCommitRequestTopic:
    name: str = string()
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


@message(28, "0-5", "3+")
@dataclass(slots=True)
class TxnOffsetCommitRequest(Message):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = integer(FieldType.INT64)
    producer_epoch: int = integer(FieldType.INT16)
    generation_id: int = integer(FieldType.INT32, "3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)


@dataclass(slots=True)
class TxnOffsetCommitResponsePartition:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)


@dataclass(slots=True)
class TxnOffsetCommitResponseTopic:
    name: str = string()
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


@message(28, "0-5", "3+")
@dataclass(slots=True)
class TxnOffsetCommitResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)
