"""DescribeGroups (API key 15)."""

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


@message(15, "0-6", "5+")
@dataclass(slots=True)
class DescribeGroupsRequest(Message):
    groups: list[str] = array(FieldType.STRING)
    include_authorized_operations: bool = boolean("3+")
    include_progress: bool = boolean("5+", tag=FIRST_PRIVATE_TAG, tagged="5+")
    include_consumer_groups: bool = boolean("5+", tag=FIRST_PRIVATE_TAG + 1, tagged="5+")


@dataclass(slots=True)
class DescribedGroupMember:
    member_id: str = string()
    group_instance_id: str | None = string("4+", nullable="4+", default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = data()
    member_assignment: bytes = data()


@dataclass(slots=True)
class ReportedProgress:
    since_ms: int = integer(FieldType.INT64)
    reason: str = string()
    rebalance_timeout_ms: int = integer(FieldType.INT32)
    awaited: list[str] = array(FieldType.STRING)
    pending: int = integer(FieldType.INT32)


@dataclass(slots=True)
class DescribedGroup:
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = integer(FieldType.INT32, "3+", default=-2147483648)
    progress: list[ReportedProgress] | None = array(
        ReportedProgress, "5+", nullable="5+", default=None, tag=FIRST_PRIVATE_TAG, tagged="5+"
    )
    group_type: str = string("5+", tag=FIRST_PRIVATE_TAG + 1, tagged="5+")


@message(15, "0-6", "5+")
@dataclass(slots=True)
class DescribeGroupsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    groups: list[DescribedGroup] = array(DescribedGroup)
