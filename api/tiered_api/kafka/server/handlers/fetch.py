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
from tiered.replication.follower_reads import FollowerReads
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.replica_reads import ReplicaReads
from tiered.replication.replica_selector import ReplicaView, select_replica
from tiered_api.kafka.protocol.primitives import id_text
from tiered_api.kafka.server.context import KafkaContext
from tiered_api.kafka.server.fetch import frames, replica_frames, request_cache
from tiered_api.kafka.server.fetch.cold_reads import ColdReads
from tiered_api.kafka.server.fetch.delayed_fetch import NAME, DelayedFetch, record_bytes_out
from tiered_api.kafka.server.fetch.frames import (
    FLEXIBLE_FROM,
    RACK_FROM,
    TOPIC_IDS_FROM,
    ParsedFetch,
    PartitionResult,
    RequestedTopic,
)
from tiered_api.kafka.server.fetch.replica_handler import ReplicaFetchHandler
from tiered_api.kafka.server.fetch.request_cache import CachedRequest
from tiered_api.kafka.server.latencies import FOLLOWER_FETCH
from tiered_api.kafka.server.long_poll import LARGE_FETCH_PARTITIONS, LargeFetch
from tiered_api.kafka.server.produce.frames import CORRELATION_ID_END

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import ClientConnection
    from tiered_api.kafka.server.socket_writer import Part

API_KEY = 1
Guard = Callable[["ClientConnection", Callable[[], None], str], None]
KNOWN_MAX = 10_000
GATHER_SECONDS = 0.006
PARKED_MAX = 500_000
"""Partitions for which fetches wait: one more is answered at once with what there is, as if its time were up."""


class FetchHandler:
    """Fetch requests of one server, those that wait included."""

    def __init__(self, context: KafkaContext, run_guarded: Guard) -> None:
        self.context = context
        self.run_guarded = run_guarded
        self.turns = context.turns
        self.cold_reads = ColdReads(context)
        self.replica_fetches = ReplicaFetchHandler(context, run_guarded)
        self.parked_fetches: dict[DelayedFetch, None] = {}
        self.parked_partitions = 0
        """Partitions of all fetches that wait."""
        self.shared_results: dict[tuple[ReplicaReads, int, bool], tuple[PartitionResult, int]] | None = None
        """What requests that look in the same turn found: groups that follow the end ask for the same. There only while
        they look, when nothing changes the logs."""
        self.slice_cache: frames.SliceCache | None = None
        """What several of them send."""
        self._cached_requests: dict[tuple[int, bytes], CachedRequest] = {}
        self._due_rereads: list[tuple[ClientConnection, Callable[[], None]]] = []
        self._loop = asyncio.get_running_loop()
        self._gather_until = 0.0
        self._produced_bytes = 0
        """Bytes that had been produced when those that are due waited for more."""
        self._by_name: dict[tuple[bytes, int], ReplicaReads] = {}
        self._by_id: dict[tuple[bytes, int], ReplicaReads] = {}

    def handle_request(
        self, connection: ClientConnection, frame: memoryview, version: int, correlation_id: int, at: int
    ) -> Sequence[Part] | None:
        """Reads what the request asks for; its answer, or None where that comes later."""
        self.context.requests[API_KEY] += 1
        if version == replica_frames.VERSION and replica_frames.is_replica_fetch(frame):
            theirs = replica_frames.parse_request(frame, at)
            if theirs is not None:
                connection.api_key = FOLLOWER_FETCH
                return self.replica_fetches.handle_request(connection, theirs, correlation_id)
        ask = self._parse_request(connection, frame, version, at)
        if ask.replica_id >= 0:
            return self._refuse_replica(connection, version, correlation_id, ask)
        if ask.session_epoch > 0:
            code = Code.FETCH_SESSION_ID_NOT_FOUND.number
            return frames.encode_response(version, correlation_id, (), 0, code=code)
        if sum(len(topic.partitions) for topic in ask.topics) > LARGE_FETCH_PARTITIONS:
            self._start_large_fetch(LargeFetch(self, connection, version, correlation_id, ask))
            return None
        replicas = self._find_known_sources(connection, ask, version)
        poll: DelayedFetch | None = None
        if replicas:
            wanted = ask.topics[0].partitions
            if False not in [replica.is_at_end(each.offset) for replica, each in zip(replicas, wanted, strict=True)]:
                poll = DelayedFetch(self, connection, version, correlation_id, ask, replicas)
            else:
                answer = self._try_fast_response(ask, replicas, version, correlation_id)
                if answer is not None:
                    return answer
        if poll is None:
            poll = DelayedFetch(self, connection, version, correlation_id, ask)
            poll.read_partitions()
        if poll.is_done() or self.parked_partitions + poll.size > PARKED_MAX:
            return poll.make_response()
        poll.park()
        return None

    def _start_large_fetch(self, fetch: LargeFetch) -> None:
        late = self.parked_partitions + fetch.size > PARKED_MAX
        fetch.start()
        if late:
            fetch.complete()

    def _refuse_replica(
        self, connection: ClientConnection, version: int, correlation_id: int, request: ParsedFetch
    ) -> Sequence[Part]:
        """Our followers ask in one way only, and say the credential: this one does not, so it is none of them."""
        self.context.refusals.record("stranger", connection.peer, f"says to be broker {request.replica_id}")
        code = Code.CLUSTER_AUTHORIZATION_FAILED.number
        told = [
            (topic.echo, [PartitionResult(each.partition, code) for each in topic.partitions])
            for topic in request.topics
        ]
        return frames.encode_response(version, correlation_id, told, len(told), code=code)

    def _parse_request(self, connection: ClientConnection, frame: memoryview, version: int, at: int) -> ParsedFetch:
        """Clients send the same again and again up to the offsets. Bytes before these that were read once are
        remembered: they mean the same, whoever sends them."""
        head = self._cached_requests.get((version, bytes(frame[CORRELATION_ID_END : connection.fetch_prefix_end])))
        if head is not None:
            known = request_cache.parse_cached(frame, head)
            if known is not None:
                return known
        ask = frames.parse_request(frame, version, at)
        head = request_cache.remember_request(frame, ask)
        if head is not None:
            if len(self._cached_requests) >= KNOWN_MAX:
                self._cached_requests.clear()
            self._cached_requests[version, bytes(frame[CORRELATION_ID_END : ask.rows_at])] = head
            connection.fetch_prefix_end = ask.rows_at
        return ask

    def _find_known_sources(
        self, connection: ClientConnection, request: ParsedFetch, version: int
    ) -> list[ReplicaReads] | None:
        """The partitions of the only topic, when all are known and nothing is wrong with them."""
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
                if self.find_nearest_replica(connection, replica, request.rack, offset) is not None:
                    return None
            elif isinstance(replica, FollowerReads):
                return None
            replicas.append(replica)
        return replicas

    def _try_fast_response(
        self, request: ParsedFetch, replicas: list[ReplicaReads], version: int, correlation_id: int
    ) -> Sequence[Part] | None:
        """The short way to an answer: what is asked for is hot, enough, and not too much. None, and nothing done, when
        it is not that simple."""
        (echo, _, wanted), committed = request.topics[0], request.read_committed
        most = left = min(request.max_bytes, self.context.broker.settings.fetch_max_bytes)
        founds: list[PartitionResult | bytes] = []
        for (index, offset, limit, _), replica in zip(wanted, replicas, strict=True):
            if replica.is_at_end(offset):
                founds.append(frames.encode_empty(version, index, *replica.offset_snapshot(), committed))
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
            founds.append(PartitionResult(index, 0, high_watermark, stable, log_start, data))
        if most - left < request.min_bytes:
            return None
        self.context.fetched_bytes += most - left
        if len(founds) == 1:
            replicas[0].traffic.bytes_out += most - left
        else:
            record_bytes_out(founds, replicas)
        if len(founds) == 1 and isinstance(found := founds[0], PartitionResult) and version >= FLEXIBLE_FROM:
            return frames.encode_single_response(version, correlation_id, echo, found, committed)
        return frames.encode_response(version, correlation_id, ((echo, founds),), 1, read_committed=committed)

    def find_nearest_replica(
        self, connection: ClientConnection, source: ReplicaReads, rack: str, offset: int
    ) -> int | None:
        """The broker that a consumer in `rack` should read from, when it is not this one (KIP-392)."""
        node = self.context.broker
        own, brokers = node.settings, node.image.brokers
        if rack == own.broker_rack or own.replica_selector_class != RACK_AWARE or not isinstance(source, LeaderReads):
            return None
        leader = ReplicaView(own.node_id, own.broker_rack, 0, source.state.high_watermark)
        others = (
            ReplicaView(other, brokers[other].rack, start, end)
            for other, start, end in source.state.in_sync_followers()
            if other in brokers and brokers[other].live and brokers[other].listeners.get(connection.listener)
        )
        found = select_replica(rack, offset, leader, others)
        if found is not None:
            source.enable_follower_reads()
        return found

    def find_same_topic(
        self, version: int, topic: RequestedTopic, index: int, rack: str, previous: ReplicaReads
    ) -> ReplicaReads:
        """The partition in which a request found `before`, as it is now: never one of another topic, which may have the
        name by now, and to which an offset of the first one means nothing."""
        found = self.find_source(version, topic, index, rack)
        if found.topic_id != previous.topic_id:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name[:249]!r} was deleted")
        return found

    def find_source(self, version: int, topic: RequestedTopic, index: int, rack: str) -> ReplicaReads:
        """The partition, led here or, for a consumer that names its rack, copied; `Refused` when it is neither."""
        known = self._by_id if version >= TOPIC_IDS_FROM else self._by_name
        replica = known.get((topic.echo, index))
        if replica is not None and not replica.is_stopped and (rack or isinstance(replica, LeaderReads)):
            return replica
        name = topic.name
        if version >= TOPIC_IDS_FROM:
            name = self.context.broker.topic(TopicId(id_text(topic.echo))).name
        replica = self._find_by_name(version, name, index, rack)
        if isinstance(replica, LeaderReads) or version >= TOPIC_IDS_FROM:
            if len(known) >= KNOWN_MAX:
                known.clear()
            known[topic.echo, index] = replica
        return replica

    def _find_by_name(self, version: int, name: str, index: int, rack: str) -> ReplicaReads:
        """Consumers that know nothing of the nearest replica are answered by leaders only, as Kafka's brokers do. So is
        one without a rack, which no leader sent here. It takes this broker for the leader, and an offset that only the
        leader can read for one out of range."""
        node = self.context.broker
        followed: FollowerReads | None = None
        try:
            return node.leader_replica(name, index).reads
        except Refused as refused:
            if rack and version >= RACK_FROM and refused.code is Code.NOT_LEADER_OR_FOLLOWER:
                followed = node.follower_reads(name, index)
            if followed is None:
                raise
        return followed

    def schedule_reread(self, connection: ClientConnection, reread: Callable[[], None]) -> None:
        """Has a request look again in the next turn of the loop."""
        if not self._due_rereads:
            self._gather_until = self._loop.time() + GATHER_SECONDS
            self._loop.call_soon(self._run_rereads)
        self._due_rereads.append((connection, reread))

    def _run_rereads(self) -> None:
        """Waits while every turn brings more, for a moment: what comes one after the other makes one answer."""
        produced = self.context.produced_bytes
        if produced != self._produced_bytes and self._loop.time() < self._gather_until:
            self._produced_bytes = produced
            self._loop.call_soon(self._run_rereads)
            return
        due, self._due_rereads = self._due_rereads, []
        if len(due) > 1:
            self.shared_results, self.slice_cache = {}, frames.SliceCache()
        for connection, look in due:
            self.run_guarded(connection, look, NAME)
        self.shared_results = self.slice_cache = None

    def evict_stale(self) -> None:
        """Forgets partitions that are led here no more."""
        self.replica_fetches.evict_stale()
        self._by_name = {at: replica for at, replica in self._by_name.items() if not replica.is_stopped}
        self._by_id = {at: replica for at, replica in self._by_id.items() if not replica.is_stopped}

    def drain(self) -> None:
        """The broker stops: all that wait are answered with what there is."""
        self.replica_fetches.drain()
        for poll in list(self.parked_fetches):
            poll.complete()

    async def close(self) -> None:
        """Ends the loads."""
        await self.cold_reads.close()
