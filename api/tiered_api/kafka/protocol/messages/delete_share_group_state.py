"""DeleteShareGroupState (API key 86, between brokers)."""

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


@dataclass(slots=True)
class DeleteStateData:
    topic_id: str = uuid()
    partitions: list[PartitionData] = array(PartitionData)


@message(86, "0", "0+")
@dataclass(slots=True)
class DeleteShareGroupStateRequest(Message):
    group_id: str = string()
    topics: list[DeleteStateData] = array(DeleteStateData)
    credential: bytes = data(tag=FIRST_PRIVATE_TAG, tagged="0+")
    """Ours: the credential of brokers."""


@dataclass(slots=True)
class PartitionResult:
    partition: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)


@dataclass(slots=True)
class DeleteStateResult:
    topic_id: str = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


@message(86, "0", "0+")
@dataclass(slots=True)
class DeleteShareGroupStateResponse(Message):
    results: list[DeleteStateResult] = array(DeleteStateResult)
