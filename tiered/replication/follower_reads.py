"""Reads from a follower replica by nearby consumers (KIP-392): serves committed records that are on this disk (I6).

Everything else is left to the leader. The error code sends the consumer there:

- OFFSET_OUT_OF_RANGE if the records were deleted from this disk or never arrived;
- OFFSET_NOT_AVAILABLE if the records are committed but not copied yet;
- NOT_LEADER_OR_FOLLOWER if this replica is not in the ISR.
"""

from __future__ import annotations

from collections.abc import Callable

from tiered.errors import Code, Corrupt, Refused
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.purgatory import ProgressListener
from tiered.replication.read_result import AbortedTxns, ReadResult


class FollowerReads:
    """Reads from one follower replica, as long as it follows the same leader in the same epoch. `is_in_sync` returns
    True if the metadata log has this replica in the ISR."""

    __slots__ = ("_is_in_sync", "_replica", "leader_epoch", "partition", "topic_id", "traffic")

    def __init__(self, replica: FollowerReplica, is_in_sync: Callable[[], bool]) -> None:
        self.topic_id = replica.topic_id
        self.partition = replica.tp.partition
        self.leader_epoch = replica.leader_epoch
        self.traffic = replica.log.traffic
        self._replica = replica
        self._is_in_sync = is_in_sync

    @property
    def is_stopped(self) -> bool:
        """True if this broker now leads the partition, follows another leader or no longer has the replica."""
        return self._replica.is_stopped

    def offset_snapshot(self) -> tuple[int, int, int]:
        """Returns the high watermark, the last stable offset and the log start offset, as far as this replica knows
        them."""
        replica = self._replica
        committed, start = replica.high_watermark, replica.log.start_offset
        unstable, stable = replica.log.producers.txns.first_unstable_offset, committed
        if unstable is not None and unstable < committed:
            stable = max(unstable, min(start, committed))
        return committed, stable, start

    def is_at_end(self, offset: int) -> bool:
        """True if there is nothing to read at `offset` yet, but there may be soon."""
        return offset == self._replica.high_watermark and not self.is_stopped and self._is_in_sync()

    def read_now(self, offset: int, max_bytes: int, read_committed: bool = False) -> ReadResult:
        """Returns committed records from this disk, like `LeaderReads.read_now`. Raises `Refused` with the code that
        sends the consumer to the leader."""
        replica, hot = self._replica, self._replica.log
        if replica.is_stopped or not self._is_in_sync():
            raise Refused(
                Code.NOT_LEADER_OR_FOLLOWER, f"this replica of {replica.tp} is not in the ISR: read from the leader"
            )
        committed, stable, start = self.offset_snapshot()
        if hot.end_offset < offset <= replica.leader_high_watermark:
            raise Refused(
                Code.OFFSET_NOT_AVAILABLE, f"offset {offset} of {replica.tp} is not copied to this replica yet: retry"
            )
        if not hot.local_start_offset <= offset <= hot.end_offset:
            why = f"this replica of {replica.tp} has [{hot.local_start_offset}, {hot.end_offset}], not offset {offset}"
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"{why}: read from the leader")
        bound = stable if read_committed else committed
        if offset >= bound:
            return ReadResult(b"", committed, start, stable)
        aborted: AbortedTxns = ()
        try:
            if read_committed:
                data, aborted = hot.read_committed(offset, max_bytes, end_offset=bound)
            else:
                data = hot.read(offset, max_bytes, end_offset=bound)
        except Corrupt as error:
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)) from None
        return ReadResult(data or b"", committed, start, stable, aborted)

    def add_listener(self, listener: ProgressListener, index: int) -> None:
        """Registers a listener, like `LeaderReads.add_listener`."""
        self._replica.listeners.add(listener, index)

    def remove_listener(self, listener: ProgressListener, index: int) -> None:
        """Removes a listener, like `LeaderReads.remove_listener`."""
        self._replica.listeners.pop((listener, index), None)
