"""The epoch and slot of a candidate: the controller is the broker that wrote the highest epoch into the log (M2, I25).

Pure: no clock and no lease (M4). A candidate writes an epoch above every epoch that it has read into the next slot.
Taking the slot is the only vote. Put-if-absent lets exactly one candidate have it, and every older controller then
loses its next slot.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from tiered.value import value


class SlotOutcome(Enum):
    """Meaning of a slot that another writer has taken."""

    NEXT_SLOT = "an older controller still writes: apply its entry and try the next slot"
    SUPERSEDED = "the slot has an equal or higher epoch: another broker is controller"


@value
class Candidate:
    """A broker that tries to become controller: it writes `epoch` into `slot`."""

    epoch: int
    slot: int

    def on_slot_lost(self, epoch: int) -> tuple[SlotOutcome, Candidate]:
        """Returns the next step after `slot` turned out to hold an entry of `epoch`."""
        if epoch >= self.epoch:
            return SlotOutcome.SUPERSEDED, self
        return SlotOutcome.NEXT_SLOT, replace(self, slot=self.slot + 1)


def new_candidate(highest_epoch: int, next_slot: int) -> Candidate:
    """Returns the candidate that has read all slots below `next_slot`."""
    return Candidate(highest_epoch + 1, next_slot)
