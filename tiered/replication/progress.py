"""The position of one follower, and when it last had everything: decides whether it stays in the ISR.

Pure. Times are monotonic nanoseconds of the leader.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER_NS = -(1 << 62)


@dataclass(slots=True)
class FollowerProgress:
    """Progress of one follower, which has all records below `offset`. `caught_up_ns` is the last time at which it had
    everything that the leader had written by the fetch before (Kafka: lastCaughtUpTimeMs). So a follower that always
    reads everything there was stays in sync, however fast the leader writes."""

    incarnation: int
    offset: int = 0
    log_start: int = 0
    """The follower serves nothing below, whichever broker leads next."""
    local_start: int = 0
    """The first offset on the follower's disk."""
    caught_up_ns: int = NEVER_NS
    last_fetch_ns: int = NEVER_NS
    last_fetch_leader_end: int = 0
    """The leader's log end at the fetch before."""

    def record_fetch(self, offset: int, log_end: int, now_ns: int) -> None:
        """Records a fetch from `offset` while the leader's log ends at `log_end`."""
        if offset >= log_end:
            self.caught_up_ns = now_ns
        elif offset >= self.last_fetch_leader_end:
            self.caught_up_ns = max(self.caught_up_ns, self.last_fetch_ns)
        self.offset, self.last_fetch_ns, self.last_fetch_leader_end = offset, now_ns, log_end

    def is_lagging(self, end: int, now_ns: int, lag_ns: int) -> bool:
        """True if the follower has been behind for longer than `lag_ns`. A follower that has all records below `end`
        never lags: the controller notices a dead one by its missing heartbeats."""
        return self.offset < end and now_ns - self.caught_up_ns > lag_ns
