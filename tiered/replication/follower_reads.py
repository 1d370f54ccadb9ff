"""A partition that is copied here, as consumers near by read it (KIP-392): what is on this disk and committed.

Everything else is the leader's to answer. So who asks for what is not here is sent there: by OFFSET_OUT_OF_RANGE for
what was dropped here or never came, by OFFSET_NOT_AVAILABLE for what is committed and still on its way, by
NOT_LEADER_OR_FOLLOWER once this replica is not in sync.
"""

from __future__ import annotations

from collections.abc import Callable

from tiered.errors import Code, Corrupt, Refused
from tiered.ids import TopicId
from tiered.replication.follower_replica import Copy
from tiered.replication.leader_replica import Replica
from tiered.replication.purgatory import Watcher
from tiered.replication.read_result import Fetched


class Followed:
    """Reads of one copy while it is followed from the same leader. `in_sync` says whether the cluster counts it in."""

    def __init__(self, copy: Copy, in_sync: Callable[[], bool]) -> None:
        self.state = copy
        """Who knows the leader epoch."""
        self.traffic = copy.log.traffic
        self._in_sync = in_sync

    @property
    def topic_id(self) -> TopicId:
        return self.state.topic_id

    @property
    def partition(self) -> int:
        return self.state.at.partition

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def gone(self) -> bool:
        """Whether it is led here by now, follows another leader, or is held no more."""
        return self.state.gone

    def ends(self) -> tuple[int, int, int]:
        """High watermark, last stable offset and log start, as far as they are known here."""
        copy = self.state
        committed, unstable = copy.high_watermark, copy.log.producers.first_unstable_offset
        stable = committed if unstable is None or unstable > committed else unstable
        return committed, stable, copy.log.start_offset

    def at_end(self, offset: int) -> bool:
        """Whether there is nothing yet to read, and may soon be."""
        return offset == self.state.high_watermark and not self.gone and self._in_sync()

    def read_now(self, offset: int, max_bytes: int, read_committed: bool = False) -> Fetched:
        """As `Replica.read_now`, of what is here. `Refused` with where else to ask."""
        copy, hot = self.state, self.state.log
        if copy.gone or not self._in_sync():
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"this broker is not in sync with the leader of {copy.at}")
        committed, stable, start = self.ends()
        if hot.end_offset < offset <= copy.told_committed:
            raise Refused(Code.OFFSET_NOT_AVAILABLE, f"offset {offset} of {copy.at} is not here yet")
        if not hot.local_start_offset <= offset <= hot.end_offset:
            held = f"[{hot.local_start_offset}, {hot.end_offset}]"
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} of {copy.at} is not in {held}, which is here")
        bound = stable if read_committed else committed
        try:
            data = hot.read(offset, max_bytes, end_offset=bound) if offset < bound else None
        except Corrupt as error:
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, str(error)) from None
        return Fetched(data or b"", committed, start, stable)

    def watch(self, watcher: Watcher, place: int) -> None:
        """As `Replica.watch`."""
        self.state.watch(watcher, place)

    def unwatch(self, watcher: Watcher, place: int) -> None:
        """As `Replica.unwatch`."""
        self.state.unwatch(watcher, place)


Source = Replica | Followed
"""What consumers read from."""
