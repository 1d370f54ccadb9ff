"""Tests of the check of producers that a new leader knows: silent while the state is right, and each lack reported."""

from __future__ import annotations

from tests.sim.cluster.expiry import LogBatch
from tests.sim.cluster.known_producers import KnownProducers
from tests.sim.cluster.model_of_copies import ModelLoss, ModelOfCopies
from tests.unit.hot.fixtures import batch
from tiered.ids import PartitionId, TopicId
from tiered.producers.states import ProducerStates
from tiered.records.native import walk

PARTITION = PartitionId(TopicId("A" * 22), 0)
LEADER = 2


class ThreeBatches:
    """Two batches of producer 7 and one of producer 8, all committed and on the leader's disk."""

    def __init__(self) -> None:
        self.checker = KnownProducers()
        self.copies = ModelOfCopies("t-0", lambda rule, what: None, lambda: 0)
        self.states = ProducerStates()
        for base, producer in enumerate((7, 8, 7)):
            data = batch(base, producer=producer, sequence=base // 2)
            data[:8] = base.to_bytes(8, "big")
            (walked,) = walk(data).batches
            made = LogBatch(base, base, 0, base)
            self.checker.note(PARTITION, made, walked)
            self.copies.on_append(LEADER, made)
            self.copies.committed[base] = made
            self.copies.committed_end = base + 1
            if producer == 7 and base == 0:
                self.states.apply(walked)
        self.copies.copy(LEADER).agreed_end = 3

    def find(self) -> list[str]:
        found = self.checker.find_forgotten(PARTITION, LEADER, self.copies, self.states, None)
        return [each.partition(": ")[2] for each in found]


def test_leader_that_forgot_a_producer_or_its_last_batch_is_reported() -> None:
    assert ThreeBatches().find() == [
        f"producer 7 wrote up to 2, the leader b{LEADER} knows it up to 0 in epoch 0",
        f"producer 8 wrote up to 1, the leader b{LEADER} does not know it",
    ]


def test_nothing_is_said_below_the_log_start_and_above_a_loss() -> None:
    batches = ThreeBatches()
    batches.copies.log_start = 2
    batches.copies.losses.append(ModelLoss(0, 2))
    assert not batches.find() and not batches.checker.judged
