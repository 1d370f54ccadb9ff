"""The leader's side of copying: whether a follower's history is a part of its own, and what it can have from here.

Pure. A follower names the epoch of its last record (KIP-595). As long as the leader's records of that epoch reach to
the follower's end, all below is the same in both logs. Else the leader names the largest epoch not above it, and its
end.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import NO_EPOCH
from tiered.peers import DivergingEpoch, PartitionFetch


class LeaderLog(NamedTuple):
    """The leader's log under `leader_epoch`: readable from `log_start` on, here from `local_start` to `end`."""

    leader_epoch: int
    log_start: int
    local_start: int
    end: int
    epochs: LeaderEpochs


def validate_offset_and_epoch(request: PartitionFetch, leader_log: LeaderLog) -> Code | DivergingEpoch:
    """`NONE`: it has the leader's own history up to where it asks, and can have what follows. `OFFSET_OUT_OF_RANGE`:
    that is below the log start, or beyond the end of a log that it knows nothing of. `OFFSET_MOVED_TO_TIERED_STORAGE`:
    what follows is in the bucket only.

    `Refused`: FENCED_LEADER_EPOCH (the follower is behind), UNKNOWN_LEADER_EPOCH (this leader is, or the follower has
    records of a later one)."""
    if request.leader_epoch < leader_log.leader_epoch:
        raise Refused(
            Code.FENCED_LEADER_EPOCH, f"leader epoch {request.leader_epoch} is behind {leader_log.leader_epoch}"
        )
    if max(request.leader_epoch, request.last_epoch) > leader_log.leader_epoch:
        newest = max(request.leader_epoch, request.last_epoch)
        raise Refused(Code.UNKNOWN_LEADER_EPOCH, f"leader epoch {newest} is not known here yet")
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
    """(largest epoch not above `epoch` that wrote here, where it ends). For one below all that is known locally, the
    offset at which the known begins, the end where nothing is: nothing below it is copied from here."""
    if leader_log.epochs.latest == NO_EPOCH:
        return epoch, leader_log.end
    if epoch >= leader_log.epochs.latest:
        return leader_log.epochs.latest, leader_log.end
    return leader_log.epochs.end_offset_for(epoch, leader_log.end)
