"""The loop that adds missing replicas after brokers join.

A topic created while too few brokers were live has fewer replicas than its default (`missing_replicas`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tiered.config.settings import Settings
from tiered.controller.missing_replicas import plan_missing_replicas
from tiered.controller.requests import Reassign
from tiered.errors import Refused
from tiered.metadata.image import Image
from tiered.ports import Clock

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""Pause after a broker joins: brokers that start together lead to one plan."""
BATCH_MAX = 500
"""Partitions in one Reassign request."""


class MissingReplicaBalancer:
    """The loop of one active controller. `submit` sends it a request; `image` returns the committed image.

    The loop plans only after a broker joins. So a reassignment that an operator cancels does not start again at once.
    """

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
        """Wakes the loop if a broker has joined and replicas are missing."""
        image = self._image()
        placeable = frozenset(image.placement_racks())
        joined, self._known_brokers = placeable - self._known_brokers, placeable
        if joined and plan_missing_replicas(image, self._settings()):
            self._wake.set()

    async def run(self) -> None:
        """Runs the loop until it is cancelled."""
        while True:
            await self._wake.wait()
            await self._clock.sleep(SETTLE_SECONDS)
            self._wake.clear()
            moves = plan_missing_replicas(self._image(), self._settings())
            for start in range(0, len(moves), BATCH_MAX):
                try:
                    await self._submit(Reassign(moves[start : start + BATCH_MAX]))
                except Refused as refused:
                    log.warning("missing replicas not added yet partitions=%d why=%s", len(moves) - start, refused)
                    break
            else:
                log.info("adding missing replicas partitions=%d", len(moves))
