"""Readers over the wire without a group: each reads partitions continuously, and sometimes starts at another offset."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.sim.cluster.history import ClientHistory, EndOffsetReply, PollResult, ReadRecord
from tests.sim.harness.loop import SimLoop
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient
from tiered_api.kafka.client.consumer import FetchedBatch, KafkaConsumer
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST, list_offsets

REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
JUMP_CHANCE = 0.1


class StandaloneReader:
    """Client that reads until `working` is unset. It calls `on_poll` with every poll. `sole_epoch` returns the leader
    epoch of a partition while only one broker can reply for it, else -1."""

    def __init__(
        self,
        name: str,
        client: KafkaClient,
        loop: SimLoop,
        history: ClientHistory,
        partitions: Callable[[], list[TopicPartition]],
        on_poll: Callable[[PollResult], None],
        sole_epoch: Callable[[TopicPartition], int],
    ) -> None:
        self.name = name
        self.working = True
        self.stays = False
        """True if the reader keeps its position once it has all partitions."""
        self._consumer: KafkaConsumer | None = None
        self._client = client
        self._loop = loop
        self._history = history
        self._partitions = partitions
        self._on_poll = on_poll
        self._sole_epoch = sole_epoch
        self._rng = random.Random(f"{loop.seed}/{name}")
        # A follower serves a consumer that names a rack; one that names none it sends to the leader (KIP-392).
        self._rack = random.Random(f"{loop.seed}/{name}/rack").choice(("", "z"))
        self._next_offsets: dict[TopicPartition, int] = {}
        self._told_starts: dict[TopicPartition, int] = {}
        """Log starts to which the reader had to skip. A stale leader may have deleted more than its successor."""

    async def work(self) -> None:
        while self.working:
            consumer = KafkaConsumer(self._client, max_wait_ms=1000, rack=self._rack)
            try:
                await self._choose_positions(consumer)
                self._consumer = consumer
                while self.working and self._should_continue(consumer):
                    skipped = consumer.skipped_offsets
                    for fetched in await consumer.poll():
                        self.record_batch(fetched)
                    if consumer.skipped_offsets > skipped:
                        self._note_told_starts(consumer.positions())
            except REQUEST_ERRORS:
                await asyncio.sleep(0.5)
            finally:
                self._consumer = None
                await consumer.close()
        await self._client.close()

    def _should_continue(self, consumer: KafkaConsumer) -> bool:
        stays = self._rng.random() > JUMP_CHANCE
        return len(consumer.positions()) == len(self._partitions()) if self.stays else stays

    def positions(self) -> dict[TopicPartition, int]:
        """Returns its positions in the partitions that it reads now."""
        return self._consumer.positions() if self._consumer is not None else {}

    async def _choose_positions(self, consumer: KafkaConsumer) -> None:
        """Chooses where to begin: at the start, at the end, or in between."""
        partitions = self._partitions()
        starts = await list_offsets(self._client, dict.fromkeys(partitions, EARLIEST))
        ends = await self._list_end_offsets(partitions)
        offsets = {}
        for tp in partitions:
            start = starts[tp]
            if not isinstance(start, Refused) and tp in ends:
                low, high = start[0], max(start[0], ends[tp])
                offsets[tp] = self._rng.choice((low, low, high, self._rng.randint(low, high)))
        self._next_offsets, self._told_starts = {}, {}
        consumer.assign(offsets)
        if not offsets:
            await asyncio.sleep(0.5)

    def _note_told_starts(self, positions: dict[TopicPartition, int]) -> None:
        for tp, position in positions.items():
            if position > self._next_offsets.get(tp, position):
                self._told_starts[tp] = position

    async def _list_end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Requests the log ends of partitions, and records those that a leader returned in the history."""
        asked_ns, before = self._loop.now_ns, {tp: self._sole_epoch(tp) for tp in partitions}
        told = await list_offsets(self._client, dict.fromkeys(partitions, LATEST))
        ends = {tp: answer[0] for tp, answer in told.items() if not isinstance(answer, Refused)}
        for tp, offset in ends.items():
            sure = 0 <= before[tp] == self._sole_epoch(tp)
            self._history.end_offsets.append(EndOffsetReply(self.name, tp, asked_ns, self._loop.now_ns, offset, sure))
        return ends

    def record_batch(self, fetched: FetchedBatch) -> None:
        """Puts one batch into the history."""
        tp, first = fetched.tp, fetched.records[0].offset
        rows = tuple(ReadRecord(record.offset, record.value or b"") for record in fetched.records)
        poll = PollResult(
            self.name, tp, self._loop.now_ns, self._next_offsets.get(tp, first), tp not in self._next_offsets, rows,
            max(fetched.log_start_offset, self._told_starts.get(tp, 0)), fetched.high_watermark,
        )  # fmt: skip
        self._next_offsets[tp] = rows[-1].offset + 1
        self._history.polls.append(poll)
        self._on_poll(poll)
