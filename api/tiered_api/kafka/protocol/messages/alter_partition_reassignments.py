"""AlterPartitionReassignments (API key 45)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string


@dataclass(slots=True)
class ReassignablePartition:
    partition_index: int = integer(FieldType.INT32)
    replicas: list[int] | None = array(FieldType.INT32, nullable="0+", default=None)


@dataclass(slots=True)
class ReassignableTopic:
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


@message(45, "0-1", "0+")
@dataclass(slots=True)
class AlterPartitionReassignmentsRequest(Message):
    timeout_ms: int = integer(FieldType.INT32, default=60000)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


@dataclass(slots=True)
class ReassignablePartitionResponse:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")


@dataclass(slots=True)
class ReassignableTopicResponse:
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


@message(45, "0-1", "0+")
@dataclass(slots=True)
class AlterPartitionReassignmentsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    allow_replication_factor_change: bool = boolean("1+", default=True)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)
