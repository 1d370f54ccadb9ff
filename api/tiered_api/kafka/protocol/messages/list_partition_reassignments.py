"""ListPartitionReassignments (API key 46)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class ListPartitionReassignmentsTopics:
    name: str = string()
    partition_indexes: list[int] = array(FieldType.INT32)


@message(46, "0", "0+")
@dataclass(slots=True)
class ListPartitionReassignmentsRequest(Message):
    timeout_ms: int = integer(FieldType.INT32, default=60000)
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable="0+", default=None
    )


@dataclass(slots=True)
class OngoingPartitionReassignment:
    partition_index: int = integer(FieldType.INT32)
    replicas: list[int] = array(FieldType.INT32)
    adding_replicas: list[int] = array(FieldType.INT32)
    removing_replicas: list[int] = array(FieldType.INT32)


@dataclass(slots=True)
class OngoingTopicReassignment:
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


@message(46, "0", "0+")
@dataclass(slots=True)
class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
