"""InitProducerId: ids, epochs and fences."""

from __future__ import annotations

import pytest

from tests.unit.transactions.rig import P0, ShardRig, make_shard_in
from tiered.errors import Code
from tiered.ids import TopicPartition
from tiered.transactions.decision import ID_BYTES
from tiered.transactions.limits import TransactionSettings
from tiered.transactions.metadata import EPOCH_EXHAUSTED, EPOCH_MAX, TransactionState
from tiered.transactions.requests import InitProducerId, MarkersDue, ProducerIdReply


def test_new_id_gets_fresh_producer_id_and_epoch_0() -> None:
    rig = ShardRig()
    assert rig.init() == ProducerIdReply(Code.NONE, 100, 0)
    assert rig.init(name="u") == ProducerIdReply(Code.NONE, 101, 0)


def test_each_init_moves_the_epoch_and_keeps_the_producer_id() -> None:
    rig = ShardRig()
    assert [rig.init().producer_epoch for _ in range(3)] == [0, 1, 2]
    assert rig.next_producer_id == 101


def test_producer_that_goes_on_gets_next_epoch_and_its_retry_the_same() -> None:
    rig = ShardRig()
    first = rig.init()
    second = rig.init(first.producer_id, first.producer_epoch)
    assert second == ProducerIdReply(Code.NONE, 100, 1)
    assert rig.init(first.producer_id, first.producer_epoch) == second, "its reply was lost"
    rig.reload()
    assert rig.init(first.producer_id, first.producer_epoch).code is Code.PRODUCER_FENCED, "the log has no last epoch"


def test_producer_that_goes_on_after_another_one_began_is_fenced() -> None:
    rig = ShardRig()
    first = rig.init()
    rig.init()
    assert rig.init(first.producer_id, first.producer_epoch).code is Code.PRODUCER_FENCED
    assert rig.init(99, 0).code is Code.PRODUCER_FENCED, "the id of another one"


def test_init_during_a_transaction_aborts_it_and_asks_to_try_again() -> None:
    rig, producer = make_shard_in(TransactionState.ONGOING)
    assert rig.init().code is Code.CONCURRENT_TRANSACTIONS
    (due,) = rig.take_events()
    assert due == MarkersDue("t", producer.producer_id, 1, False, frozenset((P0,)), 2)
    assert rig.init().code is Code.CONCURRENT_TRANSACTIONS, "the markers are not written"
    rig.write_markers(due)
    assert rig.init() == ProducerIdReply(Code.NONE, producer.producer_id, 2)
    assert rig.add(producer, P0) is Code.PRODUCER_FENCED


def test_fenced_producer_cannot_abort_the_transaction_of_its_successor() -> None:
    rig = ShardRig()
    old, new = rig.init(), rig.init()
    rig.add(new, P0)
    assert rig.init(old.producer_id, old.producer_epoch).code is Code.PRODUCER_FENCED
    assert rig.found().state is TransactionState.ONGOING


@pytest.mark.parametrize("state", [TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT])
def test_init_waits_for_a_decided_transaction(state: TransactionState) -> None:
    rig, _ = make_shard_in(state)
    assert rig.init().code is Code.CONCURRENT_TRANSACTIONS
    rig.write_all_markers()
    assert rig.init().code is Code.NONE


def test_exhausted_epochs_give_a_new_producer_id() -> None:
    rig = ShardRig()
    last = rig.init()
    while last.producer_epoch < EPOCH_EXHAUSTED:
        last = rig.init()
    assert last.producer_id == 100
    expected = rig.init(last.producer_id, last.producer_epoch)
    assert expected == ProducerIdReply(Code.NONE, 101, 0)
    assert rig.init(last.producer_id, last.producer_epoch) == expected, "its reply was lost"


def test_fence_takes_the_epoch_above_the_last_that_a_producer_has() -> None:
    rig = ShardRig()
    last = rig.init()
    while last.producer_epoch < EPOCH_EXHAUSTED:
        last = rig.init()
    rig.add(last, P0)
    rig.init()
    assert rig.found().producer_epoch == EPOCH_MAX
    rig.write_all_markers()
    fenced = ProducerIdReply(Code.NONE, 100, EPOCH_MAX)
    assert rig.add(fenced, P0) is Code.PRODUCER_FENCED, "no marker could end a transaction of the last epoch"
    assert rig.init() == ProducerIdReply(Code.NONE, 101, 0)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (InitProducerId("", 1_000), Code.INVALID_REQUEST),
        (InitProducerId("t", 0), Code.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerId("t", 900_001), Code.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerId("t", 1_000, 5), Code.INVALID_REQUEST),
        (InitProducerId("t", 1_000, -1, 5), Code.INVALID_REQUEST),
        (InitProducerId("t", 1_000), Code.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_bad_init_changes_nothing(request_: InitProducerId, code: Code) -> None:
    rig = ShardRig()
    assert rig.send(request_) == ProducerIdReply(code)
    assert rig.log == [] and not rig.shard.state.transactions


def test_shard_holds_a_bounded_number_of_ids() -> None:
    rig = ShardRig(TransactionSettings(ids_max=2))
    codes = [rig.init(name=name).code for name in ("a", "b", "c", "a")]
    assert codes == [Code.NONE, Code.NONE, Code.POLICY_VIOLATION, Code.NONE]


def test_shards_of_a_broker_hold_a_bounded_number_of_bytes() -> None:
    rig = ShardRig(TransactionSettings(bytes_max=4 * ID_BYTES))
    rig.shard.state.other_shards_bytes = lambda: ID_BYTES
    codes = [rig.init(name=name).code for name in ("a", "b", "c", "d")]
    assert codes == [Code.NONE, Code.NONE, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_NOT_AVAILABLE]
    rig.shard.state.other_shards_bytes = lambda: 0
    producer = rig.init(name="a")
    partitions = [TopicPartition("t", number) for number in range(20)]
    assert rig.add(producer, *partitions, name="a") is Code.COORDINATOR_NOT_AVAILABLE
    assert rig.add(producer, partitions[0], name="a") is Code.NONE
