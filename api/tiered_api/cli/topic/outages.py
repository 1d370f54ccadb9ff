"""Calls that outlast an outage: they are made again while brokers are unreachable, and the user is told once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiered.errors import Code, Refused, Unavailable
from tiered.ports import Clock
from tiered_api.cli.output import print_error
from tiered_api.kafka.client.leader_routing import STALE_COORDINATOR_CODES, STALE_LEADER_CODES

T = TypeVar("T")

OUTAGE_PAUSE_SECONDS = 1.0
REPORT_NS = 10_000_000_000
"""Time for which brokers are unreachable until the user is told."""
OUTAGE_CODES = STALE_LEADER_CODES | STALE_COORDINATOR_CODES | {Code.REQUEST_TIMED_OUT}
"""Refusals that end once a leader or coordinator is back."""


class Outages:
    """The outages of one reader, one for each purpose of requests. `reader` names it in the line for the user."""

    def __init__(self, clock: Clock, reader: str) -> None:
        self._clock = clock
        self._reader = reader
        self._failing_since: dict[str, int | None] = {}
        """By purpose, for those that fail now: the start of the first call; None once it is reported."""

    async def outlast(self, purpose: str, call: Callable[[], Awaitable[T]]) -> T:
        """Makes a call, again and again while brokers are unreachable. Raises other refusals."""
        while True:
            started_ns = self._clock.mono_ns()
            try:
                got = await call()
            except (Unavailable, Refused) as fault:
                self.note(purpose, fault, started_ns)
                await self._clock.sleep(OUTAGE_PAUSE_SECONDS)
            else:
                self.end(purpose)
                return got

    def note(self, purpose: str, fault: Unavailable | Refused, started_ns: int) -> None:
        """Says once that brokers are unreachable, if that lasts. Raises a fault with another cause."""
        is_outage = not fault.final if isinstance(fault, Unavailable) else fault.code in OUTAGE_CODES
        if not is_outage:
            raise fault
        since_ns = self._failing_since.setdefault(purpose, started_ns)
        if since_ns is not None and self._clock.mono_ns() - since_ns >= REPORT_NS:
            self._failing_since[purpose] = None
            print_error(f"{self._reader} cannot {purpose} now, and tries again: {fault}")

    def end(self, purpose: str) -> None:
        """Notes that a call succeeded."""
        self._failing_since.pop(purpose, None)
