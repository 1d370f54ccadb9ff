"""SaslAuthenticate (API key 36)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, data, integer, message, string


@message(36, "0-2", "2+")
@dataclass(slots=True)
class SaslAuthenticateRequest(Message):
    auth_bytes: bytes = data()


@message(36, "0-2", "2+")
@dataclass(slots=True)
class SaslAuthenticateResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = data()
    session_lifetime_ms: int = integer(FieldType.INT64, "1+")
