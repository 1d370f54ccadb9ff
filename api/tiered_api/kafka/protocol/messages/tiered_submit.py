"""TieredSubmit (API key 20002, ours): a broker forwards a request to the active controller."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, data, integer, message, string


@message(20002, "0", "0+")
@dataclass(slots=True)
class TieredSubmitRequest(Message):
    cluster_id: str = string()
    credential: bytes = data()
    timeout_ms: int = integer(FieldType.INT32)
    request: bytes = data()


@message(20002, "0", "0+")
@dataclass(slots=True)
class TieredSubmitResponse(Message):
    error_code: int = integer(FieldType.INT16)
    error_message: str | None = string(nullable="0+", default=None)
    reply: bytes = data()
    slot: int = integer(FieldType.INT64, default=-1)
