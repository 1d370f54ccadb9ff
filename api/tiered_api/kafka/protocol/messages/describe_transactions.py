"""DescribeTransactions (API key 65)."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_api.kafka.protocol.schema import FieldType, Message, array, integer, message, string


@message(65, "0", "0+")
@dataclass(slots=True)
class DescribeTransactionsRequest(Message):
    transactional_ids: list[str] = array(FieldType.STRING)


@dataclass(slots=True)
class TopicData:
    topic: str = string()
    partitions: list[int] = array(FieldType.INT32)


@dataclass(slots=True)
class TransactionState:
    error_code: int = integer(FieldType.INT16)
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = integer(FieldType.INT32)
    transaction_start_time_ms: int = integer(FieldType.INT64)
    producer_id: int = integer(FieldType.INT64)
    producer_epoch: int = integer(FieldType.INT16)
    topics: list[TopicData] = array(TopicData)


@message(65, "0", "0+")
@dataclass(slots=True)
class DescribeTransactionsResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    transaction_states: list[TransactionState] = array(TransactionState)
