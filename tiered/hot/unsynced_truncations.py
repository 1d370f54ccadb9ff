"""The truncations of a log that a power cut could still undo, and the one that comes next.

A truncation is settled once two things have happened. It is durable, and the recovery point, which may lie above the
new end, was written again since. After an append before that, a power cut can bring back parts of the truncated
records, between or below valid batches.

The recovery point is lowered before a truncation too. A file system may write the zeros of a truncated block before the
new size of the file. Below the recovery point, a start after a power cut would take them for rot.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered.hot.recovery import WHOLE_LOG

NO_PLAN = 2**63 - 1


@dataclass(slots=True)
class UnsyncedTruncations:
    """Counts for one open log: `made` truncations, of which the first `synced` are durable.

    The recovery point was written after the first `checkpointed`. The next truncation goes no further down than
    `planned_end`.
    """

    made: int = 0
    synced: int = 0
    checkpointed: int = 0
    planned_end: int = NO_PLAN
    checkpointed_point: int = WHOLE_LOG
    """The recovery point in the data directory is not above this."""

    @property
    def is_unsettled(self) -> bool:
        """True if nothing may be appended yet."""
        return min(self.synced, self.checkpointed) < self.made

    def mark_synced(self, made: int) -> None:
        """Records that the first `made` truncations are durable."""
        self.synced = max(self.synced, made)

    def recovery_point(self, flushed_offset: int) -> int:
        """Returns the recovery point to write: all below is durable, and stays in the log."""
        return min(flushed_offset, self.planned_end)

    @property
    def must_lower_point(self) -> bool:
        """True if the planned truncation waits until the data directory has a lower recovery point."""
        return self.checkpointed_point > self.planned_end

    def begin_checkpoint(self, point: int) -> None:
        """Records that a recovery point is being written: a crash may leave it or the one before."""
        self.checkpointed_point = max(self.checkpointed_point, point)

    def mark_checkpointed(self, made: int, point: int) -> None:
        """Records that the recovery point `point` was written after the first `made` truncations."""
        self.checkpointed = max(self.checkpointed, made)
        self.checkpointed_point = point
