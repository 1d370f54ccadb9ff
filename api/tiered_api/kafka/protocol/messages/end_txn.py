"""EndTxn (API key 26)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    boolean,
    data,
    integer,
    message,
    string,
)


@message(26, "0-5", "3+")
@dataclass(slots=True)
class EndTxnRequest(Message):
    transactional_id: str = string()
    producer_id: int = integer(FieldType.INT64)
    producer_epoch: int = integer(FieldType.INT16)
    committed: bool = boolean()
    reply: bytes = data("3+", tag=FIRST_PRIVATE_TAG, tagged="3+")
    """Ours: what the request of an idempotency key gets again."""


@message(26, "0-5", "3+")
@dataclass(slots=True)
class EndTxnResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    producer_id: int = integer(FieldType.INT64, "5+", default=-1)
    producer_epoch: int = integer(FieldType.INT16, "5+", default=-1)
