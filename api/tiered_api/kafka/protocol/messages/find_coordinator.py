"""FindCoordinator (API key 10)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@message(10, "0-6", "3+")
@dataclass(slots=True)
class FindCoordinatorRequest(Message):
    key: str = string("0-3")
    key_type: int = integer(FieldType.INT8, "1+")
    coordinator_keys: list[str] = array(FieldType.STRING, "4+")


@dataclass(slots=True)
class Coordinator:
    key: str = string("4+")
    node_id: int = integer(FieldType.INT32, "4+")
    host: str = string("4+")
    port: int = integer(FieldType.INT32, "4+")
    error_code: int = integer(FieldType.INT16, "4+")
    error_message: str | None = string("4+", nullable="4+")


@message(10, "0-6", "3+")
@dataclass(slots=True)
class FindCoordinatorResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32, "1+")
    error_code: int = integer(FieldType.INT16, "0-3")
    error_message: str | None = string("1-3", nullable="1-3")
    node_id: int = integer(FieldType.INT32, "0-3")
    host: str = string("0-3")
    port: int = integer(FieldType.INT32, "0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")
