"""DeleteRecords (API key 21)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class DeleteRecordsPartition:
    partition_index: int = integer(FieldType.INT32)
    offset: int = integer(FieldType.INT64)


@dataclass(slots=True)
class DeleteRecordsTopic:
    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


@message(21, "0-2", "2+")
@dataclass(slots=True)
class DeleteRecordsRequest(Message):
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = integer(FieldType.INT32)


@dataclass(slots=True)
class DeleteRecordsPartitionResult:
    partition_index: int = integer(FieldType.INT32)
    low_watermark: int = integer(FieldType.INT64)
    error_code: int = integer(FieldType.INT16)


@dataclass(slots=True)
class DeleteRecordsTopicResult:
    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


@message(21, "0-2", "2+")
@dataclass(slots=True)
class DeleteRecordsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)
