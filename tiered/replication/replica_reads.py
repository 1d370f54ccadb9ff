"""Reads from a replica of this broker: one shape for the leader and for a follower.

`LeaderReads` and `FollowerReads` implement it. Serves nothing above the high watermark that the replica knows.
"""

from __future__ import annotations

from typing import Protocol

from tiered.hot.traffic import Traffic
from tiered.ids import TopicId
from tiered.replication.purgatory import ProgressListener
from tiered.replication.read_result import ReadResult


class ReplicaReads(Protocol):
    """Readers of one replica, as long as its leader and leader epoch stay the same."""

    @property
    def topic_id(self) -> TopicId: ...

    @property
    def partition(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def traffic(self) -> Traffic: ...

    @property
    def is_stopped(self) -> bool:
        """True if another replica, or a later leader epoch, serves the readers now."""

    def offset_snapshot(self) -> tuple[int, int, int]:
        """Returns the high watermark, the last stable offset and the log start offset, as far as the replica knows
        them."""

    def is_at_end(self, offset: int) -> bool:
        """True if there is nothing to read at `offset` yet, but there may be soon."""

    def read_now(self, offset: int, max_bytes: int, read_committed: bool = False) -> ReadResult | None:
        """Returns committed records from the local log, without waiting: whole batches, starting with the one that
        holds `offset`. Returns None if only the bucket has the records and this replica reads them from there. Raises
        `Refused`."""

    def add_listener(self, listener: ProgressListener, index: int) -> None:
        """Calls `listener.on_progress(index)` whenever the high watermark moves or the replica stops to serve, until
        `remove_listener`. The call must not add or remove listeners. Raises `Refused` if there are too many
        listeners."""

    def remove_listener(self, listener: ProgressListener, index: int) -> None:
        """Removes a listener; does nothing if it was not registered."""
