"""SaslHandshake (API key 17)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@message(17, "0-1")
@dataclass(slots=True)
class SaslHandshakeRequest(Message):
    mechanism: str = string()


@message(17, "0-1")
@dataclass(slots=True)
class SaslHandshakeResponse(Message):
    error_code: int = integer(FieldType.INT16)
    mechanisms: list[str] = array(FieldType.STRING)
