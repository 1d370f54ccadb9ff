"""DescribeLogDirs (API key 35)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    boolean,
    integer,
    message,
    string,
)


@dataclass(slots=True)
class DescribableLogDirTopic:
    topic: str = string()
    partitions: list[int] = array(FieldType.INT32)


@message(35, "1-4", "2+")
@dataclass(slots=True)
class DescribeLogDirsRequest(Message):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable="0+")
    segments_from: int = integer(FieldType.INT64, "2+", default=-1, tag=FIRST_PRIVATE_TAG, tagged="2+")
    segments_max: int = integer(FieldType.INT32, "2+", default=0, tag=FIRST_PRIVATE_TAG + 1, tagged="2+")
    marks_max: int = integer(FieldType.INT32, "2+", default=0, tag=FIRST_PRIVATE_TAG + 2, tagged="2+")
    include_leader: bool = boolean("2+", tag=FIRST_PRIVATE_TAG + 3, tagged="2+")


@dataclass(slots=True)
class ReportedTimeMark:
    offset: int = integer(FieldType.INT64)
    ms: int = integer(FieldType.INT64)


@dataclass(slots=True)
class ReportedSegment:
    base_offset: int = integer(FieldType.INT64)
    end_offset: int = integer(FieldType.INT64)
    log_bytes: int = integer(FieldType.INT64)
    newest_ms: int = integer(FieldType.INT64)
    created_ms: int = integer(FieldType.INT64)
    why_local: str = string()
    key: str = string()
    uploaded_ms: int = integer(FieldType.INT64)
    is_cleaned: bool = boolean()
    why_code: str = string("2+", default="", tag=FIRST_PRIVATE_TAG, tagged="2+")


@dataclass(slots=True)
class ReportedFollower:
    """A follower as the leader sees it. Times are of the leader's wall clock, -1 if there is none."""

    node_id: int = integer(FieldType.INT32)
    offset: int = integer(FieldType.INT64)
    caught_up_ms: int = integer(FieldType.INT64)
    fetched_ms: int = integer(FieldType.INT64)


@dataclass(slots=True)
class ReportedLeader:
    """The state of a leader. `position` is what counts for its high watermark. The oldest open transaction has a
    producer id, a first offset and a start, -1 if there is none; its id is "" unless that broker coordinates it."""

    leader_epoch: int = integer(FieldType.INT32)
    log_start: int = integer(FieldType.INT64)
    cold_end: int = integer(FieldType.INT64)
    last_stable: int = integer(FieldType.INT64)
    high_watermark: int = integer(FieldType.INT64)
    position: int = integer(FieldType.INT64)
    led_since_ms: int = integer(FieldType.INT64)
    waiting_segments: int = integer(FieldType.INT32)
    waiting_bytes: int = integer(FieldType.INT64)
    waiting_on_broker: int = integer(FieldType.INT32)
    upload_lag_ms: int = integer(FieldType.INT64)
    upload_problem: str = string()
    outage: str = string()
    outage_why: str = string()
    disk_problem: str = string()
    damaged: list[str] = array(FieldType.STRING)
    producer_id: int = integer(FieldType.INT64)
    transaction_start: int = integer(FieldType.INT64)
    transaction_since_ms: int = integer(FieldType.INT64)
    transactional_id: str = string()
    followers: list[ReportedFollower] = array(ReportedFollower)


@dataclass(slots=True)
class DescribeLogDirsPartition:
    partition_index: int = integer(FieldType.INT32)
    partition_size: int = integer(FieldType.INT64)
    offset_lag: int = integer(FieldType.INT64)
    is_future_key: bool = boolean()
    remote_size: int = integer(FieldType.INT64, "2+", default=-1, tag=FIRST_PRIVATE_TAG, tagged="2+")
    local_start: int = integer(FieldType.INT64, "2+", default=-1, tag=FIRST_PRIVATE_TAG + 1, tagged="2+")
    log_end: int = integer(FieldType.INT64, "2+", default=-1, tag=FIRST_PRIVATE_TAG + 2, tagged="2+")
    segments: list[ReportedSegment] | None = array(
        ReportedSegment, "2+", nullable="2+", default=None, tag=FIRST_PRIVATE_TAG + 3, tagged="2+"
    )
    segments_problem: str = string("2+", default="", tag=FIRST_PRIVATE_TAG + 4, tagged="2+")
    time_marks: list[ReportedTimeMark] | None = array(
        ReportedTimeMark, "2+", nullable="2+", default=None, tag=FIRST_PRIVATE_TAG + 5, tagged="2+"
    )
    cleaned_to: int = integer(FieldType.INT64, "2+", default=-1, tag=FIRST_PRIVATE_TAG + 6, tagged="2+")
    leader: list[ReportedLeader] | None = array(
        ReportedLeader, "2+", nullable="2+", default=None, tag=FIRST_PRIVATE_TAG + 7, tagged="2+"
    )


@dataclass(slots=True)
class DescribeLogDirsTopic:
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@dataclass(slots=True)
class DescribeLogDirsResult:
    error_code: int = integer(FieldType.INT16)
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = integer(FieldType.INT64, "4+", default=-1)
    usable_bytes: int = integer(FieldType.INT64, "4+", default=-1)


@message(35, "1-4", "2+")
@dataclass(slots=True)
class DescribeLogDirsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16, "3+")
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
