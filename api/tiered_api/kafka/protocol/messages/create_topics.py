"""CreateTopics (API key 19)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string, uuid


@dataclass(slots=True)
class CreatableReplicaAssignment:
    partition_index: int = integer(FieldType.INT32)
    broker_ids: list[int] = array(FieldType.INT32)


@dataclass(slots=True)
class CreatableTopicConfig:
    name: str = string()
    value: str | None = string(nullable="0+")


@dataclass(slots=True)
class CreatableTopic:
    name: str = string()
    num_partitions: int = integer(FieldType.INT32)
    replication_factor: int = integer(FieldType.INT16)
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment)
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig)


@message(19, "2-7", "5+")
@dataclass(slots=True)
class CreateTopicsRequest(Message):
    topics: list[CreatableTopic] = array(CreatableTopic)
    timeout_ms: int = integer(FieldType.INT32, default=60000)
    validate_only: bool = boolean("1+")


@dataclass(slots=True)
class CreatableTopicConfigs:
    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = boolean("5+")
    config_source: int = integer(FieldType.INT8, "5+", default=-1)
    is_sensitive: bool = boolean("5+")


@dataclass(slots=True)
class CreatableTopicResult:
    name: str = string()
    topic_id: str = uuid("7+")
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string("1+", nullable="0+")
    topic_config_error_code: int = integer(FieldType.INT16, "5+", tag=0, tagged="5+")
    num_partitions: int = integer(FieldType.INT32, "5+", default=-1)
    replication_factor: int = integer(FieldType.INT16, "5+", default=-1)
    configs: list[CreatableTopicConfigs] | None = array(CreatableTopicConfigs, "5+", nullable="5+")


@message(19, "2-7", "5+")
@dataclass(slots=True)
class CreateTopicsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "2+")
    topics: list[CreatableTopicResult] = array(CreatableTopicResult)
