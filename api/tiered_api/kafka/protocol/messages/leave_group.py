"""LeaveGroup (API key 13)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@dataclass(slots=True)
class MemberIdentity:
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None)


@message(13, "0-5", "4+")
@dataclass(slots=True)
class LeaveGroupRequest(Message):
    group_id: str = string()
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")


@dataclass(slots=True)
class MemberResponse:
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+")
    error_code: int = integer(FieldType.INT16, "3+")


@message(13, "0-5", "4+")
@dataclass(slots=True)
class LeaveGroupResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    error_code: int = integer(FieldType.INT16)
    members: list[MemberResponse] = array(MemberResponse, "3+")
