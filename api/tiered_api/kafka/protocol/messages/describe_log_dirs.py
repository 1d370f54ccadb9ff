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
