"""JoinGroup (API key 11)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, boolean, data, integer, message, string


@dataclass(slots=True)
class JoinGroupRequestProtocol:
    name: str = string()
    metadata: bytes = data()


@message(11, "0-9", "6+")
@dataclass(slots=True)
class JoinGroupRequest(Message):
    group_id: str = string()
    session_timeout_ms: int = integer(FieldType.INT32)
    rebalance_timeout_ms: int = integer(FieldType.INT32, "1+", default=-1)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string("8+", nullable="8+", default=None)


@dataclass(slots=True)
class JoinGroupResponseMember:
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    metadata: bytes = data()


@message(11, "0-9", "6+")
@dataclass(slots=True)
class JoinGroupResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "2+")
    error_code: int = integer(FieldType.INT16)
    generation_id: int = integer(FieldType.INT32, default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean("9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
