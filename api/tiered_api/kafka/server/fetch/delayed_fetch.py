"""One consumer fetch from its first read until its reply.

Progress of a partition only marks the partition. The fetch reads marked partitions once per turn of the event loop, so
that one reply carries the records of a produce request over many partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.object_store.metered import PAYER, paid_by
from tiered.ports import FileSlice
from tiered.replication.leader_reads import LeaderReads
from tiered.replication.read_result import AbortedTxns
from tiered.replication.replica_reads import ReplicaReads
from tiered_api.kafka.server.context.leader_hints import NO_TAGS, NOT_LEADER_CODES, LeaderHints
from tiered_api.kafka.server.fetch import frames
from tiered_api.kafka.server.fetch.cold_reads import ColdRead
from tiered_api.kafka.server.fetch.fetch_context import FetchConnection, FetchContext
from tiered_api.kafka.server.fetch.frames import ParsedFetch, Part, PartitionResult, RequestedPartition, RequestedTopic
from tiered_api.kafka.server.fetch.parking import CLOSE_LISTENERS, Parking
from tiered_api.kafka.server.slots.response_slot import ResponseSlot

WAIT_MAX_MS = 300_000
LEADER_HINTS_FROM, LEADER_TAG = 16, 1
"""First version whose replies name the current leader (KIP-951), and the tag of that field."""
FENCED = Code.FENCED_LEADER_EPOCH.number
UNKNOWN_EPOCH = Code.UNKNOWN_LEADER_EPOCH.number


class DelayedFetch:
    """One Fetch request. Each partition has the same place in `_partitions`, `_replicas` and `_results`."""

    __slots__ = (
        "_authorizer",
        "_bytes_left",
        "_changed",
        "_cold_reads",
        "_connection",
        "_context",
        "_correlation_id",
        "_has_error",
        "_is_truncated",
        "_min_bytes",
        "_parking",
        "_partitions",
        "_payer",
        "_replicas",
        "_request",
        "_reread_scheduled",
        "_results",
        "_sources",
        "_topics",
        "_total_bytes",
        "_version",
        "_watched",
        "_watched_places",
    )

    def __init__(
        self,
        context: FetchContext,
        connection: FetchConnection,
        version: int,
        correlation_id: int,
        request: ParsedFetch,
        at_end: Sequence[ReplicaReads] = (),
    ) -> None:
        """`at_end` has the replicas of all partitions if each fetch offset is known to be at the log end."""
        self._context = context
        self._connection = connection
        self._sources = connection.read_sources
        """Those of the caller that sent the request: a broker may send the next one for another caller."""
        self._payer = PAYER.get()
        """The client that pays for requests to the bucket: a later read runs among the work of another client."""
        self._version = version
        self._correlation_id = correlation_id
        self._request = request
        self._topics: list[RequestedTopic] = []
        """The topic of each partition."""
        self._partitions: list[RequestedPartition] = []
        for topic in request.topics:
            self._topics += [topic] * len(topic.partitions)
            self._partitions += topic.partitions
        self._results: list[PartitionResult | None] = [None] * len(self._partitions)
        self._replicas: list[ReplicaReads | None] = list(at_end) or [None] * len(self._partitions)
        self._bytes_left = min(request.max_bytes, context.kafka.broker.settings.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._bytes_left)
        self._total_bytes = 0
        self._has_error = False
        self._is_truncated = False
        """True if records had to be left for the next fetch."""
        self._cold_reads: dict[int, ColdRead] = {}
        self._watched: list[ReplicaReads] = []
        self._watched_places: list[int] = []
        """The place of each watched partition."""
        self._changed: dict[int, None] = {}
        self._reread_scheduled = False
        """True while a further read is due."""
        self._parking = Parking(context.parked, connection, "Fetch")

    @property
    def size(self) -> int:
        """Number of requested partitions."""
        return len(self._partitions)

    # -- reading ------------------------------------------------------------------------------------------------------

    def read_partitions(self) -> None:
        """Reads every partition once. The first one rotates after each reply that lacked room."""
        count = len(self._partitions)
        first = self._connection.fetch_rotation % count if count > 1 else 0
        for place in range(first, count):
            self._read_partition(place)
        for place in range(first):
            self._read_partition(place)

    def is_done(self) -> bool:
        """True if there are enough bytes, or an error, which the client gets at once.

        An empty reply waits for its cold reads, also where the client would not: else they would be for nothing.
        """
        if self._has_error or not self._partitions:
            return True
        if self._cold_reads and not self._total_bytes:
            return False
        return self._total_bytes >= self._min_bytes or (self._request.max_wait_ms <= 0 and not self._cold_reads)

    def make_response(self) -> list[Part]:
        """Returns the reply with what was read."""
        if self._is_truncated:
            self._connection.fetch_rotation += 1
        self._context.kafka.fetched_bytes += self._total_bytes
        if self._total_bytes:
            record_bytes_out(self._results, self._replicas)
        topics, at = self._request.topics, 0
        results = self._all_results()
        by_topic: list[tuple[bytes, list[PartitionResult | bytes]]] = []
        for topic in topics:
            end = at + len(topic.partitions)
            by_topic.append((topic.echo, results[at:end]))
            at = end
        tags = self._add_leader_hints(by_topic) if self._has_error and self._version >= LEADER_HINTS_FROM else NO_TAGS
        committed = self._request.read_committed
        slice_cache = self._context.rereads.slice_cache if self._connection.can_copy_slices else None
        return frames.encode_response(
            self._version,
            self._correlation_id,
            by_topic,
            len(topics),
            read_committed=committed,
            tags=tags,
            slice_cache=slice_cache,
        )

    def _all_results(self) -> list[PartitionResult | bytes]:
        return [found or self._encode_empty(place) for place, found in enumerate(self._results)]

    def _add_leader_hints(self, by_topic: list[tuple[bytes, list[PartitionResult | bytes]]]) -> bytes:
        """Adds the current leader to partitions that this broker does not lead. Returns the reply's tagged fields."""
        leaders: LeaderHints | None = None
        for echo, results in by_topic:
            for place, found in enumerate(results):
                if isinstance(found, PartitionResult) and found.code in NOT_LEADER_CODES:
                    if leaders is None:
                        image = self._context.kafka.broker.image
                        leaders = LeaderHints(image, self._connection.listener, LEADER_TAG)
                    results[place] = found._replace(tags=leaders.tags_by_id(echo, found.partition))
        return NO_TAGS if leaders is None else leaders.endpoint_tags()

    def _encode_empty(self, place: int) -> bytes:
        """Returns the result of a partition that was read at its end, with its current offsets."""
        replica = self._replicas[place]
        assert replica is not None
        return frames.encode_empty(
            self._version, replica.partition, *replica.offset_snapshot(), self._request.read_committed
        )

    def _read_partition(self, place: int) -> None:
        """Reads one partition. The result is None at the end of the log."""
        topic, (index, offset, max_bytes, epoch) = self._topics[place], self._partitions[place]
        replica = self._replicas[place]
        try:
            if replica is None:
                replica = self._replicas[place] = self._sources.find_source(
                    self._version, topic, index, self._request.rack
                )
            elif replica.is_stopped:
                rack, before = self._request.rack, replica
                replica = self._replicas[place] = self._sources.find_same_topic(
                    self._version, topic, index, rack, before
                )
            if epoch >= 0 and epoch != replica.leader_epoch:
                code = FENCED if epoch < replica.leader_epoch else UNKNOWN_EPOCH
                self._results[place] = PartitionResult(index, code)
                self._has_error = True
                return
            if self._redirect_to_nearest(place, replica, offset):
                return
            if replica.is_at_end(offset):
                self._results[place] = None
                return
            self._results[place] = self._read_hot(place, replica, offset, max_bytes)
        except Refused as refused:
            self._fail(place, index, refused, replica)
        except Corrupt as error:
            self._fail(place, index, Refused(Code.CORRUPT_MESSAGE, str(error)), None)
        except Unavailable as error:
            self._fail(place, index, Refused(Code.KAFKA_STORAGE_ERROR, str(error)), None)

    def _redirect_to_nearest(self, place: int, source: ReplicaReads, offset: int) -> bool:
        """True if the reply, sent at once, names a nearer replica to the consumer (KIP-392)."""
        rack = self._request.rack
        sources, listener = self._sources, self._connection.listener
        other = sources.find_nearest_replica(listener, source, rack, offset) if rack else None
        if other is not None:
            self._results[place] = _without_records(source, source.partition)._replace(preferred_read_replica=other)
            self._has_error = True
        return other is not None

    def _read_hot(self, place: int, replica: ReplicaReads, offset: int, max_bytes: int) -> PartitionResult:
        most = min(max_bytes, self._bytes_left)
        committed = self._request.read_committed
        if self._total_bytes and most <= 0:
            self._is_truncated = True
            return _without_records(replica, self._partitions[place][0])
        shared = self._context.rereads.shared_results
        if shared is not None:
            known = shared.get((replica, offset, committed))
            if known is not None and known[1] <= most:
                self._total_bytes += known[1]
                self._bytes_left -= known[1]
                return known[0]
        fetched = replica.read_now(offset, most, committed)
        if fetched is None:
            assert isinstance(replica, LeaderReads), "a follower replica reads its own disk only"
            return self._read_cold(place, replica, offset, most)
        data, high_watermark, log_start, stable, aborted = fetched
        size = data.length if isinstance(data, FileSlice) else len(data)
        if size > most and self._total_bytes:
            self._is_truncated, data, size, aborted = True, b"", 0, ()
        self._total_bytes += size
        self._bytes_left -= size
        found = PartitionResult(replica.partition, 0, high_watermark, stable, log_start, data, aborted_txns=aborted)
        if shared is not None and size:
            shared[replica, offset, committed] = found, size
        return found

    def _read_cold(self, place: int, replica: LeaderReads, offset: int, most: int) -> PartitionResult:
        loads, committed = self._context.cold_reads, self._request.read_committed
        load = self._cold_reads.get(place)  # another fetch may have taken its batches, and then nobody else finds it
        if load is None:
            with paid_by(self._payer):
                load = loads.get_or_start(replica, offset, max(most, 0), committed, self._connection.holder)
        data, aborted, stable = b"", AbortedTxns(), -1
        if load is None:
            self._is_truncated = True
        elif load.refused is not None:
            loads.release(load)
            raise load.refused
        elif load.data is None:
            self._cold_reads[place] = load
        elif len(load.data) > most and self._total_bytes:
            self._is_truncated = True
        else:
            data, aborted, stable = load.data, load.aborted_txns, load.last_stable_offset
            loads.release(load)
            self._cold_reads.pop(place, None)
            self._total_bytes += len(data)
            self._bytes_left -= len(data)
        found = _without_records(replica, replica.partition)
        # The read knows that all cold transactions are decided, even if this leader does not.
        stable = max(found.last_stable_offset, min(stable, found.high_watermark))
        return found._replace(data=data, aborted_txns=aborted, last_stable_offset=stable)

    def _fail(self, place: int, index: int, refused: Refused, replica: ReplicaReads | None) -> None:
        self._has_error = True
        found = PartitionResult(index, refused.code.number)
        if refused.code is Code.OFFSET_OUT_OF_RANGE and replica is not None:
            found = _without_records(replica, index)._replace(code=refused.code.number)
        self._results[place] = found

    # -- waiting ------------------------------------------------------------------------------------------------------

    def park(self) -> None:
        """Waits for enough bytes, an error, or the end of the wait time."""
        self._begin_wait()
        self._parking.set_deadline(self, asyncio.get_running_loop().time() + self._wait_seconds())
        for load in self._cold_reads.values():
            load.callbacks.append(self._on_cold_read)
        try:
            for place in range(len(self._partitions)):
                self._watch(place)
        except Refused:
            self._has_error = True
            self._schedule_reread()

    def _begin_wait(self) -> None:
        self._parking.park(self)
        self._authorizer = self._context.kafka.broker.authorization.authorizer

    def _wait_seconds(self) -> float:
        wait_ms = self._request.max_wait_ms
        if self._cold_reads:
            wait_ms = max(wait_ms, self._context.kafka.broker.settings.remote_fetch_max_wait_ms)
        return min(wait_ms, WAIT_MAX_MS) / 1000

    def unpark(self) -> ResponseSlot | None:
        """Stops waiting. Returns the slot of the reply, None if the fetch is not parked."""
        return self._parking.unpark(self)

    def on_close(self) -> None:
        """Stops waiting, because the connection is closed."""
        self._parking.unpark(self, CLOSE_LISTENERS)

    def remove_listeners(self, most: int) -> bool:
        """Removes at most so many listeners. Returns True if more are left."""
        for replica, place in zip(self._watched[-most:], self._watched_places[-most:], strict=True):
            replica.remove_listener(self, place)
        del self._watched[-most:], self._watched_places[-most:]
        return bool(self._watched)

    def complete(self) -> None:
        """Replies with what there is."""
        slot = self.unpark()
        if slot is not None:
            self._check_rights(range(self.size))
            slot.reply(self.make_response())

    def _check_rights(self, places: range) -> None:
        """Leaves out partitions that the caller may not read any more, if the ACLs changed during the wait."""
        if self._context.kafka.broker.authorization.authorizer is self._authorizer:
            return
        for place in places:
            try:
                self._sources.require_right(self._version, self._topics[place])
            except Refused as refused:
                self._fail(place, self._partitions[place][0], refused, None)

    def _watch(self, place: int) -> None:
        found, replica = self._results[place], self._replicas[place]
        if replica is None or place in self._cold_reads or (found is not None and found.code):
            return
        replica.add_listener(self, place)
        self._watched.append(replica)
        self._watched_places.append(place)

    def on_progress(self, index: int) -> None:
        """Marks the partition: it may have more records."""
        self._changed[index] = None
        if not self._reread_scheduled:
            self._schedule_reread()

    def _on_cold_read(self) -> None:
        self._schedule_reread()

    def _schedule_reread(self) -> None:
        if not self._reread_scheduled and self._parking.slot is not None:
            self._reread_scheduled = True
            self._context.rereads.schedule(self._parking, self.reread)

    def reread(self) -> None:
        """Reads the marked partitions again."""
        self._reread_scheduled = False
        if self._parking.slot is None:
            return
        changed, self._changed = self._changed, {}
        loaded = [place for place, load in self._cold_reads.items() if load.done] if self._cold_reads else []
        for place in (*changed, *loaded):
            self._reread_partition(place)
        if loaded or self.is_done():
            self.complete()

    def _reread_partition(self, place: int) -> None:
        """Reads a partition again in place of its earlier result."""
        before = self._results[place]
        if before is not None:
            data = before.data
            size = data.length if isinstance(data, FileSlice) else len(data)
            self._total_bytes -= size
            self._bytes_left += size
        self._read_partition(place)


def _without_records(replica: ReplicaReads, index: int) -> PartitionResult:
    """Returns the current offsets of a partition, without records."""
    return PartitionResult(index, 0, *replica.offset_snapshot())


def record_bytes_out(results: Sequence[PartitionResult | bytes | None], sources: Sequence[ReplicaReads | None]) -> None:
    """Counts the bytes of a reply in the traffic of their partitions."""
    for found, source in zip(results, sources, strict=True):
        if isinstance(found, PartitionResult) and source is not None:
            source.traffic.bytes_out += found.data.length if isinstance(found.data, FileSlice) else len(found.data)
