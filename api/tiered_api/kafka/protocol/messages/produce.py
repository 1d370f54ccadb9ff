"""Produce (API key 0)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, records, string, struct, uuid


@dataclass(slots=True)
class PartitionProduceData:
    index: int = integer(FieldType.INT32)
    records: Any = records(nullable="0+")


@dataclass(slots=True)
class TopicProduceData:
    name: str = string("0-12")
    topic_id: str = uuid("13+")
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


@message(0, "3-13", "9+")
@dataclass(slots=True)
class ProduceRequest(Message):
    transactional_id: str | None = string("3+", nullable="3+", default=None)
    acks: int = integer(FieldType.INT16)
    timeout_ms: int = integer(FieldType.INT32)
    topic_data: list[TopicProduceData] = array(TopicProduceData)


@dataclass(slots=True)
class BatchIndexAndErrorMessage:
    batch_index: int = integer(FieldType.INT32, "8+")
    batch_index_error_message: str | None = string("8+", nullable="8+", default=None)


@dataclass(slots=True)
class LeaderIdAndEpoch:
    leader_id: int = integer(FieldType.INT32, "10+", default=-1)
    leader_epoch: int = integer(FieldType.INT32, "10+", default=-1)


@dataclass(slots=True)
class PartitionProduceResponse:
    index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    base_offset: int = integer(FieldType.INT64)
    log_append_time_ms: int = integer(FieldType.INT64, "2+", default=-1)
    log_start_offset: int = integer(FieldType.INT64, "5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, "8+")
    error_message: str | None = string("8+", nullable="8+", default=None)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "10+", tag=0, tagged="10+")


@dataclass(slots=True)
class TopicProduceResponse:
    name: str = string("0-12")
    topic_id: str = uuid("13+")
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


@dataclass(slots=True)
class NodeEndpoint:
    node_id: int = integer(FieldType.INT32, "10+")
    host: str = string("10+")
    port: int = integer(FieldType.INT32, "10+")
    rack: str | None = string("10+", nullable="10+", default=None)


@message(0, "3-13", "9+")
@dataclass(slots=True)
class ProduceResponse(Message):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0, tagged="10+")
