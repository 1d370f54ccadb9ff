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
from tiered.peers import FetchFrom
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.replication_quota import UNLIMITED, ReplicationQuota
from tiered_api.kafka.server.context import Site
from tiered_api.kafka.server.fetch import frames, replica_frames
from tiered_api.kafka.server.fetch.delayed_replica_fetch import ReplicaPoll, Told
from tiered_api.kafka.server.fetch.replica_frames import ReplicaAsk
from tiered_api.kafka.server.inter_broker_auth import outsider

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import Connection
    from tiered_api.kafka.server.socket_writer import Part

Guard = Callable[["Connection", Callable[[], None], str], None]
KNOWN_MAX = 50_000
PARKED_MAX = 500_000
"""Partitions for which followers wait: one more is answered at once with what there is."""


class Follower(NamedTuple):
    """One incarnation of a broker that copies from here."""

    incarnation: int
    told: dict[LeaderReplica, Told]


class ReplicaFetches:
    """Fetch requests of the followers of one broker, those that wait included."""

    def __init__(self, site: Site, guard: Guard) -> None:
        self.site = site
        self.guard = guard
        self.waiting: dict[ReplicaPoll, None] = {}
        self.parked = 0
        self.turns: dict[int, tuple[str, int]] = {}
        """By follower: the partition that got nothing last time, for want of room; it is the first next time."""
        self._throttle = ReplicationQuota()
        self._known: dict[tuple[str, int], LeaderReplica] = {}
        self._followers: dict[int, Follower] = {}

    def take(self, connection: Connection, ask: ReplicaAsk, correlation_id: int) -> Sequence[Part] | None:
        """The answer, or None where that comes later."""
        stranger = outsider(self.site, connection.listener, ask.credential) or self.stranger(ask)
        if stranger is not None:
            self.site.refusals.note("stranger", connection.peer, stranger.why)
            return self.refusal(correlation_id, stranger)
        max_bytes = min(ask.max_bytes, self.site.node.settings.fetch_max_bytes)
        poll = ReplicaPoll(self, connection, correlation_id, ask, max_bytes)
        poll.read(self.turns.pop(ask.node_id, None))
        if poll.is_done() or self.parked + poll.size > PARKED_MAX:
            return poll.answer()
        poll.wait()
        return None

    def stranger(self, ask: ReplicaAsk) -> Refused | None:
        """Why this is not the broker that it says it is, if it is not."""
        broker = self.site.node.image.brokers.get(ask.node_id)
        if broker is None:
            return Refused(Code.BROKER_ID_NOT_REGISTERED, f"there is no broker {ask.node_id}")
        try:
            known = incarnation_number(broker.incarnation)
        except ValueError:
            known = -1  # one that no follower can name
        if not broker.alive or known != ask.incarnation:
            return Refused(Code.STALE_BROKER_EPOCH, f"another process is broker {ask.node_id}, or it stopped")
        return None

    def refusal(self, correlation_id: int, refused: Refused) -> Sequence[Part]:
        """The whole answer to a stranger."""
        return frames.answer(replica_frames.VERSION, correlation_id, (), 0, code=refused.code.number)

    def told(self, ask: ReplicaAsk) -> dict[LeaderReplica, Told]:
        """What the asker, who is no stranger, knows of partitions."""
        follower = self._followers.get(ask.node_id)
        if follower is None or follower.incarnation != ask.incarnation:
            follower = self._followers[ask.node_id] = Follower(ask.incarnation, {})
        return follower.told

    def find(self, asked: FetchFrom) -> LeaderReplica:
        """The partition; `Refused` when it is not led here."""
        known = self._known
        place = asked.topic_id, asked.partition
        replica = known.get(place)
        if replica is None or replica.is_stopped:
            node = self.site.node
            name = node.topic(asked.topic_id).name
            if len(known) >= KNOWN_MAX:
                known.clear()
            replica = known[place] = node.replica(name, asked.partition)
        return replica

    def throttled(self, replica: LeaderReplica, broker: int, now_ns: int) -> tuple[int, int] | None:
        """For a follower that is held to a rate (KIP-73): how long it has to wait, and how much it gets at most after
        that, a second's worth. None for most."""
        rate = self.site.node.settings.leader_replication_throttled_rate
        if rate >= UNLIMITED or not replica.is_follower_throttled(broker):
            return None
        return self._throttle.set_rate(rate, now_ns).pause_ns(now_ns), max(rate, 1)

    def gave(self, replica: LeaderReplica, broker: int, count: int, now_ns: int) -> None:
        """So many bytes are on their way to it."""
        rate = self.site.node.settings.leader_replication_throttled_rate
        if rate < UNLIMITED and replica.is_follower_throttled(broker):
            self._throttle.set_rate(rate, now_ns).record(count, now_ns)

    def tidy(self) -> None:
        """Forgets partitions that are led here no more."""
        self._known = {place: replica for place, replica in self._known.items() if not replica.is_stopped}
        brokers = self.site.node.image.brokers
        self._followers = {
            node: Follower(each.incarnation, {replica: told for replica, told in each.told.items() if not replica.is_stopped})
            for node, each in self._followers.items()
            if node in brokers
        }

    def hurry(self) -> None:
        """The broker stops: all that wait are answered with what there is."""
        for poll in list(self.waiting):
            poll.finish()
