"""The parts of a broker that act on the events of its leader replicas: wiring of `ReplicaEvents`, no rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tiered.coordination.group_coordinators import GroupCoordinators
from tiered.coordination.share_coordinators import ShareCoordinators
from tiered.coordination.transaction_coordinators import TransactionCoordinators
from tiered.durability.stored_ends import StoredEnds
from tiered.errors import Fenced
from tiered.hosting.isr_updater import IsrUpdater
from tiered.metadata.image import Image
from tiered.replication.leader_replica import LeaderReplica
from tiered.upkeep.tiering import Tiering


@dataclass(frozen=True)
class ReplicaEventHandlers:
    """Passes each event to the parts of one broker that act on it, in a fixed order."""

    tiering: Tiering
    isr_updater: IsrUpdater
    stored_ends: StoredEnds
    group_coordinators: GroupCoordinators
    transaction_coordinators: TransactionCoordinators
    share_coordinators: ShareCoordinators
    on_fenced: Callable[[LeaderReplica, Fenced], None]

    def on_lead(self, replica: LeaderReplica, decided: Image, applied: Image) -> None:
        self.stored_ends.on_lead(replica)
        self.group_coordinators.on_lead(replica, decided, applied)
        self.transaction_coordinators.host.on_lead(replica, decided.slot)
        self.share_coordinators.host.on_lead(replica, decided.slot)

    def on_resign(self, replica: LeaderReplica) -> None:
        self.tiering.forget(replica)
        self.group_coordinators.on_resign(replica)
        self.transaction_coordinators.on_resign(replica)
        self.share_coordinators.host.on_resign(replica)

    def on_config_changed(self, replica: LeaderReplica) -> None:
        self.tiering.wake(replica)

    def on_segment_closed(self, replica: LeaderReplica) -> None:
        self.tiering.on_segment_closed(replica)

    def on_follower_caught_up(self, replica: LeaderReplica) -> None:
        self.isr_updater.wake(replica)

    def on_chain_fenced(self, replica: LeaderReplica) -> None:
        self.on_fenced(replica, Fenced(f"a later leader of {replica.tp} has put a fence into the chain of this broker"))
