"""Produce (0), versions 3 to 13: appends record batches to partitions, as they came.

Versions 0 to 2 are advertised but end the connection, as in Kafka 4: some clients compress only when they see version 0
(KAFKA-18659). Version 7 added zstd, 8 errors of single records (KIP-467), 9 flexible frames, 10 the current leader
(KIP-951), 12 transactions whose partitions join with their first record (KIP-890), 13 topic ids (KIP-516).

A request takes these steps: parse, check the transactional id, verify the partitions where it begins a transaction,
append, wait until the records are committed, reply. If the caller has sent the same bytes before the records already,
the first two steps are skipped. The steps up to the append are taken in the turn that brings the request, unless it is
long. A task takes them for records of very many partitions, in pieces; for a transaction whose coordinator does not
reply at once; and for a large batch that a thread has to open. The next request of the connection comes after the last
piece.

Only acks=all waits, on a partition with other replicas or with `flush=ack`. It holds up only the replies behind it on
the same connection. With acks=0 there is no reply, so an error ends the connection.

Record batches are checked and stamped in place and written from there. Uncompressed records are checked one by one in
C. Compressed ones are opened for compacted topics, whose records need keys, and if a header does not have their
timestamps. A topic with `confluent.value.schema.validation`, or that of keys, has every batch opened: a task looks the
schemas of its records up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from struct import Struct
from typing import Protocol

from tiered.errors import Code, Refused, unknown_topic_id
from tiered.hot.validation import LogAppendInfo, OpenedBatch, RecordsUnopened
from tiered.ids import KEYED_FROM, TopicId
from tiered.metadata.topic_names import check_writable
from tiered.producers.verification import VerificationGuard
from tiered.records.model import CODEC_MASK, HEADER_BYTES, LENGTH_FROM, MAGIC, TRANSACTIONAL, Codec
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered.security.acls import Operation, ResourceType
from tiered.security.principal import ANONYMOUS, BROKER
from tiered_api.kafka.protocol.primitives import id_text
from tiered_api.kafka.server.context.caller_caches import CallerCaches
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.context.leader_hints import NO_TAGS, NOT_LEADER_CODES, LeaderHints
from tiered_api.kafka.server.produce import frames
from tiered_api.kafka.server.produce.frames import (
    CORRELATION_ID_END,
    TOPIC_IDS_FROM,
    ParsedProduce,
    ProduceResult,
    ProduceTopic,
    ResponseTemplate,
    read_compact_text,
)
from tiered_api.kafka.server.produce.produce_cache import CachedProduce, ProduceCache
from tiered_api.kafka.server.produce.record_errors import RecordErrors
from tiered_api.kafka.server.produce.sequence_gaps import RefusedSequences
from tiered_api.kafka.server.produce.verification import (
    ADDS_FROM,
    Guards,
    Place,
    Unverified,
    end_guards,
    find_unverified,
    verify_partitions,
    verify_partitions_now,
)
from tiered_api.kafka.server.slots.response_slot import RequestConnection, Spawn
from tiered_api.kafka.server.slots.socket_writer import Part

API_KEY = 0
ZSTD_FROM = 7
RECORD_ERRORS_FROM = 8
LEADER_HINTS_FROM, LEADER_TAG = 10, 0
KNOWN_MAX = 20_000
"""Most partitions and requests that are remembered, for all callers together."""
HEAD_BYTES_MAX = 1024
WAIT_MAX_MS = 600_000
PIECE_PARTITIONS = 50
"""Partitions whose records are appended in one piece: about 5 ms."""
LARGE_REQUEST_PARTITIONS = 4 * PIECE_PARTITIONS
"""A larger request is always handled in pieces, a smaller one only if other clients have used up the turn."""
PART_BYTES = 128 << 10
"""So many bytes of records count as one more partition."""
DUPLICATE_PARTITION = "the partition stands twice in the request"

_ONLY: Place = (b"", 0)
"""Stands for the one partition of a cached request."""
_SHAPE = Struct(">8xi4xb4xh20xb")
"""Batch length, magic, attributes and the first byte of the producer id."""
_KEYED_BYTE = KEYED_FROM >> 56

GuardsNow = dict[Place, VerificationGuard]
TopicResults = list[tuple[bytes, list[ProduceResult]]]


class ProduceConnection(RequestConnection, Protocol):
    """The connection of a producer, with what the Produce handler keeps in it."""

    closed: bool
    """True once the connection has ended."""
    produce_prefix_end: int
    """Position of the first records in the last Produce request."""
    produce_cache: ProduceCache
    """Partitions and requests that the caller has produced to."""
    holder: str
    """The holder that new producers count for; "" for a broker."""
    refused_sequences: RefusedSequences | None
    """Batches of idempotent producers that were refused on this connection."""
    is_acting: bool
    """True if a broker sends requests of its HTTP clients."""
    is_broker: bool
    """True if a request has proved by its credential that a broker sends the requests."""

    def retain_request(self, frame: memoryview) -> memoryview:
        """Keeps the request that is handled now beyond this turn, and returns its bytes. Reading stops meanwhile."""

    def release_request(self) -> None:
        """Gives back the memory of the retained request, and reads on."""


class PendingProduce:
    """One request, and the results of its partitions so far."""

    def __init__(
        self, connection: ProduceConnection, version: int, correlation_id: int, request: ParsedProduce
    ) -> None:
        self.connection = connection
        self.version = version
        self.correlation_id = correlation_id
        self.acks = request.acks
        self.timeout_ms = request.timeout_ms
        self.transactional_id = request.transactional_id
        self.records_length_at = request.records_length_at
        self.requested_topics = request.topics
        """Empty once all records are appended: they are views of the request, whose memory is given back."""
        self.results: TopicResults = []
        self.answered: set[Place] = set()
        """Partitions that have a result."""
        self.uncommitted: list[tuple[LeaderReplica, int, list[ProduceResult], int]] = []
        """Partitions that are not committed yet: the offset up to which they must be, and the place of the result."""
        self.unverified: Sequence[Unverified] = ()
        """Partitions in which the request would begin a transaction."""
        self.guards: Guards = {}
        """Their guards, or the refusals of the coordinator."""
        self.has_failed = False
        self.refused: Refused | None = None
        """The reason if no records of the request are appended."""
        self.record_errors = RecordErrors()
        self.unopened: tuple[Place, memoryview, LeaderReplica] | None = None
        """The partition before which appending stopped: its replica has to open the batch."""
        self.opened: dict[Place, Sequence[OpenedBatch] | Refused] = {}
        """Facts of batches that a thread has opened, or the reason why it could not."""

    def iterate_unanswered(self) -> Iterator[tuple[Place, memoryview | None, ProduceTopic, list[ProduceResult]]]:
        """Yields the partitions that have no result yet, each with the results of its topic, to which its own goes."""
        for number, topic in enumerate(self.requested_topics):
            if number == len(self.results):
                self.results.append((topic.echo, []))
            results = self.results[number][1]
            for index, records in topic.partitions[len(results) :]:
                yield (topic.echo, index), records, topic, results


class ProduceHandler:
    """Produce requests of one server. `caches` has the cache of each caller."""

    def __init__(self, context: KafkaContext, spawn: Spawn) -> None:
        self._context = context
        self._spawn = spawn
        self.caches = CallerCaches(ProduceCache, KNOWN_MAX)
        context.broker.authorization.subscribe(self.caches.clear)

    def handle_request(
        self, connection: ProduceConnection, frame: memoryview, version: int, correlation_id: int, at: int
    ) -> Sequence[Part] | None:
        """Appends the records. Returns the reply, or None if it comes later or never."""
        self._context.requests[API_KEY] += 1
        reply = self._append_cached(connection, frame, version, correlation_id)
        if reply is not None:
            return reply
        pending = PendingProduce(connection, version, correlation_id, frames.parse_request(frame, version, at))
        pending.refused = self._check_transactional_id(connection.produce_cache, pending.transactional_id)
        if pending.transactional_id is not None and pending.refused is None:
            pending.unverified = self._find_unverified(pending)
        if not self._is_long(pending, len(frame)) and self._verify_now(pending):
            self._append_now(pending)
            if pending.unopened is None:
                self._remember_request(pending, frame)
                return self._reply_now(pending)
        self._append_in_task(pending, frame, at)
        return None

    def _is_long(self, pending: PendingProduce, size: int) -> bool:
        """True if the appends of a request take more than is left of the turn."""
        weight = sum(len(topic.partitions) for topic in pending.requested_topics) + size // PART_BYTES
        return (
            weight > LARGE_REQUEST_PARTITIONS
            or len(pending.unverified) > PIECE_PARTITIONS
            or (weight > PIECE_PARTITIONS and not self._context.turns.has_time())
        )

    def _append_now(self, pending: PendingProduce) -> None:
        """Appends in this turn. Stops before a batch that a thread has to open."""
        try:
            for _ in self._append(pending):
                pass
        finally:
            end_guards(pending.unverified, pending.guards)

    def _reply_now(self, pending: PendingProduce) -> Sequence[Part] | None:
        """Returns the reply of a request whose records are in the log, or None if it comes later or never."""
        if pending.acks == 0:
            self._end_without_reply(pending)
            return None
        if pending.uncommitted:
            self._spawn(pending.connection, partial(self._wait_committed, pending), "Produce")
            return None
        return self._encode_response(pending)

    def _append_in_task(self, pending: PendingProduce, frame: memoryview, at: int) -> None:
        """Lets a task take the steps that this turn has no time for, or that wait."""
        kept = pending.connection.retain_request(frame)
        if kept is not frame:
            pending.requested_topics = frames.parse_request(kept, pending.version, at).topics
        pending.guards = {}  # `_append_now` gave its guards back; the task begins new ones
        pending.unopened = None
        self._spawn(pending.connection, partial(self._append_later, pending), "Produce")

    def _check_transactional_id(self, cache: ProduceCache, transactional_id: str | None) -> Refused | None:
        authorization = self._context.broker.authorization
        if transactional_id is None or authorization.authorize(
            cache.caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return None
        why = f"{cache.caller.principal} may not use the transactional id"
        return Refused(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, why)

    def _may_use_keys(self, connection: ProduceConnection) -> bool:
        """True if a broker sends the request, for itself or for a client of HTTP. Without an authorizer a broker's
        request for an HTTP client looks like that of any anonymous Kafka client, so both may use keys."""
        principal = connection.produce_cache.caller.principal
        if self._context.broker.authorization.authorizer is None and principal == ANONYMOUS:
            return True
        return connection.is_acting or connection.is_broker or principal.kind == BROKER

    def _check_shape(
        self, connection: ProduceConnection, records: memoryview | None, version: int, has_transactional_id: bool
    ) -> None:
        """Refuses records that the version of the request or its sender does not allow. The replica checks the rest."""
        if records is None or len(records) < HEADER_BYTES:
            raise Refused(Code.INVALID_RECORD, "a partition without a record batch")
        length, magic, attributes, producer_byte = _SHAPE.unpack_from(records)
        if magic != MAGIC:
            raise Refused(Code.INVALID_RECORD, f"record batches have magic {MAGIC}, not {magic}")
        if length + LENGTH_FROM != len(records):
            raise Refused(Code.INVALID_RECORD, "a partition has exactly one record batch")
        if attributes & TRANSACTIONAL and not has_transactional_id:
            raise Refused(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional records need a transactional id")
        if producer_byte >= _KEYED_BYTE and not attributes & TRANSACTIONAL and not self._may_use_keys(connection):
            # Anybody can compute the id of a key. A batch under it would look like the request of another client.
            raise Refused(Code.INVALID_RECORD, "producer ids from 2^62 on belong to requests with an Idempotency-Key")
        if version < ZSTD_FROM and attributes & CODEC_MASK == Codec.ZSTD:
            raise Refused(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {ZSTD_FROM}, not {version}")

    def _find_unverified(self, pending: PendingProduce) -> list[Unverified]:
        """Returns the partitions in which the request would begin a transaction."""
        known = _known_replicas(pending.connection.produce_cache, pending.version)

        def find_replica(topic: ProduceTopic, index: int) -> LeaderReplica:
            replica = known.get((topic.echo, index))
            return self._find_replica(pending, topic, index) if replica is None or replica.is_stopped else replica

        return find_unverified(pending.requested_topics, find_replica)

    def _verify_now(self, pending: PendingProduce) -> bool:
        """Verifies the partitions in this turn. Returns False if their coordinator has to be waited for."""
        if pending.unverified:
            guards = self._begin_guards_now(pending.transactional_id or "", pending.unverified, pending.version)
            if guards is None:
                return False
            pending.guards.update(guards)
        return True

    def _begin_guards_now(
        self, transactional_id: str, unverified: Sequence[Unverified], version: int
    ) -> GuardsNow | None:
        """Returns the guards of partitions if their coordinator confirms them in this turn, else None."""
        confirm_now = self._context.broker.transaction_verification.confirm_now if self._must_query(version) else None
        return verify_partitions_now(confirm_now, transactional_id, unverified, version)

    def _must_query(self, version: int) -> bool:
        """True if partitions of a transaction need a query to its coordinator: always if the query adds them to it."""
        return version >= ADDS_FROM or self._context.broker.settings.transaction_partition_verification_enable

    async def _append_later(self, pending: PendingProduce) -> Sequence[Part] | None:
        """Appends once the coordinator knows the partitions, in pieces with turns of other clients in between. The next
        request of the connection comes after the last piece. The ACLs may change during each wait. That empties the
        caches, so the next append checks the right again."""
        connection, turns, transactional_id = pending.connection, self._context.turns, pending.transactional_id
        try:
            await turns.wait_turn()
            if pending.unverified:
                verification = self._context.broker.transaction_verification
                query = verification.query if self._must_query(pending.version) else None
                pending.guards = await verify_partitions(
                    query, transactional_id or "", pending.unverified, pending.version
                )
            pending.refused = self._check_transactional_id(connection.produce_cache, transactional_id)
            while pending.requested_topics:
                for _ in self._append(pending):
                    await turns.wait_turn()
                    pending.refused = self._check_transactional_id(connection.produce_cache, transactional_id)
                if pending.unopened is not None:
                    await self._open_batch(pending)
                    pending.refused = self._check_transactional_id(connection.produce_cache, transactional_id)
        finally:
            end_guards(pending.unverified, pending.guards)
            if not connection.closed:
                connection.release_request()
        if pending.acks == 0:
            self._end_without_reply(pending)
            return ()
        return await self._wait_committed(pending)

    @staticmethod
    def _end_without_reply(pending: PendingProduce) -> None:
        """Ends a request with acks=0: the client learns of an error by the end of its connection."""
        if pending.has_failed:
            pending.connection.refuse("acks_0", _first_failure(pending.results))

    async def _open_batch(self, pending: PendingProduce) -> None:
        """Opens the batch before which appending stopped."""
        assert pending.unopened is not None
        (place, records, replica), pending.unopened = pending.unopened, None
        try:
            pending.opened[place] = await replica.open_batches(records, pending.connection.holder)
        except Refused as refused:
            pending.opened[place] = refused

    def _append(self, pending: PendingProduce) -> Iterator[None]:
        """Appends to all partitions that have no result yet, and pauses after each piece. Ends early before a batch
        that a thread has to open."""
        room = PIECE_PARTITIONS
        for place, records, topic, results in pending.iterate_unanswered():
            if room <= 0:
                yield
                room = PIECE_PARTITIONS
            room -= 1 + (len(records) // PART_BYTES if records is not None else 0)
            if place in pending.answered:
                pending.has_failed = True
                results.append(ProduceResult(place[1], Code.INVALID_REQUEST.number, why=DUPLICATE_PARTITION))
                continue
            try:
                result = self._append_partition(pending, place, records, topic, results)
            except RecordsUnopened:
                return
            results.append(result)
            pending.answered.add(place)
        pending.requested_topics = []

    def _append_partition(
        self,
        pending: PendingProduce,
        place: Place,
        records: memoryview | None,
        topic: ProduceTopic,
        results: list[ProduceResult],
    ) -> ProduceResult:
        """Appends the batch of one partition. Returns its result; one that is not committed yet is noted as such.
        Raises `RecordsUnopened` if a thread has to open the batch first."""
        known = _known_replicas(pending.connection.produce_cache, pending.version)
        replica = known.get(place)
        try:
            if pending.refused is not None:
                raise pending.refused
            if replica is None or replica.is_stopped:
                replica = self._find_replica(pending, topic, place[1])
            self._check_shape(pending.connection, records, pending.version, pending.transactional_id is not None)
            assert records is not None
            appended = self._append_records(pending, place, records, replica)
        except RecordsUnopened:
            assert records is not None and replica is not None
            pending.unopened = place, records, replica
            raise
        except Refused as refused:
            return self._fail(pending, place, records, replica, refused)
        self._context.produced_bytes += len(records)
        end = appended.last_offset + 1
        if pending.acks == ACKS_ALL and not replica.is_committed(end):
            pending.uncommitted.append((replica, end, results, len(results)))
        return ProduceResult(place[1], 0, appended.base_offset, appended.append_time_ms, replica.log_start_offset)

    @staticmethod
    def _append_records(
        pending: PendingProduce, place: Place, records: memoryview, replica: LeaderReplica
    ) -> LogAppendInfo:
        """Appends under the guard of the partition, with what a thread has found in the batch."""
        holder = pending.connection.holder
        if not pending.guards and not pending.opened:
            return replica.append_now(records, pending.acks, holder=holder)
        guard, opened = pending.guards.get(place), pending.opened.get(place, ())
        if isinstance(guard, Refused):
            raise guard
        if isinstance(opened, Refused):
            raise opened
        return replica.append_now(records, pending.acks, guard=guard, opened=opened, holder=holder)

    def _fail(
        self,
        pending: PendingProduce,
        place: Place,
        records: memoryview | None,
        replica: LeaderReplica | None,
        refused: Refused,
    ) -> ProduceResult:
        """Returns the result of a partition whose batch is refused, as the client understands it."""
        pending.has_failed = True
        refused = _repeat_refusal(pending.connection, place, records, replica, refused)
        code = _client_code(pending.connection, refused.code, Code.NOT_ENOUGH_REPLICAS)
        errors: Sequence[tuple[int, str]] = ()
        if pending.version >= RECORD_ERRORS_FROM and records is not None and replica is not None:
            shown = refused if code is refused.code else Refused(code, refused.why)
            errors = pending.record_errors.find_errors(shown, records, replica.config, self._context.clock.wall_ms())
        return ProduceResult(place[1], code.number, why=refused.why, record_errors=errors)

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped."""
        self.caches.evict_stale()

    def _append_cached(
        self, connection: ProduceConnection, frame: memoryview, version: int, correlation_id: int
    ) -> Sequence[Part] | None:
        """Appends the records of a request whose other bytes are cached. Returns None, without effect, if the steps of
        `handle_request` are needed."""
        begin = connection.produce_prefix_end
        cached = connection.produce_cache.requests.get((version, bytes(frame[CORRELATION_ID_END:begin])))
        if cached is None:
            return None
        acks, replica, template, transactional_id = cached
        records = frames.parse_records_only(frame, version, begin)
        if records is None or not (acks == 1 or replica.commits_on_append):
            return None
        guard: VerificationGuard | None = None
        if transactional_id is not None and (producer := replica.transactions.needs_verification(records)) is not None:
            guards = self._begin_guards_now(transactional_id, [Unverified(_ONLY, replica, producer)], version)
            if guards is None:
                return None
            guard = guards[_ONLY]
        try:
            self._check_shape(connection, records, version, transactional_id is not None)
            base_offset, _, append_time_ms, _ = replica.append_now(records, acks, guard=guard, holder=connection.holder)
        except Refused:
            return None  # the other steps make the error
        finally:
            if guard is not None:
                replica.transactions.end_verification(guard)
        self._context.produced_bytes += len(records)
        return (template.fill(correlation_id, base_offset, append_time_ms, replica.log_start_offset),)

    def _remember_request(self, pending: PendingProduce, frame: memoryview) -> None:
        """Caches the bytes before the records of a request that has one partition and did not fail."""
        end, results = pending.records_length_at, pending.results
        if pending.has_failed or not pending.acks or end > HEAD_BYTES_MAX:
            return
        if len(results) != 1 or len(results[0][1]) != 1:
            return
        connection, version = pending.connection, pending.version
        cache, echo, partition = connection.produce_cache, results[0][0], results[0][1][0].partition
        replica = _known_replicas(cache, version)[echo, partition]
        template = ResponseTemplate(version, echo, partition)
        self.caches.admit()
        cache.requests[version, bytes(frame[CORRELATION_ID_END:end])] = CachedProduce(
            pending.acks, replica, template, pending.transactional_id
        )
        connection.produce_prefix_end = end

    async def _wait_committed(self, pending: PendingProduce) -> Sequence[Part]:
        timeout_ms = max(0, min(pending.timeout_ms, WAIT_MAX_MS))
        waiting = pending.uncommitted
        pieces: list[asyncio.Future[list[BaseException | None]]] = []
        try:
            for first in range(0, len(waiting), PIECE_PARTITIONS):
                if first:
                    await self._context.turns.wait_turn()
                commits = (
                    each.confirm_committed(end, timeout_ms)
                    for each, end, _, _ in waiting[first : first + PIECE_PARTITIONS]
                )
                pieces.append(asyncio.gather(*commits, return_exceptions=True))
            done = [fault for piece in pieces for fault in await piece]
        finally:
            for piece in pieces:
                piece.cancel()
        for (_, _, outcomes, place), fault in zip(waiting, done, strict=True):
            if isinstance(fault, Refused):
                # The offset stays, as in Kafka: the records are in the log.
                code = _client_code(pending.connection, fault.code, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
                outcomes[place] = outcomes[place]._replace(code=code.number, why=fault.why)
                pending.has_failed = True
            elif fault is not None:
                raise fault
        return self._encode_response(pending)

    def _encode_response(self, pending: PendingProduce) -> Sequence[Part]:
        version, topics = pending.version, pending.results
        tags = self._add_leader_hints(pending.connection.listener, version, topics) if pending.has_failed else NO_TAGS
        return (frames.encode_response(version, pending.correlation_id, topics, tags),)

    def _add_leader_hints(self, listener: str, version: int, topics: TopicResults) -> bytes:
        """Adds the current leader to partitions that this broker does not lead. Returns the reply's tagged fields."""
        if version < LEADER_HINTS_FROM or not any(
            each.code in NOT_LEADER_CODES for _, outcomes in topics for each in outcomes
        ):
            return NO_TAGS
        leaders = LeaderHints(self._context.broker.image, listener, LEADER_TAG)
        for echo, outcomes in topics:
            for place, each in enumerate(outcomes):
                if each.code not in NOT_LEADER_CODES:
                    continue
                if version >= TOPIC_IDS_FROM:
                    tags = leaders.tags_by_id(echo, each.partition)
                else:
                    tags = leaders.tags_by_name(read_compact_text(memoryview(echo), 0)[0] or "", each.partition)
                outcomes[place] = each._replace(tags=tags)
        return leaders.endpoint_tags()

    def _find_replica(self, pending: PendingProduce, topic: ProduceTopic, index: int) -> LeaderReplica:
        """Returns the leader replica of a partition that the caller may write to, and remembers it."""
        broker, cache, name, topic_id = self._context.broker, pending.connection.produce_cache, topic.name, ""
        if pending.version >= TOPIC_IDS_FROM:
            topic_id = id_text(topic.echo)
            name = broker.topic(TopicId(topic_id)).name
        if not broker.authorization.authorize(cache.caller, Operation.WRITE, ResourceType.TOPIC, name):
            if topic_id and not broker.authorization.may_describe(cache.caller, name):
                raise unknown_topic_id(topic_id)
            raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, f"{cache.caller.principal} may not write to the topic")
        check_writable(name)
        replica = broker.leader_replica(name, index)
        self.caches.admit()
        _known_replicas(cache, pending.version)[topic.echo, index] = replica
        return replica


def _known_replicas(cache: ProduceCache, version: int) -> dict[Place, LeaderReplica]:
    """Returns the replicas that the caller has produced to, by the bytes that requests of this version name them by."""
    return cache.by_id if version >= TOPIC_IDS_FROM else cache.by_name


def _repeat_refusal(
    connection: ProduceConnection,
    partition: tuple[bytes, int],
    records: memoryview | None,
    replica: LeaderReplica | None,
    refused: Refused,
) -> Refused:
    """Returns the error for a refused batch. A batch behind a sequence gap gets a retriable one, if the batches before
    it may come."""
    if records is None or len(records) < HEADER_BYTES:
        return refused
    if refused.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
        if replica is None:
            return refused
        connection.refused_sequences = connection.refused_sequences or RefusedSequences()
        return connection.refused_sequences.find_refusal(partition, records, replica) or refused
    if refused.code.retriable:
        connection.refused_sequences = connection.refused_sequences or RefusedSequences()
        connection.refused_sequences.record(partition, records, refused)
    return refused


def _client_code(connection: ProduceConnection, code: Code, retried: Code) -> Code:
    """Returns the code that a client gets. librdkafka takes THROTTLING_QUOTA_EXCEEDED for final, and loses the message.
    It sends the message again after `retried`, as Kafka's own client does after both. Brokers, which produce for HTTP
    clients, get the code as it is."""
    is_final = code is Code.THROTTLING_QUOTA_EXCEEDED and not (connection.is_acting or connection.is_broker)
    return retried if is_final else code


def _first_failure(topics: TopicResults) -> str:
    return next(each.why or str(each.code) for _, outcomes in topics for each in outcomes if each.code)
