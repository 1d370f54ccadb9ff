"""DescribeGroups (API key 15)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, data, integer, message, string


@message(15, "0-6", "5+")
@dataclass(slots=True)
class DescribeGroupsRequest(Message):
    groups: list[str] = array(FieldType.STRING)
    include_authorized_operations: bool = boolean("3+")


@dataclass(slots=True)
class DescribedGroupMember:
    member_id: str = string()
    group_instance_id: str | None = string("4+", nullable="4+", default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = data()
    member_assignment: bytes = data()


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


@message(15, "0-6", "5+")
@dataclass(slots=True)
class DescribeGroupsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    groups: list[DescribedGroup] = array(DescribedGroup)
