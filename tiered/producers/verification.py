"""Guards of transactions that are about to begin in one partition (KIP-890).

Pure. Keeps I14. A transaction begins in a partition only after its coordinator confirmed that the partition belongs to
it. The leader takes a guard before it queries the coordinator. A marker that is written meanwhile takes the guard back.
Without that, records could follow the marker that ends their transaction, and no later marker would end them.
"""

from __future__ import annotations

from typing import NamedTuple


class UnverifiedProducer(NamedTuple):
    """The producer of a batch that would begin a transaction, and the first sequence of the batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int = 0


class VerificationGuard:
    """Permission to begin a transaction in one partition, once the coordinator has confirmed it.

    All requests of a producer that wait for the coordinator share one guard. `lowest_sequence` is the first sequence of
    these requests: none of a later sequence may begin the transaction. `moves_epoch` is True if the producer gets a new
    epoch with each transaction, so that its sequences begin at 0.
    """

    __slots__ = ("epoch", "holders", "lowest_sequence", "moves_epoch", "producer_id")

    def __init__(self, producer_id: int, epoch: int, sequence: int, moves_epoch: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.moves_epoch = moves_epoch
        self.holders = 0


class VerificationGuards(dict[int, VerificationGuard]):
    """The valid guards of one partition, by producer id. Each holder has a request that waits, and this bounds their
    number."""

    __slots__ = ()

    def begin(self, producer: UnverifiedProducer, moves_epoch: bool) -> VerificationGuard:
        """Returns a guard of the producer; `end` has to follow in any case. The guard of an epoch that a later one has
        replaced is not valid from the start."""
        producer_id, epoch, sequence = producer
        guard = self.get(producer_id)
        if guard is None or epoch > guard.epoch:
            guard = self[producer_id] = VerificationGuard(producer_id, epoch, sequence, moves_epoch)
        elif epoch < guard.epoch:
            guard = VerificationGuard(producer_id, epoch, sequence, moves_epoch)
        else:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        guard.holders += 1
        return guard

    def end(self, guard: VerificationGuard) -> None:
        """Gives back a guard."""
        guard.holders -= 1
        if not guard.holders and self.get(guard.producer_id) is guard:
            del self[guard.producer_id]

    def invalidate(self, producer_id: int, up_to_epoch: int) -> None:
        """Makes the guard of a producer invalid, if it is of this epoch or an earlier one: its transaction has begun or
        ended here."""
        guard = self.get(producer_id)
        if guard is not None and guard.epoch <= up_to_epoch:
            del self[producer_id]

    def is_valid(self, guard: VerificationGuard | None, producer_id: int, epoch: int) -> bool:
        """True if a transaction of the producer may begin under this guard."""
        return guard is not None and guard.epoch == epoch and self.get(producer_id) is guard
