"""ListTransactions (API key 66)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import (
    FIRST_PRIVATE_TAG,
    FieldType,
    Message,
    array,
    boolean,
    data,
    integer,
    message,
    string,
)


@message(66, "0-2", "0+")
@dataclass(slots=True)
class ListTransactionsRequest(Message):
    state_filters: list[str] = array(FieldType.STRING)
    producer_id_filters: list[int] = array(FieldType.INT64)
    duration_filter: int = integer(FieldType.INT64, "1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)
    credential: bytes = data(tag=FIRST_PRIVATE_TAG, tagged="0+")
    """Ours: the credential of brokers, empty in requests of clients."""


@dataclass(slots=True)
class TransactionState:
    transactional_id: str = string()
    producer_id: int = integer(FieldType.INT64)
    transaction_state: str = string()


@message(66, "0-2", "0+")
@dataclass(slots=True)
class ListTransactionsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16)
    unknown_state_filters: list[str] = array(FieldType.STRING)
    transaction_states: list[TransactionState] = array(TransactionState)
    is_complete: bool = boolean(tag=FIRST_PRIVATE_TAG, tagged="0+")
    """Ours, in replies to brokers: no id that passes the filters is left out, whatever the rights of the caller."""
    committed_epochs: list[int] = array(FieldType.INT16, tag=FIRST_PRIVATE_TAG + 1, tagged="0+")
    """Ours, in replies to brokers: for each of the ids the epoch of its last transaction if that is committed, or -1.
    Earlier versions leave it out."""
