"""Metadata (API key 3)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string, uuid


@dataclass(slots=True)
class MetadataRequestTopic:
    topic_id: str = uuid("10+")
    name: str | None = string(nullable="10+")


@message(3, "0-13", "9+")
@dataclass(slots=True)
class MetadataRequest(Message):
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


@dataclass(slots=True)
class MetadataResponseBroker:
    node_id: int = integer(FieldType.INT32)
    host: str = string()
    port: int = integer(FieldType.INT32)
    rack: str | None = string("1+", nullable="1+", default=None)


@dataclass(slots=True)
class MetadataResponsePartition:
    error_code: int = integer(FieldType.INT16)
    partition_index: int = integer(FieldType.INT32)
    leader_id: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32, "7+", default=-1)
    replica_nodes: list[int] = array(FieldType.INT32)
    isr_nodes: list[int] = array(FieldType.INT32)
    offline_replicas: list[int] = array(FieldType.INT32, "5+")


@dataclass(slots=True)
class MetadataResponseTopic:
    error_code: int = integer(FieldType.INT16)
    name: str | None = string(nullable="12+")
    topic_id: str = uuid("10+")
    is_internal: bool = boolean("1+")
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = integer(FieldType.INT32, "8+", default=-2147483648)


@message(3, "0-13", "9+")
@dataclass(slots=True)
class MetadataResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "3+")
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string("2+", nullable="2+", default=None)
    controller_id: int = integer(FieldType.INT32, "1+", default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = integer(FieldType.INT32, "8-10", default=-2147483648)
    error_code: int = integer(FieldType.INT16, "13+")
