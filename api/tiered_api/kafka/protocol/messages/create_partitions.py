"""CreatePartitions (API key 37)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string


@dataclass(slots=True)
class CreatePartitionsAssignment:
    broker_ids: list[int] = array(FieldType.INT32)


@dataclass(slots=True)
class CreatePartitionsTopic:
    name: str = string()
    count: int = integer(FieldType.INT32)
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable="0+")


@message(37, "0-3", "2+")
@dataclass(slots=True)
class CreatePartitionsRequest(Message):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = integer(FieldType.INT32)
    validate_only: bool = boolean()


@dataclass(slots=True)
class CreatePartitionsTopicResult:
    name: str = string()
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)


@message(37, "0-3", "2+")
@dataclass(slots=True)
class CreatePartitionsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)
