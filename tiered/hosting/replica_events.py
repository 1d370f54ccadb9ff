"""The events that the leader replicas of a broker report to the rest of the broker: one protocol for all of them.

A replica reports `LeaderEvents` itself; this protocol adds the changes of its role. Each method is called from the
event loop, in the turn in which the event happens. It returns at once and raises nothing.
"""

from __future__ import annotations

from typing import Protocol

from tiered.metadata.image import Image
from tiered.replication.leader_replica import LeaderEvents, LeaderReplica


class ReplicaEvents(LeaderEvents, Protocol):
    """The receiver of all events of a broker's leader replicas: those that a replica reports itself, and changes of its
    role."""

    def on_lead(self, replica: LeaderReplica, decided: Image, applied: Image) -> None:
        """This broker leads the partition from now on, by the image `applied`. `decided` is the one that gave the
        partition to this broker: nobody else wrote under an earlier epoch since."""

    def on_resign(self, replica: LeaderReplica) -> None:
        """This broker no longer leads the partition."""

    def on_config_changed(self, replica: LeaderReplica) -> None:
        """Other settings of the topic are in force."""
