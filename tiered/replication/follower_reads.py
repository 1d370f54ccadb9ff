"""A partition that is copied here, as consumers near by read it (KIP-392): what is on this disk and committed.

Everything else is the leader's to answer. So who asks for what is not here is sent there: by OFFSET_OUT_OF_RANGE for
what was dropped here or never came, by OFFSET_NOT_AVAILABLE for what is committed and still on its way, by
NOT_LEADER_OR_FOLLOWER once this replica is not in sync.
"""

from __future__ import annotations

from collections.abc import Callable

from tiered.errors import Code, Corrupt, Refused
from tiered.ids import TopicId
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.purgatory import ProgressListener
from tiered.replication.read_result import ReadResult


class FollowerReads:
    """Reads of one copy while it is followed from the same leader. `in_sync` says whether the cluster counts it in."""

    def __init__(self, replica: FollowerReplica, is_in_sync: Callable[[], bool]) -> None:
        self.state = replica
        """Who knows the leader epoch."""
        self.traffic = replica.log.traffic
        self._is_in_sync = is_in_sync

    @property
    def topic_id(self) -> TopicId:
        return self.state.topic_id

    @property
    def partition(self) -> int:
        return self.state.tp.partition

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def is_stopped(self) -> bool:
        """Whether it is led here by now, follows another leader, or is held no more."""
        return self.state.is_stopped

    def offset_snapshot(self) -> tuple[int, int, int]:
        """High watermark, last stable offset and log start, as far as they are known here."""
        replica = self.state
        committed, unstable = replica.high_watermark, replica.log.producers.first_unstable_offset
        stable = committed if unstable is None or unstable > committed else unstable
        return committed, stable, replica.log.start_offset

    def is_at_end(self, offset: int) -> bool:
        """Whether there is nothing yet to read, and may soon be."""
        return offset == self.state.high_watermark and not self.is_stopped and self._is_in_sync()

    def read_now(self, offset: int, max_bytes: int, read_committed: bool = False) -> ReadResult:
        """As `Replica.read_now`, of what is here. `Refused` with where else to ask."""
        replica, hot = self.state, self.state.log
        if replica.is_stopped or not self._is_in_sync():
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker is not in sync with the leader of {replica.tp}")
        committed, stable, start = self.offset_snapshot()
        if hot.end_offset < offset <= replica.leader_high_watermark:
            raise Refused(Code.OFFSET_NOT_AVAILABLE, f"offset {offset} of {replica.tp} is not here yet")
        if not hot.local_start_offset <= offset <= hot.end_offset:
            held = f"[{hot.local_start_offset}, {hot.end_offset}]"
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} of {replica.tp} is not in {held}, which is here")
        bound = stable if read_committed else committed
        try:
            data = hot.read(offset, max_bytes, end_offset=bound) if offset < bound else None
        except Corrupt as error:
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)) from None
        return ReadResult(data or b"", committed, start, stable)

    def add_listener(self, listener: ProgressListener, index: int) -> None:
        """As `Replica.watch`."""
        self.state.add_listener(listener, index)

    def remove_listener(self, listener: ProgressListener, index: int) -> None:
        """As `Replica.unwatch`."""
        self.state.remove_listener(listener, index)


ReadSource = LeaderReplica | FollowerReads
"""What consumers read from."""
