"""EndTxn in each state, by version, and the way through markers to the completion."""

from __future__ import annotations

import pytest

from tests.unit.transactions.rig import P0, P1, ShardRig, make_shard_in
from tiered.errors import Code
from tiered.transactions.metadata import EPOCH_EXHAUSTED, TransactionState
from tiered.transactions.records import read_value
from tiered.transactions.renewal import renew_producer
from tiered.transactions.requests import (
    EndTransaction,
    MarkersDue,
    MarkersWritten,
    ProducerIdReply,
    TransactionTimedOut,
)

EMPTY, ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
NONE, FENCED, INVALID, BUSY = (
    Code.NONE, Code.PRODUCER_FENCED, Code.INVALID_TXN_STATE, Code.CONCURRENT_TRANSACTIONS,
)  # fmt: skip


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [0, 2])
def test_markers_are_due_once_the_outcome_is_decided(commit: bool, version: int) -> None:
    rig = ShardRig()
    producer = rig.init()
    rig.add(producer, P0, P1, version=version)
    reply = rig.end(producer, commit, version=version)
    epoch = 1 if version == 2 else 0
    assert reply == (ProducerIdReply(Code.NONE, 100, 1) if version == 2 else ProducerIdReply(Code.NONE))
    (due,) = rig.take_events()
    assert due == MarkersDue("t", 100, epoch, commit, frozenset((P0, P1)), version)
    rig.write_markers(due, P0)
    assert rig.found().state is (PREPARE_COMMIT if commit else PREPARE_ABORT), "one partition has no marker"
    rig.write_markers(due, P1)
    found = rig.found()
    assert found.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)
    assert (found.producer_epoch, found.partitions) == (epoch, frozenset())


@pytest.mark.parametrize(
    ("state", "on_commit", "on_abort"),
    [
        (EMPTY, INVALID, INVALID),
        (ONGOING, NONE, NONE),
        (PREPARE_COMMIT, BUSY, BUSY),
        (PREPARE_ABORT, BUSY, BUSY),
        (COMPLETE_COMMIT, NONE, INVALID),
        (COMPLETE_ABORT, INVALID, NONE),
    ],
)
def test_end_of_version_0_gets_the_code_of_each_state(state: TransactionState, on_commit: Code, on_abort: Code) -> None:
    for commit, code in ((True, on_commit), (False, on_abort)):
        rig, producer = make_shard_in(state, version=0)
        assert rig.end(producer, commit, version=0).code is code
        stale = ProducerIdReply(Code.NONE, producer.producer_id, producer.producer_epoch + 1)
        assert rig.end(stale, commit, version=0).code is FENCED


@pytest.mark.parametrize(
    ("state", "commit_again", "abort_again", "commit_next", "abort_next"),
    [
        (EMPTY, FENCED, FENCED, INVALID, NONE),
        (PREPARE_COMMIT, BUSY, BUSY, BUSY, BUSY),
        (PREPARE_ABORT, BUSY, BUSY, BUSY, BUSY),
        (COMPLETE_COMMIT, NONE, INVALID, INVALID, NONE),
        (COMPLETE_ABORT, INVALID, NONE, INVALID, NONE),
    ],
)
def test_end_of_version_2_gets_the_code_of_each_state(
    state: TransactionState, commit_again: Code, abort_again: Code, commit_next: Code, abort_next: Code
) -> None:
    """`again` carries the epoch before the end, `next` the present one: the table of KIP-890. Kafka fences `next` while
    markers are written; a client that aborts its next transaction in that time would end for nothing."""
    for commit, step, code in (
        (True, -1, commit_again), (False, -1, abort_again), (True, 0, commit_next), (False, 0, abort_next),
    ):  # fmt: skip
        rig, producer = make_shard_in(state)
        epoch = rig.found().producer_epoch + step
        asked = ProducerIdReply(Code.NONE, producer.producer_id, epoch)
        reply = rig.end(asked, commit)
        assert reply.code is code, (commit, step)
        if code is NONE:
            assert (reply.producer_id, reply.producer_epoch) == (producer.producer_id, epoch + 1)
        rig.reload()
        if code is not NONE:
            assert rig.found().state is state


@pytest.mark.parametrize(("commit", "version", "epoch"), [(True, 2, 0), (False, 2, -1), (True, 0, -1)])
def test_committed_epoch_is_known_until_the_next_transaction(commit: bool, version: int, epoch: int) -> None:
    rig = ShardRig()
    producer = rig.init()
    rig.add(producer, P0, version=version)
    producer = rig.end(producer, commit, version=version) if version == 2 else producer
    if version < 2:
        rig.end(producer, commit, version=version)
    assert rig.found().committed_epoch == -1, "a marker is missing"
    rig.write_markers(rig.take_events()[0], P0)
    rig.reload()
    assert rig.found().committed_epoch == epoch
    assert renew_producer(rig.found(), 0, -1).committed_epoch == -1, "the last epoch names no transaction"
    rig.add(producer, P0, version=version)
    assert rig.found().committed_epoch == -1


def test_abort_without_any_partition_moves_the_epoch_at_once() -> None:
    rig = ShardRig()
    producer = rig.init()
    assert rig.end(producer, False) == ProducerIdReply(Code.NONE, 100, 1)
    assert rig.take_events() == [] and rig.found().state is COMPLETE_ABORT
    states = [read_value(each.value).state for each in rig.log if each.value is not None]
    assert states == [EMPTY, PREPARE_ABORT, COMPLETE_ABORT]


def test_another_process_may_end_the_transaction() -> None:
    """Flink resumes a transaction by producer id and epoch; the coordinator knows no connection."""
    rig, producer = make_shard_in(ONGOING)
    rig.reload()
    assert rig.end(ProducerIdReply(Code.NONE, producer.producer_id, producer.producer_epoch), True).code is NONE


def test_end_of_an_unknown_id_or_foreign_producer_is_refused() -> None:
    rig, producer = make_shard_in(ONGOING)
    for version in (0, 2):
        assert rig.end(producer, True, name="x", version=version).code is Code.INVALID_PRODUCER_ID_MAPPING
        foreign = ProducerIdReply(Code.NONE, 55, 0)
        assert rig.end(foreign, True, version=version).code is Code.INVALID_PRODUCER_ID_MAPPING
    assert rig.send(EndTransaction("", 100, 0, True)) == ProducerIdReply(Code.INVALID_REQUEST)
    assert rig.found().state is ONGOING


def test_exhausted_epochs_move_on_to_a_new_producer_id_with_the_completion() -> None:
    rig = ShardRig()
    producer = rig.init()
    while producer.producer_epoch < EPOCH_EXHAUSTED:
        producer = rig.end(producer, False)
    assert producer.producer_id == 100
    rig.add(producer, P0)
    refused = rig.send(EndTransaction("t", 100, EPOCH_EXHAUSTED, True, 2))
    assert refused == ProducerIdReply(Code.COORDINATOR_LOAD_IN_PROGRESS), "no new id was at hand"
    reply = rig.end(producer, True)
    assert reply == ProducerIdReply(Code.NONE, 101, 0)
    (due,) = rig.take_events()
    assert isinstance(due, MarkersDue) and (due.producer_id, due.producer_epoch) == (100, EPOCH_EXHAUSTED + 1)
    assert rig.end(producer, True).code is BUSY
    rig.reload()
    rig.write_all_markers()
    assert (rig.found().producer_id, rig.found().producer_epoch) == (101, 0)
    assert rig.end(producer, True) == reply, "its reply was lost"
    assert rig.end(producer, False).code is INVALID


def test_loaded_shard_asks_for_markers_of_decided_transactions_again() -> None:
    rig, _ = make_shard_in(PREPARE_COMMIT)
    (due,) = rig.take_events()
    rig.write_markers(due)
    assert rig.found().state is COMPLETE_COMMIT
    del rig.log[-1]
    rig.reload()
    assert rig.take_events() == [due], "the completion was not durable"


def test_markers_of_an_earlier_transaction_complete_nothing() -> None:
    rig, producer = make_shard_in(PREPARE_COMMIT)
    (due,) = rig.take_events()
    assert isinstance(due, MarkersDue)
    rig.send(MarkersWritten("t", due.producer_id, due.producer_epoch - 1, due.partitions))
    rig.send(MarkersWritten("unknown", due.producer_id, due.producer_epoch, due.partitions))
    assert rig.found().state is PREPARE_COMMIT
    rig.write_markers(due)
    rig.write_markers(due)
    assert rig.found().state is COMPLETE_COMMIT and rig.found().producer_epoch == producer.producer_epoch + 1


def test_timeout_aborts_the_open_transaction_and_fences_its_producer() -> None:
    rig = ShardRig()
    producer = rig.init(timeout_ms=1_000)
    rig.add(producer, P0)
    rig.pass_time(600)
    rig.add(producer, P1)
    assert rig.shard.next_due_ms == 1_000 + 1_000, "later partitions do not prolong it"
    rig.pass_time(399)
    assert rig.take_events() == []
    rig.pass_time(1)
    timed_out, due = rig.take_events()
    assert timed_out == TransactionTimedOut("t", 100, 1_000)
    assert due == MarkersDue("t", 100, 1, False, frozenset((P0, P1)), 2)
    assert rig.end(producer, True).code is BUSY
    rig.write_markers(due)
    assert rig.end(producer, True).code is INVALID
    assert rig.add(producer, P0) is Code.PRODUCER_FENCED


def test_timeout_goes_on_where_it_was_after_a_load() -> None:
    rig = ShardRig()
    rig.add(rig.init(timeout_ms=1_000), P0)
    rig.pass_time(700)
    rig.reload()
    assert rig.shard.next_due_ms == rig.mono_ms + 300
    rig.wall_ms -= 5_000
    rig.reload()
    assert rig.shard.next_due_ms == rig.mono_ms + 1_000, "a clock that was set back adds nothing"


def test_end_that_races_a_timeout_finds_one_outcome() -> None:
    rig = ShardRig()
    producer = rig.init(timeout_ms=1_000)
    rig.add(producer, P0)
    assert rig.end(producer, True).code is NONE
    rig.pass_time(5_000)
    assert rig.found().state is PREPARE_COMMIT


def test_abort_without_partitions_completes_after_a_load_of_its_decision() -> None:
    rig = ShardRig()
    producer = rig.init()
    following = rig.end(producer, False)
    assert rig.found().state is TransactionState.COMPLETE_ABORT
    del rig.log[-1]
    rig.reload()
    assert rig.found().state is TransactionState.COMPLETE_ABORT
    assert rig.add(following, P0) is Code.NONE
