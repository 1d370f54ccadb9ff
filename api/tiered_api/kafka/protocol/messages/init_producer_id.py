"""InitProducerId (API key 22)."""

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


@message(22, "0-6", "2+")
@dataclass(slots=True)
class InitProducerIdRequest(Message):
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = integer(FieldType.INT32)
    producer_id: int = integer(FieldType.INT64, "3+", default=-1)
    producer_epoch: int = integer(FieldType.INT16, "3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")
    request_hash: bytes = data("2+", tag=FIRST_PRIVATE_TAG, tagged="2+")
    """Ours: the id stands for an idempotency key, of a request with this hash."""


@message(22, "0-6", "2+")
@dataclass(slots=True)
class InitProducerIdResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    producer_id: int = integer(FieldType.INT64, default=-1)
    producer_epoch: int = integer(FieldType.INT16)
    ongoing_txn_producer_id: int = integer(FieldType.INT64, "6+", default=-1)
    ongoing_txn_producer_epoch: int = integer(FieldType.INT16, "6+", default=-1)
    reply: bytes = data("2+", tag=FIRST_PRIVATE_TAG, tagged="2+")
    """Ours: the reply that was committed with the transaction of an idempotency key."""
