"""Tests of new producer ids after a loss of the log, in each state of a transaction."""

from __future__ import annotations

import pytest

from tests.unit.transactions.rig import P0, make_shard_in
from tiered.errors import Code
from tiered.transactions.metadata import EPOCH_MAX, TransactionState
from tiered.transactions.records import transaction_record
from tiered.transactions.renewal import renew_producer
from tiered.transactions.requests import MarkersDue, ProducerIdReply


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("version", [0, 2])
def test_next_init_gives_a_new_producer_id_in_every_state(state: TransactionState, version: int) -> None:
    rig, before = make_shard_in(state, version)
    value = rig.found()
    rig.log.append(transaction_record("t", renew_producer(value, rig.wall_ms, 500 if state.is_prepared else -1)))
    rig.take_events()
    rig.reload()
    assert rig.found().state is state and rig.found().partitions == value.partitions, "the decision stands"
    assert rig.add(before, P0) in (Code.PRODUCER_FENCED, Code.CONCURRENT_TRANSACTIONS), "the producer of before"
    if state is TransactionState.ONGOING:
        rig.pass_time(60_000)
        due = rig.events[-1]
        assert isinstance(due, MarkersDue) and not due.commit
        assert due.producer_epoch == EPOCH_MAX, "no partition has seen a later one"
    rig.write_all_markers()
    reply = rig.init()
    assert isinstance(reply, ProducerIdReply) and reply.code is Code.NONE
    assert reply.producer_id not in (value.producer_id, before.producer_id)
    assert rig.add(reply, P0) is Code.NONE
