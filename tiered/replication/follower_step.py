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
from tiered.peers import Diverging, FetchedPart, FetchFrom

_OFFSET_BYTES = 8
"""A batch begins with its base offset."""


class Held(NamedTuple):
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
class FromBucket:
    """What lies below the leader's `cold_end_offset` is not to be had from it, or need not: begin behind what is cold,
    with the leader epochs and producers that the bucket knows."""

    cold_end_offset: int


@dataclass(frozen=True, slots=True)
class StartOver:
    """All that is held lies below the leader's log start: begin empty at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Retry:
    """Nothing can be done with it: ask again after a pause, perhaps of another leader by then."""

    code: int
    why: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing new, or the answer is to a question of before."""


Step = Append | Truncate | FromBucket | StartOver | Retry | Nothing


def step(asked: FetchFrom, part: FetchedPart, held: Held) -> Step:
    """What to do with the answer to `asked`."""
    if asked.offset != held.end:
        return Nothing()
    match part.code:
        case Code.NONE.number:
            if part.diverging is not None:
                return _cut(part.diverging, held)
            if held.is_empty and held.epochs.latest == NO_EPOCH and part.cold_end_offset > held.end:
                return FromBucket(part.cold_end_offset)  # it is new: only the hot tail is copied
            return _append(part, held)
        case Code.OFFSET_MOVED_TO_TIERED_STORAGE.number:
            return FromBucket(part.cold_end_offset)
        case Code.OFFSET_OUT_OF_RANGE.number if held.end < part.log_start_offset or held.is_empty:
            if part.cold_end_offset > part.log_start_offset:
                return FromBucket(part.cold_end_offset)
            return StartOver(part.log_start_offset)
    return Retry(part.code, f"the leader answered with {code_name(part.code)}")


def high_watermark(known: int, told: int, end: int) -> int:
    """What a follower knows to be committed: what its leader says, as far as it has it. It does not go back when a new
    leader knows less yet."""
    return max(known, min(told, end))


def _append(part: FetchedPart, held: Held) -> Step:
    if len(part.records) < _OFFSET_BYTES:
        return Nothing()
    base = int.from_bytes(bytes(part.records[:_OFFSET_BYTES]), "big", signed=True)
    if base == held.end or (0 <= base < held.end and held.is_empty):
        return Append(base)
    return Retry(Code.CORRUPT_MESSAGE.number, f"records begin at {base}, the log ends at {held.end}")


def _cut(diverging: Diverging, held: Held) -> Step:
    """Nothing above the leader's end of its epoch is common, nor what the follower has of later epochs: the leader has
    none between that one and the follower's last (KIP-279). Where the follower has none of the epoch itself, the next
    answer names an earlier one."""
    named, offset = diverging
    if named != NO_EPOCH:
        _, own_end = held.epochs.end_offset_for(named, held.end)
        offset = min(own_end, offset)
    if not 0 <= offset < held.end:
        why = f"the leader's epoch {named} ends at {diverging.end_offset}, which parts from nothing here"
        return Retry(Code.UNKNOWN_SERVER_ERROR.number, why)
    return Truncate(offset)
