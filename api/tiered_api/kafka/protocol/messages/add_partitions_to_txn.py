"""AddPartitionsToTxn (API key 24). Clients send versions 0-3; brokers send 4 and above to each other."""

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


@dataclass(slots=True)
class AddPartitionsToTxnTopic:
    name: str = string()
    partitions: list[int] = array(FieldType.INT32)


@dataclass(slots=True)
class AddPartitionsToTxnTransaction:
    transactional_id: str = string("4+")
    producer_id: int = integer(FieldType.INT64, "4+")
    producer_epoch: int = integer(FieldType.INT16, "4+")
    verify_only: bool = boolean("4+")
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


@message(24, "0-5", "3+")
@dataclass(slots=True)
class AddPartitionsToTxnRequest(Message):
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = integer(FieldType.INT64, "0-3")
    v3_and_below_producer_epoch: int = integer(FieldType.INT16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")
    credential: bytes = data("4+", tag=FIRST_PRIVATE_TAG, tagged="4+")
    """Ours: the credential of brokers."""


@dataclass(slots=True)
class AddPartitionsToTxnPartitionResult:
    partition_index: int = integer(FieldType.INT32)
    partition_error_code: int = integer(FieldType.INT16)


@dataclass(slots=True)
class AddPartitionsToTxnTopicResult:
    name: str = string()
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(AddPartitionsToTxnPartitionResult)


@dataclass(slots=True)
class AddPartitionsToTxnResult:
    transactional_id: str = string("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


@message(24, "0-5", "3+")
@dataclass(slots=True)
class AddPartitionsToTxnResponse(Message):
    throttle_time_ms: int = integer(FieldType.INT32)
    error_code: int = integer(FieldType.INT16, "4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "0-3")
