"""Produce (0), versions 3 to 13: record batches into partitions, as they came.

Versions 0 to 2 are offered but end the connection, as in Kafka 4: some clients compress only when they see version 0
(KAFKA-18659). Version 7 brought zstd, 8 errors of single records (KIP-467), 9 flexible frames, 10 who leads instead
(KIP-951), 13 topic ids (KIP-516).
Transactional batches are refused: nobody could end their transaction.

The work is done in the turn that brings the request, unless it is long: records for very many partitions are appended
in pieces, and the next request of that connection is taken after the last one. Only acks=all on a partition with other
replicas, or with `flush=ack`, waits, and holds up nobody but the answers behind it on its connection. With acks=0 there
is no answer at all, so an error ends the connection. Record batches are checked and stamped where they lie and go to
the file from there; uncompressed records are checked one by one in C, compressed ones are not opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata.topic_names import check_writable
from tiered.records.model import CODEC_MASK, HEADER_BYTES, LENGTH_FROM, MAGIC, Codec
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered_api.kafka.protocol.primitives import id_text
from tiered_api.kafka.server.context import Site
from tiered_api.kafka.server.leader_hints import ELSEWHERE, NO_TAGS, NewLeaders
from tiered_api.kafka.server.produce import frames
from tiered_api.kafka.server.produce.frames import BY_ID, CORRELATED, Outcome, ProduceAsk, Template, Topic, compact_text
from tiered_api.kafka.server.produce.record_errors import RecordErrors
from tiered_api.kafka.server.produce.sequence_gaps import RefusedSequences

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import Connection
    from tiered_api.kafka.server.dispatch import Dispatch
    from tiered_api.kafka.server.socket_writer import Part

API_KEY = 0
ZSTD_FROM = 7
RECORD_ERRORS_FROM = 8
LEADERS_FROM, LEADER_TAG = 10, 0
KNOWN_MAX = 10_000
HEAD_BYTES_MAX = 1024
WAIT_MAX_MS = 600_000
PIECE = 50
"""Partitions whose records are appended in one go: some 5 ms."""
LONG = 4 * PIECE
"""A request of more is always dealt with in pieces; a shorter one only when others have used up the turn."""
PART_BYTES = 128 << 10
"""So many bytes count as one partition more."""
TWICE = "the partition stands twice in the request"

_SHAPE = Struct(">8xi4xb4xh")
"""Batch length, magic and attributes."""

Outcomes = list[tuple[bytes, list[Outcome]]]


class Head(NamedTuple):
    """What the bytes of a request mean that stand before its records, when those are all for one partition."""

    acks: int
    replica: LeaderReplica
    template: Template


class Appending:
    """One request, and what became of its parts so far."""

    def __init__(self, connection: Connection, version: int, correlation_id: int, ask: ProduceAsk) -> None:
        self.connection = connection
        self.version = version
        self.correlation_id = correlation_id
        self.acks = ask.acks
        self.timeout_ms = ask.timeout_ms
        self.asked = ask.topics
        """Empty once all is appended: their records are views of the request, whose memory is given back."""
        self.topics: Outcomes = []
        self.waiting: list[tuple[LeaderReplica, int, list[Outcome], int]] = []
        """Parts that are not committed yet: up to which offset they have to be, and the place of their outcome."""
        self.failed = False


class Produces:
    """Produce requests of one server.

    Clients send the same again and again up to the records: topic, partition, acks. Bytes that were read once and led
    to an append are remembered, and when they come again nothing is parsed: they mean the same, whoever sends them.
    """

    def __init__(self, site: Site, dispatch: Dispatch) -> None:
        self._site = site
        self._dispatch = dispatch
        self._by_name: dict[tuple[bytes, int], LeaderReplica] = {}
        self._by_id: dict[tuple[bytes, int], LeaderReplica] = {}
        self._heads: dict[tuple[int, bytes], Head] = {}

    def take(
        self, connection: Connection, frame: memoryview, version: int, correlation_id: int, at: int
    ) -> Sequence[Part] | None:
        """Appends what the request brings; its answer, or None where that comes later or never."""
        site = self._site
        site.requests[API_KEY] += 1
        begin = connection.produce_head
        head = self._heads.get((version, bytes(frame[CORRELATED:begin])))
        if head is not None:
            done = self._append_known(head, frame, version, correlation_id, begin)
            if done is not None:
                return done
        ask = frames.parse(frame, version, at)
        weight = sum(len(topic.parts) for topic in ask.topics) + len(frame) // PART_BYTES
        if weight > PIECE and (weight > LONG or not site.turns.is_free()):
            held = connection.hold(frame)
            if held is not frame:
                ask = frames.parse(held, version, at)
            appending = Appending(connection, version, correlation_id, ask)
            self._dispatch.spawn(connection, partial(self._append_long, appending), "Produce")
            return None
        appending = Appending(connection, version, correlation_id, ask)
        for _ in self._append(appending):
            pass
        topics = appending.topics
        if len(topics) == 1 and len(topics[0][1]) == 1 and not appending.failed and ask.acks:
            self._learn(connection, frame, version, ask, topics[0][1][0])
        if ask.acks == 0:
            if appending.failed:
                connection.refuse("acks_0", _first_failure(topics))
            return None
        if appending.waiting:
            self._dispatch.spawn(connection, partial(self._wait, appending), "Produce")
            return None
        return self._answer(appending)

    async def _append_long(self, appending: Appending) -> Sequence[Part] | None:
        """Appends in pieces, between which others have their turns. The next request of the connection comes after."""
        connection, turns = appending.connection, self._site.turns
        try:
            await turns.wait()
            for _ in self._append(appending):
                await turns.wait()
        finally:
            if not connection.closed:
                connection.go_on()
        if appending.acks == 0:
            if appending.failed:
                connection.refuse("acks_0", _first_failure(appending.topics))
            return ()
        return await self._wait(appending)

    def _append(self, appending: Appending) -> Iterator[None]:
        """Appends all parts, with a pause after each piece."""
        site, connection, version, acks = self._site, appending.connection, appending.version, appending.acks
        known = self._by_id if version >= BY_ID else self._by_name
        asked = appending.asked
        several = len(asked) != 1 or len(asked[0].parts) != 1
        seen: set[tuple[bytes, int]] = set()
        record_errors = RecordErrors()
        room = PIECE
        for topic in asked:
            outcomes: list[Outcome] = []
            appending.topics.append((topic.echo, outcomes))
            for index, records in topic.parts:
                if room <= 0:
                    yield
                    room = PIECE
                room -= 1 + (len(records) // PART_BYTES if records is not None else 0)
                replica = known.get((topic.echo, index))
                if several:
                    if (topic.echo, index) in seen:
                        appending.failed = True
                        outcomes.append(Outcome(index, Code.INVALID_REQUEST.number, why=TWICE))
                        continue
                    seen.add((topic.echo, index))
                try:
                    if replica is None or replica.is_stopped:
                        replica = self._find(known, topic, index)
                    _check_shape(records, version)
                    assert records is not None
                    appended = replica.append_now(records, acks)
                except Refused as fault:
                    appending.failed = True
                    refused = _as_before(connection, (topic.echo, index), records, replica, fault)
                    outcomes.append(self._failure(index, refused, records, replica, version, record_errors))
                    continue
                site.produced_bytes += len(records)
                end = appended.last_offset + 1
                if acks == ACKS_ALL and not replica.is_committed(end):
                    appending.waiting.append((replica, end, outcomes, len(outcomes)))
                outcomes.append(
                    Outcome(index, 0, appended.base_offset, appended.append_time_ms, replica.log_start_offset)
                )
        appending.asked = []

    def tidy(self) -> None:
        """Forgets partitions that are led here no more."""
        self._by_name = {at: replica for at, replica in self._by_name.items() if not replica.is_stopped}
        self._by_id = {at: replica for at, replica in self._by_id.items() if not replica.is_stopped}
        self._heads = {begun: head for begun, head in self._heads.items() if not head.replica.is_stopped}

    def _append_known(
        self, head: Head, frame: memoryview, version: int, correlation_id: int, begin: int
    ) -> Sequence[Part] | None:
        """The short way; None, and nothing done, when it is not that simple."""
        acks, replica, template = head
        records = frames.only_records(frame, version, begin)
        if records is None or not (acks == 1 or replica.commits_on_append):
            return None
        try:
            _check_shape(records, version)
            base_offset, _, append_time_ms, _ = replica.append_now(records, acks)
        except Refused:
            return None  # the long way says it in full
        self._site.produced_bytes += len(records)
        return (template.fill(correlation_id, base_offset, append_time_ms, replica.log_start_offset),)

    def _learn(
        self, connection: Connection, frame: memoryview, version: int, ask: ProduceAsk, outcome: Outcome
    ) -> None:
        known = self._by_id if version >= BY_ID else self._by_name
        echo = ask.topics[0].echo
        if len(self._heads) >= KNOWN_MAX:
            self._heads.clear()
        if ask.head <= HEAD_BYTES_MAX:
            head = Head(ask.acks, known[echo, outcome.partition], Template(version, echo, outcome.partition))
            self._heads[version, bytes(frame[CORRELATED : ask.head])] = head
            connection.produce_head = ask.head

    async def _wait(self, appending: Appending) -> Sequence[Part]:
        timeout_ms = max(0, min(appending.timeout_ms, WAIT_MAX_MS))
        waiting = appending.waiting
        pieces: list[asyncio.Future[list[BaseException | None]]] = []
        try:
            for first in range(0, len(waiting), PIECE):
                if first:
                    await self._site.turns.wait()
                commits = (each.wait_committed(end, timeout_ms) for each, end, _, _ in waiting[first : first + PIECE])
                pieces.append(asyncio.gather(*commits, return_exceptions=True))
            done = [fault for piece in pieces for fault in await piece]
        finally:
            for piece in pieces:
                piece.cancel()
        for (_, _, outcomes, place), fault in zip(waiting, done, strict=True):
            if isinstance(fault, Refused):
                # The offset stays, as with Kafka: it says that the records are in the log.
                outcomes[place] = outcomes[place]._replace(code=fault.code.number, why=fault.why)
                appending.failed = True
            elif fault is not None:
                raise fault
        return self._answer(appending)

    def _answer(self, appending: Appending) -> Sequence[Part]:
        version, topics = appending.version, appending.topics
        tags = self._tell_leaders(appending.connection.listener, version, topics) if appending.failed else NO_TAGS
        return (frames.answer(version, appending.correlation_id, topics, tags),)

    def _tell_leaders(self, listener: str, version: int, topics: Outcomes) -> bytes:
        """Says of partitions that are led elsewhere who leads them; returns the tagged fields of the answer."""
        if version < LEADERS_FROM or not any(each.code in ELSEWHERE for _, outcomes in topics for each in outcomes):
            return NO_TAGS
        leaders = NewLeaders(self._site.node.image, listener, LEADER_TAG)
        for echo, outcomes in topics:
            for place, each in enumerate(outcomes):
                if each.code not in ELSEWHERE:
                    continue
                if version >= BY_ID:
                    tags = leaders.by_id(echo, each.partition)
                else:
                    tags = leaders.by_name(compact_text(memoryview(echo), 0)[0] or "", each.partition)
                outcomes[place] = each._replace(tags=tags)
        return leaders.endpoints()

    def _find(self, known: dict[tuple[bytes, int], LeaderReplica], topic: Topic, index: int) -> LeaderReplica:
        name = topic.name
        if known is self._by_id:
            name = self._site.node.topic(TopicId(id_text(topic.echo))).name
        check_writable(name)
        if len(known) >= KNOWN_MAX:
            known.clear()
        replica = known[topic.echo, index] = self._site.node.replica(name, index)
        return replica

    def _failure(
        self,
        index: int,
        refused: Refused,
        records: memoryview | None,
        replica: LeaderReplica | None,
        version: int,
        record_errors: RecordErrors,
    ) -> Outcome:
        errors: Sequence[tuple[int, str]] = ()
        if version >= RECORD_ERRORS_FROM and records is not None and replica is not None:
            errors = record_errors.of(refused, records, replica.config, self._site.clock.wall_ms())
        return Outcome(index, refused.code.number, why=refused.why, record_errors=errors)


def _check_shape(records: memoryview | None, version: int) -> None:
    """What the version of the request asks of its records; the rest is the partition's business."""
    if records is None or len(records) < HEADER_BYTES:
        raise Refused(Code.INVALID_RECORD, "a partition without a record batch")
    length, magic, attributes = _SHAPE.unpack_from(records)
    if magic != MAGIC:
        raise Refused(Code.INVALID_RECORD, f"record batches have magic {MAGIC}, not {magic}")
    if length + LENGTH_FROM != len(records):
        raise Refused(Code.INVALID_RECORD, "a partition has exactly one record batch")
    if version < ZSTD_FROM and attributes & CODEC_MASK == Codec.ZSTD:
        raise Refused(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce {ZSTD_FROM}, not {version}")


def _as_before(
    connection: Connection, part: tuple[bytes, int], records: memoryview | None, replica: LeaderReplica | None, fault: Refused
) -> Refused:
    """What a producer is told whose batch leaves a gap that an earlier answer on this connection has made: the same."""
    if records is None or len(records) < HEADER_BYTES:
        return fault
    if fault.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
        if connection.refused is None or replica is None:
            return fault
        return connection.refused.of_gap(part, records, replica) or fault
    if fault.code.retriable:
        connection.refused = connection.refused or RefusedSequences()
        connection.refused.note(part, records, fault)
    return fault


def _first_failure(topics: Outcomes) -> str:
    return next(each.why or str(each.code) for _, outcomes in topics for each in outcomes if each.code)
