"""DeleteRecords of old records, a few at a time, sent to every broker that considers itself the leader, including a
deposed one. Then all brokers are asked for the log start."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from tests.sim.harness.loop import SimLoop
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
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


class CommittedRange(NamedTuple):
    """The range of committed records, and the brokers that lead the partition or consider themselves its leader:
    `deposed` ones do so wrongly. `tiered` topics have a manifest with the log start."""

    start: int
    end: int
    leaders: list[int]
    deposed: list[int]
    tiered: bool


class RecordDeleter:
    """Deletes records until `working` is unset. `committed_range` returns the true state of a partition. `on_request`
    gets the offset below which records are to be deleted, `on_reply` the offset below which they are deleted."""

    def __init__(
        self,
        client: KafkaClient,
        loop: SimLoop,
        partitions: Callable[[], list[TopicPartition]],
        committed_range: Callable[[TopicPartition], CommittedRange],
        on_request: Callable[[TopicPartition, int], None],
        on_reply: Callable[[TopicPartition, int], None],
        name: str = "deleter",
    ) -> None:
        self.working = True
        self.counts: dict[str, int] = {"tiered": 0, "untiered": 0, "of_deposed": 0}
        self._client = client
        self._loop = loop
        self._partitions = partitions
        self._committed_range = committed_range
        self._on_request = on_request
        self._on_reply = on_reply
        self._rng = random.Random(f"{loop.seed}/{name}")

    async def work(self) -> None:
        due_ns = 0
        while self.working:
            await asyncio.sleep(LOOK_SECONDS)
            partitions = self._partitions()
            tp = next((each for each in partitions if self._committed_range(each).deposed), None)
            if tp is None and self._loop.now_ns >= due_ns and partitions:
                tp = self._rng.choice(partitions)
                due_ns = self._loop.now_ns + round(self._rng.expovariate(1 / PAUSE_SECONDS) * 1e9)
            if tp is not None:
                await self._delete(tp)
        await self._client.close()

    async def _delete(self, tp: TopicPartition) -> None:
        start, end, leads, deposed, tiered = self._committed_range(tp)
        before = start + self._rng.randint(0, max(0, end - start) // DELETE_DIVISOR)
        if self._rng.random() < DELETE_ALL_CHANCE:
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
