"""SyncGroup (API key 14)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, data, integer, message, string


@dataclass(slots=True)
class SyncGroupRequestAssignment:
    member_id: str = string()
    assignment: bytes = data()


@message(14, "0-5", "4+")
@dataclass(slots=True)
class SyncGroupRequest(Message):
    group_id: str = string()
    generation_id: int = integer(FieldType.INT32)
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@message(14, "0-5", "4+")
@dataclass(slots=True)
class SyncGroupResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    error_code: int = integer(FieldType.INT16)
    protocol_type: str | None = string("5+", nullable="5+", default=None)
    protocol_name: str | None = string("5+", nullable="5+", default=None)
    assignment: bytes = data()
