"""ConsumerGroupHeartbeat (API key 68)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string, struct, uuid


@dataclass(slots=True)
class ConsumerTopicPartitions:
    topic_id: str = uuid()
    partitions: list[int] = array(FieldType.INT32)


@message(68, "0-1", "0+")
@dataclass(slots=True)
class ConsumerGroupHeartbeatRequest(Message):
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = integer(FieldType.INT32)
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    rebalance_timeout_ms: int = integer(FieldType.INT32, default=-1)
    subscribed_topic_names: list[str] | None = array(FieldType.STRING, nullable="0+", default=None)
    subscribed_topic_regex: str | None = string("1+", nullable="1+", default=None)
    server_assignor: str | None = string(nullable="0+", default=None)
    topic_partitions: list[ConsumerTopicPartitions] | None = array(ConsumerTopicPartitions, nullable="0+", default=None)


@dataclass(slots=True)
class ConsumerAssignment:
    topic_partitions: list[ConsumerTopicPartitions] = array(ConsumerTopicPartitions)


@message(68, "0-1", "0+")
@dataclass(slots=True)
class ConsumerGroupHeartbeatResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    member_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = integer(FieldType.INT32)
    heartbeat_interval_ms: int = integer(FieldType.INT32)
    assignment: ConsumerAssignment | None = struct(ConsumerAssignment, nullable="0+", default=None)
