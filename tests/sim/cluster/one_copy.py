"""One machine's log of a partition, in the reference model of `model_of_copies.py`."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.sim.cluster.expiry import LogBatch


@dataclass
class CopyModel:
    """Copy of one partition on one machine. `agreed_end`: the copy equals the committed records up to here.
    `is_provable`: the next start can prove that nothing is missing. Otherwise `damaged_life` is the life of the machine
    that suffered the damage (-1: none did)."""

    start: int = 0
    end: int = 0
    batches: list[LogBatch] = field(default_factory=list)
    agreed_end: int = 0
    shown_end: int = 0
    """The end that others may have seen of the life that the last damage ended: its `agreed_end`, if that life had
    opened the log."""
    is_provable: bool = True
    damaged_life: int = -1
    unproved_life: int = -1
    """Life of the machine whose end took the proof. Later damage before a start can prove the log leaves it."""
    is_unopened: bool = False
    """Damage left a log that a start cannot prove, and no start has opened it since, though it may lead: a full disk
    keeps it closed."""
    may_be_deleted: bool = False
    """A power cut tore the file that names the topic, and no start has opened the log since. The next start deletes the
    log, and cannot make it anew while the disk is full."""
    stopped_cleanly: bool = False
    """Nothing was written since a clean stop. Even a power cut then leaves the log proved, unless a start had begun and
    made the mark of the stop invalid: it is `unsure`."""
    is_proof_unknown: bool = False
    suspect: bool = False
    """Damage left a log that a start cannot prove, and its broker does not trust its directory again yet."""
    suspect_after: int = -1
    """The process that ended in that state: every later start suspects the log again. -1: none."""
    open_count: int = 0
    """Number of starts that have opened the log."""
    is_removed: bool = False
    """The broker is no replica any more, or was none since the log was opened last: the log may be deleted."""
    began_behind_cold: bool = False
    """The log began at the cold end and was not opened or cut since: its broker has the producer state of the
    bucket."""
    kept_synced: bool = False
    """The last damage took no fsynced bytes, and only fsynced bytes count here: the copy has all that it reported."""
    lossy_life: int = -1
    """Life of the machine whose end last took bytes that the copy may have reported."""

    def index_at(self, offset: int) -> int:
        """Returns the index of the first batch at or above an offset."""
        return bisect_left(self.batches, offset, key=lambda batch: batch.base)

    def replace(self, start: int, batches: Iterable[LogBatch]) -> None:
        """Sets the content of the copy."""
        self.batches = list(batches)
        self.start = self.batches[0].base if self.batches else start
        self.end = self.batches[-1].last + 1 if self.batches else start
        self.agreed_end = self.start
