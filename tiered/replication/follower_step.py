"""A follower's next step after one reply of its leader: append, truncate, restart the log or retry later.

Pure. Keeps I5, I7 and I26. A log is truncated by leader epochs, never by a high watermark. The leader names the epoch
and end offset where the two logs differ; the follower truncates there and fetches again until the logs agree (KIP-101,
KIP-279, KIP-595). Records that the leader has only in the bucket are not copied from the leader. The follower's log
restarts at the cold end then, with the leader epochs and producer state from the bucket.

The leader's cleaner removes the marker of a transaction when no record of it is left there. A follower that copied such
records before, and not the marker, would take the producer's next marker for that of the open transaction. So the
follower copies again from there, if it sees that the leader's log was cleaned above its own end.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code, code_name
from tiered.hot.leader_epochs import LeaderEpochs
from tiered.ids import NO_EPOCH
from tiered.peers import DivergingEpoch, FetchedPartition, PartitionFetch
from tiered.records.native import walk
from tiered.value import value

_OFFSET_BYTES = 8
"""A batch starts with its base offset."""


class FollowerLog(NamedTuple):
    """The follower's log: offsets [start, end) and the leader epochs that wrote them. `open_from` is the first offset
    of the oldest open transaction that the follower has not copied again; None if there is none. `is_cut_begun`: the
    log is to end there, and only a part of it could be truncated by now."""

    start: int
    end: int
    epochs: LeaderEpochs
    open_from: int | None = None
    is_cut_begun: bool = False

    @property
    def is_empty(self) -> bool:
        return self.start == self.end

    def lacks_history(self, log_start_offset: int, cold_end_offset: int) -> bool:
        """True if the bucket knows leader epochs and producers that the log does not: it is new, or its restart at the
        cold end was interrupted."""
        is_behind = cold_end_offset > self.end or cold_end_offset == self.end > log_start_offset
        return is_behind and self.is_empty and self.epochs.latest == NO_EPOCH


@value
class Append:
    """Append the records at the log end. If the log is empty, they may start below its end: the leader's log start lies
    in the middle of their first batch. The log is then restarted at `base_offset` first."""

    base_offset: int


@value
class Truncate:
    """Truncate the log at `offset`, because it differs from the leader's from there or from further below; then fetch
    again."""

    offset: int


@value
class CopyAgain:
    """Truncate the log at `offset`, where its oldest open transaction begins; then fetch again. The leader may have no
    marker of that transaction any more."""

    offset: int


@value
class RestoreFromBucket:
    """Restart the log at the cold end, with the leader epochs and producer state from the bucket. The leader does not
    have the records below its `cold_end_offset`, or they need not be copied from it."""

    cold_end_offset: int


@value
class RestartAtLogStart:
    """Restart the log empty at `offset`: everything in it lies below the leader's log start."""

    offset: int


@value
class Retry:
    """Fetch again after a pause, perhaps from another leader by then: the reply is of no use."""

    code: int
    why: str


@value
class NoAction:
    """Do nothing: the reply has no news, or belongs to an earlier request."""


FollowerStep = Append | Truncate | CopyAgain | RestoreFromBucket | RestartAtLogStart | Retry | NoAction


def decide_step(request: PartitionFetch, part: FetchedPartition, follower_log: FollowerLog) -> FollowerStep:
    """Decides what to do with the reply to `request`."""
    if request.offset != follower_log.end:
        return NoAction()
    match part.code:
        case Code.NONE.number:
            if part.diverging_epoch is not None:
                return _truncate(part.diverging_epoch, follower_log)
            if follower_log.lacks_history(part.log_start_offset, part.cold_end_offset):
                return RestoreFromBucket(part.cold_end_offset)  # only records above the cold end are copied
            return _append(part, follower_log)
        case Code.OFFSET_MOVED_TO_TIERED_STORAGE.number:
            return RestoreFromBucket(part.cold_end_offset)
        case Code.OFFSET_OUT_OF_RANGE.number if follower_log.end < part.log_start_offset or follower_log.is_empty:
            if part.cold_end_offset > part.log_start_offset:
                return RestoreFromBucket(part.cold_end_offset)
            return RestartAtLogStart(part.log_start_offset)
    return Retry(part.code, f"the leader replied with {code_name(part.code)}")


def next_high_watermark(current: int, leader_high_watermark: int, end: int) -> int:
    """Returns the follower's high watermark: the leader's, but at most the follower's log end. It does not go back
    while a new leader's high watermark still lags."""
    return max(current, min(leader_high_watermark, end))


def _append(part: FetchedPartition, follower_log: FollowerLog) -> FollowerStep:
    if len(part.records) < _OFFSET_BYTES:
        return NoAction()
    base = int.from_bytes(bytes(part.records[:_OFFSET_BYTES]), "big", signed=True)
    open_from = follower_log.open_from
    if open_from is not None and follower_log.start <= open_from and _must_copy_again(part, follower_log):
        return CopyAgain(open_from)
    if base == follower_log.end or (0 <= base < follower_log.end and follower_log.is_empty):
        return Append(base)
    if base > follower_log.end and part.may_have_gaps:
        return Append(base)
    return Retry(
        Code.CORRUPT_MESSAGE.number,
        f"the leader sent records from offset {base}, but the log ends at {follower_log.end}",
    )


def _must_copy_again(part: FetchedPartition, follower_log: FollowerLog) -> bool:
    """True if a cut is begun, or a clean has removed records between the follower's end and the end of the reply.

    Only a follower that lacks committed records can see that: nothing is cleaned above the high watermark.
    """
    if follower_log.is_cut_begun or not part.may_have_gaps:
        return follower_log.is_cut_begun
    end = follower_log.end
    for batch in walk(part.records, check_crc=False).batches:
        if batch.base_offset > end or not batch.count:
            return True
        end = batch.last_offset + 1
    return False


def _truncate(diverging: DivergingEpoch, follower_log: FollowerLog) -> FollowerStep:
    """Finds the truncation offset. The logs have nothing in common above the leader's end of its epoch. They also have
    nothing in common in the follower's later epochs: the leader has no epoch between that one and the follower's last
    (KIP-279). If the follower has no record of that epoch, the next reply names an earlier epoch."""
    epoch, offset = diverging
    if epoch != NO_EPOCH:
        _, own_end = follower_log.epochs.end_offset_for(epoch, follower_log.end)
        offset = min(own_end, offset)
    if not 0 <= offset < follower_log.end:
        why = f"the leader says that epoch {epoch} ends at {diverging.end_offset}: nothing to truncate there"
        return Retry(Code.UNKNOWN_SERVER_ERROR.number, why)
    return Truncate(offset)
