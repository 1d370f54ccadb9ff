"""Fetch (1), versions 4 to 18: whole record batches from an offset on, at once or when there are enough.

Version 7 brought sessions, which are declined (session id 0): every request names all its partitions. Version 9 brought
leader epochs (KIP-320), 11 the nearest replica (KIP-392), 12 flexible frames, 13 topic ids (KIP-516), 15 to 18 fields
of followers, who are served by replica_fetch.py. At least one batch is given where there is one, however large.

Records of hot segments are answered in the turn that brings the request, as slices of files that the kernel copies. A
request for which there is too little waits on the high watermarks of its partitions. Cold partitions are loaded
meanwhile, and if hot ones have enough for an answer, what was loaded lies ready for the next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tiered.config.kafka_aliases import RACK_AWARE
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicId
from tiered.ports import FileSlice
from tiered.replication.follower_reads import FollowerReads, ReadSource
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.replica_selector import ReplicaView, select_replica
from tiered_api.kafka.protocol.primitives import id_text
from tiered_api.kafka.server.context import Site
from tiered_api.kafka.server.fetch import frames, replica_frames, request_cache
from tiered_api.kafka.server.fetch.cold_reads import ColdLoads
from tiered_api.kafka.server.fetch.delayed_fetch import NAME, Poll, note_sent
from tiered_api.kafka.server.fetch.frames import BY_ID, FLEXIBLE, RACKS, FetchAsk, Found, Topic
from tiered_api.kafka.server.fetch.replica_handler import ReplicaFetches
from tiered_api.kafka.server.fetch.request_cache import Head
from tiered_api.kafka.server.latencies import FOLLOWER_FETCH
from tiered_api.kafka.server.long_poll import LONG, LongPoll
from tiered_api.kafka.server.produce.frames import CORRELATED

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import Connection
    from tiered_api.kafka.server.socket_writer import Part

API_KEY = 1
Guard = Callable[["Connection", Callable[[], None], str], None]
KNOWN_MAX = 10_000
GATHER_SECONDS = 0.006
PARKED_MAX = 500_000
"""Partitions for which fetches wait: one more is answered at once with what there is, as if its time were up."""


class Fetches:
    """Fetch requests of one server, those that wait included."""

    def __init__(self, site: Site, guard: Guard) -> None:
        self.site = site
        self.guard = guard
        self.turns = site.turns
        self.loads = ColdLoads(site)
        self.copies = ReplicaFetches(site, guard)
        self.waiting: dict[Poll, None] = {}
        self.parked = 0
        """Partitions of all fetches that wait."""
        self.shared: dict[tuple[ReadSource, int, bool], tuple[Found, int]] | None = None
        """What requests that look in the same turn found: groups that follow the end ask for the same. There only while
        they look, when nothing changes the logs."""
        self.read_once: frames.ReadOnce | None = None
        """What several of them send."""
        self._heads: dict[tuple[int, bytes], Head] = {}
        self._due: list[tuple[Connection, Callable[[], None]]] = []
        self._loop = asyncio.get_running_loop()
        self._gather_until = 0.0
        self._produced = 0
        """Bytes that had been produced when those that are due waited for more."""
        self._by_name: dict[tuple[bytes, int], ReadSource] = {}
        self._by_id: dict[tuple[bytes, int], ReadSource] = {}

    def take(
        self, connection: Connection, frame: memoryview, version: int, correlation_id: int, at: int
    ) -> Sequence[Part] | None:
        """Reads what the request asks for; its answer, or None where that comes later."""
        self.site.requests[API_KEY] += 1
        if version == replica_frames.VERSION and replica_frames.is_replicas(frame):
            theirs = replica_frames.parse(frame, at)
            if theirs is not None:
                connection.key = FOLLOWER_FETCH
                return self.copies.take(connection, theirs, correlation_id)
        ask = self._ask(connection, frame, version, at)
        if ask.replica >= 0:
            return self._refuse_replica(connection, version, correlation_id, ask)
        if ask.session_epoch > 0:
            code = Code.FETCH_SESSION_ID_NOT_FOUND.number
            return frames.answer(version, correlation_id, (), 0, code=code)
        if sum(len(topic.wanted) for topic in ask.topics) > LONG:
            self._begin_long(LongPoll(self, connection, version, correlation_id, ask))
            return None
        replicas = self._usual(connection, ask, version)
        poll: Poll | None = None
        if replicas:
            wanted = ask.topics[0].wanted
            if False not in [replica.is_at_end(each.offset) for replica, each in zip(replicas, wanted, strict=True)]:
                poll = Poll(self, connection, version, correlation_id, ask, replicas)
            else:
                answer = self._at_once(ask, replicas, version, correlation_id)
                if answer is not None:
                    return answer
        if poll is None:
            poll = Poll(self, connection, version, correlation_id, ask)
            poll.read()
        if poll.is_done() or self.parked + poll.size > PARKED_MAX:
            return poll.answer()
        poll.wait()
        return None

    def _begin_long(self, poll: LongPoll) -> None:
        late = self.parked + poll.size > PARKED_MAX
        poll.begin()
        if late:
            poll.finish()

    def _refuse_replica(
        self, connection: Connection, version: int, correlation_id: int, ask: FetchAsk
    ) -> Sequence[Part]:
        """Our followers ask in one way only, and say the credential: this one does not, so it is none of them."""
        self.site.refusals.note("stranger", connection.peer, f"says to be broker {ask.replica}")
        code = Code.CLUSTER_AUTHORIZATION_FAILED.number
        told = [(topic.echo, [Found(each.partition, code) for each in topic.wanted]) for topic in ask.topics]
        return frames.answer(version, correlation_id, told, len(told), code=code)

    def _ask(self, connection: Connection, frame: memoryview, version: int, at: int) -> FetchAsk:
        """Clients send the same again and again up to the offsets. Bytes before these that were read once are
        remembered: they mean the same, whoever sends them."""
        head = self._heads.get((version, bytes(frame[CORRELATED : connection.fetch_head])))
        if head is not None:
            known = request_cache.parse_known(frame, head)
            if known is not None:
                return known
        ask = frames.parse(frame, version, at)
        head = request_cache.learn(frame, ask)
        if head is not None:
            if len(self._heads) >= KNOWN_MAX:
                self._heads.clear()
            self._heads[version, bytes(frame[CORRELATED : ask.rows])] = head
            connection.fetch_head = ask.rows
        return ask

    def _usual(self, connection: Connection, ask: FetchAsk, version: int) -> list[ReadSource] | None:
        """The partitions of the only topic, when all are known and nothing is wrong with them."""
        if len(ask.topics) != 1:
            return None
        echo, _, wanted = ask.topics[0]
        known = self._by_id if version >= BY_ID else self._by_name
        replicas: list[ReadSource] = []
        for index, offset, _, epoch in wanted:
            replica = known.get((echo, index))
            if replica is None or replica.is_stopped or (epoch >= 0 and epoch != replica.state.leader_epoch):
                return None
            if ask.rack:
                if self.nearest(connection, replica, ask.rack, offset) is not None:
                    return None
            elif isinstance(replica, FollowerReads):
                return None
            replicas.append(replica)
        return replicas

    def _at_once(
        self, ask: FetchAsk, replicas: list[ReadSource], version: int, correlation_id: int
    ) -> Sequence[Part] | None:
        """The short way to an answer: what is asked for is hot, enough, and not too much. None, and nothing done, when
        it is not that simple."""
        (echo, _, wanted), committed = ask.topics[0], ask.read_committed
        most = left = min(ask.max_bytes, self.site.node.settings.fetch_max_bytes)
        founds: list[Found | bytes] = []
        for (index, offset, limit, _), replica in zip(wanted, replicas, strict=True):
            if replica.is_at_end(offset):
                founds.append(frames.nothing(version, index, *replica.offset_snapshot(), committed))
                continue
            if limit > left:
                limit = left
            try:
                fetched = replica.read_now(offset, limit, committed)
            except (Refused, Corrupt, Unavailable):
                return None
            if fetched is None:
                return None
            data, high_watermark, log_start, stable = fetched
            size = data.length if isinstance(data, FileSlice) else len(data)
            if not 0 < size <= limit:
                return None
            left -= size
            founds.append(Found(index, 0, high_watermark, stable, log_start, data))
        if most - left < ask.min_bytes:
            return None
        self.site.fetched_bytes += most - left
        if len(founds) == 1:
            replicas[0].traffic.bytes_out += most - left
        else:
            note_sent(founds, replicas)
        if len(founds) == 1 and isinstance(found := founds[0], Found) and version >= FLEXIBLE:
            return frames.answer_of_one(version, correlation_id, echo, found, committed)
        return frames.answer(version, correlation_id, ((echo, founds),), 1, read_committed=committed)

    def nearest(self, connection: Connection, source: ReadSource, rack: str, offset: int) -> int | None:
        """The broker that a consumer in `rack` should read from, when it is not this one (KIP-392)."""
        node = self.site.node
        own, brokers = node.settings, node.image.brokers
        if rack == own.broker_rack or own.replica_selector_class != RACK_AWARE or not isinstance(source, LeaderReplica):
            return None
        leader = ReplicaView(own.node_id, own.broker_rack, 0, source.high_watermark)
        others = (
            ReplicaView(other, brokers[other].rack, start, end)
            for other, start, end in source.state.in_sync_followers()
            if other in brokers and brokers[other].live and brokers[other].listeners.get(connection.listener)
        )
        found = select_replica(rack, offset, leader, others)
        if found is not None:
            source.enable_follower_reads()
        return found

    def find_again(self, version: int, topic: Topic, index: int, rack: str, before: ReadSource) -> ReadSource:
        """The partition in which a request found `before`, as it is now: never one of another topic, which may have the
        name by now, and to which an offset of the first one means nothing."""
        found = self.find(version, topic, index, rack)
        if found.topic_id != before.topic_id:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name[:249]!r} was deleted")
        return found

    def find(self, version: int, topic: Topic, index: int, rack: str) -> ReadSource:
        """The partition, led here or, for a consumer that names its rack, copied; `Refused` when it is neither."""
        known = self._by_id if version >= BY_ID else self._by_name
        replica = known.get((topic.echo, index))
        if replica is not None and not replica.is_stopped and (rack or isinstance(replica, LeaderReplica)):
            return replica
        name = topic.name
        if version >= BY_ID:
            name = self.site.node.topic(TopicId(id_text(topic.echo))).name
        replica = self._find(version, name, index, rack)
        if isinstance(replica, LeaderReplica) or version >= BY_ID:
            if len(known) >= KNOWN_MAX:
                known.clear()
            known[topic.echo, index] = replica
        return replica

    def _find(self, version: int, name: str, index: int, rack: str) -> ReadSource:
        """Consumers that know nothing of the nearest replica are answered by leaders only, as Kafka's brokers do. So is
        one without a rack, which no leader sent here. It takes this broker for the leader, and an offset that only the
        leader can read for one out of range."""
        node = self.site.node
        followed: FollowerReads | None = None
        try:
            return node.replica(name, index)
        except Refused as refused:
            if rack and version >= RACKS and refused.code is Code.NOT_LEADER_OR_FOLLOWER:
                followed = node.followed(name, index)
            if followed is None:
                raise
        return followed

    def soon(self, connection: Connection, look: Callable[[], None]) -> None:
        """Has a request look again in the next turn of the loop."""
        if not self._due:
            self._gather_until = self._loop.time() + GATHER_SECONDS
            self._loop.call_soon(self._look)
        self._due.append((connection, look))

    def _look(self) -> None:
        """Waits while every turn brings more, for a moment: what comes one after the other makes one answer."""
        produced = self.site.produced_bytes
        if produced != self._produced and self._loop.time() < self._gather_until:
            self._produced = produced
            self._loop.call_soon(self._look)
            return
        due, self._due = self._due, []
        if len(due) > 1:
            self.shared, self.read_once = {}, frames.ReadOnce()
        for connection, look in due:
            self.guard(connection, look, NAME)
        self.shared = self.read_once = None

    def tidy(self) -> None:
        """Forgets partitions that are led here no more."""
        self.copies.tidy()
        self._by_name = {at: replica for at, replica in self._by_name.items() if not replica.is_stopped}
        self._by_id = {at: replica for at, replica in self._by_id.items() if not replica.is_stopped}

    def hurry(self) -> None:
        """The broker stops: all that wait are answered with what there is."""
        self.copies.hurry()
        for poll in list(self.waiting):
            poll.finish()

    async def close(self) -> None:
        """Ends the loads."""
        await self.loads.close()
