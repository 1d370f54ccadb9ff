"""ReadShareGroupStateSummary (API key 87, between brokers)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    data,
    integer,
    message,
    string,
    uuid,
)


@dataclass(slots=True)
class PartitionData:
    partition: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32)


@dataclass(slots=True)
class ReadStateSummaryData:
    topic_id: str = uuid()
    partitions: list[PartitionData] = array(PartitionData)


@message(87, "0-1", "0+")
@dataclass(slots=True)
class ReadShareGroupStateSummaryRequest(Message):
    group_id: str = string()
    topics: list[ReadStateSummaryData] = array(ReadStateSummaryData)
    credential: bytes = data(tag=FIRST_PRIVATE_TAG, tagged="0+")
    """Ours: the credential of brokers."""


@dataclass(slots=True)
class PartitionResult:
    partition: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    state_epoch: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32)
    start_offset: int = integer(FieldType.INT64)
    delivery_complete_count: int = integer(FieldType.INT32, "1+", default=-1)


@dataclass(slots=True)
class ReadStateSummaryResult:
    topic_id: str = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


@message(87, "0-1", "0+")
@dataclass(slots=True)
class ReadShareGroupStateSummaryResponse(Message):
    results: list[ReadStateSummaryResult] = array(ReadStateSummaryResult)
