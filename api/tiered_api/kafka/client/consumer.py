"""Reading records: long polls at every leader, batches checked and opened, positions that only move forward."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.records import native
from tiered.records.batch import decode_header, decode_records
from tiered.records.model import CONTROL, TRANSACTIONAL, BatchHeader, Record
from tiered_api.kafka.client.client import PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS, Client, code_of, refused
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST, STALE_LEADER, offsets_at
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

FETCH_BYTES = 16 << 20
PARTITION_BYTES = 1 << 20
LOST_SECONDS = 0.2
ABORT = 0
"""Type of the transaction marker that says: what this producer wrote does not count."""

OPENED_MAX = 200_000
"""Records and headers that one fetch of a partition hands out before it ends with a whole batch."""


class Fetched(NamedTuple):
    """The records of one batch from the position on, and what the partition said of itself."""

    where: TopicPartition
    head: BatchHeader
    records: list[Record]
    log_start: int
    last_stable: int
    high_watermark: int


@dataclass(slots=True)
class _Trouble:
    """A partition whose leader refuses it: since when in a row, until when it is left alone, and for how long then."""

    since_ns: int
    until_ns: int
    pauses: Iterator[float]


@dataclass(slots=True)
class _Position:
    """Where reading goes on."""

    offset: int
    aborted: set[int] = field(default_factory=set)
    trouble: _Trouble | None = None


class Consumer:
    """Reads the partitions that it is given. `trimmed` counts offsets that were deleted before they were read. `warn`
    hears once why a partition cannot be read for the moment; it is tried again for as long as a request may take."""

    def __init__(
        self,
        client: Client,
        *,
        read_committed: bool = False,
        control: bool = False,
        max_wait_ms: int = 500,
        max_bytes: int = FETCH_BYTES,
        rack: str = "",
        warn: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._client = client
        self._isolation = 1 if read_committed else 0
        self._control = control
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes
        self._rack = rack
        self._warn = warn
        self._positions: dict[TopicPartition, _Position] = {}
        self._polls: dict[int, asyncio.Task[FetchResponse]] = {}
        self._shares: dict[int, dict[TopicPartition, int]] = {}
        self._patient_until: int | None = None
        self._strays: set[TopicPartition] = set()
        self.trimmed = 0

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Reads these partitions and no others, each from its offset on."""
        self._positions = {where: _Position(offset) for where, offset in offsets.items()}

    def drop(self, where: TopicPartition) -> None:
        """Reads this partition no more."""
        self._positions.pop(where, None)

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition."""
        return {where: position.offset for where, position in self._positions.items()}

    async def close(self) -> None:
        """Ends the polls that are under way."""
        for task in self._polls.values():
            task.cancel()
        await asyncio.gather(*self._polls.values(), return_exceptions=True)
        self._polls.clear()

    async def poll(self) -> list[Fetched]:
        """What one leader has: maybe nothing, after its longest wait. `Refused` when a partition cannot be read,
        `Unavailable` when it could not be for as long as a request may take."""
        await self._ask()
        if not self._polls:
            await self._client.clock.sleep(self._rest_seconds())
            return []
        done, _ = await asyncio.wait(self._polls.values(), return_when=asyncio.FIRST_COMPLETED)
        out: list[Fetched] = []
        for node in [node for node, task in self._polls.items() if task in done]:
            task = self._polls.pop(node)
            asked = self._shares.pop(node)
            try:
                got = task.result()
            except Unavailable as fault:
                await self._lost(fault, asked)
            else:
                self._patient_until = None
                out += self._read(got, asked)
        if self._strays:
            await self._find_strays()
        return out

    async def _find_strays(self) -> None:
        """Partitions that do not have the offset that was asked for: what was deleted is passed over, what is not there
        yet is refused. (The answer to the fetch may not say where the log begins: Kafka's does not.)"""
        strays = sorted(self._strays & self._positions.keys())
        self._strays.clear()
        starts = await offsets_at(self._client, strays, EARLIEST)
        ends = await offsets_at(self._client, strays, LATEST)
        for where in strays:
            position = self._positions[where]
            if position.offset < starts[where]:
                self.trimmed += starts[where] - position.offset
                position.offset = starts[where]
            elif position.offset > ends[where]:
                why = f"{where} has no offset {position.offset}: it ends at {ends[where]}"
                raise Refused(Code.OFFSET_OUT_OF_RANGE, why)

    async def _lost(self, fault: Unavailable, asked: Mapping[TopicPartition, int]) -> None:
        """A leader is gone: what it led is asked of another, as long as the client is patient."""
        if self._patient_until is None:
            self._patient_until = self._client.deadline()
        if fault.final or self._client.is_over(self._patient_until):
            raise fault
        self._client.forget_leaders(asked)
        await self._client.clock.sleep(LOST_SECONDS)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        """A poll at every leader that has none under way."""
        asked = {where for share in self._shares.values() for where in share}
        now_ns = self._client.clock.mono_ns()
        idle = [where for where, each in self._positions.items() if where not in asked and not _rests(each, now_ns)]
        if not idle:
            return
        deadline = self._client.deadline()
        for pause in self._client.pauses():
            shares, leaderless = await self._client.by_leader(idle)
            for no in leaderless.values():
                if no.code not in STALE_LEADER or self._client.is_over(deadline):
                    raise no
            if shares:
                break
            await pause()
        for node, share in shares.items():
            if node not in self._polls:
                self._shares[node] = {where: self._positions[where].offset for where in share}
                request = self._request(self._shares[node])
                # Broker's wait and ours: the answer may come that much later.
                timeout = self._client.timeout + self._max_wait_ms / 1000
                poll = self._client.ask(request, FetchResponse, node=node, timeout=timeout)
                self._polls[node] = asyncio.get_running_loop().create_task(poll, name=f"fetch-{node}")

    def _request(self, share: Mapping[TopicPartition, int]) -> FetchRequest:
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

    def _read(self, got: FetchResponse, asked: Mapping[TopicPartition, int]) -> list[Fetched]:
        if got.error_code:
            raise refused(got.error_code, "fetch")
        out: list[Fetched] = []
        for topic in got.responses:
            for each in topic.partitions:
                where = TopicPartition(topic.topic, each.partition_index)
                position = self._positions.get(where)
                if position is None or position.offset != asked.get(where):
                    continue  # dropped or assigned anew since
                if each.error_code:
                    self._judge(where, position, each)
                    continue
                position.trouble = None
                if each.records is not None and len(each.records):
                    out += self._opened(where, position, each)
        return out

    def _judge(self, where: TopicPartition, position: _Position, got: PartitionData) -> None:
        """Goes on after an error where that can be."""
        code = code_of(got.error_code)
        if code in STALE_LEADER:
            self._client.forget_leaders([where])
            self._rest(where, position, code)
        elif code is Code.OFFSET_OUT_OF_RANGE:
            self._strays.add(where)
        elif code is not Code.OFFSET_NOT_AVAILABLE:
            raise refused(got.error_code, str(where))

    def _rest(self, where: TopicPartition, position: _Position, code: Code) -> None:
        """Leaves a partition alone for a moment: not at first where it is only led elsewhere by now."""
        now_ns = self._client.clock.mono_ns()
        trouble = position.trouble
        if trouble is None:
            first = 0.0 if code is not Code.KAFKA_STORAGE_ERROR else PAUSE_FIRST_SECONDS
            trouble = position.trouble = _Trouble(now_ns, now_ns, _pauses(first))
            if code is Code.KAFKA_STORAGE_ERROR:
                self._warn(f"{where} cannot be read now, its broker says {code.name} (its disk, or the bucket)")
        elif now_ns - trouble.since_ns >= self._client.timeout * 1e9:
            raise Unavailable(f"{where} could not be read for {self._client.timeout:g} s: {code.name}")
        trouble.until_ns = now_ns + int(next(trouble.pauses) * 1e9)

    def _rest_seconds(self) -> float:
        """Until the first partition that is left alone may be asked for again; where there is none, the longest wait of
        a poll."""
        now_ns = self._client.clock.mono_ns()
        until = [each.trouble.until_ns for each in self._positions.values() if each.trouble is not None]
        return max(0.0, (min(until) - now_ns) / 1e9) if until else self._max_wait_ms / 1000

    def _opened(self, where: TopicPartition, position: _Position, got: PartitionData) -> list[Fetched]:
        """The batches of one partition; the last one may be cut short and is then fetched again."""
        objects = 0
        walked = native.walk(got.records)
        if walked.why and not (walked.why == "short" and walked.batches):
            raise Corrupt(f"batch of {where} at or after offset {position.offset}: {walked.why}")
        aborts = sorted((each.first_offset, each.producer_id) for each in got.aborted_transactions or ())
        out: list[Fetched] = []
        for batch in walked.batches:
            while aborts and aborts[0][0] <= batch.last_offset:
                position.aborted.add(aborts.pop(0)[1])
            if batch.last_offset < position.offset:
                continue
            start, position.offset = position.offset, batch.last_offset + 1
            if batch.attributes & CONTROL:
                found = decode_records(got.records, batch.position)
                if found and _is_abort(found[0]):
                    position.aborted.discard(batch.producer_id)
                if not self._control:
                    continue
            elif batch.attributes & TRANSACTIONAL and batch.producer_id in position.aborted:
                continue
            else:
                found = decode_records(got.records, batch.position)
            if start > batch.base_offset:
                found = [record for record in found if record.offset >= start]
            head = decode_header(got.records, batch.position)
            out.append(Fetched(where, head, found, got.log_start_offset, got.last_stable_offset, got.high_watermark))
            objects += len(found) + sum(len(record.headers) for record in found)
            if objects > OPENED_MAX:  # the rest is fetched again
                break
        return out


def _rests(position: _Position, now_ns: int) -> bool:
    return position.trouble is not None and now_ns < position.trouble.until_ns


def _pauses(first: float) -> Iterator[float]:
    """Seconds between tries, without an end."""
    yield first
    seconds = PAUSE_FIRST_SECONDS
    while True:
        seconds = min(2 * seconds, PAUSE_MAX_SECONDS)
        yield seconds


def _is_abort(marker: Record) -> bool:
    """Whether a control record says that a transaction was aborted: its key is version and type, two bytes each."""
    return marker.key is not None and len(marker.key) >= 4 and int.from_bytes(marker.key[2:4], "big") == ABORT
