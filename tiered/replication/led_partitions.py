"""The leader replicas of one broker as a protocol, for the parts that work on them one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tiered.errors import Fenced
from tiered.replication.leader_replica import LeaderReplica


class LedPartitions(Protocol):
    """All partitions that one broker leads now: `HostedReplicas` in a broker."""

    def list_leaders(self) -> Sequence[LeaderReplica]:
        """Returns the leader replicas of this broker."""

    def on_fenced(self, replica: LeaderReplica, error: Fenced) -> None:
        """Ends a leadership: a newer leader wrote its epoch into the manifest."""
