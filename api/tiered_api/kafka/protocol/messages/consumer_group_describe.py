"""ConsumerGroupDescribe (API key 69)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string, struct, uuid


@message(69, "0-1", "0+")
@dataclass(slots=True)
class ConsumerGroupDescribeRequest(Message):
    group_ids: list[str] = array(FieldType.STRING)
    include_authorized_operations: bool = boolean()


@dataclass(slots=True)
class DescribedTopicPartitions:
    topic_id: str = uuid()
    topic_name: str = string()
    partitions: list[int] = array(FieldType.INT32)


@dataclass(slots=True)
class DescribedAssignment:
    topic_partitions: list[DescribedTopicPartitions] = array(DescribedTopicPartitions)


@dataclass(slots=True)
class ConsumerGroupMember:
    member_id: str = string()
    instance_id: str | None = string(nullable="0+", default=None)
    rack_id: str | None = string(nullable="0+", default=None)
    member_epoch: int = integer(FieldType.INT32)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(FieldType.STRING)
    subscribed_topic_regex: str | None = string(nullable="0+", default=None)
    assignment: DescribedAssignment = struct(DescribedAssignment)
    target_assignment: DescribedAssignment = struct(DescribedAssignment)
    member_type: int = integer(FieldType.INT8, "1+", default=-1)


@dataclass(slots=True)
class DescribedConsumerGroup:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = integer(FieldType.INT32)
    assignment_epoch: int = integer(FieldType.INT32)
    assignor_name: str = string()
    members: list[ConsumerGroupMember] = array(ConsumerGroupMember)
    authorized_operations: int = integer(FieldType.INT32, default=-2147483648)


@message(69, "0-1", "0+")
@dataclass(slots=True)
class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    groups: list[DescribedConsumerGroup] = array(DescribedConsumerGroup)
