"""Timed requests to the bucket that nobody else makes: for the end of an outage, and for a newer controller.

An idle broker makes at most one request a minute for each.
"""

from __future__ import annotations

import asyncio
import logging

from tiered.controller.member import ClusterMember
from tiered.errors import Corrupt, Unavailable
from tiered.metadata.layout import FORMAT_KEY
from tiered.object_store.metered import READS, MeteredStore
from tiered.ports import Clock

log = logging.getLogger(__name__)

PROBE_SECONDS = (5.0, 60.0)
"""Shortest and longest pause between two probes of a bucket that does not reply."""
WATCH_SECONDS = 61.0
"""Pause between two looks for a newer controller: at most one request a minute."""


class StoreWatch:
    """The loops of one broker."""

    def __init__(self, store: MeteredStore, cluster: ClusterMember, clock: Clock) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock

    async def run(self) -> None:
        """Runs both loops until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.watch_controller())
            group.create_task(self.probe_store())

    async def watch_controller(self) -> None:
        """Looks for a newer controller, and for another cluster under the prefix, which ends the broker.

        A controller that was frozen while another broker took over finds out here. During an outage of reads only
        `probe_store` makes requests.
        """
        while True:
            await self._clock.sleep(WATCH_SECONDS)
            if READS not in self._store.outages:
                try:
                    await self._cluster.check_store()
                except (Unavailable, Corrupt) as error:
                    log.warning("check of the bucket for a newer controller failed, is repeated why=%s", error)

    async def probe_store(self) -> None:
        """Detects the end of an outage although nobody else makes a request."""
        pause, longest = PROBE_SECONDS
        while True:
            await self._clock.sleep(pause)
            await self._store.ping(FORMAT_KEY)
            pause = min(2 * pause, longest) if self._store.outage is not None else PROBE_SECONDS[0]
