"""DeleteRecords of old records, a few at a time, sent to every broker that considers itself the leader, including a
deposed one. Some come while a request to join an ISR is in progress. Then all brokers are asked for the log start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import NamedTuple

from tests.sim.cluster.observer import patched
from tests.sim.harness.loop import SimLoop
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.replication.leader_state import LeaderState, ProposedIsr
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.leader_routing import EARLIEST
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
PAUSE_SECONDS = 3.0
LOOK_SECONDS = 0.1
DELETE_DIVISOR = 4
"""One deletion takes at most this fraction of the committed records."""
DELETE_ALL_CHANCE = 0.05
"""Chance that a deletion takes all committed records."""
JOIN_CHANCE = 0.5
"""Chance, at each look, of a deletion in a partition whose leader has proposed a member of the ISR."""


class CommittedRange(NamedTuple):
    """The range of committed records, and the brokers that lead the partition or consider themselves its leader:
    `deposed` ones do so wrongly. `tiered` topics have a manifest with the log start. `is_joined`: a leader has
    proposed a further member of the ISR."""

    start: int
    end: int
    leaders: list[int]
    deposed: list[int]
    tiered: bool
    is_joined: bool = False


class RecordDeleter:
    """Deletes records until `working` is unset. `committed_range` returns the true state of a partition. `on_request`
    gets the offset below which records are to be deleted, `on_reply` the offset below which they are deleted.
    `watches_joins`: a record is deleted whenever a leader proposes a member of an ISR."""

    def __init__(
        self,
        client: KafkaClient,
        loop: SimLoop,
        partitions: Callable[[], list[TopicPartition]],
        committed_range: Callable[[TopicPartition], CommittedRange],
        on_request: Callable[[TopicPartition, int], None],
        on_reply: Callable[[TopicPartition, int], None],
        name: str = "deleter",
        *,
        watches_joins: bool = False,
    ) -> None:
        self.working = True
        self.counts: dict[str, int] = {"tiered": 0, "untiered": 0, "of_deposed": 0, "at_joins": 0}
        self._watches_joins = watches_joins
        self._proposed = asyncio.Event()
        self._client = client
        self._loop = loop
        self._partitions = partitions
        self._committed_range = committed_range
        self._on_request = on_request
        self._on_reply = on_reply
        self._rng = random.Random(f"{loop.seed}/{name}")

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Looks at once when a leader proposes an ISR, within the context."""

        def make(original: Callable[..., None]) -> Callable[..., None]:
            def begin_isr_change(state: LeaderState, proposed: ProposedIsr) -> None:
                original(state, proposed)
                self._proposed.set()

            return begin_isr_change

        with patched(LeaderState, "begin_isr_change", make) if self._watches_joins else nullcontext():
            yield

    async def work(self) -> None:
        due_ns = 0
        while self.working:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._proposed.wait()
            self._proposed.clear()
            partitions = self._partitions()
            tp = next((each for each in partitions if self._committed_range(each).deposed), None)
            if tp is None and self._watches_joins:
                tp = self._find_joined(partitions)
            if tp is None and self._loop.now_ns >= due_ns and partitions:
                tp = self._rng.choice(partitions)
                due_ns = self._loop.now_ns + round(self._rng.expovariate(1 / PAUSE_SECONDS) * 1e9)
            if tp is not None:
                await self._delete(tp)
        await self._client.close()

    def _find_joined(self, partitions: list[TopicPartition]) -> TopicPartition | None:
        """Returns a partition with a proposed member of the ISR; None for none, and sometimes."""
        joined = [each for each in partitions if self._committed_range(each).is_joined]
        return self._rng.choice(joined) if joined and self._rng.random() < JOIN_CHANCE else None

    async def _delete(self, tp: TopicPartition) -> None:
        start, end, leads, deposed, tiered, is_joined = self._committed_range(tp)
        before = start + self._rng.randint(0, max(0, end - start) // DELETE_DIVISOR)
        if self._watches_joins and is_joined:
            before = min(start + 1, end)
        elif self._rng.random() < DELETE_ALL_CHANCE:
            before = end
        nodes = deposed or leads
        if before <= start or not nodes:
            return
        self._on_request(tp, before)
        part = DeleteRecordsPartition(partition_index=tp.partition, offset=before)
        request = DeleteRecordsRequest([DeleteRecordsTopic(tp.topic, [part])], 5_000)
        try:
            got = await self._client.send(request, DeleteRecordsResponse, node_id=nodes[0])
        except REQUEST_ERRORS:
            return
        answer = got.topics[0].partitions[0]
        if not answer.error_code:
            self.counts["tiered" if tiered else "untiered"] += 1
            self.counts["of_deposed"] += bool(deposed)
            self.counts["at_joins"] += is_joined
            self._on_reply(tp, answer.low_watermark)
            now = self._committed_range(tp)
            for node in [*now.leaders, *now.deposed]:
                await self._read_start(tp, node, start)

    async def _read_start(self, tp: TopicPartition, node: int, offset: int) -> None:
        """Requests the log start of a partition and its records from `offset` on. The observer of the client judges the
        replies."""
        begins = ListOffsetsPartition(partition_index=tp.partition, timestamp=EARLIEST)
        topic = ListOffsetsTopic(name=tp.topic, partitions=[begins])
        wanted = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        fetch = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchTopic(tp.topic)])
        fetch.topics[0].partitions.append(wanted)
        try:
            await self._client.send(
                ListOffsetsRequest(-1, 0, [topic], timeout_ms=1_000), ListOffsetsResponse, node_id=node
            )
            await self._client.send(fetch, FetchResponse, node_id=node)
        except REQUEST_ERRORS:
            return
