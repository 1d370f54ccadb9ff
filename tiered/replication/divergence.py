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
from tiered.peers import Diverging, FetchFrom


class Led(NamedTuple):
    """The leader's log under `leader_epoch`: readable from `log_start` on, here from `local_start` to `end`."""

    leader_epoch: int
    log_start: int
    local_start: int
    end: int
    epochs: LeaderEpochs


def judge(asked: FetchFrom, led: Led) -> Code | Diverging:
    """`NONE`: it has the leader's own history up to where it asks, and can have what follows. `OFFSET_OUT_OF_RANGE`:
    that is below the log start, or beyond the end of a log that it knows nothing of. `OFFSET_MOVED_TO_TIERED_STORAGE`:
    what follows is in the bucket only.

    `Refused`: FENCED_LEADER_EPOCH (the follower is behind), UNKNOWN_LEADER_EPOCH (this leader is, or the follower has
    records of a later one)."""
    if asked.leader_epoch < led.leader_epoch:
        raise Refused(Code.FENCED_LEADER_EPOCH, f"leader epoch {asked.leader_epoch} is behind {led.leader_epoch}")
    if max(asked.leader_epoch, asked.last_epoch) > led.leader_epoch:
        newest = max(asked.leader_epoch, asked.last_epoch)
        raise Refused(Code.UNKNOWN_LEADER_EPOCH, f"leader epoch {newest} is not known here yet")
    if asked.offset < led.log_start:
        return Code.OFFSET_OUT_OF_RANGE
    if asked.offset < led.local_start:
        return Code.OFFSET_MOVED_TO_TIERED_STORAGE
    if asked.last_epoch == NO_EPOCH:
        return Code.NONE if asked.offset <= led.end else Code.OFFSET_OUT_OF_RANGE
    epoch, end = end_of(asked.last_epoch, led)
    if epoch != asked.last_epoch or end < asked.offset:
        return Diverging(epoch, end)
    return Code.NONE


def end_of(epoch: int, led: Led) -> tuple[int, int]:
    """(largest epoch not above `epoch` that wrote here, where it ends). For one below all that is known locally, the
    offset at which the known begins, the end where nothing is: nothing below it is copied from here."""
    if led.epochs.latest == NO_EPOCH:
        return epoch, led.end
    if epoch >= led.epochs.latest:
        return led.epochs.latest, led.end
    return led.epochs.end_offset_for(epoch, led.end)
