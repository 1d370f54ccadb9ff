"""Who is controller: whoever wrote the highest epoch into the metadata log (rule M2). No clock, no lease.

A candidate stands with an epoch above every one it has read, and writes it into the next slot. Taking a slot is the
only vote: put-if-absent lets exactly one candidate have it, and every older controller loses its next slot to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class SlotOutcome(Enum):
    """What a lost slot means."""

    NEXT_SLOT = "an older controller was still writing: apply its entry and stand again"
    SUPERSEDED = "an equal or higher epoch is there: another one leads"


@dataclass(frozen=True, slots=True)
class Candidacy:
    """One attempt: `epoch` is to be written into `slot`."""

    epoch: int
    slot: int

    def on_slot_lost(self, epoch: int) -> tuple[SlotOutcome, Candidacy]:
        """What follows when `slot` turned out to hold an entry of `epoch`."""
        if epoch >= self.epoch:
            return SlotOutcome.SUPERSEDED, self
        return SlotOutcome.NEXT_SLOT, replace(self, slot=self.slot + 1)


def new_candidacy(highest_epoch: int, next_slot: int) -> Candidacy:
    """A candidacy of one who has read everything below `next_slot`."""
    return Candidacy(highest_epoch + 1, next_slot)
