"""The state of the followers that fetch from a broker, as the broker knows it.

Keeps R6: only the incarnation that the metadata log names may fetch as a broker.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.cold.manifest import Manifest
from tiered.errors import Code, Refused
from tiered.ids import incarnation_number
from tiered.peers import PartitionFetch
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.replication_quota import UNLIMITED, ReplicationQuota
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.fetch.replica_frames import ParsedReplicaFetch

KNOWN_MAX = 50_000


class LastReply(NamedTuple):
    """The last reply to a follower that fetched at the log end: its request, the offsets it got, and the time."""

    request: PartitionFetch
    ends: tuple[int, Manifest | None, int] | None
    replied_at: float


class FollowerState(NamedTuple):
    """One incarnation of a broker that fetches from this one."""

    incarnation: int
    last_replies: dict[LeaderReplica, LastReply]


class FollowerStates:
    """All followers of one broker, and the leader replicas that they fetch."""

    def __init__(self, context: KafkaContext) -> None:
        self.context = context
        self.first_partitions: dict[int, tuple[str, int]] = {}
        """By follower: the partition that got no records last time for want of room. The next fetch reads it first."""
        self._quota = ReplicationQuota()
        self._replicas: dict[tuple[str, int], LeaderReplica] = {}
        self._followers: dict[int, FollowerState] = {}

    def check_sender(self, request: ParsedReplicaFetch) -> Refused | None:
        """Returns why the sender is not the broker incarnation that it names; None if it is."""
        broker = self.context.broker.image.brokers.get(request.node_id)
        if broker is None:
            return Refused(Code.BROKER_ID_NOT_REGISTERED, f"there is no broker {request.node_id}")
        try:
            known = incarnation_number(broker.incarnation)
        except ValueError:
            known = -1  # no follower can name it
        if not broker.alive or known != request.incarnation:
            return Refused(Code.STALE_BROKER_EPOCH, f"another process is broker {request.node_id}, or it stopped")
        return None

    def last_replies(self, request: ParsedReplicaFetch) -> dict[LeaderReplica, LastReply]:
        """Returns the last replies to a sender that was checked; a new incarnation starts with none."""
        follower = self._followers.get(request.node_id)
        if follower is None or follower.incarnation != request.incarnation:
            follower = self._followers[request.node_id] = FollowerState(request.incarnation, {})
        return follower.last_replies

    def find_replica(self, partition: PartitionFetch) -> LeaderReplica:
        """Returns the leader replica. `Refused` if this broker does not lead the partition."""
        known = self._replicas
        place = partition.topic_id, partition.partition
        replica = known.get(place)
        if replica is None or replica.is_stopped:
            broker = self.context.broker
            name = broker.topic(partition.topic_id).name
            if len(known) >= KNOWN_MAX:
                known.clear()
            replica = known[place] = broker.leader_replica(name, partition.partition)
        return replica

    def throttle_of(self, replica: LeaderReplica, broker: int, now_ns: int) -> tuple[int, int] | None:
        """Returns the pause in ns and then the most bytes, a second's worth, of a throttled follower (KIP-73).

        None if the follower is not throttled.
        """
        rate = self.context.broker.settings.leader_replication_throttled_rate
        if rate >= UNLIMITED or not replica.is_follower_throttled(broker):
            return None
        return self._quota.set_rate(rate, now_ns).pause_ns(now_ns), max(rate, 1)

    def record_sent(self, replica: LeaderReplica, broker: int, size: int, now_ns: int) -> None:
        """Counts bytes against the replication quota of a throttled follower."""
        rate = self.context.broker.settings.leader_replication_throttled_rate
        if rate < UNLIMITED and replica.is_follower_throttled(broker):
            self._quota.set_rate(rate, now_ns).record(size, now_ns)

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped, and brokers that are not registered."""
        self._replicas = {place: replica for place, replica in self._replicas.items() if not replica.is_stopped}
        brokers = self.context.broker.image.brokers
        self._followers = {
            node_id: FollowerState(
                each.incarnation,
                {replica: last for replica, last in each.last_replies.items() if not replica.is_stopped},
            )
            for node_id, each in self._followers.items()
            if node_id in brokers
        }
