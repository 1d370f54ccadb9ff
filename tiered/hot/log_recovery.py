"""The facts about the directory of a log that a start knows before it reads it.

Pure. Keeps R1 and I5: from these facts follows how much of the directory is trusted, and which offsets count as
fsynced. How the bytes are then judged is in recovery.py.
"""

from __future__ import annotations

from tiered.hot.clean_shutdown import CleanLogEntry
from tiered.hot.recovery import WHOLE_LOG
from tiered.value import value


@value
class LogRecovery:
    """The facts about one log that the data directory has proved."""

    same_boot: bool
    """The process ended in this boot: the page cache has all that it wrote."""
    clean: bool
    """The process stopped cleanly: all that it wrote is fsynced."""
    recovery_point: int = 0
    """Everything below is fsynced."""
    start_offset: int = 0
    """The log start offset. The log does not end below it."""
    is_new: bool = False
    """The directory is known not to exist."""
    truncation_interrupted: bool = False
    """A truncation failed half way in this directory."""
    clean_entry: CleanLogEntry | None = None
    """The entry that a clean shutdown wrote for this log."""

    @property
    def is_whole(self) -> bool:
        """True if only the last write can be torn. If it is not, everything above `recovery_point` is fsynced before it
        is served, so that a second power cut cannot take it."""
        return self.same_boot or self.clean

    @property
    def trusted_to(self) -> int:
        """The offset below which no batch has to be checked."""
        return WHOLE_LOG if self.is_whole else self.recovery_point

    def find_flushed(self, end: int) -> int:
        """Returns the offset below which a log that ends at `end` survives a power cut. For a log that is whole without
        a clean stop, the fsync point does not move."""
        return end if self.clean else min(self.recovery_point, end)

    def may_end_below_recovery_point(self, end: int) -> bool:
        """True if a log that ends at `end` may end below its saved recovery point. The recovery point has to be saved
        again before the log grows past it."""
        return self.truncation_interrupted or end < self.recovery_point

    @property
    def checkpointed_recovery_point(self) -> int:
        """The recovery point in the data directory is not above this. After an interrupted truncation nothing is known
        of it: this process may have written another one."""
        return WHOLE_LOG if self.truncation_interrupted else self.recovery_point
