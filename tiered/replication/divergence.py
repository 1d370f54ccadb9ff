"""The leader's check of a follower's fetch: is the follower's log a prefix of the leader's, and where does it go on?

Pure. Keeps I5 and I7. A follower names the leader epoch of its last record (KIP-595). If the leader's records of that
epoch reach to the follower's end, both logs are the same below that end. Otherwise the leader replies with the largest
epoch not above it and the end offset of that epoch. The follower truncates its log itself (`follower_step`).
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import NO_EPOCH
from tiered.peers import DivergingEpoch, PartitionFetch


class LeaderLog(NamedTuple):
    """The leader's log under `leader_epoch`. Offsets from `log_start` on can be read; those in [`local_start`, `end`)
    are on its disk."""

    leader_epoch: int
    log_start: int
    local_start: int
    end: int
    epochs: LeaderEpochs


def validate_offset_and_epoch(request: PartitionFetch, leader_log: LeaderLog) -> Code | DivergingEpoch:
    """Compares a follower's fetch with the leader's log. Returns

    - `NONE` if the follower's log is a prefix of the leader's and the next records are on the leader's disk;
    - `OFFSET_OUT_OF_RANGE` if the fetch offset is below the log start, or if the follower names no epoch and it is
      beyond the log end;
    - `OFFSET_MOVED_TO_TIERED_STORAGE` if the next records are only in the bucket;
    - the diverging epoch and its end offset if the logs differ.

    Raises `Refused`: FENCED_LEADER_EPOCH if the follower's leader epoch is older than the leader's;
    UNKNOWN_LEADER_EPOCH if it is newer, or if the follower has records of a newer epoch.
    """
    if request.leader_epoch < leader_log.leader_epoch:
        raise Refused(
            Code.FENCED_LEADER_EPOCH,
            f"leader epoch {request.leader_epoch} is older than the leader's {leader_log.leader_epoch}",
        )
    if max(request.leader_epoch, request.last_epoch) > leader_log.leader_epoch:
        newest = max(request.leader_epoch, request.last_epoch)
        raise Refused(
            Code.UNKNOWN_LEADER_EPOCH, f"leader epoch {newest} is newer than the leader's {leader_log.leader_epoch}"
        )
    if request.offset < leader_log.log_start:
        return Code.OFFSET_OUT_OF_RANGE
    if request.offset < leader_log.local_start:
        return Code.OFFSET_MOVED_TO_TIERED_STORAGE
    if request.last_epoch == NO_EPOCH:
        return Code.NONE if request.offset <= leader_log.end else Code.OFFSET_OUT_OF_RANGE
    epoch, end = local_end_offset_for_epoch(request.last_epoch, leader_log)
    if epoch != request.last_epoch or end < request.offset:
        return DivergingEpoch(epoch, end)
    return Code.NONE


def local_end_offset_for_epoch(epoch: int, leader_log: LeaderLog) -> tuple[int, int]:
    """Returns (the largest epoch not above `epoch` that wrote records here, the end offset of that epoch). An epoch
    below all that the local log knows ends where the first known epoch starts; if the log knows none, at the log end.
    No record below that offset is copied from this log.

    Compaction may have removed all records from the log start up to the first known epoch. This log cannot say how
    many of them an older epoch wrote, so that epoch ends at the log start then: a follower copies all from there."""
    if leader_log.epochs.latest == NO_EPOCH:
        return epoch, leader_log.end
    first_epoch, first_start = leader_log.epochs.lineage[0]
    if epoch < first_epoch:
        return epoch, min(first_start, max(leader_log.log_start, leader_log.local_start))
    if epoch >= leader_log.epochs.latest:
        return leader_log.epochs.latest, leader_log.end
    return leader_log.epochs.end_offset_for(epoch, leader_log.end)
