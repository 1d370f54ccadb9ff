"""Transactional clients that commit offsets for the same partition of a group, in transactions that overlap.

A group coordinator then has several pending offsets of one partition. Some transactions abort, and the first one to
write is not always the first one to end. The offset that was written last counts, of those that are committed (I15).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from tests.sim.cluster import transaction_checker as checker
from tests.sim.cluster.copiers import fetch_group_offset
from tests.sim.cluster.observer import Finding
from tests.sim.cluster.transaction_checker import ShownOffset, StableOffset
from tests.sim.cluster.transactional_client import SimTransaction, TransactionalSession
from tests.sim.harness.loop import SimLoop
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered_api.kafka.client.client import KafkaClient

RIVALS_GROUP = "rivals"
REQUEST_ERRORS = (Refused, Unavailable, Corrupt)
ABORT_SHARE, HANG_SHARE = 0.3, 0.08
PAUSE_SECONDS, HELD_SECONDS = 0.6, 0.5
"""Mean time between two transactions of a client, and mean time for which its offset is pending."""
LOOK_SECONDS = 0.4
RETRY_SECONDS = 0.3


class RivalOffsets:
    """The offsets that all rivals of a run wrote and saw for partition `tp` of the group. `sole_epoch` returns the
    epoch of the coordinator while no other broker can reply for the group, else -1."""

    def __init__(self, loop: SimLoop, tp: TopicPartition, sole_epoch: Callable[[], int]) -> None:
        self.tp = tp
        self.transactions: list[SimTransaction] = []
        self.shown: list[ShownOffset] = []
        self.stable: list[StableOffset] = []
        self._loop = loop
        self._sole_epoch = sole_epoch
        self._last_offset = 0

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the transactions by outcome, and of the offsets seen."""
        ended = Counter(f"rival_{each.outcome.value}" for each in self.transactions)
        return dict(ended) | {"rival_shown": len(self.shown), "rival_stable": len(self.stable)}

    def next_offset(self) -> int:
        """Returns an offset that no transaction has written."""
        self._last_offset += 1
        return self._last_offset

    async def fetch(self, client: KafkaClient, *, stable: bool) -> None:
        """Fetches the committed offset. Raises `Refused` and `Unavailable`."""
        asked_ns, epoch = self._loop.now_ns, self._sole_epoch()
        offset = await fetch_group_offset(client, RIVALS_GROUP, self.tp, stable=stable)
        self.shown.append(ShownOffset(self.tp, offset, self._loop.now_ns))
        if stable and 0 <= epoch == self._sole_epoch():
            self.stable.append(StableOffset(self.tp, offset, asked_ns))

    async def fetch_last(self, client: KafkaClient) -> None:
        """Fetches the stable offset once all transactions have ended."""
        known = len(self.stable)
        while len(self.stable) == known:
            try:
                await self.fetch(client, stable=True)
            except REQUEST_ERRORS:
                await asyncio.sleep(RETRY_SECONDS)

    def check(self) -> Iterator[Finding]:
        """Judges all that was seen. No record may be lost."""
        yield from checker.check_offsets_shown(self.transactions, self.shown)
        yield from checker.check_last_offset_stays(self.transactions, self.stable)


class Rival:
    """One client that runs transaction after transaction until `working` is unset."""

    def __init__(self, session: TransactionalSession, loop: SimLoop, offsets: RivalOffsets) -> None:
        self.working = True
        self._session = session
        self._offsets = offsets
        self._rng = random.Random(f"{loop.seed}/{session.name}")

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_SECONDS))
            if self.working and (self._session.is_ready or await self._session.init()):
                await self._run_transaction()
        await self._session._client.close()

    async def _run_transaction(self) -> None:
        session, drawn = self._session, self._rng.random()
        session.begin()
        if not await session.commit_offsets(RIVALS_GROUP, {self._offsets.tp: self._offsets.next_offset()}):
            session.abandon()
            return
        is_repeated = session.attempts > 1
        await asyncio.sleep(self._rng.expovariate(1 / HELD_SECONDS))
        if drawn < HANG_SHARE:
            session.abandon()
            return
        await session.end(drawn >= HANG_SHARE + ABORT_SHARE)
        if is_repeated and not session.moves_epoch:
            session.abandon()  # a late copy of the request would belong to the next transaction of this epoch


class RivalReader:
    """Fetches the offset of the rivals, a stable one or not, until `working` is unset."""

    def __init__(self, client: KafkaClient, loop: SimLoop, offsets: RivalOffsets) -> None:
        self.working = True
        self._client = client
        self._offsets = offsets
        self._rng = random.Random(f"{loop.seed}/rival-reader")

    async def work(self) -> None:
        while self.working:
            with suppress(*REQUEST_ERRORS):
                await self._offsets.fetch(self._client, stable=self._rng.random() < 0.5)
            await asyncio.sleep(LOOK_SECONDS)
        await self._client.close()


def make_rivals(
    sessions: Sequence[TransactionalSession], client: KafkaClient, loop: SimLoop, offsets: RivalOffsets
) -> list[Rival | RivalReader]:
    """Returns one client for each session, and one that looks."""
    return [*(Rival(session, loop, offsets) for session in sessions), RivalReader(client, loop, offsets)]
