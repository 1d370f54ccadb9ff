"""When images of groups are written, and what goes once one is there: image, then the log below it, then older images.

In this order each step lets go only of what is doubled by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from tiered.coordinator.runtime import Coordinator
from tiered.coordinator.snapshot import ImageName
from tiered.coordinator.snapshot_store import GroupImages
from tiered.errors import Refused, Unavailable
from tiered.groups.records import Record
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

LAST_IMAGES_SECONDS = 3.0
"""What a clean stop gives the last images: the log is whole without them."""
IMAGES_AT_ONCE = 4


@dataclass(eq=False, slots=True)
class Place:
    """A partition that is led here. `coordinator` is None while it is loaded; `trouble` says why that takes long;
    `names` are the images in the bucket, as far as this leader knows; `deleted` are topics that went meanwhile."""

    replica: LeaderReplica
    coordinator: Coordinator | None = None
    names: tuple[ImageName, ...] = ()
    trouble: str = ""
    deleted: dict[str, None] = field(default_factory=dict)


class GroupKeeping:
    """Keeps what the coordinators of a broker know in the bucket."""

    def __init__(self, images: GroupImages) -> None:
        self._images = images
        self._last: list[tuple[Place, int, list[Record]]] = []

    async def save(self, places: Iterable[Place]) -> None:
        """An image of each that changed; one that fails comes with the next call."""
        for place in places:
            coordinator = place.coordinator
            if coordinator is None or coordinator.since_ms < 0:
                continue
            since = coordinator.since_ms
            try:
                await self.write(place, *await coordinator.snapshot())
            except (Unavailable, Refused) as error:
                coordinator.since_ms = since
                log.warning("image of groups comes later partition=%s why=%s", place.replica.at, error)

    async def write(self, place: Place, offset: int, records: list[Record]) -> None:
        """`records` are what the log says below `offset`. `Unavailable` when it is not known to be in the bucket."""
        replica = place.replica
        name = ImageName(replica.pid, replica.leader_epoch, offset)
        await self._images.write(name, records)
        place.names = (*place.names, name)
        if replica.is_stopped:
            return
        replica.advance_start(offset)  # the image has what lies below: it may as well come back
        try:
            place.names = await self._images.delete_older(place.names, name)
        except Unavailable as error:  # they go with the next image
            log.warning("older images of groups stay for now partition=%s why=%s", replica.at, error)

    def set_aside(self, place: Place) -> None:
        """What the last image of this partition is to hold, before its log is closed."""
        coordinator = place.coordinator
        if coordinator is not None and coordinator.since_ms >= 0:
            try:
                self._last.append((place, coordinator.settled(), coordinator.shard.image()))
            except Refused as refused:
                log.warning("last image of groups is not made partition=%s why=%s", place.replica.at, refused)

    async def save_last(self) -> None:
        """A clean stop: whoever finds another disk at the next start finds the groups as they are now."""
        places = asyncio.Semaphore(IMAGES_AT_ONCE)

        async def save(place: Place, offset: int, records: list[Record]) -> None:
            async with places:
                if place.replica.is_committed(offset):
                    name = ImageName(place.replica.pid, place.replica.leader_epoch, offset)
                    await self._images.write(name, records)

        try:
            async with asyncio.timeout(LAST_IMAGES_SECONDS):
                await asyncio.gather(*(save(*each) for each in self._last))
        except (TimeoutError, Unavailable) as error:
            log.warning("last images of groups are not all stored why=%s", error or "the store was too slow")
