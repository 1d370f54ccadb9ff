"""The end of a log that cannot be opened, because the disk has no room for what the load writes, or fails to read.

Writes nothing, and trusts no index, snapshot or epoch file. Only valid batches in sequence count, as in a load. An
election may depend on the result (R4).
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.hot.recovery import classify_files
from tiered.ids import NO_EPOCH
from tiered.ports import Disk
from tiered.records.native import walk

BATCHES_AT_ONCE = 10_000


class ProvedEnd(NamedTuple):
    """Leader epoch of the last valid record or -1, and the end offset. `is_whole`: no other bytes follow."""

    leader_epoch: int
    end_offset: int
    is_whole: bool


def find_proved_end(disk: Disk, directory: str, recovery_point: int) -> ProvedEnd:
    """Reads from the segment before the one that holds the recovery point. Raises `Unavailable`."""
    bases = classify_files(disk.list(directory)).bases if disk.exists(directory) else ()
    if not bases:
        return ProvedEnd(NO_EPOCH, 0, True)
    first = max((number for number, base in enumerate(bases) if base <= recovery_point), default=0)
    epoch, end, is_whole = NO_EPOCH, bases[max(0, first - 1)], True
    for base in bases[max(0, first - 1) :]:
        if not is_whole or base != end:
            return ProvedEnd(epoch, end, False)
        epoch, end, is_whole = _walk_segment(disk, f"{directory}/{base:020d}.log", epoch, end)
    return ProvedEnd(epoch, end, is_whole)


def _walk_segment(disk: Disk, path: str, epoch: int, end: int) -> tuple[int, int, bool]:
    """Returns the leader epoch and the end offset after one segment, and True if all bytes of its file are valid."""
    file = disk.open(path, write=False)
    try:
        data, position = file.map(), 0
        while position < len(data):
            walked = walk(data, position, max_batches=BATCHES_AT_ONCE)
            for batch in walked.batches:
                if batch.base_offset < end or batch.leader_epoch < epoch:
                    return epoch, end, False
                epoch, end = batch.leader_epoch, batch.last_offset + 1
            if walked.why:
                return epoch, end, False
            position = walked.end
        return epoch, end, True
    finally:
        file.close()
