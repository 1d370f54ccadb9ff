"""DescribeTopicPartitions (API key 75)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    boolean,
    integer,
    message,
    string,
    struct,
    uuid,
)


@dataclass(slots=True)
class TopicRequest:
    name: str = string()


@dataclass(slots=True)
class Cursor:
    topic_name: str = string()
    partition_index: int = integer(FieldType.INT32)


@message(75, "0", "0+")
@dataclass(slots=True)
class DescribeTopicPartitionsRequest(Message):
    topics: list[TopicRequest] = array(TopicRequest)
    response_partition_limit: int = integer(FieldType.INT32, default=2000)
    cursor: Cursor | None = struct(Cursor, nullable="0+", default=None)


@dataclass(slots=True)
class DescribeTopicPartitionsResponsePartition:
    error_code: int = integer(FieldType.INT16)
    partition_index: int = integer(FieldType.INT32)
    leader_id: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32, default=-1)
    replica_nodes: list[int] = array(FieldType.INT32)
    isr_nodes: list[int] = array(FieldType.INT32)
    eligible_leader_replicas: list[int] | None = array(FieldType.INT32, nullable="0+", default=None)
    last_known_elr: list[int] | None = array(FieldType.INT32, nullable="0+", default=None)
    offline_replicas: list[int] = array(FieldType.INT32)
    is_in_bucket: bool = boolean(tag=FIRST_PRIVATE_TAG, tagged="0+")
    """No acknowledged record is on disks alone (`flush=bucket` is in force)."""
    leaderless_since_ms: int = integer(FieldType.INT64, default=-1, tag=FIRST_PRIVATE_TAG + 1, tagged="0+")
    """Since when it has no leader, -1 if it has one or if that is not known."""
    missing_since_ms: list[int] = array(FieldType.INT64, tag=FIRST_PRIVATE_TAG + 2, tagged="0+")
    """By the number of replicas that are not in sync, from one on: since when at least so many are, -1 if that is not
    known."""


@dataclass(slots=True)
class DescribeTopicPartitionsResponseTopic:
    error_code: int = integer(FieldType.INT16)
    name: str | None = string(nullable="0+")
    topic_id: str = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = integer(FieldType.INT32, default=-2147483648)


@message(75, "0", "0+")
@dataclass(slots=True)
class DescribeTopicPartitionsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: Cursor | None = struct(Cursor, nullable="0+", default=None)
