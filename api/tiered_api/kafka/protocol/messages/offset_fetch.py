"""OffsetFetch (API key 9)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, integer, message, string, uuid


@dataclass(slots=True)
class OffsetFetchRequestTopic:
    name: str = string("0-7")
    partition_indexes: list[int] = array(FieldType.INT32, "0-7")


@dataclass(slots=True)
class OffsetFetchRequestTopics:
    name: str = string("8-9")
    topic_id: str = uuid("10+")
    partition_indexes: list[int] = array(FieldType.INT32, "8+")


@dataclass(slots=True)
class OffsetFetchRequestGroup:
    group_id: str = string("8+")
    member_id: str | None = string("9+", nullable="9+", default=None)
    member_epoch: int = integer(FieldType.INT32, "9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, "8+", nullable="8+")


@message(9, "1-10", "6+")
@dataclass(slots=True)
class OffsetFetchRequest(Message):
    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = array(OffsetFetchRequestTopic, "0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")
    require_stable: bool = boolean("7+")


@dataclass(slots=True)
class OffsetFetchResponsePartition:
    partition_index: int = integer(FieldType.INT32, "0-7")
    committed_offset: int = integer(FieldType.INT64, "0-7")
    committed_leader_epoch: int = integer(FieldType.INT32, "5-7", default=-1)
    metadata: str | None = string("0-7", nullable="0-7")
    error_code: int = integer(FieldType.INT16, "0-7")


@dataclass(slots=True)
class OffsetFetchResponseTopic:
    name: str = string("0-7")
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition, "0-7")


@dataclass(slots=True)
class OffsetFetchResponsePartitions:
    partition_index: int = integer(FieldType.INT32, "8+")
    committed_offset: int = integer(FieldType.INT64, "8+")
    committed_leader_epoch: int = integer(FieldType.INT32, "8+", default=-1)
    metadata: str | None = string("8+", nullable="8+")
    error_code: int = integer(FieldType.INT16, "8+")


@dataclass(slots=True)
class OffsetFetchResponseTopics:
    name: str = string("8-9")
    topic_id: str = uuid("10+")
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "8+")


@dataclass(slots=True)
class OffsetFetchResponseGroup:
    group_id: str = string("8+")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = integer(FieldType.INT16, "8+")


@message(9, "1-10", "6+")
@dataclass(slots=True)
class OffsetFetchResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "3+")
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, "0-7")
    error_code: int = integer(FieldType.INT16, "2-7")
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")
