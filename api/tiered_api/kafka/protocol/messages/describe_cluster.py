"""DescribeCluster (API key 60)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    boolean,
    double,
    integer,
    message,
    string,
)


@message(60, "0-2", "0+")
@dataclass(slots=True)
class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = integer(FieldType.INT8, "1+", default=1)
    include_fenced_brokers: bool = boolean("2+")
    include_health: bool = boolean("0+", tag=FIRST_PRIVATE_TAG, tagged="0+")
    usage_from_ms: int = integer(FieldType.INT64, "0+", default=-1, tag=FIRST_PRIVATE_TAG + 1, tagged="0+")


@dataclass(slots=True)
class DescribeClusterBroker:
    broker_id: int = integer(FieldType.INT32)
    host: str = string()
    port: int = integer(FieldType.INT32)
    rack: str | None = string(nullable="0+", default=None)
    is_fenced: bool = boolean("2+")
    is_stopped: bool = boolean("2+", tag=FIRST_PRIVATE_TAG, tagged="2+")
    is_disk_full: bool = boolean("2+", tag=FIRST_PRIVATE_TAG + 1, tagged="2+")
    process: int = integer(FieldType.INT32, "2+", default=0, tag=FIRST_PRIVATE_TAG + 2, tagged="2+")
    http: str = string("2+", default="", tag=FIRST_PRIVATE_TAG + 3, tagged="2+")
    fenced_since_ms: int = integer(FieldType.INT64, "2+", default=-1, tag=FIRST_PRIVATE_TAG + 4, tagged="2+")


@dataclass(slots=True)
class PossibleLoss:
    topic: str = string()
    partition: int = integer(FieldType.INT32)
    leader_epoch: int = integer(FieldType.INT32)
    from_offset: int = integer(FieldType.INT64)
    at_ms: int = integer(FieldType.INT64)
    newest_ms: int = integer(FieldType.INT64, "0+", default=0, tag=FIRST_PRIVATE_TAG, tagged="0+")


@dataclass(slots=True)
class ReportedCertificate:
    listener: str = string()
    subject: str = string()
    names: list[str] = array(FieldType.STRING)
    not_before_ms: int = integer(FieldType.INT64)
    not_after_ms: int = integer(FieldType.INT64)
    state: str = string()
    rejected: str = string()


@dataclass(slots=True)
class ReportedFigure:
    name: str = string()
    label: str = string()
    value: float = double()


@dataclass(slots=True)
class ReportedUsage:
    hour_ms: int = integer(FieldType.INT64)
    verb: str = string()
    requests: int = integer(FieldType.INT64)
    bytes: int = integer(FieldType.INT64)


@dataclass(slots=True)
class ReportedStorage:
    hour_ms: int = integer(FieldType.INT64)
    byte_hours: float = double()


@message(60, "0-2", "0+")
@dataclass(slots=True)
class DescribeClusterResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    endpoint_type: int = integer(FieldType.INT8, "1+", default=1)
    cluster_id: str = string()
    controller_id: int = integer(FieldType.INT32, default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = integer(FieldType.INT32, default=-2147483648)
    problems: list[str] | None = array(
        FieldType.STRING, "0+", nullable="0+", default=None, tag=FIRST_PRIVATE_TAG, tagged="0+"
    )
    store_away_since_ms: int = integer(FieldType.INT64, "0+", default=-1, tag=FIRST_PRIVATE_TAG + 1, tagged="0+")
    losses: list[PossibleLoss] | None = array(
        PossibleLoss, "0+", nullable="0+", default=None, tag=FIRST_PRIVATE_TAG + 2, tagged="0+"
    )
    certificates: list[ReportedCertificate] | None = array(
        ReportedCertificate, "0+", nullable="0+", default=None, tag=FIRST_PRIVATE_TAG + 3, tagged="0+"
    )
    hides_health: bool = boolean("0+", default=False, tag=FIRST_PRIVATE_TAG + 4, tagged="0+")
    hides_topics: bool = boolean("0+", default=False, tag=FIRST_PRIVATE_TAG + 5, tagged="0+")
    figures: list[ReportedFigure] | None = array(
        ReportedFigure, "0+", nullable="0+", default=None, tag=FIRST_PRIVATE_TAG + 6, tagged="0+"
    )
    usage: list[ReportedUsage] | None = array(
        ReportedUsage, "0+", nullable="0+", default=None, tag=FIRST_PRIVATE_TAG + 7, tagged="0+"
    )
    stored: list[ReportedStorage] | None = array(
        ReportedStorage, "0+", nullable="0+", default=None, tag=FIRST_PRIVATE_TAG + 8, tagged="0+"
    )
