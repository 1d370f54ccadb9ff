"""AddPartitionsToTxn: partitions that join, and partitions that are verified."""

from __future__ import annotations

import pytest

from tests.unit.transactions.rig import P0, P1, WALL_MS, ShardRig, make_shard_in
from tiered.errors import Code
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.metadata import TransactionState
from tiered.transactions.requests import AddPartitions, CodeReply, ProducerIdReply, VerifyPartitions, VerifyReply


def test_first_partition_begins_the_transaction_and_others_join() -> None:
    rig = ShardRig()
    producer = rig.init()
    rig.pass_time(5)
    assert rig.add(producer, P0) is Code.NONE
    rig.pass_time(5)
    assert rig.add(producer, P1) is Code.NONE
    found = rig.found()
    assert (found.state, found.partitions) == (TransactionState.ONGOING, frozenset((P0, P1)))
    assert (found.started_ms, found.updated_ms) == (WALL_MS + 5, WALL_MS + 10)


def test_partition_that_belongs_already_writes_nothing() -> None:
    rig, producer = make_shard_in(TransactionState.ONGOING)
    before = len(rig.log)
    assert rig.add(producer, P0) is Code.NONE and len(rig.log) == before


def test_next_transaction_begins_without_partitions_of_the_last() -> None:
    rig, _ = make_shard_in(TransactionState.COMPLETE_COMMIT)
    assert rig.add(rig.init(), P1) is Code.NONE
    assert rig.found().partitions == {P1}


def test_only_the_present_producer_adds_partitions() -> None:
    rig, producer = make_shard_in(TransactionState.ONGOING)
    assert rig.add(ProducerIdReply(Code.NONE, 55, 0), P1) is Code.INVALID_PRODUCER_ID_MAPPING
    assert rig.add(ProducerIdReply(Code.NONE, producer.producer_id, 9), P1) is Code.PRODUCER_FENCED
    assert rig.add(producer, P1, name="unknown") is Code.INVALID_PRODUCER_ID_MAPPING
    assert rig.send(AddPartitions("", 100, 0, frozenset((P0,)))) == CodeReply(Code.INVALID_REQUEST)
    assert rig.found().partitions == {P0}


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_partition_waits_for_a_decided_transaction(state: TransactionState) -> None:
    rig, producer = make_shard_in(state, version=0)
    assert rig.add(producer, P1, version=0) is Code.CONCURRENT_TRANSACTIONS
    rig.write_all_markers()
    assert rig.add(producer, P1, version=0) is Code.NONE


def test_transaction_has_a_bounded_number_of_partitions() -> None:
    rig = ShardRig(TransactionSettings(partitions_max=1))
    producer = rig.init()
    assert [rig.add(producer, each) for each in (P0, P1, P0)] == [Code.NONE, Code.POLICY_VIOLATION, Code.NONE]


@pytest.mark.parametrize(
    ("state", "codes"),
    [
        (TransactionState.EMPTY, (Code.TRANSACTION_ABORTABLE, Code.TRANSACTION_ABORTABLE)),
        (TransactionState.ONGOING, (Code.NONE, Code.TRANSACTION_ABORTABLE)),
        (TransactionState.PREPARE_COMMIT, (Code.CONCURRENT_TRANSACTIONS, Code.CONCURRENT_TRANSACTIONS)),
        (TransactionState.COMPLETE_ABORT, (Code.TRANSACTION_ABORTABLE, Code.TRANSACTION_ABORTABLE)),
    ],
)
def test_partition_is_verified_only_in_its_open_transaction(state: TransactionState, codes: tuple[Code, Code]) -> None:
    rig, producer = make_shard_in(state, version=0)
    before = len(rig.log)
    request = VerifyPartitions("t", producer.producer_id, producer.producer_epoch, frozenset((P0, P1)))
    assert rig.send(request) == VerifyReply(((P0, codes[0]), (P1, codes[1])))
    assert len(rig.log) == before


def test_verification_of_a_fenced_producer_fails() -> None:
    rig, producer = make_shard_in(TransactionState.ONGOING)
    for request, code in (
        (VerifyPartitions("t", producer.producer_id, 9, frozenset((P0,))), Code.PRODUCER_FENCED),
        (VerifyPartitions("t", 55, 0, frozenset((P0,))), Code.INVALID_PRODUCER_ID_MAPPING),
        (VerifyPartitions("", 100, 0, frozenset((P0,))), Code.INVALID_REQUEST),
    ):
        assert rig.send(request) == VerifyReply(((P0, code),))
