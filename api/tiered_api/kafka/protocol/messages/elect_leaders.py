"""ElectLeaders (API key 43)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class TopicPartitions:
    topic: str = string()
    partitions: list[int] = array(FieldType.INT32)


@message(43, "0-2", "2+")
@dataclass(slots=True)
class ElectLeadersRequest(Message):
    election_type: int = integer(FieldType.INT8, "1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = integer(FieldType.INT32, default=60000)


@dataclass(slots=True)
class PartitionResult:
    partition_id: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")


@dataclass(slots=True)
class ReplicaElectionResult:
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


@message(43, "0-2", "2+")
@dataclass(slots=True)
class ElectLeadersResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16, "1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
