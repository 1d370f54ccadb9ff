"""Fetch (API key 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    boolean,
    data,
    integer,
    message,
    records,
    string,
    struct,
    uuid,
)


@dataclass(slots=True)
class ReplicaState:
    replica_id: int = integer(FieldType.INT32, "15+", default=-1)
    replica_epoch: int = integer(FieldType.INT64, "15+", default=-1)


@dataclass(slots=True)
class FetchPartition:
    partition: int = integer(FieldType.INT32)
    current_leader_epoch: int = integer(FieldType.INT32, "9+", default=-1)
    fetch_offset: int = integer(FieldType.INT64)
    last_fetched_epoch: int = integer(FieldType.INT32, "12+", default=-1)
    log_start_offset: int = integer(FieldType.INT64, "5+", default=-1)
    partition_max_bytes: int = integer(FieldType.INT32)
    replica_directory_id: str = uuid("17+", tag=0, tagged="17+")
    high_watermark: int = integer(FieldType.INT64, "18+", default=9223372036854775807, tag=1, tagged="18+")
    local_start_offset: int = integer(FieldType.INT64, "17+", default=-1, tag=FIRST_PRIVATE_TAG, tagged="17+")


@dataclass(slots=True)
class FetchTopic:
    topic: str = string("0-12")
    topic_id: str = uuid("13+")
    partitions: list[FetchPartition] = array(FetchPartition)


@dataclass(slots=True)
class ForgottenTopic:
    topic: str = string("7-12")
    topic_id: str = uuid("13+")
    partitions: list[int] = array(FieldType.INT32, "7+")


@message(1, "4-18", "12+")
@dataclass(slots=True)
class FetchRequest(Message):
    cluster_id: str | None = string("12+", nullable="12+", default=None, tag=0, tagged="12+")
    replica_id: int = integer(FieldType.INT32, "0-14", default=-1)
    replica_state: ReplicaState = struct(ReplicaState, "15+", tag=1, tagged="15+")
    max_wait_ms: int = integer(FieldType.INT32)
    min_bytes: int = integer(FieldType.INT32)
    max_bytes: int = integer(FieldType.INT32, "3+", default=2147483647)
    isolation_level: int = integer(FieldType.INT8, "4+")
    session_id: int = integer(FieldType.INT32, "7+")
    session_epoch: int = integer(FieldType.INT32, "7+", default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+")
    credential: bytes = data("17+", tag=FIRST_PRIVATE_TAG, tagged="17+")


@dataclass(slots=True)
class EpochEndOffset:
    epoch: int = integer(FieldType.INT32, "12+", default=-1)
    end_offset: int = integer(FieldType.INT64, "12+", default=-1)


@dataclass(slots=True)
class LeaderIdAndEpoch:
    leader_id: int = integer(FieldType.INT32, "12+", default=-1)
    leader_epoch: int = integer(FieldType.INT32, "12+", default=-1)


@dataclass(slots=True)
class SnapshotId:
    end_offset: int = integer(FieldType.INT64, default=-1)
    epoch: int = integer(FieldType.INT32, default=-1)


@dataclass(slots=True)
class AbortedTransaction:
    producer_id: int = integer(FieldType.INT64, "4+")
    first_offset: int = integer(FieldType.INT64, "4+")


@dataclass(slots=True)
class PartitionData:
    partition_index: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    high_watermark: int = integer(FieldType.INT64)
    last_stable_offset: int = integer(FieldType.INT64, "4+", default=-1)
    log_start_offset: int = integer(FieldType.INT64, "5+", default=-1)
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, "12+", tag=0, tagged="12+")
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "12+", tag=1, tagged="12+")
    snapshot_id: SnapshotId = struct(SnapshotId, "12+", tag=2, tagged="12+")
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, "4+", nullable="4+")
    preferred_read_replica: int = integer(FieldType.INT32, "11+", default=-1)
    records: Any = records(nullable="0+")
    local_start_offset: int = integer(FieldType.INT64, "17+", default=-1, tag=FIRST_PRIVATE_TAG, tagged="17+")
    cold_end_offset: int = integer(FieldType.INT64, "17+", default=-1, tag=FIRST_PRIVATE_TAG + 1, tagged="17+")
    may_have_gaps: bool = boolean("17+", default=False, tag=FIRST_PRIVATE_TAG + 2, tagged="17+")


@dataclass(slots=True)
class FetchableTopicResponse:
    topic: str = string("0-12")
    topic_id: str = uuid("13+")
    partitions: list[PartitionData] = array(PartitionData)


@dataclass(slots=True)
class NodeEndpoint:
    node_id: int = integer(FieldType.INT32, "16+")
    host: str = string("16+")
    port: int = integer(FieldType.INT32, "16+")
    rack: str | None = string("16+", nullable="16+", default=None)


@message(1, "4-18", "12+")
@dataclass(slots=True)
class FetchResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    error_code: int = integer(FieldType.INT16, "7+")
    session_id: int = integer(FieldType.INT32, "7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0, tagged="16+")
