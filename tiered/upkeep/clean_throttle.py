"""The pace of cleans: under a limit of bytes and of requests, and slower while they delay the event loop.

A clean shares the event loop and the cores with produce requests. A turn of the loop that ends late delays each of them
by as much. So a step that made the loop late is followed by a pause of a multiple of that time, and cleans take a small
share of a broker that has no core to spare.
"""

from __future__ import annotations

from tiered.ports import Clock

LATE_NS = 5_000_000
"""Delay of the event loop that is no sign of load."""
PAUSE_FACTOR = 8
PAUSE_MAX_NS = 1_000_000_000
WAIT_MAX_SECONDS = 3600.0


class CleanThrottle:
    """The pace of all cleans of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bytes_free_ns = 0
        self._requests_free_ns = 0

    async def admit_bytes(self, count: int, bytes_per_second: float) -> None:
        """Returns once so many more bytes may be read or written."""
        now = self._clock.mono_ns()
        start = max(now, self._bytes_free_ns)
        self._bytes_free_ns = start + _duration_ns(count / bytes_per_second)
        await self._clock.sleep((start - now) / 1e9)
        late_ns = self._clock.mono_ns() - start
        if late_ns > LATE_NS:
            await self._clock.sleep(min(PAUSE_FACTOR * late_ns, PAUSE_MAX_NS) / 1e9)

    async def admit_request(self, requests_per_second: float) -> None:
        """Returns once one more request may be made."""
        now = self._clock.mono_ns()
        start = max(now, self._requests_free_ns)
        self._requests_free_ns = start + _duration_ns(1 / requests_per_second)
        await self._clock.sleep((start - now) / 1e9)


def _duration_ns(seconds: float) -> int:
    return int(min(seconds, WAIT_MAX_SECONDS) * 1e9)
