"""UnregisterBroker (API key 64)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, integer, message, string


@message(64, "0", "0+")
@dataclass(slots=True)
class UnregisterBrokerRequest(Message):
    broker_id: int = integer(FieldType.INT32)


@message(64, "0", "0+")
@dataclass(slots=True)
class UnregisterBrokerResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
