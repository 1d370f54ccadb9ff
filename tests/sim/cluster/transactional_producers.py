"""Transactional producers: each writes transactions over several partitions, and commits, aborts or leaves them. Some
go on after another process took their transactional id: nothing of what they write then may be seen."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

from tests.sim.cluster.transactional_client import Outcome, SimTransaction, TransactionalSession
from tests.sim.harness.loop import SimLoop
from tiered.ids import TopicPartition

ABORT_SHARE, HANG_SHARE, FENCE_SHARE, NEW_SESSION_SHARE = 0.25, 0.08, 0.1, 0.05
BATCHES_MAX = 4
FENCED_SECONDS = 2.0
"""Time for which a producer that was replaced tries to write."""


class TransactionalProducer:
    """One client that runs transaction after transaction until `working` is unset. `stays` makes it stop to hang."""

    def __init__(
        self, session: TransactionalSession, loop: SimLoop, partitions: Callable[[], list[TopicPartition]], rate: float
    ) -> None:  # fmt: skip
        self.name = session.name
        self.working = True
        self.stays = False
        """True if the producer commits whatever it begins."""
        self.counts: Counter[str] = Counter()
        self._session = session
        self._loop = loop
        self._partitions = partitions
        self._rate = rate
        self._rng = random.Random(f"{loop.seed}/{session.name}")
        self._count = 0

    async def work(self) -> None:
        while self.working:
            await asyncio.sleep(self._rng.expovariate(self._rate))
            if self.working:
                await self._run_transaction()
        await self._session._client.close()

    async def _run_transaction(self) -> None:
        session, rng = self._session, self._rng
        if (not session.is_ready or rng.random() < NEW_SESSION_SHARE) and not await session.init():
            return
        session.begin()
        partitions = self._partitions()
        for tp in rng.choices(partitions, k=rng.randint(1, BATCHES_MAX)):
            if not await session.write(tp, self._make_values()):
                self.counts[f"refused_{session.last_code.name}"] += 1
                await self._recover()
                return
        drawn = rng.random()
        if self.stays or drawn >= ABORT_SHARE + HANG_SHARE + FENCE_SHARE:
            outcome = await session.end(True)
            self.counts[outcome.value] += 1
        elif drawn < ABORT_SHARE:
            outcome = await session.end(False)
            self.counts[outcome.value] += 1
        elif drawn < ABORT_SHARE + HANG_SHARE:
            self.counts["left"] += 1
            session.abandon()
            await asyncio.sleep(rng.choice((0.0, 4.0, 12.0)))
        else:
            await self._be_replaced(partitions)

    async def _recover(self) -> None:
        """Aborts a transaction with a write of unknown outcome, or leaves it to the next `init`."""
        session = self._session
        if self._rng.random() < 0.5 and session.is_ready:
            await session.end(False)
            if session.is_ready and not session.moves_epoch:
                self.counts["went_on"] += await session.init(goes_on=True)
        else:
            session.abandon()

    async def _be_replaced(self, partitions: list[TopicPartition]) -> None:
        """Begins anew as another process, and lets the old one go on."""
        session = self._session
        old = session.fork(f"{self.name}/old")
        session.abandon()
        if not await session.init():
            return
        transaction = old.begin()
        transaction.is_fenced = True
        wrote = await old.write(self._rng.choice(partitions), self._make_values(), seconds=FENCED_SECONDS)
        self.counts["fenced_write_taken" if wrote else "fenced_write_refused"] += 1
        outcome = await old.end(True)
        self.counts[f"fenced_end_{outcome.value}"] += 1
        if outcome is Outcome.UNKNOWN:
            transaction.outcome = Outcome.ABORTED  # it cannot have committed anything

    def _make_values(self) -> list[bytes]:
        values = []
        for _ in range(self._rng.randint(1, 2)):
            self._count += 1
            values.append(b"%s.%d:" % (self.name.encode(), self._count) + b"x" * self._rng.choice((0, 10, 150)))
        return values


def count_outcomes(transactions: list[SimTransaction]) -> dict[str, int]:
    """Returns the number of transactions by outcome."""
    return dict(Counter(f"transactions_{each.outcome.value}" for each in transactions))
