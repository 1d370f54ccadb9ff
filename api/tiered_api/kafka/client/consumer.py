"""A consumer: long polls at every leader, batches checked and decoded, positions that only move forward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused, TooLarge, Unavailable
from tiered.ids import TopicPartition
from tiered.records import native
from tiered.records.batch import decode_header, decode_records
from tiered.records.model import CONTROL, OBJECTS_MAX, TRANSACTIONAL, BatchHeader, Record
from tiered.records.pieces import read_records
from tiered_api.kafka.client.client import (
    BACKOFF_FIRST_SECONDS,
    BACKOFF_MAX_SECONDS,
    KafkaClient,
    code_from_number,
    to_refused,
)
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST, STALE_LEADER_CODES, list_offsets_at
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

FETCH_BYTES = 16 << 20
PARTITION_BYTES = 1 << 20
LOST_LEADER_BACKOFF_SECONDS = 0.2
ABORT = 0
"""Type of the marker of an aborted transaction: records of this producer do not count."""

HELD_BACK_NS = 5_000_000_000
"""Time for which an open transaction holds a partition back before that is reported."""
DECODED_MAX = 200_000
"""Most records and headers that one fetch of a partition returns, before those of its last batch."""
BATCH_BYTES = 64 << 20
"""Most bytes of records that are decoded at once of a batch."""


class FetchedBatch(NamedTuple):
    """The records of one batch from the position on, and the offsets of the partition."""

    tp: TopicPartition
    header: BatchHeader
    records: list[Record]
    next_offset: int
    """Offset after these records: that after the batch, unless the rest of it is fetched again."""
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


@dataclass(slots=True)
class _ReadFailure:
    """A partition that its leader refuses to serve: the last error, the start of the failures, the time of the next
    try, and the pauses."""

    code: Code
    since_ns: int
    retry_at_ns: int
    backoffs: Iterator[float]


@dataclass(slots=True)
class _Position:
    """The next offset to read of a partition."""

    offset: int
    aborted_producers: set[int] = field(default_factory=set)
    failure: _ReadFailure | None = None
    lost: str = ""
    """Why the last request to its leader had no reply, or why it has no leader."""
    unread_since_ns: int | None = None
    """Time since when replies have no records although the log does. The broker may wait for the bucket."""
    held_back: tuple[int, int] = (-1, 0)
    """The last stable offset that an open transaction holds, and the time since when; the time is -1 once reported."""


class KafkaConsumer:
    """A consumer of assigned partitions. `skipped_offsets` counts offsets that were deleted before they were read;
    without `skips_deleted` such an offset is an error.

    `warn` is called once if a partition cannot be read for the moment; reads are retried for the time limit of a
    request. It is also called if an open transaction holds a partition back for some seconds."""

    def __init__(
        self,
        client: KafkaClient,
        *,
        read_committed: bool = False,
        include_control: bool = False,
        max_wait_ms: int = 500,
        max_bytes: int = FETCH_BYTES,
        rack: str = "",
        skips_deleted: bool = True,
        warn: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._client = client
        self._isolation = 1 if read_committed else 0
        self._include_control = include_control
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes
        self._rack = rack
        self._skips_deleted = skips_deleted
        self._warn = warn
        self._positions: dict[TopicPartition, _Position] = {}
        self._fetches: dict[int, asyncio.Task[FetchResponse]] = {}
        self._requested_offsets: dict[int, dict[TopicPartition, int]] = {}
        self._retry_until: int | None = None
        self._out_of_range: set[TopicPartition] = set()
        self.skipped_offsets = 0

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Assigns exactly these partitions, each from its offset on."""
        self._positions = {tp: _Position(offset) for tp, offset in offsets.items()}

    def unassign(self, tp: TopicPartition) -> None:
        """Stops reading this partition."""
        self._positions.pop(tp, None)

    def positions(self) -> dict[TopicPartition, int]:
        """Returns the next offset of each partition."""
        return {tp: position.offset for tp, position in self._positions.items()}

    async def close(self) -> None:
        """Ends the polls in flight."""
        for task in self._fetches.values():
            task.cancel()
        await asyncio.gather(*self._fetches.values(), return_exceptions=True)
        self._fetches.clear()

    def find_fault(self) -> str:
        """Returns why a partition cannot be read now; "" if each of them can. A failure that `warn` had is left out."""
        for tp, position in self._positions.items():
            failure = position.failure
            if failure is not None and failure.code is not Code.KAFKA_STORAGE_ERROR:
                return f"{tp}: {explain_error(failure.code.number)}"
            if position.lost:
                return position.lost
            if failure is None and position.unread_since_ns is not None:
                return f"{tp}: its broker sends no records from offset {position.offset} on"
        return ""

    async def poll(self) -> list[FetchedBatch]:
        """Returns the batches of one leader; may be empty after its longest wait. Raises `Refused` if a partition
        cannot be read, `Unavailable` if that lasted for the time limit of a request. No batch is lost then: the next
        call goes on at the positions."""
        if self._out_of_range:
            await self._reset_out_of_range()
        await self._start_fetches()
        if not self._fetches:
            await self._client.clock.sleep(self._backoff_seconds())
            return []
        done, _ = await asyncio.wait(self._fetches.values(), return_when=asyncio.FIRST_COMPLETED)
        out: list[FetchedBatch] = []
        for node in [node for node, task in self._fetches.items() if task in done]:
            task = self._fetches[node]
            if out and task.exception() is not None:
                continue  # the next call handles it: these batches would be lost with it
            del self._fetches[node]
            requested = self._requested_offsets.pop(node)
            try:
                got = task.result()
            except Unavailable as fault:
                await self._handle_lost_leader(fault, requested)
            else:
                self._retry_until = None
                batches, failure = self._read_response(got, requested)
                out += batches
                if failure is not None and not out:
                    raise failure
        return out

    async def _reset_out_of_range(self) -> None:
        """Handles partitions that do not have the requested offset: skips deleted offsets, or refuses them too, and
        refuses future ones. (The reply to the fetch may lack the log start: Kafka's does.)"""
        strays = sorted(self._out_of_range & self._positions.keys())
        starts = await list_offsets_at(self._client, strays, EARLIEST)
        ends = await list_offsets_at(self._client, strays, LATEST)
        self._out_of_range.clear()
        for tp in strays:
            position = self._positions[tp]
            if position.offset < starts[tp] and not self._skips_deleted:
                why = f"{tp} has no offset {position.offset}: it begins at {starts[tp]}"
                raise Refused(Code.OFFSET_OUT_OF_RANGE, why)
            if position.offset < starts[tp]:
                self.skipped_offsets += starts[tp] - position.offset
                position.offset = starts[tp]
            elif position.offset > ends[tp]:
                why = f"{tp} has no offset {position.offset}: it ends at {ends[tp]}"
                raise Refused(Code.OFFSET_OUT_OF_RANGE, why)

    async def _handle_lost_leader(self, fault: Unavailable, offsets: Mapping[TopicPartition, int]) -> None:
        """Handles a lost leader: fetches metadata until its partitions have another leader, or the time for retries is
        over."""
        if self._retry_until is None:
            self._retry_until = self._client.new_deadline()
        self._client.forget_leaders(offsets)
        for tp in offsets.keys() & self._positions.keys():
            self._positions[tp].lost = f"{tp}: {fault}"
        if fault.final or self._client.has_passed(self._retry_until):
            raise fault
        await self._client.clock.sleep(LOST_LEADER_BACKOFF_SECONDS)

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _start_fetches(self) -> None:
        """Starts a poll at every leader that has none in flight."""
        requested = {tp for share in self._requested_offsets.values() for tp in share}
        now_ns = self._client.clock.mono_ns()
        idle = [tp for tp, each in self._positions.items() if tp not in requested and not _is_backing_off(each, now_ns)]
        if not idle:
            return
        deadline = self._client.new_deadline()
        for pause in self._client.backoffs():
            shares, leaderless = await self._client.group_by_leader(idle)
            for tp, no in leaderless.items():
                self._positions[tp].lost = str(no)
                if no.code not in STALE_LEADER_CODES or self._client.has_passed(deadline):
                    raise no
            if shares:
                break
            await pause()
        for node, share in shares.items():
            if node not in self._fetches:
                self._requested_offsets[node] = {tp: self._positions[tp].offset for tp in share}
                request = self._make_request(self._requested_offsets[node])
                # The waits of broker and client: the reply may come that much later.
                timeout = self._client.timeout + self._max_wait_ms / 1000
                poll = self._client.send(request, FetchResponse, node_id=node, timeout=timeout, connects_once=True)
                self._fetches[node] = asyncio.get_running_loop().create_task(poll, name=f"fetch-{node}")

    def _make_request(self, share: Mapping[TopicPartition, int]) -> FetchRequest:
        topics: dict[str, FetchTopic] = {}
        for (name, partition), offset in share.items():
            topic = topics.setdefault(name, FetchTopic(topic=name))
            size = min(PARTITION_BYTES, self._max_bytes)
            topic.partitions.append(FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=size))
        return FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=self._isolation,
            topics=list(topics.values()),
            rack_id=self._rack,
        )

    # -- reading ------------------------------------------------------------------------------------------------------

    def _read_response(
        self, got: FetchResponse, offsets: Mapping[TopicPartition, int]
    ) -> tuple[list[FetchedBatch], Unavailable | None]:
        """Returns the batches, and the fault of a partition that could not be read for the time limit."""
        if got.error_code:
            raise to_refused(got.error_code, "fetch")
        out: list[FetchedBatch] = []
        unread: list[tuple[TopicPartition, _Position, int]] = []
        failure: Unavailable | None = None
        is_empty = True
        for topic in got.responses:
            for each in topic.partitions:
                tp = TopicPartition(topic.topic, each.partition_index)
                position = self._positions.get(tp)
                if position is None or position.offset != offsets.get(tp):
                    continue  # dropped or assigned anew since
                position.lost = ""
                if each.error_code:
                    failure = self._handle_error(tp, position, each) or failure
                    continue
                if each.records is not None and len(each.records):
                    position.failure = position.unread_since_ns = None
                    out += self._decode_batches(tp, position, each)
                    is_empty = False
                elif position.offset >= (end := self._end_of(each)):
                    position.failure = position.unread_since_ns = None
                    if end < each.high_watermark:
                        self._note_held_back(tp, position, end)
                else:
                    unread.append((tp, position, end))
        for tp, position, end in unread if is_empty else ():  # else other partitions took all room of the reply
            failure = self._check_unread(tp, position, end) or failure
        return out, failure

    def _end_of(self, got: PartitionData) -> int:
        """Returns the offset before which the leader has records for this consumer."""
        return got.last_stable_offset if self._isolation and got.last_stable_offset >= 0 else got.high_watermark

    def _note_held_back(self, tp: TopicPartition, position: _Position, stable_offset: int) -> None:
        """Reports once that an open transaction holds a partition back."""
        now_ns = self._client.clock.mono_ns()
        offset, since_ns = position.held_back
        if offset != stable_offset:
            position.held_back = (stable_offset, now_ns)
        elif 0 <= since_ns <= now_ns - HELD_BACK_NS:
            position.held_back = (stable_offset, -1)
            self._warn(f"an open transaction holds back {tp} from offset {stable_offset} on")

    def _check_unread(self, tp: TopicPartition, position: _Position, end: int) -> Unavailable | None:
        """Returns the fault of a partition whose replies have no records for the time limit of a request."""
        now_ns = self._client.clock.mono_ns()
        if position.unread_since_ns is None:
            position.unread_since_ns = now_ns
        elif now_ns - position.unread_since_ns >= self._client.timeout * 1e9:
            no = position.failure
            why = explain_error(no.code.number) if no else f"its broker sends no records below {end}"
            return Unavailable(f"{tp} could not be read for {self._client.timeout:g} s: {why}")
        return None

    def _handle_error(self, tp: TopicPartition, position: _Position, got: PartitionData) -> Unavailable | None:
        """Continues after an error if that is possible. Returns the fault of a partition whose errors last."""
        code = code_from_number(got.error_code)
        if code in STALE_LEADER_CODES:
            self._client.forget_leaders([tp])
            return self._back_off(tp, position, code)
        if code is Code.OFFSET_OUT_OF_RANGE:
            self._out_of_range.add(tp)
        elif code is Code.OFFSET_NOT_AVAILABLE:  # a new leader that does not know yet what is committed
            return self._back_off(tp, position, code)
        else:
            raise to_refused(got.error_code, str(tp))
        return None

    def _back_off(self, tp: TopicPartition, position: _Position, code: Code) -> Unavailable | None:
        """Postpones the next read of a partition. The first error causes no pause if only the leader has moved. Returns
        the fault of a partition that failed for the time limit of a request."""
        now_ns = self._client.clock.mono_ns()
        trouble, fault = position.failure, None
        if trouble is None:
            first = 0.0 if code is not Code.KAFKA_STORAGE_ERROR else BACKOFF_FIRST_SECONDS
            trouble = position.failure = _ReadFailure(code, now_ns, now_ns, _backoffs(first))
            if code is Code.KAFKA_STORAGE_ERROR:
                self._warn(f"{tp} cannot be read now: {explain_error(code.number)}")
        elif now_ns - trouble.since_ns >= self._client.timeout * 1e9:
            fault = Unavailable(f"{tp} could not be read for {self._client.timeout:g} s: {explain_error(code.number)}")
        trouble.code = code
        trouble.retry_at_ns = now_ns + int(next(trouble.backoffs) * 1e9)
        return fault

    def _backoff_seconds(self) -> float:
        """Returns the time until the first failed partition is retried; without one, the longest wait of a poll."""
        now_ns = self._client.clock.mono_ns()
        until = [each.failure.retry_at_ns for each in self._positions.values() if each.failure is not None]
        return max(0.0, (min(until) - now_ns) / 1e9) if until else self._max_wait_ms / 1000

    def _decode_batches(self, tp: TopicPartition, position: _Position, got: PartitionData) -> list[FetchedBatch]:
        """Decodes the batches of one partition. The last one may be cut short, and is then fetched again.

        Ends before a batch that cannot be read. Raises `Corrupt` if that is the first one, and `TooLarge` with topic,
        partition and offsets if its first record is beyond a bound.
        """
        objects = 0
        walked = native.walk(got.records)
        if walked.why and not (walked.why == "short" and walked.batches):
            raise Corrupt(f"batch of {tp} at or after offset {position.offset}: {walked.why}")
        aborts = sorted((each.first_offset, each.producer_id) for each in got.aborted_transactions or ())
        out: list[FetchedBatch] = []
        for batch in walked.batches:
            while aborts and aborts[0][0] <= batch.last_offset:
                position.aborted_producers.add(aborts.pop(0)[1])
            if batch.last_offset < position.offset:
                continue
            start, position.offset = position.offset, batch.last_offset + 1
            head, is_whole = decode_header(got.records, batch.position), True
            if batch.attributes & CONTROL:
                found = decode_records(got.records, batch.position)
                if found and _is_abort(found[0]):
                    position.aborted_producers.discard(batch.producer_id)
                if not self._include_control:
                    continue
            elif batch.attributes & TRANSACTIONAL and batch.producer_id in position.aborted_producers:
                continue
            else:
                try:
                    found, is_whole = read_records(got.records, batch.position, head, start, BATCH_BYTES, OBJECTS_MAX)
                except Corrupt as error:
                    position.offset = start
                    if out:  # the next fetch begins here and tells it
                        break
                    if isinstance(error, TooLarge):
                        raise _unread_record_error(error, tp) from None
                    raise
                if not is_whole:
                    position.offset = found[-1].offset + 1
            ends = got.log_start_offset, got.last_stable_offset, got.high_watermark
            out.append(FetchedBatch(tp, head, found, position.offset, *ends))
            objects += len(found) + sum(len(record.headers) for record in found)
            if objects > DECODED_MAX or not is_whole:  # the rest is fetched again
                break
        return out


def _unread_record_error(error: TooLarge, tp: TopicPartition) -> TooLarge:
    """Returns the error of a record beyond the bounds of this client, with the ways on."""
    why = f"{error.why}: go on at offset {error.next_offset}, or read its batch as bytes over HTTP"
    return TooLarge(why, where=str(tp), offset=error.offset, next_offset=error.next_offset)


def _is_backing_off(position: _Position, now_ns: int) -> bool:
    return position.failure is not None and now_ns < position.failure.retry_at_ns


def _backoffs(first: float) -> Iterator[float]:
    """Yields the seconds between retries, without an end."""
    yield first
    seconds = BACKOFF_FIRST_SECONDS
    while True:
        seconds = min(2 * seconds, BACKOFF_MAX_SECONDS)
        yield seconds


def _is_abort(marker: Record) -> bool:
    """True if a control record aborts a transaction: its key is version and type, two bytes each."""
    return marker.key is not None and len(marker.key) >= 4 and int.from_bytes(marker.key[2:4], "big") == ABORT
