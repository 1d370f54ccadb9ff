"""DescribeProducers (API key 61)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class TopicRequest:
    name: str = string()
    partition_indexes: list[int] = array(FieldType.INT32)


@message(61, "0", "0+")
@dataclass(slots=True)
class DescribeProducersRequest(Message):
    topics: list[TopicRequest] = array(TopicRequest)


@dataclass(slots=True)
class ProducerState:
    producer_id: int = integer(FieldType.INT64)
    producer_epoch: int = integer(FieldType.INT32)
    last_sequence: int = integer(FieldType.INT32, default=-1)
    last_timestamp: int = integer(FieldType.INT64, default=-1)
    coordinator_epoch: int = integer(FieldType.INT32)
    current_txn_start_offset: int = integer(FieldType.INT64, default=-1)


@dataclass(slots=True)
class PartitionResponse:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState)


@dataclass(slots=True)
class TopicResponse:
    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


@message(61, "0", "0+")
@dataclass(slots=True)
class DescribeProducersResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    topics: list[TopicResponse] = array(TopicResponse)
