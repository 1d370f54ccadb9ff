"""The pace of cleans: under a limit of bytes and of requests, and slower while they delay the event loop.

A clean shares the event loop and the cores with produce requests. A turn of the loop that ends late delays each of them
by as much. So a step that made the loop late is followed by a pause of a multiple of that time, and cleans take a small
share of a broker that has no core to spare.
"""

from __future__ import annotations

from tiered.ports import Clock
from tiered.quotas.rate import TokenBucket

LATE_NS = 5_000_000
"""Delay of the event loop that is no sign of load."""
PAUSE_FACTOR = 8
PAUSE_MAX_NS = 1_000_000_000
WAIT_MAX_SECONDS = 3600.0
"""The longest wait for one step, however low its limit is."""


class CleanThrottle:
    """The pace of all cleans of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bytes, self._requests = (TokenBucket(0, 0, 0, clock.mono_ns() / 1e6) for _ in range(2))

    async def admit_bytes(self, count: int, bytes_per_second: float) -> None:
        """Returns once so many more bytes may be read or written."""
        began_ns = self._clock.mono_ns()
        seconds = _take(self._bytes, count, bytes_per_second, began_ns)
        await self._clock.sleep(seconds)
        late_ns = self._clock.mono_ns() - began_ns - round(seconds * 1e9)
        if late_ns > LATE_NS:
            await self._clock.sleep(min(PAUSE_FACTOR * late_ns, PAUSE_MAX_NS) / 1e9)

    async def admit_request(self, requests_per_second: float) -> None:
        """Returns once one more request may be made."""
        await self._clock.sleep(_take(self._requests, 1, requests_per_second, self._clock.mono_ns()))


def _take(bucket: TokenBucket, count: int, rate: float, now_ns: int) -> float:
    """Returns the seconds until the steps before are paid for, and takes the tokens of this one."""
    now_ms = now_ns / 1e6
    seconds = min(bucket.debt_ms(rate, now_ms) / 1000, WAIT_MAX_SECONDS)
    bucket.record(count, rate, now_ms)
    return seconds
