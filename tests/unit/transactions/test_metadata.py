"""The table of changes of state: it permits those that requests make, and no others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.unit.transactions.rig import P0, P1, ShardRig, T, make_shard_in
from tiered.errors import Code, InvariantViolation
from tiered.shard import Now
from tiered.transactions.decision import TransactionDecision
from tiered.transactions.metadata import TRANSITIONS, TransactionState
from tiered.transactions.records import read_value
from tiered.transactions.requests import ProducerIdReply

ACTS: tuple[Callable[[ShardRig, ProducerIdReply], object], ...] = (
    lambda rig, _: rig.init(),
    lambda rig, producer: rig.add(producer, P0, P1),
    lambda rig, producer: rig.end(producer, True),
    lambda rig, producer: rig.end(producer, False),
    lambda rig, _: rig.write_all_markers(),
    lambda rig, _: rig.pass_time(60_000),
)


def test_table_permits_the_changes_that_requests_make_and_no_others() -> None:
    made: set[tuple[TransactionState, TransactionState]] = set()
    for state in TransactionState:
        for act in ACTS:
            rig, _ = make_shard_in(state)
            found = rig.found()
            act(rig, ProducerIdReply(Code.NONE, found.producer_id, found.producer_epoch))
            values = [read_value(value).state for _, value, _ in rig.log if value is not None]
            made.update(pairwise(values))
    assert made == {(before, after) for before, permitted in TRANSITIONS.items() for after in permitted}


def test_change_of_state_that_the_table_lacks_is_an_invariant_violation() -> None:
    rig, _ = make_shard_in(TransactionState.PREPARE_COMMIT)
    decision = TransactionDecision(rig.shard.state, Now(0, 0, 0))
    for name, value in ((T, rig.found()._replace(state=TransactionState.COMPLETE_ABORT)), ("other", rig.found())):
        with pytest.raises(InvariantViolation):
            decision.write(name, value)
    assert decision.records == []
