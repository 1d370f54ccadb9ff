"""Gives topics the replicas that they were born without, when brokers join: what they gain is `metadata.gaining`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tiered.config.settings import Settings
from tiered.controller.leaders import placement_racks
from tiered.controller.missing_replicas import plan_missing_replicas
from tiered.controller.requests import Reassign
from tiered.errors import Refused
from tiered.metadata.image import Image
from tiered.ports import Clock

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""Brokers that start together are one look."""
BATCH_MAX = 500
"""Partitions in one request."""


class MissingReplicaBalancer:
    """Of one controller. `submit` asks it; `image` is what is committed. It looks only when other brokers are there
    than before: so a move that somebody calls off is not begun again at once."""

    def __init__(
        self,
        submit: Callable[[Reassign], Awaitable[Any]],
        image: Callable[[], Image],
        settings: Callable[[], Settings],
        clock: Clock,
    ) -> None:
        self._submit = submit
        self._image = image
        self._settings = settings
        self._clock = clock
        self._wake = asyncio.Event()
        self._known_brokers: frozenset[int] = frozenset()

    def on_image(self) -> None:
        """The image has."""
        image = self._image()
        placeable = frozenset(placement_racks(image))
        joined, self._known_brokers = placeable - self._known_brokers, placeable
        if joined and plan_missing_replicas(image, self._settings()):
            self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(SETTLE_SECONDS)
            self._wake.clear()
            found = plan_missing_replicas(self._image(), self._settings())
            for start in range(0, len(found), BATCH_MAX):
                try:
                    await self._submit(Reassign(found[start : start + BATCH_MAX]))
                except Refused as refused:
                    log.warning("partitions gain replicas later partitions=%d why=%s", len(found) - start, refused)
                    break
            else:
                log.info("partitions gain replicas partitions=%d", len(found))
