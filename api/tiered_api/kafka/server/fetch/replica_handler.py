"""Fetch (1) of followers: the records of a log up to its end, for brokers that copy it.

What a follower asks for moves the high watermark. So only who has the cluster's credential, and is the incarnation that
the metadata log names (rule R6), is heard; whoever else says to be a replica is refused, and nothing is noted.

Most partitions have nothing new most of the time. Those that a follower was told of not long ago are left out of its
answer, so that many of them cost little on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tiered.errors import Code, Refused
from tiered.ids import incarnation_number
from tiered.peers import PartitionFetch
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.replication_quota import UNLIMITED, ReplicationQuota
from tiered_api.kafka.server.context import KafkaContext
from tiered_api.kafka.server.fetch import frames, replica_frames
from tiered_api.kafka.server.fetch.delayed_replica_fetch import DelayedReplicaFetch, LastReply
from tiered_api.kafka.server.fetch.replica_frames import ParsedReplicaFetch
from tiered_api.kafka.server.inter_broker_auth import check_credential

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import ClientConnection
    from tiered_api.kafka.server.socket_writer import Part

Guard = Callable[["ClientConnection", Callable[[], None], str], None]
KNOWN_MAX = 50_000
PARKED_MAX = 500_000
"""Partitions for which followers wait: one more is answered at once with what there is."""


class FollowerState(NamedTuple):
    """One incarnation of a broker that copies from here."""

    incarnation: int
    last_replies: dict[LeaderReplica, LastReply]


class ReplicaFetchHandler:
    """Fetch requests of the followers of one broker, those that wait included."""

    def __init__(self, context: KafkaContext, run_guarded: Guard) -> None:
        self.context = context
        self.run_guarded = run_guarded
        self.parked_fetches: dict[DelayedReplicaFetch, None] = {}
        self.parked_partitions = 0
        self.first_partitions: dict[int, tuple[str, int]] = {}
        """By follower: the partition that got nothing last time, for want of room; it is the first next time."""
        self._throttle = ReplicationQuota()
        self._replicas: dict[tuple[str, int], LeaderReplica] = {}
        self._followers: dict[int, FollowerState] = {}

    def handle_request(
        self, connection: ClientConnection, request: ParsedReplicaFetch, correlation_id: int
    ) -> Sequence[Part] | None:
        """The answer, or None where that comes later."""
        stranger = check_credential(self.context, connection.listener, request.credential) or self.check_sender(request)
        if stranger is not None:
            self.context.refusals.record("stranger", connection.peer, stranger.why)
            return self.encode_refusal(correlation_id, stranger)
        max_bytes = min(request.max_bytes, self.context.broker.settings.fetch_max_bytes)
        poll = DelayedReplicaFetch(self, connection, correlation_id, request, max_bytes)
        poll.read_partitions(self.first_partitions.pop(request.node_id, None))
        if poll.is_done() or self.parked_partitions + poll.size > PARKED_MAX:
            return poll.make_response()
        poll.park()
        return None

    def check_sender(self, request: ParsedReplicaFetch) -> Refused | None:
        """Why this is not the broker that it says it is, if it is not."""
        broker = self.context.broker.image.brokers.get(request.node_id)
        if broker is None:
            return Refused(Code.BROKER_ID_NOT_REGISTERED, f"there is no broker {request.node_id}")
        try:
            known = incarnation_number(broker.incarnation)
        except ValueError:
            known = -1  # one that no follower can name
        if not broker.alive or known != request.incarnation:
            return Refused(Code.STALE_BROKER_EPOCH, f"another process is broker {request.node_id}, or it stopped")
        return None

    def encode_refusal(self, correlation_id: int, refused: Refused) -> Sequence[Part]:
        """The whole answer to a stranger."""
        return frames.encode_response(replica_frames.VERSION, correlation_id, (), 0, code=refused.code.number)

    def last_replies(self, request: ParsedReplicaFetch) -> dict[LeaderReplica, LastReply]:
        """What the asker, who is no stranger, knows of partitions."""
        follower = self._followers.get(request.node_id)
        if follower is None or follower.incarnation != request.incarnation:
            follower = self._followers[request.node_id] = FollowerState(request.incarnation, {})
        return follower.last_replies

    def find_replica(self, partition: PartitionFetch) -> LeaderReplica:
        """The partition; `Refused` when it is not led here."""
        known = self._replicas
        place = partition.topic_id, partition.partition
        replica = known.get(place)
        if replica is None or replica.is_stopped:
            node = self.context.broker
            name = node.topic(partition.topic_id).name
            if len(known) >= KNOWN_MAX:
                known.clear()
            replica = known[place] = node.leader_replica(name, partition.partition)
        return replica

    def throttle_of(self, replica: LeaderReplica, broker: int, now_ns: int) -> tuple[int, int] | None:
        """For a follower that is held to a rate (KIP-73): how long it has to wait, and how much it gets at most after
        that, a second's worth. None for most."""
        rate = self.context.broker.settings.leader_replication_throttled_rate
        if rate >= UNLIMITED or not replica.is_follower_throttled(broker):
            return None
        return self._throttle.set_rate(rate, now_ns).pause_ns(now_ns), max(rate, 1)

    def record_sent(self, replica: LeaderReplica, broker: int, size: int, now_ns: int) -> None:
        """So many bytes are on their way to it."""
        rate = self.context.broker.settings.leader_replication_throttled_rate
        if rate < UNLIMITED and replica.is_follower_throttled(broker):
            self._throttle.set_rate(rate, now_ns).record(size, now_ns)

    def evict_stale(self) -> None:
        """Forgets partitions that are led here no more."""
        self._replicas = {place: replica for place, replica in self._replicas.items() if not replica.is_stopped}
        brokers = self.context.broker.image.brokers
        self._followers = {
            node: FollowerState(
                each.incarnation,
                {replica: told for replica, told in each.last_replies.items() if not replica.is_stopped},
            )
            for node, each in self._followers.items()
            if node in brokers
        }

    def drain(self) -> None:
        """The broker stops: all that wait are answered with what there is."""
        for poll in list(self.parked_fetches):
            poll.complete()
