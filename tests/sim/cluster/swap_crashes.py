"""Crashes in the middle of a clean: of a machine whose broker syncs a cleaned file, renames it, or has just done so,
or that puts a cleaned object or the manifest that names it.

A swap takes no time on a disk that is not slow, so that no other fault would come at one of its steps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.sim.cluster.observer import acting_node, patched
from tests.sim.cluster.world import SimHost, SimWorld
from tests.sim.harness.loop import process_context
from tiered.cold.cold_cleaning import ColdCleaning
from tiered.hot.log_cleaning import LogCleaning

CRASH_CHANCE = 0.15
STEPS_MAX = 8
"""Syncs of a clean of one group: of four files, of the checkpoint, of the names of the new files, and of the swap."""
HANG_SECONDS = 0.3
COLD_CRASH_CHANCE = 0.05
COLD_SECONDS = (0.0, 0.01, 0.1)
"""Times between the beginning of a request and the crash."""
DOWN_SECONDS = (0.01, 0.3, 2.0)


class SwapCrashes:
    """Crashes machines until it is stopped. It draws from its own random stream; `count` is the number of crashes."""

    def __init__(self, seed: int, world: SimWorld, *, is_enabled: bool) -> None:
        self.count = 0
        self.is_enabled = is_enabled
        self._world = world
        self._rng = random.Random(f"{seed}/swap-crashes")
        self._tasks: list[asyncio.Task[None]] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Counts the steps of cleans within the context."""
        with (
            patched(LogCleaning, "_clean_group", self._clean_group),
            patched(ColdCleaning, "_put", self._cold_step),
            patched(ColdCleaning, "_replace", self._cold_step),
        ):
            yield

    async def end(self) -> None:
        """Ends all crashes. Machines that are down start again."""
        self.is_enabled = False
        await asyncio.gather(*self._tasks)

    def _clean_group(self, original: Any) -> Any:
        async def clean_group(cleaning: LogCleaning, *args: Any) -> None:
            host = self._world.hosts[acting_node()]
            if not self.is_enabled or self._rng.random() >= CRASH_CHANCE or not _can_crash(host):
                await original(cleaning, *args)
                return
            disk, steps = host.machine.disk, self._rng.randint(1, STEPS_MAX)
            before: Callable[[], float] = disk.sync_seconds

            def sync_seconds() -> float:
                nonlocal steps
                steps -= 1
                if steps == 0 and self.is_enabled and _can_crash(host):
                    self._tasks.append(self._start_crash(host))
                    return HANG_SECONDS
                return before()

            disk.sync_seconds = sync_seconds
            try:
                await original(cleaning, *args)
            finally:
                if disk.sync_seconds is sync_seconds:
                    disk.sync_seconds = before

        return clean_group

    def _cold_step(self, original: Any) -> Any:
        async def step(cleaner: ColdCleaning, *args: Any) -> Any:
            host = self._world.hosts[acting_node()]
            if self.is_enabled and self._rng.random() < COLD_CRASH_CHANCE and _can_crash(host):
                self._tasks.append(self._start_crash(host, self._rng.choice(COLD_SECONDS)))
            return await original(cleaner, *args)

        return step

    def _start_crash(self, host: SimHost, after_seconds: float = 0.0) -> asyncio.Task[None]:
        """Crashes a machine in a task that does not belong to its broker."""
        crash = self._crash(host, after_seconds)
        return self._world.loop.create_task(crash, name="swap-crash", context=process_context(""))

    async def _crash(self, host: SimHost, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        if not _can_crash(host):
            return
        self.count += 1
        how = self._rng.choice(("kill", "power"))
        self._world.events.add(f"{host.name} crashes in a clean: {how}")
        await host.end(how)
        await asyncio.sleep(self._rng.choice(DOWN_SECONDS))
        host.power_on()


def _can_crash(host: SimHost) -> bool:
    return host.idle and not host.frozen and bool(host.process)
