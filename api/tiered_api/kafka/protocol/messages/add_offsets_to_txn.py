"""AddOffsetsToTxn (API key 25)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, integer, message, string


@message(25, "0-4", "3+")
@dataclass(slots=True)
class AddOffsetsToTxnRequest(Message):
    transactional_id: str = string()
    producer_id: int = integer(FieldType.INT64)
    producer_epoch: int = integer(FieldType.INT16)
    group_id: str = string()


@message(25, "0-4", "3+")
@dataclass(slots=True)
class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
