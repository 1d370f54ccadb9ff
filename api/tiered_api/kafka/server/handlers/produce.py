"""Produce (0), versions 3 to 13: appends record batches to partitions, as they came.

Versions 0 to 2 are advertised but end the connection, as in Kafka 4: some clients compress only when they see version 0
(KAFKA-18659). Version 7 added zstd, 8 errors of single records (KIP-467), 9 flexible frames, 10 the current leader
(KIP-951), 12 transactions whose partitions join with their first record (KIP-890), 13 topic ids (KIP-516).

A request is handled in the turn that brings it, unless it is long. Records for very many partitions are appended in
pieces, and the next request of the connection is handled after the last piece. So is a request that begins a
transaction in a partition, if its coordinator does not reply at once. Only acks=all waits, on a partition with
other replicas or with `flush=ack`. It holds up only the replies behind it on the same connection. With acks=0 there is
no reply, so an error ends the connection. Record batches are checked and stamped in place and written from there.
Uncompressed records are checked one by one in C. Compressed ones are opened for compacted topics, whose records need
keys, and if a header does not have their timestamps. A thread opens large batches, and the request goes on behind them
as if it were long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from struct import Struct
from typing import Protocol

from tiered.errors import Code, Refused, unknown_topic_id
from tiered.hot.batch_opening import open_in_thread
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
        self.has_transactional_id = request.transactional_id is not None
        self.requested_topics = request.topics
        """Empty once all records are appended: they are views of the request, whose memory is given back."""
        self.results: TopicResults = []
        self.uncommitted: list[tuple[LeaderReplica, int, list[ProduceResult], int]] = []
        """Partitions that are not committed yet: the offset up to which they must be, and the place of the result."""
        self.guards: Guards = {}
        self.has_failed = False
        self.refused: Refused | None = None
        """The reason if no records of the request are appended."""
        self.record_errors = RecordErrors()
        self.unopened: tuple[Place, memoryview] | None = None
        """The partition before which appending stopped: a thread has to open its batch."""
        self.opened: dict[Place, Sequence[OpenedBatch] | Refused] = {}
        """Facts of batches that a thread has opened, or the reason why it could not."""


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
        site = self._context
        site.requests[API_KEY] += 1
        begin = connection.produce_prefix_end
        head = connection.produce_cache.requests.get((version, bytes(frame[CORRELATION_ID_END:begin])))
        if head is not None:
            done = self._append_cached(connection, head, frame, version, correlation_id, begin)
            if done is not None:
                return done
        ask = frames.parse_request(frame, version, at)
        weight = sum(len(topic.partitions) for topic in ask.topics) + len(frame) // PART_BYTES
        is_large = weight > LARGE_REQUEST_PARTITIONS or (weight > PIECE_PARTITIONS and not site.turns.has_time())
        refused = self._check_transactional_id(connection.produce_cache, ask.transactional_id)
        unverified = (
            self._find_unverified(connection.produce_cache, ask, version)
            if ask.transactional_id is not None and refused is None
            else []
        )
        guards: GuardsNow | None = {}
        if unverified:
            is_small = not is_large and len(unverified) <= PIECE_PARTITIONS
            guards = None if not is_small else self._verify_now(ask.transactional_id or "", unverified, version)
        if is_large or guards is None:
            held = connection.retain_request(frame)
            if held is not frame:
                ask = frames.parse_request(held, version, at)
            appending = PendingProduce(connection, version, correlation_id, ask)
            appending.refused = refused
            self._spawn(connection, partial(self._append_later, appending, ask.transactional_id, unverified), "Produce")
            return None
        appending = PendingProduce(connection, version, correlation_id, ask)
        appending.refused = refused
        appending.guards.update(guards)
        try:
            for _ in self._append(appending):
                pass
        finally:
            end_guards(unverified, guards)
        if appending.unopened is not None:
            held = connection.retain_request(frame)
            if held is not frame:
                appending.requested_topics = frames.parse_request(held, version, at).topics
            appending.guards = {}
            appending.unopened = None
            self._spawn(connection, partial(self._append_later, appending, ask.transactional_id, unverified), "Produce")
            return None
        topics = appending.results
        if len(topics) == 1 and len(topics[0][1]) == 1 and not appending.has_failed and ask.acks:
            self._remember_request(connection, frame, version, ask, topics[0][1][0])
        if ask.acks == 0:
            if appending.has_failed:
                connection.refuse("acks_0", _first_failure(topics))
            return None
        if appending.uncommitted:
            self._spawn(connection, partial(self._wait_committed, appending), "Produce")
            return None
        return self._encode_response(appending)

    def _check_transactional_id(self, cache: ProduceCache, transactional_id: str | None) -> Refused | None:
        authorization = self._context.broker.authorization
        if transactional_id is None or authorization.authorize(
            cache.caller, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return None
        why = f"{cache.caller.principal} may not use the transactional id"
        return Refused(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, why)

    def _may_use_keys(self, connection: ProduceConnection) -> bool:
        """True if a broker sends the request, for itself or for a client of HTTP. Without an authorizer brokers name
        no anonymous client, and there is nobody to tell apart."""
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

    def _find_unverified(self, cache: ProduceCache, request: ParsedProduce, version: int) -> list[Unverified]:
        known = cache.by_id if version >= TOPIC_IDS_FROM else cache.by_name

        def find_replica(topic: ProduceTopic, index: int) -> LeaderReplica:
            replica = known.get((topic.echo, index))
            if replica is None or replica.is_stopped:
                replica = self._find_replica(cache, version, topic, index)
            return replica

        return find_unverified(request, find_replica)

    def _verify_now(self, transactional_id: str, unverified: Sequence[Unverified], version: int) -> GuardsNow | None:
        """Returns the guards of partitions if their coordinator confirms them in this turn, else None."""
        broker = self._context.broker
        is_asked = version >= ADDS_FROM or broker.settings.transaction_partition_verification_enable
        confirm_now = broker.transaction_verification.confirm_now if is_asked else None
        return verify_partitions_now(confirm_now, transactional_id, unverified, version)

    async def _append_later(
        self, pending: PendingProduce, transactional_id: str | None, unverified: Sequence[Unverified]
    ) -> Sequence[Part] | None:
        """Appends once the coordinator knows the partitions, in pieces with turns of other clients in between. The next
        request of the connection comes after the last piece. Each wait may end a right: the caches are empty then."""
        connection, turns = pending.connection, self._context.turns
        try:
            await turns.wait_turn()
            if unverified:
                broker = self._context.broker
                is_verified = pending.version >= ADDS_FROM or broker.settings.transaction_partition_verification_enable
                query = broker.transaction_verification.query if is_verified else None
                pending.guards = await verify_partitions(query, transactional_id or "", unverified, pending.version)
            pending.refused = self._check_transactional_id(connection.produce_cache, transactional_id)
            while pending.requested_topics:
                for _ in self._append(pending):
                    await turns.wait_turn()
                    pending.refused = self._check_transactional_id(connection.produce_cache, transactional_id)
                if pending.unopened is not None:
                    await self._open_batch(pending)
                    pending.refused = self._check_transactional_id(connection.produce_cache, transactional_id)
        finally:
            end_guards(unverified, pending.guards)
            if not connection.closed:
                connection.release_request()
        if pending.acks == 0:
            if pending.has_failed:
                connection.refuse("acks_0", _first_failure(pending.results))
            return ()
        return await self._wait_committed(pending)

    async def _open_batch(self, pending: PendingProduce) -> None:
        """Lets a thread open the batch before which appending stopped."""
        assert pending.unopened is not None
        (place, records), pending.unopened = pending.unopened, None
        try:
            pending.opened[place] = await open_in_thread(records, pending.connection.holder)
        except Refused as refused:
            pending.opened[place] = refused

    def _append(self, pending: PendingProduce) -> Iterator[None]:
        """Appends to all partitions that have no result yet, and pauses after each piece. Ends early before a batch
        that a thread has to open."""
        site, connection, version, acks = self._context, pending.connection, pending.version, pending.acks
        cache = connection.produce_cache
        asked = pending.requested_topics
        several = len(asked) != 1 or len(asked[0].partitions) != 1
        seen: set[Place] = set()
        room = PIECE_PARTITIONS
        for number, topic in enumerate(asked):
            if number == len(pending.results):
                pending.results.append((topic.echo, []))
            outcomes = pending.results[number][1]
            for place, (index, records) in enumerate(topic.partitions):
                if place < len(outcomes):
                    seen.add((topic.echo, index))
                    continue
                if room <= 0:
                    yield
                    room = PIECE_PARTITIONS
                room -= 1 + (len(records) // PART_BYTES if records is not None else 0)
                replica = (cache.by_id if version >= TOPIC_IDS_FROM else cache.by_name).get((topic.echo, index))
                if several:
                    if (topic.echo, index) in seen:
                        pending.has_failed = True
                        outcomes.append(ProduceResult(index, Code.INVALID_REQUEST.number, why=DUPLICATE_PARTITION))
                        continue
                    seen.add((topic.echo, index))
                try:
                    if pending.refused is not None:
                        raise pending.refused
                    if replica is None or replica.is_stopped:
                        replica = self._find_replica(cache, version, topic, index)
                    self._check_shape(connection, records, version, pending.has_transactional_id)
                    assert records is not None
                    if pending.guards:
                        guard = pending.guards.get((topic.echo, index))
                        if isinstance(guard, Refused):
                            raise guard
                        appended = self._append_one(pending, (topic.echo, index), replica, records, guard)
                    elif pending.opened:
                        appended = self._append_one(pending, (topic.echo, index), replica, records, None)
                    else:
                        appended = replica.append_now(records, acks, holder=connection.holder)
                except RecordsUnopened:
                    assert records is not None
                    pending.unopened = (topic.echo, index), records
                    return
                except Refused as fault:
                    pending.has_failed = True
                    refused = _repeat_refusal(connection, (topic.echo, index), records, replica, fault)
                    refused = Refused(_client_code(connection, refused.code, Code.NOT_ENOUGH_REPLICAS), refused.why)
                    outcomes.append(
                        self._make_failure(index, refused, records, replica, version, pending.record_errors)
                    )
                    continue
                site.produced_bytes += len(records)
                end = appended.last_offset + 1
                if acks == ACKS_ALL and not replica.is_committed(end):
                    pending.uncommitted.append((replica, end, outcomes, len(outcomes)))
                outcomes.append(
                    ProduceResult(index, 0, appended.base_offset, appended.append_time_ms, replica.log_start_offset)
                )
        pending.requested_topics = []

    @staticmethod
    def _append_one(
        pending: PendingProduce,
        place: Place,
        replica: LeaderReplica,
        records: memoryview,
        guard: VerificationGuard | None,
    ) -> LogAppendInfo:
        """Appends to a partition whose batch a thread may have opened."""
        opened = pending.opened.get(place, ())
        if isinstance(opened, Refused):
            raise opened
        holder = pending.connection.holder
        return replica.append_now(records, pending.acks, guard=guard, opened=opened, holder=holder)

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped."""
        self.caches.evict_stale()

    def _append_cached(
        self,
        connection: ProduceConnection,
        cached: CachedProduce,
        frame: memoryview,
        version: int,
        correlation_id: int,
        begin: int,
    ) -> Sequence[Part] | None:
        """Appends the records of a cached request. Returns None, without effect, if the full path is needed."""
        acks, replica, template, transactional_id = cached
        records = frames.parse_records_only(frame, version, begin)
        if records is None or not (acks == 1 or replica.commits_on_append):
            return None
        guard: VerificationGuard | None = None
        if transactional_id is not None and (producer := replica.transactions.needs_verification(records)) is not None:
            guards = self._verify_now(transactional_id, [Unverified(_ONLY, replica, producer)], version)
            if guards is None:
                return None
            guard = guards[_ONLY]
        try:
            self._check_shape(connection, records, version, transactional_id is not None)
            base_offset, _, append_time_ms, _ = replica.append_now(records, acks, guard=guard, holder=connection.holder)
        except Refused:
            return None  # the full path makes the error
        finally:
            if guard is not None:
                replica.transactions.end_verification(guard)
        self._context.produced_bytes += len(records)
        return (template.fill(correlation_id, base_offset, append_time_ms, replica.log_start_offset),)

    def _remember_request(
        self,
        connection: ProduceConnection,
        frame: memoryview,
        version: int,
        request: ParsedProduce,
        outcome: ProduceResult,
    ) -> None:
        cache, echo = connection.produce_cache, request.topics[0].echo
        replica = (cache.by_id if version >= TOPIC_IDS_FROM else cache.by_name)[echo, outcome.partition]
        if request.records_length_at <= HEAD_BYTES_MAX:
            head = CachedProduce(
                request.acks, replica, ResponseTemplate(version, echo, outcome.partition),
                request.transactional_id,
            )  # fmt: skip
            self.caches.admit()
            cache.requests[version, bytes(frame[CORRELATION_ID_END : request.records_length_at])] = head
            connection.produce_prefix_end = request.records_length_at

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

    def _find_replica(self, cache: ProduceCache, version: int, topic: ProduceTopic, index: int) -> LeaderReplica:
        name, known, topic_id, authorization = topic.name, cache.by_name, "", self._context.broker.authorization
        if version >= TOPIC_IDS_FROM:
            topic_id = id_text(topic.echo)
            name, known = self._context.broker.topic(TopicId(topic_id)).name, cache.by_id
        if not authorization.authorize(cache.caller, Operation.WRITE, ResourceType.TOPIC, name):
            if topic_id and not authorization.may_describe(cache.caller, name):
                raise unknown_topic_id(topic_id)
            raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, f"{cache.caller.principal} may not write to the topic")
        check_writable(name)
        replica = self._context.broker.leader_replica(name, index)
        self.caches.admit()
        known[topic.echo, index] = replica
        return replica

    def _make_failure(
        self,
        index: int,
        refused: Refused,
        records: memoryview | None,
        replica: LeaderReplica | None,
        version: int,
        record_errors: RecordErrors,
    ) -> ProduceResult:
        errors: Sequence[tuple[int, str]] = ()
        if version >= RECORD_ERRORS_FROM and records is not None and replica is not None:
            errors = record_errors.find_errors(refused, records, replica.config, self._context.clock.wall_ms())
        return ProduceResult(index, refused.code.number, why=refused.why, record_errors=errors)


def _repeat_refusal(
    connection: ProduceConnection,
    partition: tuple[bytes, int],
    records: memoryview | None,
    replica: LeaderReplica | None,
    refused: Refused,
) -> Refused:
    """Returns the error for a refused batch. If an earlier error on this connection caused its sequence gap, the batch
    gets that error again."""
    if records is None or len(records) < HEADER_BYTES:
        return refused
    if refused.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
        if connection.refused_sequences is None or replica is None:
            return refused
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
