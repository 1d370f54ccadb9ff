"""The look-up of the replicas that consumer fetches read from.

A fetch reads from the leader replica, or from a follower replica on this broker if the consumer names its rack
(KIP-392). Replicas are cached for each caller, by the bytes with which its requests name them.
"""

from __future__ import annotations

from collections.abc import Callable

from tiered.config.kafka_aliases import RACK_AWARE
from tiered.errors import Code, Refused, unknown_topic_id
from tiered.ids import TopicId
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.replica_reads import ReplicaReads
from tiered.replication.replica_selector import ReplicaView, select_replica
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import Caller
from tiered_api.kafka.protocol.primitives import id_text
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.fetch.frames import RACK_FROM, TOPIC_IDS_FROM, ParsedFetch, RequestedTopic


class ReadSources:
    """The replicas on this broker that the fetches of one caller may read. `admit` is called for each cached one."""

    __slots__ = ("__weakref__", "_admit", "_by_id", "_by_name", "_caller", "_context")

    def __init__(self, context: KafkaContext, caller: Caller, admit: Callable[[], None]) -> None:
        self._context = context
        self._caller = caller
        self._admit = admit
        self._by_name: dict[tuple[bytes, int], ReplicaReads] = {}
        self._by_id: dict[tuple[bytes, int], ReplicaReads] = {}

    def find_cached(self, listener: str, request: ParsedFetch, version: int) -> list[ReplicaReads] | None:
        """Returns the replicas of a request for one topic; None unless all are cached and readable."""
        if len(request.topics) != 1:
            return None
        echo, _, wanted = request.topics[0]
        known = self._by_id if version >= TOPIC_IDS_FROM else self._by_name
        replicas: list[ReplicaReads] = []
        for index, offset, _, epoch in wanted:
            replica = known.get((echo, index))
            if replica is None or replica.is_stopped or (epoch >= 0 and epoch != replica.leader_epoch):
                return None
            if request.rack:
                if self.find_nearest_replica(listener, replica, request.rack, offset) is not None:
                    return None
            elif isinstance(replica, FollowerReads):
                return None
            replicas.append(replica)
        return replicas

    def find_nearest_replica(self, listener: str, source: ReplicaReads, rack: str, offset: int) -> int | None:
        """Returns the broker that a consumer in `rack` should read from; None if that is this broker (KIP-392)."""
        broker = self._context.broker
        own, brokers = broker.settings, broker.image.brokers
        if rack == own.broker_rack or own.replica_selector_class != RACK_AWARE or not isinstance(source, LeaderReads):
            return None
        leader = ReplicaView(own.node_id, own.broker_rack, 0, source.state.high_watermark)
        others = (
            ReplicaView(other, brokers[other].rack, start, end)
            for other, start, end in source.state.in_sync_followers()
            if other in brokers and brokers[other].live and brokers[other].listeners.get(listener)
        )
        found = select_replica(rack, offset, leader, others)
        if found is not None:
            source.enable_follower_reads()
        return found

    def find_same_topic(
        self, version: int, topic: RequestedTopic, index: int, rack: str, previous: ReplicaReads
    ) -> ReplicaReads:
        """Returns the current replica of the partition that `previous` served. `Refused` if a topic with another id has
        the name now: an offset of the earlier topic means nothing in the new one."""
        found = self.find_source(version, topic, index, rack)
        if found.topic_id != previous.topic_id:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name[:249]!r} was deleted")
        return found

    def find_source(self, version: int, topic: RequestedTopic, index: int, rack: str) -> ReplicaReads:
        """Returns the leader replica, or a follower replica for a consumer that names its rack.

        `Refused` if this broker has neither.
        """
        known = self._by_id if version >= TOPIC_IDS_FROM else self._by_name
        replica = known.get((topic.echo, index))
        if replica is not None and not replica.is_stopped and (rack or isinstance(replica, LeaderReads)):
            return replica
        replica = self._find_by_name(version, self.require_right(version, topic), index, rack)
        if isinstance(replica, LeaderReads) or version >= TOPIC_IDS_FROM:
            self._admit()
            known[topic.echo, index] = replica
        return replica

    def require_right(self, version: int, topic: RequestedTopic) -> str:
        """Returns the name of a topic that the caller may read. Raises `Refused`."""
        name, topic_id, authorization = topic.name, "", self._context.broker.authorization
        if version >= TOPIC_IDS_FROM:
            topic_id = id_text(topic.echo)
            name = self._context.broker.topic(TopicId(topic_id)).name
        if not authorization.authorize(self._caller, Operation.READ, ResourceType.TOPIC, name):
            if topic_id and not authorization.may_describe(self._caller, name):
                raise unknown_topic_id(topic_id)
            raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, f"{self._caller.principal} may not read the topic")
        return name

    def _find_by_name(self, version: int, name: str, index: int, rack: str) -> ReplicaReads:
        """Returns a follower replica only to a consumer that knows KIP-392 and names its rack, as Kafka does.

        No leader sends a consumer without a rack to a follower. Such a consumer takes this broker for the leader, and
        would take an offset that only the leader can read for one out of range.
        """
        broker = self._context.broker
        followed: FollowerReads | None = None
        try:
            return broker.leader_replica(name, index).reads
        except Refused as refused:
            if rack and version >= RACK_FROM and refused.code is Code.NOT_LEADER_OR_FOLLOWER:
                followed = broker.follower_reads(name, index)
            if followed is None:
                raise
        return followed

    def __len__(self) -> int:
        return len(self._by_name) + len(self._by_id)

    def clear(self) -> None:
        """Forgets everything."""
        self._by_name.clear()
        self._by_id.clear()

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped."""
        self._by_name = {key: replica for key, replica in self._by_name.items() if not replica.is_stopped}
        self._by_id = {key: replica for key, replica in self._by_id.items() if not replica.is_stopped}
