"""The loop that returns leadership to preferred leaders two seconds after they have caught up.

`leaders.plan_preferred_leaders` finds the partitions; this file decides the time. A partition must be in the plan
twice, two seconds apart. So a broker that comes and goes moves no leadership, and leaderships that return together take
few entries of the metadata log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tiered.config.settings import Settings
from tiered.controller.leaders import plan_preferred_leaders
from tiered.controller.requests import ElectLeaders
from tiered.errors import Refused
from tiered.ids import TopicId
from tiered.metadata.image import Image
from tiered.ports import Clock

TopicIdPartition = tuple[TopicId, int]

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""Time for which a preferred leader must stay electable before it is elected."""
BATCH_MAX = 1_000
"""Partitions in one ElectLeaders request."""


class PreferredLeaderBalancer:
    """The loop of one active controller. `submit` sends it a request; `image` returns the committed image."""

    def __init__(
        self,
        submit: Callable[[ElectLeaders], Awaitable[Any]],
        image: Callable[[], Image],
        settings: Callable[[], Settings],
        clock: Clock,
    ) -> None:
        self._submit = submit
        self._image = image
        self._settings = settings
        self._clock = clock
        self._wake = asyncio.Event()

    def on_image(self) -> None:
        """Wakes the loop: the image has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Runs the loop until it is cancelled."""
        waiting: set[TopicIdPartition] = set()
        while True:
            if waiting:
                await self._clock.sleep(SETTLE_SECONDS)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings().leader_imbalance_check_interval_seconds):
                        await self._wake.wait()
            self._wake.clear()
            plan = self._plan()
            due = tuple(each for each in plan if each in waiting)
            for start in range(0, len(due), BATCH_MAX):
                await self._elect_preferred(due[start : start + BATCH_MAX])
            waiting = set(self._plan() if due else plan)

    def _plan(self) -> tuple[TopicIdPartition, ...]:
        if not self._settings().auto_leader_rebalance_enable:
            return ()
        return plan_preferred_leaders(self._image())

    async def _elect_preferred(self, due: tuple[TopicIdPartition, ...]) -> None:
        try:
            await self._submit(ElectLeaders(preferred=True, partitions=due))
        except Refused as refused:
            log.warning("election of preferred leaders failed, is repeated partitions=%d why=%s", len(due), refused)
        else:
            log.info("preferred leaders elected partitions=%d", len(due))
