"""Keeps the record of the use of the bucket over restarts: a look each minute, and a file in the data directory.

A process that dies loses the use since the last write, at most five minutes.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from tiered.broker.figures import read_figures
from tiered.durability.data_directory import ROOT
from tiered.errors import Corrupt, Unavailable
from tiered.hot import checkpoints
from tiered_api.http.exchange.context import HttpContext

log = logging.getLogger(__name__)

FILE = "store-usage"
LOOK_SECONDS = 60.0
LOOKS_PER_WRITE = 5
REQUESTS, MOVED = "tiered_store_requests_total", "tiered_store_bytes_total"


class UsageLog:
    """The record of one broker, and its file."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._task = asyncio.get_running_loop().create_task(self._run(), name="store usage")

    def look(self) -> None:
        """Adds the use of the bucket since the last look."""
        broker = self._context.broker
        counters: dict[str, list[int]] = {}
        for figure in read_figures(broker.metrics):
            if figure.name in (REQUESTS, MOVED):
                counters.setdefault(figure.label, [0, 0])[figure.name == MOVED] = int(figure.value)
        stored = sum(each.unified_log.cold_bytes for each in broker.hosted_replicas.list_leaders())
        now_ms = self._context.clock.wall_ms()
        broker.store_usage.look(now_ms, {verb: (sums[0], sums[1]) for verb, sums in counters.items()}, stored)

    async def close(self) -> None:
        """Writes what is not written yet."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        if self._context.broker.store_usage.is_kept:
            self.look()
            await self._write()

    async def _run(self) -> None:
        await self._context.broker.served.wait()
        self._load()
        while True:
            for _ in range(LOOKS_PER_WRITE):
                self.look()
                await self._context.clock.sleep(LOOK_SECONDS)
            await self._write()

    def _load(self) -> None:
        try:
            if data := checkpoints.load(self._context.broker.world.disk, ROOT, FILE):
                self._context.broker.store_usage.add_encoded(data, f"{ROOT}/{FILE}")
        except (Corrupt, OSError) as fault:
            log.warning("use of the bucket before this start is not known why=%s", fault)
        self._context.broker.store_usage.is_kept = True

    async def _write(self) -> None:
        try:
            await checkpoints.save(
                self._context.broker.world.disk, ROOT, FILE, self._context.broker.store_usage.encode()
            )
        except (OSError, Unavailable) as fault:
            log.warning("use of the bucket is not written, is tried again why=%s", fault)
