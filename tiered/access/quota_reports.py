"""Reports of what clients used of their quotas, from each process of a machine to all others. So a client that writes
to several processes has the quota of one machine (I28).

A report leaves a tenth of a second after the first use that it has, or sooner if a client used much. A process that
does not take a report in time, such as one that is being started, never counts this use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from tiered.access.client_quotas import ClientQuotas
from tiered.controller.member_view import MemberView
from tiered.errors import Refused, Unavailable
from tiered.ids import PROCESS_STEP, machine_of
from tiered.log_limiter import LogLimiter
from tiered.peers import Peers, QuotaUse
from tiered.ports import Clock

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.1
"""Time over which use is collected..."""
LARGE_SECONDS = 0.005
"""... and that of large use: at the speed of this machine a client could use its quota at each process meanwhile."""
SEND_SECONDS = 1.0
"""Time in which a process has to take a report. The next report to all others waits for it."""


class QuotaReports:
    """The reports of one process."""

    def __init__(self, quotas: ClientQuotas, view: MemberView, peers: Peers, clock: Clock) -> None:
        self._quotas = quotas
        self._view = view
        self._peers = peers
        self._clock = clock
        self._log_limiter = LogLimiter(clock)
        self._has_use = asyncio.Event()
        self._has_large_use = asyncio.Event()
        quotas.on_use = self._on_use

    async def run(self) -> None:
        """Sends reports until it is cancelled."""
        while True:
            await self._has_use.wait()
            await self._clock.sleep(LARGE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_SECONDS - LARGE_SECONDS):
                    await self._has_large_use.wait()
            self._has_use.clear()
            self._has_large_use.clear()
            uses = self._quotas.take_unreported()
            await asyncio.gather(*(self._send(node_id, uses) for node_id in self._siblings()))
            self._report_unreportable()

    def _on_use(self, is_large: bool) -> None:
        self._has_use.set()
        if is_large:
            self._has_large_use.set()

    def _siblings(self) -> list[int]:
        """Returns the node ids of the other processes of this machine."""
        settings = self._view.settings
        first = machine_of(settings.node_id, settings.process)
        return [first + PROCESS_STEP * each for each in range(settings.processes) if each != settings.process]

    async def _send(self, node_id: int, uses: Sequence[QuotaUse]) -> None:
        address = self._view.address_of(node_id)
        try:
            if not address:
                raise Unavailable("it has announced no address")
            await self._peers.report_quota_use(address, uses, SEND_SECONDS)
        except (Refused, Unavailable) as error:
            if (suppressed := self._log_limiter.admit(f"{node_id}")) is not None:
                log.warning(
                    "a process does not count what clients used here node_id=%d entities=%d suppressed=%d why=%s",
                    node_id, len(uses), suppressed, error,
                )  # fmt: skip

    def _report_unreportable(self) -> None:
        count, self._quotas.unreportable = self._quotas.unreportable, 0
        if count and (suppressed := self._log_limiter.admit()) is not None:
            log.warning(
                "quotas of many clients in use, some uses count here alone uses=%d suppressed=%d", count, suppressed
            )
