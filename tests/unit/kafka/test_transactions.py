"""Tests of what replies say of transactions: those that are open in partitions, and those that a coordinator holds."""

from __future__ import annotations

from tests.refusal import refuses
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered_api.kafka.client.transactions import read_held_partitions, read_open_transactions
from tiered_api.kafka.protocol.messages import describe_producers, describe_transactions
from tiered_api.kafka.protocol.messages.describe_producers import DescribeProducersResponse, ProducerState
from tiered_api.kafka.protocol.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


def test_partition_with_an_error_is_not_one_without_transactions() -> None:
    opened = ProducerState(producer_id=7, producer_epoch=1, last_timestamp=5, current_txn_start_offset=3)
    closed = ProducerState(producer_id=8, producer_epoch=1, last_timestamp=5, current_txn_start_offset=-1)
    partitions = [
        describe_producers.PartitionResponse(partition_index=0, active_producers=[opened, closed]),
        describe_producers.PartitionResponse(partition_index=1, error_code=Code.NOT_LEADER_OR_FOLLOWER.number),
        describe_producers.PartitionResponse(partition_index=2),
    ]
    reply = DescribeProducersResponse(topics=[describe_producers.TopicResponse("t", partitions)])
    found = {
        tp.partition: (code, [each.producer_id for each in rows]) for tp, code, rows in read_open_transactions(reply)
    }
    assert found == {0: (0, [7]), 1: (Code.NOT_LEADER_OR_FOLLOWER.number, []), 2: (0, [])}


def held(error: Code) -> describe_transactions.TransactionState:
    return TransactionState(
        error_code=error.number, transactional_id="id", producer_id=7, topics=[TopicData("t", [0, 2])]
    )


def test_coordinator_without_an_id_does_not_make_it_hang() -> None:
    found = read_held_partitions(DescribeTransactionsResponse(transaction_states=[held(Code.NONE)]))
    assert found == {(7, TopicPartition("t", 0)), (7, TopicPartition("t", 2))}
    gone = TransactionState(error_code=Code.TRANSACTIONAL_ID_NOT_FOUND.number, transactional_id="gone")
    assert read_held_partitions(DescribeTransactionsResponse(transaction_states=[gone])) == set()
    for code in (Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR):
        moved = TransactionState(error_code=code.number, transactional_id="id")
        with refuses(code):
            read_held_partitions(DescribeTransactionsResponse(transaction_states=[held(Code.NONE), moved]))
