"""Gives leaderships back: the first replica of a partition leads it again a moment after it has caught up.

Which partitions those are is `leaders.misplaced`; here is when. Only who was in sync for a whole moment gets any, so
that a broker that comes and goes moves nothing, and what comes back together is one entry of the metadata log.
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
BATCH_MAX = 1_000
"""Leaderships in one request."""


class PreferredLeaderBalancer:
    """Of one controller. `submit` asks it; `image` is what is committed."""

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
        """The image has."""
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        waiting: set[TopicIdPartition] = set()
        while True:
            if waiting:
                await self._clock.sleep(SETTLE_SECONDS)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._settings().leader_imbalance_check_interval_seconds):
                        await self._wake.wait()
            self._wake.clear()
            found = self._plan()
            due = tuple(each for each in found if each in waiting)
            for start in range(0, len(due), BATCH_MAX):
                await self._elect_preferred(due[start : start + BATCH_MAX])
            waiting = set(self._plan() if due else found)

    def _plan(self) -> tuple[TopicIdPartition, ...]:
        if not self._settings().auto_leader_rebalance_enable:
            return ()
        return plan_preferred_leaders(self._image())

    async def _elect_preferred(self, due: tuple[TopicIdPartition, ...]) -> None:
        try:
            await self._submit(ElectLeaders(preferred=True, partitions=due))
        except Refused as refused:
            log.warning("preferred leaders come later partitions=%d why=%s", len(due), refused)
        else:
            log.info("preferred leaders lead again partitions=%d", len(due))
