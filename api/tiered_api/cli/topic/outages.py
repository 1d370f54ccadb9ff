"""Calls that outlast an outage: they are made again while brokers are unreachable, and the user is told once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiered.errors import Code, Refused, Unavailable
from tiered.ports import Clock
from tiered_api.cli.output import print_error
from tiered_api.kafka.client.leader_routing import STALE_COORDINATOR_CODES, STALE_LEADER_CODES

T = TypeVar("T")

OUTAGE_PAUSE_SECONDS = 1.0
REPORT_NS = 5_000_000_000
"""Time for which a call has no reply, or brokers are unreachable, until the user is told."""
OUTAGE_CODES = STALE_LEADER_CODES | STALE_COORDINATOR_CODES | {Code.REQUEST_TIMED_OUT}
"""Refusals that end once a leader or coordinator is back."""


class Outages:
    """The outages of one reader, one for each purpose of requests. `reader` names it in the line for the user, and
    `describe_wait` returns why no broker can be connected, or ""."""

    def __init__(self, clock: Clock, reader: str, describe_wait: Callable[[], str]) -> None:
        self._clock = clock
        self._reader = reader
        self._describe_wait = describe_wait
        self._failing_since: dict[str, int | None] = {}
        """By purpose, for those that fail now: the start of the first call; None once it is reported."""

    async def outlast(
        self, purpose: str, call: Callable[[], Awaitable[T]], find_fault: Callable[[], str] = lambda: ""
    ) -> T:
        """Makes a call, again and again while brokers are unreachable. Raises other refusals. A call that returns
        succeeded, unless `find_fault` returns why it has got nothing."""
        while True:
            started_ns = self._clock.mono_ns()
            since_ns = self._failing_since.get(purpose, started_ns)
            timer = None
            if since_ns is not None:
                left = (since_ns + REPORT_NS - started_ns) / 1e9
                timer = asyncio.get_running_loop().call_later(max(0.0, left), self._report_wait, purpose, find_fault)
            try:
                got = await call()
            except (Unavailable, Refused) as fault:
                self.note(purpose, fault, started_ns)
            else:
                if why := find_fault():
                    self._note_why(purpose, why, started_ns)
                else:
                    self.end(purpose)
                return got
            finally:
                if timer is not None:
                    timer.cancel()
            await self._clock.sleep(OUTAGE_PAUSE_SECONDS)

    def note(self, purpose: str, fault: Unavailable | Refused, started_ns: int) -> None:
        """Says once that brokers are unreachable, if that lasts. Raises a fault with another cause."""
        is_outage = not fault.final if isinstance(fault, Unavailable) else fault.code in OUTAGE_CODES
        if not is_outage:
            raise fault
        self._note_why(purpose, str(fault), started_ns)

    def end(self, purpose: str) -> None:
        """Notes that a call succeeded."""
        self._failing_since.pop(purpose, None)

    def _note_why(self, purpose: str, why: str, started_ns: int) -> None:
        since_ns = self._failing_since.setdefault(purpose, started_ns)
        if since_ns is not None and self._clock.mono_ns() - since_ns >= REPORT_NS:
            self._report(purpose, why)

    def _report_wait(self, purpose: str, find_fault: Callable[[], str]) -> None:
        """Reports a call that has no reply yet."""
        self._report(purpose, self._describe_wait() or find_fault() or "there is no reply yet")

    def _report(self, purpose: str, why: str) -> None:
        self._failing_since[purpose] = None
        print_error(f"{self._reader} cannot {purpose} now, and tries again: {why}")
