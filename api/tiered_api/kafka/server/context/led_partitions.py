"""Look-up of the partitions that this broker leads."""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.ids import NO_EPOCH
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.server.context.context import KafkaContext


def find_leader_replica(
    context: KafkaContext, topic: str, partition: int, leader_epoch: int = NO_EPOCH
) -> LeaderReplica:
    """Returns the leader replica. `Refused` if the partition does not exist or this broker does not lead it, or if the
    client knows another leader epoch (KIP-320). An epoch of -1 skips that check."""
    replica = context.broker.leader_replica(topic, partition)
    if leader_epoch != NO_EPOCH and leader_epoch != replica.leader_epoch:
        older = leader_epoch < replica.leader_epoch
        raise Refused(
            Code.FENCED_LEADER_EPOCH if older else Code.UNKNOWN_LEADER_EPOCH,
            f"the leader epoch of {replica.tp} is {replica.leader_epoch}, not {leader_epoch}",
        )
    return replica
