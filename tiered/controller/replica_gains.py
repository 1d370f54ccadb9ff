"""Gives topics the replicas that they were born without, when brokers join: what they gain is `metadata.gaining`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tiered.config.settings import Settings
from tiered.controller.leaders import racks
from tiered.controller.missing_replicas import gains
from tiered.controller.requests import Reassign
from tiered.errors import Refused
from tiered.metadata.image import Image
from tiered.ports import Clock

log = logging.getLogger(__name__)

CALM_SECONDS = 2.0
"""Brokers that start together are one look."""
AT_ONCE = 500
"""Partitions in one request."""


class Gaining:
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
        self._seen: frozenset[int] = frozenset()

    def grown(self) -> None:
        """The image has."""
        image = self._image()
        there = frozenset(racks(image))
        joined, self._seen = there - self._seen, there
        if joined and gains(image, self._settings()):
            self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(CALM_SECONDS)
            self._wake.clear()
            found = gains(self._image(), self._settings())
            for start in range(0, len(found), AT_ONCE):
                try:
                    await self._submit(Reassign(found[start : start + AT_ONCE]))
                except Refused as refused:
                    log.warning("partitions gain replicas later partitions=%d why=%s", len(found) - start, refused)
                    break
            else:
                log.info("partitions gain replicas partitions=%d", len(found))
