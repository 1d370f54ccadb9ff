"""Readers over the wire, without a group: each reads partitions on and on, and now and then begins somewhere else."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.sim.cluster.history import History, Poll, Row
from tests.sim.loop import SimLoop
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client import Client
from tiered_api.kafka.consuming import Consumer, Fetched
from tiered_api.kafka.routing import EARLIEST, LATEST, list_offsets

CANNOT = (Refused, Unavailable, Corrupt)
JUMP_CHANCE = 0.1


class Reader:
    """One client that reads until `working` is unset. `heard` is told of every poll."""

    def __init__(
        self,
        name: str,
        client: Client,
        loop: SimLoop,
        history: History,
        partitions: Callable[[], list[TopicPartition]],
        heard: Callable[[Poll], None],
    ) -> None:
        self.name = name
        self.working = True
        self.steady = False
        """Whether it goes on where it is, once it has all partitions."""
        self._consumer: Consumer | None = None
        self._client = client
        self._loop = loop
        self._history = history
        self._partitions = partitions
        self._heard = heard
        self._draw = random.Random(f"{loop.seed}/{name}")
        self._next: dict[TopicPartition, int] = {}

    async def work(self) -> None:
        while self.working:
            consumer = Consumer(self._client, max_wait_ms=1000)
            try:
                await self._begin(consumer)
                self._consumer = consumer
                while self.working and self._goes_on(consumer):
                    for fetched in await consumer.poll():
                        self.note(fetched)
            except CANNOT:
                await asyncio.sleep(0.5)
            finally:
                self._consumer = None
                await consumer.close()
        await self._client.close()

    def _goes_on(self, consumer: Consumer) -> bool:
        stays = self._draw.random() > JUMP_CHANCE
        return len(consumer.positions()) == len(self._partitions()) if self.steady else stays

    def positions(self) -> dict[TopicPartition, int]:
        """How far it has read what it reads now."""
        return self._consumer.positions() if self._consumer is not None else {}

    async def _begin(self, consumer: Consumer) -> None:
        """Chooses where to begin: at the start, at the end, or in between."""
        partitions = self._partitions()
        starts = await list_offsets(self._client, dict.fromkeys(partitions, EARLIEST))
        ends = await list_offsets(self._client, dict.fromkeys(partitions, LATEST))
        offsets = {}
        for where in partitions:
            start, end = starts[where], ends[where]
            if not isinstance(start, Refused) and not isinstance(end, Refused):
                low, high = start[0], max(start[0], end[0])
                offsets[where] = self._draw.choice((low, low, high, self._draw.randint(low, high)))
        self._next = {}
        consumer.assign(offsets)
        if not offsets:
            await asyncio.sleep(0.5)

    def note(self, fetched: Fetched) -> None:
        """Puts one batch into the history."""
        where, first = fetched.where, fetched.records[0].offset
        rows = tuple(Row(record.offset, record.value or b"") for record in fetched.records)
        poll = Poll(
            self.name, where, self._loop.now_ns, self._next.get(where, first), where not in self._next, rows,
            fetched.log_start, fetched.high_watermark,
        )  # fmt: skip
        self._next[where] = rows[-1].offset + 1
        self._history.polls.append(poll)
        self._heard(poll)
