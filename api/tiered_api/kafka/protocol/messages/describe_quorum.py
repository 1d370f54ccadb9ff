"""DescribeQuorum (API key 55)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string, uuid


@dataclass(slots=True)
class QuorumPartition:
    partition_index: int = integer(FieldType.INT32)


@dataclass(slots=True)
class QuorumTopic:
    topic_name: str = string()
    partitions: list[QuorumPartition] = array(QuorumPartition)


@message(55, "0-2", "0+")
@dataclass(slots=True)
class DescribeQuorumRequest(Message):
    topics: list[QuorumTopic] = array(QuorumTopic)


@dataclass(slots=True)
class ReplicaState:
    replica_id: int = integer(FieldType.INT32)
    replica_directory_id: str = uuid("2+")
    log_end_offset: int = integer(FieldType.INT64)
    last_fetch_timestamp: int = integer(FieldType.INT64, "1+", default=-1)
    last_caught_up_timestamp: int = integer(FieldType.INT64, "1+", default=-1)


@dataclass(slots=True)
class QuorumPartitionResult:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string("2+", nullable="2+")
    leader_id: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32)
    high_watermark: int = integer(FieldType.INT64)
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


@dataclass(slots=True)
class QuorumTopicResult:
    topic_name: str = string()
    partitions: list[QuorumPartitionResult] = array(QuorumPartitionResult)


@dataclass(slots=True)
class QuorumListener:
    name: str = string("2+")
    host: str = string("2+")
    port: int = integer(FieldType.UINT16, "2+")


@dataclass(slots=True)
class QuorumNode:
    node_id: int = integer(FieldType.INT32, "2+")
    listeners: list[QuorumListener] = array(QuorumListener, "2+")


@message(55, "0-2", "0+")
@dataclass(slots=True)
class DescribeQuorumResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string("2+", nullable="2+")
    topics: list[QuorumTopicResult] = array(QuorumTopicResult)
    nodes: list[QuorumNode] = array(QuorumNode, "2+")
