"""The pace of cold reads of fetches: `remote.log.manager.fetch.max.bytes.per.second` at most, as in Kafka (KIP-956).

Readers take turns: the read-ahead of one may be a hundred MiB, and the first bytes of another wait for one get of it.
Reads that a broker itself needs wait for nobody: loads of coordinators, look-ups by time, and cleans.
"""

from __future__ import annotations

from collections.abc import Callable

from tiered.fair_slots import FairSlots
from tiered.ports import Clock
from tiered.quotas.rate import TokenBucket

WAITING_MAX = 100_000
"""Gets that wait at most. Memory for cold reads bounds them long before."""
CHECK_SECONDS = 1.0
"""Longest wait until the rate is looked at again: it may be raised meanwhile."""


class FetchThrottle:
    """The pace of one broker. `rate` returns the bytes a second that it may get now."""

    def __init__(self, clock: Clock, rate: Callable[[], float]) -> None:
        self._clock = clock
        self._rate = rate
        self._bytes = TokenBucket(0, 0, 0, clock.mono_ns() / 1e6)
        self._turn = FairSlots(1, WAITING_MAX)
        """Gets of one reader begin in the order in which they came."""

    async def admit(self, size: int, reader: str) -> None:
        """Returns once a get of so many bytes may begin. A get may be larger than what is left: the next one waits.
        Raises `Refused` if too many wait."""
        async with self._turn.take(reader):
            while (debt_ms := self._bytes.debt_ms(self._rate(), self._now_ms())) >= 1:
                await self._clock.sleep(min(debt_ms / 1000, CHECK_SECONDS))
            self._bytes.record(size, self._rate(), self._now_ms())

    def _now_ms(self) -> float:
        return self._clock.mono_ns() / 1e6
