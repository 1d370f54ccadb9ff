"""How far a log reaches that cannot be opened, because the disk has no room for what an opening writes.

Nothing is written, and no index, snapshot or epoch file is believed: what counts is batches that prove themselves, one
after the other, as an opening counts them. An election may depend on it (rule R4).
"""

from __future__ import annotations

from tiered.hot.recovery import classify_files
from tiered.ids import NO_EPOCH
from tiered.ports import Disk
from tiered.records.native import walk

BATCHES_AT_ONCE = 10_000


def find_proved_end(disk: Disk, directory: str, recovery_point: int) -> tuple[int, int]:
    """(epoch of the last record, -1: none; end offset). Reads from the segment before the one that holds the recovery
    point on. `Unavailable`."""
    bases = classify_files(disk.list(directory)).bases if disk.exists(directory) else ()
    if not bases:
        return NO_EPOCH, 0
    first = max((number for number, base in enumerate(bases) if base <= recovery_point), default=0)
    epoch, end, whole = NO_EPOCH, bases[max(0, first - 1)], True
    for base in bases[max(0, first - 1) :]:
        if not whole or base != end:
            break
        epoch, end, whole = _walk_segment(disk, f"{directory}/{base:020d}.log", epoch, end)
    return epoch, end


def _walk_segment(disk: Disk, path: str, epoch: int, end: int) -> tuple[int, int, bool]:
    """The epoch and the end after one segment, and whether all of its file counts."""
    file = disk.open(path, write=False)
    try:
        data, at = file.map(), 0
        while at < len(data):
            walked = walk(data, at, max_batches=BATCHES_AT_ONCE)
            for each in walked.batches:
                if each.base_offset < end or each.leader_epoch < epoch:
                    return epoch, end, False
                epoch, end = each.leader_epoch, each.last_offset + 1
            if walked.why:
                return epoch, end, False
            at = walked.end
        return epoch, end, True
    finally:
        file.close()
