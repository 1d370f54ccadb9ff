"""How far one copy elsewhere is, and when it last had everything: what keeps it in sync, or takes it out.

Pure. Times are monotonic nanoseconds of the leader.
"""

from __future__ import annotations

from dataclasses import dataclass

NEVER_NS = -(1 << 62)


@dataclass(slots=True)
class FollowerProgress:
    """One follower: it has everything below `offset`. `caught_up_ns` is when it last had all that the leader had
    written by its fetch before (Kafka's lastCaughtUpTimeMs), so one that always reads all there was is in sync however
    fast the leader writes on."""

    incarnation: int
    offset: int = 0
    log_start: int = 0
    """It serves nothing below, whoever leads next."""
    local_start: int = 0
    """The first offset on its disk."""
    caught_up_ns: int = NEVER_NS
    last_fetch_ns: int = NEVER_NS
    last_fetch_leader_end: int = 0
    """The leader's log end at the fetch before."""

    def record_fetch(self, offset: int, log_end: int, now_ns: int) -> None:
        """It asks for `offset` while the leader's log ends at `log_end`."""
        if offset >= log_end:
            self.caught_up_ns = now_ns
        elif offset >= self.last_fetch_leader_end:
            self.caught_up_ns = max(self.caught_up_ns, self.last_fetch_ns)
        self.offset, self.last_fetch_ns, self.last_fetch_leader_end = offset, now_ns, log_end

    def is_lagging(self, end: int, now_ns: int, lag_ns: int) -> bool:
        """Whether it is behind for longer than `lag_ns`. Who has all below `end` never is: a dead one is noticed by its
        silence, at the controller."""
        return self.offset < end and now_ns - self.caught_up_ns > lag_ns
