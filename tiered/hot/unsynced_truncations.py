"""How far the cuts of a log are settled.

A cut is settled once it is durable, and the point up to which the log is durable was written down anew since: that may
lie above the new end. Where something is appended before, a power cut can bring back parts of what was cut off, between
or below records that prove themselves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class UnsyncedTruncations:
    """Of one open log: how many were `made`, the first how many of them are `synced`, and how many `noted`."""

    made: int = 0
    synced: int = 0
    checkpointed: int = 0

    @property
    def is_unsettled(self) -> bool:
        """Whether nothing may be appended yet."""
        return min(self.synced, self.checkpointed) < self.made

    def mark_synced(self, made: int) -> None:
        """The first `made` are durable."""
        self.synced = max(self.synced, made)

    def mark_checkpointed(self, made: int) -> None:
        """Where the log is durable was written down after the first `made`."""
        self.checkpointed = max(self.checkpointed, made)
