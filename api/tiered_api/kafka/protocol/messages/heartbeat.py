"""Heartbeat (API key 12)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, integer, message, string


@message(12, "0-4", "4+")
@dataclass(slots=True)
class HeartbeatRequest(Message):
    group_id: str = string()
    generation_id: int = integer(FieldType.INT32)
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)


@message(12, "0-4", "4+")
@dataclass(slots=True)
class HeartbeatResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    error_code: int = integer(FieldType.INT16)
