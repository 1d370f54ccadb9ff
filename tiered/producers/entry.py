"""The entry of one producer: its last batches, and its transaction, if one is open.

Pure. Keeps the window of I11. The last five batches are retained, because a client sends up to five requests before it
waits for a reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.records.model import WalkedBatch

BATCHES_RETAINED = 5
UNSEEN = -1
"""The producer is known from a snapshot or the log: it has not written since this process started."""
SEQUENCE_MAX = 2**31 - 1


class BatchMetadata(NamedTuple):
    """One batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class ProducerStateEntry:
    """The last batches and the transaction of one producer id in this partition."""

    producer_id: int
    epoch: int
    batches: list[BatchMetadata] = field(default_factory=list)
    timestamp: int = -1
    """Timestamp of the last record."""
    coordinator_epoch: int = -1
    txn_first_offset: int = -1
    last_seen_ms: int = field(default=UNSEEN, compare=False)
    """When the producer last wrote, by the monotonic clock."""
    txn_began_ms: int = field(default=UNSEEN, compare=False)
    """When the open transaction began here, by the monotonic clock."""
    marker_end: int = field(default=-1, compare=False)
    """End offset of the last marker. -1 if no marker is known, or if only a snapshot knows of it."""
    holder: str = field(default="", compare=False)
    """The holder that the producer counts for; "" if it is not known."""

    @property
    def is_fence(self) -> bool:
        """True if the entry proves no retry and has no transaction: it fences earlier epochs and coordinators only."""
        return not self.batches and self.txn_first_offset < 0

    @property
    def next_sequence(self) -> int:
        """The sequence number that follows the last batch."""
        return (self.batches[-1].last_sequence + 1) & SEQUENCE_MAX if self.batches else 0

    def find_batch(
        self, first_sequence: int, last_sequence: int, *, transactional: bool = False
    ) -> BatchMetadata | None:
        """Returns the batch with these sequences, which a retry repeats.

        A transactional batch repeats only a batch of the open transaction. librdkafka gives the sequence of an aborted
        batch, whose reply it never got, to a batch of its next transaction. Taken for a retry, that one would be lost.
        """
        if transactional and self.txn_first_offset < 0:
            return None
        for written in self.batches:
            if written.first_sequence == first_sequence and written.last_sequence == last_sequence:
                return None if transactional and written.base_offset < self.txn_first_offset else written
        return None

    def restore_older(self, older: list[BatchMetadata]) -> None:
        """Puts batches before the known ones, as far as there is room. `older` has the oldest first."""
        room = BATCHES_RETAINED - len(self.batches)
        self.batches[:0] = older[-room:] if room else []


def find_last_sequence(batch: WalkedBatch) -> int:
    """Returns the sequence of the last record, -1 for a batch of a coordinator, which has none."""
    if batch.base_sequence < 0:
        return -1
    return (batch.base_sequence + batch.last_offset - batch.base_offset) & SEQUENCE_MAX
