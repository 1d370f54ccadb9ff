"""Steps that the rules over transitions judge. With the mutant of a step its rule reports it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.sim.cluster.observer import Findings
from tests.sim.cluster.transition_rules import TransitionRules
from tests.unit.replication.test_leader_state import begin_change, fetch_with_log_start, leader_state
from tests.unit.transactions.rig import make_shard_in
from tiered.groups.holders import GroupBytes
from tiered.groups.pending_offsets import PendingOffsets
from tiered.groups.records import OffsetKey, OffsetValue
from tiered.shard import ProducerIdAndEpoch
from tiered.transactions.metadata import TransactionState
from tiered.transactions.requests import MarkersDue, MarkersWritten

KEY = OffsetKey("g", "t", 0)
FIRST, SECOND = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)


@contextmanager
def judged() -> Iterator[None]:
    """Raises `BrokenRules` if a step within the context breaks a rule."""
    findings = Findings(lambda _: None)
    with TransitionRules(findings.report).watch():
        yield
    findings.raise_if_any()


def test_i22_deletion_that_passes_over_a_proposed_member_is_reported() -> None:
    with judged():
        partition = leader_state([1, 2], [1, 2, 3])
        partition.advance(20, 1)
        fetch_with_log_start(partition, 2, 10)
        fetch_with_log_start(partition, 3, 9)
        begin_change(partition)
        partition.is_deleted_on_isr(10)


def test_i15_older_offset_that_outlives_a_commit_is_reported() -> None:
    with judged():
        pending = PendingOffsets(GroupBytes())
        for producer, offset in ((FIRST, 5), (SECOND, 7)):
            pending.add(producer, KEY, OffsetValue(offset, -1, "", 0))
        pending.end_transaction(SECOND, True)


def test_i14_completion_without_its_markers_is_reported() -> None:
    with judged():
        rig, _ = make_shard_in(TransactionState.PREPARE_COMMIT)
        (due,) = rig.take_events()
        assert isinstance(due, MarkersDue)
        rig.send(MarkersWritten("t", due.producer_id, due.producer_epoch - 1, due.partitions))
