"""I11, as a new leader must be able to keep it: it knows the last batch of each producer in the committed records.

A retry tells whether a leader forgot a producer only if one comes. This checker looks at each leader when it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.sim.cluster.compacted_logs import CompactedLog
from tests.sim.cluster.expiry import LogBatch
from tests.sim.cluster.model_of_copies import ModelOfCopies
from tiered.ids import PartitionId
from tiered.producers.states import ProducerStates
from tiered.records.model import CONTROL, WalkedBatch


class Writer(NamedTuple):
    """The producer of a batch."""

    producer_id: int
    epoch: int


class KnownProducers:
    """The producers of all batches of all partitions."""

    def __init__(self) -> None:
        self.judged = 0
        """Producers that new leaders had to know."""
        self._writers: dict[tuple[PartitionId, int, int], Writer] = {}
        """By partition, base offset and leader epoch."""

    def note(self, partition_id: PartitionId, batch: LogBatch, walked: WalkedBatch) -> None:
        """Notes who wrote a batch."""
        if walked.producer_id >= 0 and not walked.attributes & CONTROL:
            writer = Writer(walked.producer_id, walked.producer_epoch)
            self._writers[partition_id, batch.base, batch.epoch] = writer

    def find_forgotten(
        self,
        partition_id: PartitionId,
        node: int,
        copies: ModelOfCopies,
        states: ProducerStates,
        compacted: CompactedLog | None,
    ) -> Iterator[str]:
        """Reports producers that the new leader `node` does not know. Its copy has the batches, or the bucket has them.

        Nothing is said about records below the log start, and at or above a loss.
        """
        if copies.parted >= 0:
            return
        end = min([copies.copy(node).agreed_end, *(each.from_offset for each in copies.losses)])
        last: dict[int, tuple[Writer, LogBatch]] = {}
        for base, batch in sorted(copies.committed.items()):
            writer = self._writers.get((partition_id, base, batch.epoch))
            if writer is not None and copies.log_start <= base and batch.last < end:
                last[writer.producer_id] = writer, batch
        for writer, batch in last.values():
            if compacted is not None and compacted.is_removed(batch):
                continue
            self.judged += 1
            known = states.get(writer.producer_id)
            at = known.batches[-1].last_offset if known is not None and known.batches else -1
            if known is None or (known.epoch, at) < (writer.epoch, batch.last):
                what = f"knows it up to {at} in epoch {known.epoch}" if known is not None else "does not know it"
                wrote = f"producer {writer.producer_id} wrote up to {batch.last}"
                yield f"{copies.name}: {wrote}, the leader b{node} {what}"
