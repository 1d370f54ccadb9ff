"""Readers that want committed records only, and the whole log of a partition at the end of a run.

The reader filters aborted records by the list in the reply, as consumers do. It keeps what the reply said, so that
checkers can compare it with the log.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from tests.sim.harness.loop import SimLoop
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.records.batch import decode_header, decode_records
from tiered.records.marker import decode_marker
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
FETCH_BYTES = 4096
WAIT_MS = 500
JUMP_CHANCE = 0.05
RETRY_SECONDS = 0.3


class LoggedBatch(NamedTuple):
    """One batch of a log. `is_commit` is None unless the batch is a marker."""

    base: int
    last: int
    producer_id: int
    epoch: int
    is_transactional: bool
    is_commit: bool | None
    values: tuple[bytes, ...]


class CommittedPoll(NamedTuple):
    """One fetch of committed records. `rows` are those that the reply leaves to the reader, `next_offset` is where the
    reader goes on."""

    reader: str
    tp: TopicPartition
    asked_ns: int
    at_ns: int
    position: int
    next_offset: int
    rows: tuple[tuple[int, bytes], ...]
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of the list in the reply, in its order."""
    log_start: int
    last_stable_offset: int
    high_watermark: int
    last_batch_end: int
    """End of the last batch in the reply; the position if there is none."""


class FetchedLog(NamedTuple):
    """The batches of one reply, and the numbers beside them."""

    batches: list[LoggedBatch]
    aborted: tuple[tuple[int, int], ...] | None
    log_start: int
    last_stable_offset: int
    high_watermark: int


async def fetch_answer(client: KafkaClient, tp: TopicPartition, offset: int, *, committed: bool) -> PartitionData:
    """Fetches from the leader of a partition, and returns its reply. Raises `Refused`."""
    part = FetchPartition(tp.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=WAIT_MS, min_bytes=1, isolation_level=int(committed), topics=[FetchTopic(tp.topic, "", [part])]
    )
    shares, leaderless = await client.group_by_leader([tp])
    if leaderless:
        raise leaderless[tp]
    (node,) = shares
    try:
        got = await client.send(request, FetchResponse, node_id=node)
    except Unavailable:
        client.forget_leaders([tp])
        raise
    if got.error_code or not got.responses:
        raise to_refused(got.error_code, str(tp))
    answer = got.responses[0].partitions[0]
    if answer.error_code:
        client.forget_leaders([tp])
        raise to_refused(answer.error_code, str(tp))
    return answer


async def fetch_log(client: KafkaClient, tp: TopicPartition, offset: int, *, committed: bool) -> FetchedLog:
    """Fetches from the leader of a partition. Raises `Refused`."""
    answer = await fetch_answer(client, tp, offset, committed=committed)
    aborted = answer.aborted_transactions
    return FetchedLog(
        list(read_batches(bytes(answer.records or b""), offset)),
        None if aborted is None else tuple((each.producer_id, each.first_offset) for each in aborted),
        answer.log_start_offset,
        answer.last_stable_offset,
        answer.high_watermark,
    )


def read_batches(data: bytes, offset: int) -> list[LoggedBatch]:
    """Returns the whole batches that end at or after an offset."""
    found, at = list[LoggedBatch](), 0
    while at + 61 <= len(data):
        head = decode_header(data, at)
        if at + head.size > len(data):
            break
        batch = data[at : at + head.size]
        at += head.size
        if head.last_offset < offset:
            continue
        marker = decode_marker(batch) if head.is_control else None
        values = () if marker is not None else tuple(bytes(each.value or b"") for each in decode_records(batch))
        found.append(
            LoggedBatch(
                head.base_offset, head.last_offset, head.producer_id, head.producer_epoch, head.is_transactional,
                marker.commit if marker is not None else None, values,
            )
        )  # fmt: skip
    return found


def keep_committed(
    batches: list[LoggedBatch], aborted: tuple[tuple[int, int], ...], position: int
) -> list[tuple[int, bytes]]:
    """Returns the records that a consumer shows: it takes a producer for aborted from the first offset in the list up
    to the marker."""
    waiting = sorted(aborted, key=lambda each: each[1])
    skipped: set[int] = set()
    rows: list[tuple[int, bytes]] = []
    for batch in batches:
        while waiting and waiting[0][1] <= batch.last:
            skipped.add(waiting.pop(0)[0])
        if batch.is_commit is not None:
            if not batch.is_commit:
                skipped.discard(batch.producer_id)
            continue
        if batch.is_transactional and batch.producer_id in skipped:
            continue
        rows += [(batch.base + n, value) for n, value in enumerate(batch.values) if batch.base + n >= position]
    return rows


class CommittedReader:
    """Reads committed records of all given partitions until `working` is unset, and sometimes begins at the start
    again."""

    def __init__(
        self, name: str, client: KafkaClient, loop: SimLoop, polls: list[CommittedPoll],
        partitions: Callable[[], list[TopicPartition]],
    ) -> None:  # fmt: skip
        self.name = name
        self.working = True
        self.positions: dict[TopicPartition, int] = {}
        self._client = client
        self._loop = loop
        self._polls = polls
        self._partitions = partitions
        self._rng = random.Random(f"{loop.seed}/{name}")

    async def work(self) -> None:
        while self.working:
            for tp in self._partitions():
                if self.working:
                    await self._read_once(tp)
            await asyncio.sleep(0.1)
        await self._client.close()

    async def _read_once(self, tp: TopicPartition) -> None:
        if self._rng.random() < JUMP_CHANCE:
            self.positions[tp] = 0
        try:
            poll = await self.poll(tp, self.positions.get(tp, 0))
        except Refused as refused:
            if refused.code is Code.OFFSET_OUT_OF_RANGE:
                self.positions[tp] = 0
            await asyncio.sleep(RETRY_SECONDS)
        except REQUEST_ERRORS:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            self.positions[tp] = poll.next_offset

    async def poll(self, tp: TopicPartition, position: int) -> CommittedPoll:
        """Fetches once, and puts the reply into the history."""
        asked_ns = self._loop.now_ns
        got = await fetch_log(self._client, tp, position, committed=True)
        end = got.batches[-1].last + 1 if got.batches else position
        poll = CommittedPoll(
            self.name, tp, asked_ns, self._loop.now_ns, position, end,
            tuple(keep_committed(got.batches, got.aborted or (), position)), got.aborted or (), got.log_start,
            got.last_stable_offset, got.high_watermark, end,
        )  # fmt: skip
        self._polls.append(poll)
        return poll


async def read_whole_log(client: KafkaClient, tp: TopicPartition) -> tuple[list[LoggedBatch], FetchedLog]:
    """Returns all batches of a partition, and the last reply."""
    found, offset = list[LoggedBatch](), 0
    while True:
        try:
            got = await fetch_log(client, tp, offset, committed=False)
        except Refused as refused:
            if refused.code is not Code.OFFSET_OUT_OF_RANGE:
                await asyncio.sleep(RETRY_SECONDS)
            continue
        except REQUEST_ERRORS:
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if got.batches:
            found += got.batches
            offset = got.batches[-1].last + 1
        if offset >= got.high_watermark:
            return found, got
