"""Fetch (1), versions 4 to 18: whole record batches from an offset on, at once or when there are enough.

Version 7 added fetch sessions. The broker declines sessions (session id 0), so every request names all its partitions.
Version 9 added leader epochs (KIP-320), 11 the nearest replica (KIP-392), 12 flexible frames, 13 topic ids (KIP-516).
Versions 15 to 18 added fields of followers, which `fetch/replica_handler.py` serves. A reply has at least one batch if
there is one, however large.

Records of hot segments leave in the turn that brings the request, as slices of files that the kernel copies. A request
with too few records waits for the high watermarks of its partitions. Cold partitions load at the same time. If hot
partitions have enough for a reply, the loaded batches are kept for the next request.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ports import FileSlice
from tiered.replication.replica_reads import ReplicaReads
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.fetch import frames, replica_frames, request_cache
from tiered_api.kafka.server.fetch.delayed_fetch import DelayedFetch, record_bytes_out
from tiered_api.kafka.server.fetch.fetch_context import FetchConnection, FetchContext
from tiered_api.kafka.server.fetch.frames import FLEXIBLE_FROM, ParsedFetch, PartitionResult
from tiered_api.kafka.server.fetch.large_fetch import LARGE_FETCH_PARTITIONS, LargeFetch
from tiered_api.kafka.server.fetch.replica_handler import ReplicaFetchHandler
from tiered_api.kafka.server.fetch.request_cache import CachedRequest
from tiered_api.kafka.server.produce.frames import CORRELATION_ID_END
from tiered_api.kafka.server.slots.latencies import FOLLOWER_FETCH
from tiered_api.kafka.server.slots.response_slot import RunGuarded
from tiered_api.kafka.server.slots.socket_writer import Part

API_KEY = 1
KNOWN_MAX = 10_000


class FetchHandler:
    """Fetch requests of one server, parked ones included."""

    def __init__(self, context: KafkaContext, run_guarded: RunGuarded) -> None:
        self.context = context
        self.replica_fetches = ReplicaFetchHandler(context, run_guarded)
        self.fetches = FetchContext(context, run_guarded)
        self._cached_requests: dict[tuple[int, bytes], CachedRequest] = {}

    def handle_request(
        self, connection: FetchConnection, frame: memoryview, version: int, correlation_id: int, at: int
    ) -> Sequence[Part] | None:
        """Reads the requested partitions. Returns the reply, or None if the fetch is parked."""
        self.context.requests[API_KEY] += 1
        if version == replica_frames.VERSION and replica_frames.is_replica_fetch(frame):
            replica_request = replica_frames.parse_request(frame, at)
            if replica_request is not None:
                connection.api_key = FOLLOWER_FETCH
                return self.replica_fetches.handle_request(connection, replica_request, correlation_id)
        request = self._parse_request(connection, frame, version, at)
        if request.replica_id >= 0:
            return self._refuse_replica(connection, version, correlation_id, request)
        if request.session_epoch > 0:
            code = Code.FETCH_SESSION_ID_NOT_FOUND.number
            return frames.encode_response(version, correlation_id, (), 0, code=code)
        if sum(len(topic.partitions) for topic in request.topics) > LARGE_FETCH_PARTITIONS:
            self._start_large_fetch(LargeFetch(self.fetches, connection, version, correlation_id, request))
            return None
        fetches = self.fetches
        replicas = connection.read_sources.find_cached(connection.listener, request, version)
        fetch: DelayedFetch | None = None
        if replicas:
            wanted = request.topics[0].partitions
            if False not in [
                replica.is_at_end(offset) for replica, (_, offset, _, _) in zip(replicas, wanted, strict=True)
            ]:
                fetch = DelayedFetch(fetches, connection, version, correlation_id, request, replicas)
            else:
                reply = self._try_fast_response(request, replicas, version, correlation_id)
                if reply is not None:
                    return reply
        if fetch is None:
            fetch = DelayedFetch(fetches, connection, version, correlation_id, request)
            fetch.read_partitions()
        if fetch.is_done() or not fetches.parked.has_room(fetch.size):
            return fetch.make_response()
        fetch.park()
        return None

    def _start_large_fetch(self, fetch: LargeFetch) -> None:
        may_wait = self.fetches.parked.has_room(fetch.size)
        fetch.start()
        if not may_wait:
            fetch.complete()

    def _refuse_replica(
        self, connection: FetchConnection, version: int, correlation_id: int, request: ParsedFetch
    ) -> Sequence[Part]:
        """Refuses a sender that claims to be a replica, but sends neither the followers' version nor the credential."""
        self.context.refusals.record("stranger", connection.peer, f"claims to be broker {request.replica_id}")
        code = Code.CLUSTER_AUTHORIZATION_FAILED.number
        refused = [
            (topic.echo, [PartitionResult(index, code) for index, *_ in topic.partitions]) for topic in request.topics
        ]
        return frames.encode_response(version, correlation_id, refused, len(refused), code=code)

    def _parse_request(self, connection: FetchConnection, frame: memoryview, version: int, at: int) -> ParsedFetch:
        """Parses a request, from the cache if possible: clients repeat their requests with other offsets.

        The cache key is the bytes before the partitions. These mean the same from any client.
        """
        head = self._cached_requests.get((version, bytes(frame[CORRELATION_ID_END : connection.fetch_prefix_end])))
        if head is not None:
            known = request_cache.parse_cached(frame, head)
            if known is not None:
                return known
        request = frames.parse_request(frame, version, at)
        head = request_cache.remember_request(frame, request)
        if head is not None:
            if len(self._cached_requests) >= KNOWN_MAX:
                self._cached_requests.clear()
            self._cached_requests[version, bytes(frame[CORRELATION_ID_END : request.rows_at])] = head
            connection.fetch_prefix_end = request.rows_at
        return request

    def _try_fast_response(
        self, request: ParsedFetch, replicas: list[ReplicaReads], version: int, correlation_id: int
    ) -> Sequence[Part] | None:
        """Returns the reply if all records are hot, enough, and within the limits. Otherwise None, without effect."""
        (echo, _, wanted), committed = request.topics[0], request.read_committed
        most = left = min(request.max_bytes, self.context.broker.settings.fetch_max_bytes)
        results: list[PartitionResult | bytes] = []
        for (index, offset, limit, _), replica in zip(wanted, replicas, strict=True):
            if replica.is_at_end(offset):
                results.append(frames.encode_empty(version, index, *replica.offset_snapshot(), committed))
                continue
            if limit > left:
                limit = left
            try:
                fetched = replica.read_now(offset, limit, committed)
            except (Refused, Corrupt, Unavailable):
                return None
            if fetched is None:
                return None
            data, high_watermark, log_start, stable, aborted = fetched
            size = data.length if isinstance(data, FileSlice) else len(data)
            if not 0 < size <= limit:
                return None
            left -= size
            results.append(PartitionResult(index, 0, high_watermark, stable, log_start, data, aborted_txns=aborted))
        if most - left < request.min_bytes:
            return None
        self.context.fetched_bytes += most - left
        if len(results) == 1:
            replicas[0].traffic.bytes_out += most - left
        else:
            record_bytes_out(results, replicas)
        if len(results) == 1 and isinstance(found := results[0], PartitionResult) and version >= FLEXIBLE_FROM:
            return frames.encode_single_response(version, correlation_id, echo, found, committed)
        return frames.encode_response(version, correlation_id, ((echo, results),), 1, read_committed=committed)

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped."""
        self.replica_fetches.evict_stale()
        self.fetches.sources.evict_stale()

    def drain(self) -> None:
        """Completes all parked fetches, because the broker stops."""
        self.replica_fetches.drain()
        self.fetches.parked.complete_all()

    async def close(self) -> None:
        """Cancels the cold reads."""
        await self.fetches.cold_reads.close()
