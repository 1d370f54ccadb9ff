"""What a follower does with its leader's answer: append, cut, begin anew, or ask again later.

Pure. A log is cut by leader epochs only, never by a high watermark: the leader names the point at which the two
histories part, the follower cuts there and asks again until they agree (KIP-101, KIP-279, KIP-595). What the leader has
in the bucket only is not copied from it: the follower begins behind it, with what the bucket knows of its past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tiered.errors import Code, code_name
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import NO_EPOCH
from tiered.peers import DivergingEpoch, FetchedPartition, PartitionFetch

_OFFSET_BYTES = 8
"""A batch begins with its base offset."""


class FollowerLog(NamedTuple):
    """What the follower has: offsets [start, end), and who wrote them."""

    start: int
    end: int
    epochs: LeaderEpochs

    @property
    def is_empty(self) -> bool:
        return self.start == self.end


@dataclass(frozen=True, slots=True)
class Append:
    """The records follow the log's end; before an empty log's end they may begin, in a batch that it stands in the
    middle of (the leader's log start does): then the log begins at `base_offset` first."""

    base_offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """The histories part at `offset`, or below it: cut there, and ask again."""

    offset: int


@dataclass(frozen=True, slots=True)
class RestoreFromBucket:
    """What lies below the leader's `cold_end_offset` is not to be had from it, or need not: begin behind what is cold,
    with the leader epochs and producers that the bucket knows."""

    cold_end_offset: int


@dataclass(frozen=True, slots=True)
class RestartAtLogStart:
    """All that is held lies below the leader's log start: begin empty at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Nothing can be done with it: ask again after a pause, perhaps of another leader by then."""

    code: int
    why: str


@dataclass(frozen=True, slots=True)
class NoAction:
    """There is nothing new, or the answer is to a question of before."""


FollowerStep = Append | Truncate | RestoreFromBucket | RestartAtLogStart | Retry | NoAction


def decide_step(request: PartitionFetch, part: FetchedPartition, follower_log: FollowerLog) -> FollowerStep:
    """What to do with the answer to `asked`."""
    if request.offset != follower_log.end:
        return NoAction()
    match part.code:
        case Code.NONE.number:
            if part.diverging_epoch is not None:
                return _truncate(part.diverging_epoch, follower_log)
            if (
                follower_log.is_empty
                and follower_log.epochs.latest == NO_EPOCH
                and part.cold_end_offset > follower_log.end
            ):
                return RestoreFromBucket(part.cold_end_offset)  # it is new: only the hot tail is copied
            return _append(part, follower_log)
        case Code.OFFSET_MOVED_TO_TIERED_STORAGE.number:
            return RestoreFromBucket(part.cold_end_offset)
        case Code.OFFSET_OUT_OF_RANGE.number if follower_log.end < part.log_start_offset or follower_log.is_empty:
            if part.cold_end_offset > part.log_start_offset:
                return RestoreFromBucket(part.cold_end_offset)
            return RestartAtLogStart(part.log_start_offset)
    return Retry(part.code, f"the leader answered with {code_name(part.code)}")


def next_high_watermark(current: int, leader_high_watermark: int, end: int) -> int:
    """What a follower knows to be committed: what its leader says, as far as it has it. It does not go back when a new
    leader knows less yet."""
    return max(current, min(leader_high_watermark, end))


def _append(part: FetchedPartition, follower_log: FollowerLog) -> FollowerStep:
    if len(part.records) < _OFFSET_BYTES:
        return NoAction()
    base = int.from_bytes(bytes(part.records[:_OFFSET_BYTES]), "big", signed=True)
    if base == follower_log.end or (0 <= base < follower_log.end and follower_log.is_empty):
        return Append(base)
    return Retry(Code.CORRUPT_MESSAGE.number, f"records begin at {base}, the log ends at {follower_log.end}")


def _truncate(diverging: DivergingEpoch, follower_log: FollowerLog) -> FollowerStep:
    """Nothing above the leader's end of its epoch is common, nor what the follower has of later epochs: the leader has
    none between that one and the follower's last (KIP-279). Where the follower has none of the epoch itself, the next
    answer names an earlier one."""
    epoch, offset = diverging
    if epoch != NO_EPOCH:
        _, own_end = follower_log.epochs.end_offset_for(epoch, follower_log.end)
        offset = min(own_end, offset)
    if not 0 <= offset < follower_log.end:
        why = f"the leader's epoch {epoch} ends at {diverging.end_offset}, which parts from nothing here"
        return Retry(Code.UNKNOWN_SERVER_ERROR.number, why)
    return Truncate(offset)
