"""One read of a REST consumer: all assigned partitions in turn, until there are enough bytes or the time is over
(I34)."""

from __future__ import annotations

import asyncio
import contextlib

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.registry.values import FORM_KINDS, FramedValues, SchemaUnread
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import ReadResult
from tiered.security.acls import Operation, ResourceType
from tiered.system.turns import each_of
from tiered_api.http.consumers.instance import ConsumerInstance
from tiered_api.http.consumers.positions import ConsumerPosition
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.remote_brokers import Leader
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.partitions.reads import (
    DECODED_PER_BYTE,
    OBJECTS_MAX,
    decode_memory,
    load,
    max_decoded_size,
    read_remote,
    tell_unshown_record,
)
from tiered_api.http.partitions.record_json import Rendered, rows_v2
from tiered_api.http.partitions.remote_partition import AnyPartition, RemotePartition
from tiered_api.http.registry.value_codecs import ValueCodecs

RECHECK_SECONDS = 1.0
"""Time for writing a response. The assignment may change while nothing is written."""


async def poll_records(
    request: HttpRequest, instance: ConsumerInstance, max_bytes: int, timeout_ms: int
) -> ConsumerPoll:
    """Returns rows of REST v2, which count as read once the response is delivered. A consumer that commits by itself
    does so with the next read."""
    clock = request.context.clock
    ends_ns = clock.mono_ns() + timeout_ms * 1_000_000
    if instance.config.auto_commit:
        await instance.try_commit_uncommitted()
    while True:
        partitions = await instance.assigned_partitions((ends_ns - clock.mono_ns()) / 1e9)
        reading = ConsumerPoll(request, instance, max_bytes)
        while await reading.read_round(partitions):
            left = (ends_ns - clock.mono_ns()) / 1e9
            if reading.is_enough or left <= 0 or request.context.closing:
                request.recheck()
                reading.require_rights()
                return reading
            await reading.wait_for_more(left)


class ConsumerPoll:
    """The records that one request has gathered. The positions move only when the response is delivered. So nothing is
    lost if a partition cannot be read, or if the client goes away before that."""

    def __init__(self, request: HttpRequest, instance: ConsumerInstance, max_bytes: int) -> None:
        self.pieces: list[bytes] = []
        """Rows of REST v2 as JSON, with commas between them."""
        self.count = 0
        """Number of the rows."""
        form = instance.config.format
        self._framed = FramedValues(form) if form in FORM_KINDS else None
        """Shows keys and values in a format with schemas."""
        self._positions: dict[TopicPartition, ConsumerPosition] = {}
        self._last: TopicPartition | None = None
        self._request = request
        self._instance = instance
        self._assignment_version = instance.assignment_version
        self._bytes_left = max_bytes
        self._size = 0
        self._is_cut = False
        self._progressed = False
        self._local_ends: list[tuple[LeaderReplica, int]] = []
        self._remote_ends: list[tuple[RemotePartition, int]] = []

    @property
    def _is_full(self) -> bool:
        return self._is_cut or self._bytes_left <= 0

    @property
    def is_enough(self) -> bool:
        return self._is_full or self._size >= max(self._instance.config.min_bytes, 1)

    def mark_delivered(self) -> None:
        """Moves the positions past the delivered rows. If the assignment changed meanwhile, the positions stay: the
        next owner of the partitions reads the rows again, and the next commit by hand says so."""
        if self._instance.assignment_version == self._assignment_version:
            self._instance.mark_read(self._positions, self._last)
        elif self.count:
            self._instance.mark_lost(self._positions)
        self._request.context.records_read.inc(self.count)

    def require_rights(self) -> None:
        """Raises `HttpError` if the caller may not read a topic any more whose rows were gathered before a wait."""
        for topic in {tp.topic for tp in self._positions}:
            self._request.require(Operation.READ, ResourceType.TOPIC, topic)

    async def read_round(self, partitions: list[TopicPartition]) -> bool:
        """Reads each partition once, starting after the one read last. Returns False if the assignment changed
        meanwhile: the result is void then. The partitions for which there is no room get a position only: a later reset
        to the end would skip records.

        An error of a partition is raised by the read in which this partition comes first. The next read starts after
        it.
        """
        self._progressed = False
        self._local_ends.clear()
        self._remote_ends.clear()
        async for tp in each_of(self._instance.rotate_partitions(partitions)):
            if self._instance.assignment_version != self._assignment_version:
                return False  # It changed during a wait: a position would be that of a partition of another consumer.
            try:
                await self._read(tp)
            except (Refused, HttpError, Unavailable, Corrupt) as error:
                if self._instance.assignment_version == self._assignment_version and not _is_transient(error):
                    if not self.count and not self._is_full:
                        self._instance.skip_partition(tp)
                        await self._instance.try_commit_new_resets()
                        raise
                    self._is_cut = True
            if self._instance.assignment_version != self._assignment_version:
                return False
        await self._instance.try_commit_new_resets()
        return self._instance.assignment_version == self._assignment_version

    async def _read(self, tp: TopicPartition) -> None:
        request, instance = self._request, self._instance
        request.require(Operation.READ, ResourceType.TOPIC, tp.topic)
        source = instance.open_partition(tp, lookup_seconds=0)  # a partition without a leader must not block others
        if isinstance(source, LeaderReplica):
            self._local_ends.append((source, source.high_watermark))
        spot = self._positions.get(tp)
        if spot is not None and spot.topic_id == source.topic_id:
            position: int | None = spot.offset
        else:  # Nothing was delivered yet of the topic that has this name now.
            position = await instance.resolve_position(tp, source)
            if spot is not None and position is not None:  # The delivery moves to this topic.
                self._positions[tp] = spot = ConsumerPosition(source.topic_id, position)
        if position is None or self._is_full:
            return
        try:
            fetched = await self._fetch(source, position)
        except Refused as refused:
            if refused.code is not Code.OFFSET_OUT_OF_RANGE:
                raise
            if spot is not None:
                self._is_cut = True  # The delivery of these rows would undo a reset. The next read resets.
            elif instance.assignment_version == self._assignment_version:
                await instance.reset_position(tp, source, position)
                self._progressed = True
            return
        if not fetched.size:
            return
        data = await load(request, fetched)
        if isinstance(source, LeaderReplica):
            await request.reserve_memory(decode_memory(data))
        with tell_unshown_record(*tp):
            pieces, count, following = await self._render(tp, data, position, fetched)
        request.require(Operation.READ, ResourceType.TOPIC, tp.topic)
        if count:
            self.pieces += [b",", *pieces] if self.count else pieces
            self.count += count
        self._positions[tp] = ConsumerPosition(source.topic_id, following)
        self._last, self._progressed = tp, True
        self._size += len(data) if count else 0
        self._bytes_left = self._bytes_left - len(data) if self.count < OBJECTS_MAX else 0

    async def _render(self, tp: TopicPartition, data: bytes, position: int, fetched: ReadResult) -> Rendered:
        """Returns rows. The schemas of the first record are loaded as often as it needs another one."""
        request, form = self._request, self._instance.config.format
        show = self._framed
        while True:
            try:
                return await request.run_job(
                    max_decoded_size(data), rows_v2, data, position, self._bytes_left, form, *tp,
                    OBJECTS_MAX - self.count, fetched.aborted_txns, show,
                )  # fmt: skip
            except SchemaUnread as unread:
                assert show is not None
                await request.context.lazy_service(ValueCodecs).load(request, show, unread.id)

    async def _fetch(self, source: AnyPartition, position: int) -> ReadResult:
        read_committed = self._instance.config.read_committed
        if isinstance(source, LeaderReplica):
            return await source.reads.read(position, self._bytes_left, read_committed=read_committed)
        fetched = await read_remote(
            self._request, source, position, self._bytes_left, DECODED_PER_BYTE, read_committed=read_committed
        )
        self._remote_ends.append((source, fetched.end_offset(read_committed)))
        return fetched

    # -- between turns ------------------------------------------------------------------------------------------------

    async def wait_for_more(self, seconds: float) -> None:
        """Returns when a partition has more than was seen, it may be time for another place, or no time is left."""
        if self._progressed:
            return
        more = asyncio.Event()
        parked: list[tuple[LeaderReplica, int]] = []
        seconds = min(seconds, RECHECK_SECONDS)
        waits = [
            asyncio.create_task(self._wait_for_leader(each, seconds, more)) for each in self._group_by_leader().items()
        ]
        try:
            with contextlib.suppress(TimeoutError):
                async with self._request.context.timeout(seconds):
                    for replica, high_watermark in self._local_ends:
                        with contextlib.suppress(Refused):
                            parked.append((replica, replica.reads.park(more.set, high_watermark + 1)))
                    await more.wait()
        finally:
            for replica, number in parked:
                replica.reads.unpark(number)
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def _group_by_leader(self) -> dict[Leader, list[tuple[TopicPartition, TopicId, int]]]:
        """Returns the partitions of other brokers by their leader, with their end offsets."""
        shares: dict[Leader, list[tuple[TopicPartition, TopicId, int]]] = {}
        for source, end in self._remote_ends:
            with contextlib.suppress(Refused):
                leader = source.leader()._replace(epoch=-1)
                shares.setdefault(leader, []).append((source.tp, source.topic_id, end))
        return shares

    async def _wait_for_leader(
        self, share: tuple[Leader, list[tuple[TopicPartition, TopicId, int]]], seconds: float, more: asyncio.Event
    ) -> None:
        """Sets `more` once a leader has more records. The leader's reply comes a little before the time is over."""
        leader, ends = share
        wait_ms = int(seconds * 900)
        with contextlib.suppress(Refused, Unavailable):
            read_committed = self._instance.config.read_committed
            remote_brokers, caller = self._request.context.remote_brokers, self._request.caller
            if await remote_brokers.wait_for_more(leader, ends, wait_ms, read_committed, caller):
                more.set()


def _is_transient(error: Exception) -> bool:
    """Returns True if the topic was deleted or has another leader: the assignment, or the user's choice, will
    change."""
    return isinstance(error, Refused) and (error.code is Code.UNKNOWN_TOPIC_OR_PARTITION or error.code.retriable)
