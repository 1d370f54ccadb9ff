"""WriteTxnMarkers (API key 27)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    boolean,
    data,
    integer,
    message,
    string,
)


@dataclass(slots=True)
class WritableTxnMarkerTopic:
    name: str = string()
    partition_indexes: list[int] = array(FieldType.INT32)


@dataclass(slots=True)
class WritableTxnMarker:
    producer_id: int = integer(FieldType.INT64)
    producer_epoch: int = integer(FieldType.INT16)
    transaction_result: bool = boolean()
    topics: list[WritableTxnMarkerTopic] = array(WritableTxnMarkerTopic)
    coordinator_epoch: int = integer(FieldType.INT32)
    transaction_version: int = integer(FieldType.INT8, "2+")


@message(27, "1-2", "1+")
@dataclass(slots=True)
class WriteTxnMarkersRequest(Message):
    markers: list[WritableTxnMarker] = array(WritableTxnMarker)
    credential: bytes = data(tag=FIRST_PRIVATE_TAG, tagged="1+")
    """Ours: the credential of brokers, empty in requests of operators."""


@dataclass(slots=True)
class WritableTxnMarkerPartitionResult:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)


@dataclass(slots=True)
class WritableTxnMarkerTopicResult:
    name: str = string()
    partitions: list[WritableTxnMarkerPartitionResult] = array(WritableTxnMarkerPartitionResult)


@dataclass(slots=True)
class WritableTxnMarkerResult:
    producer_id: int = integer(FieldType.INT64)
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult)


@message(27, "1-2", "1+")
@dataclass(slots=True)
class WriteTxnMarkersResponse(Message):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult)
