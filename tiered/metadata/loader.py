"""The newest image that this broker knows, and the slot up to which it has applied the log (M5).

Images are applied in order, several entries at once if applying lags. Receiving entries does not wait for applying
them: otherwise a slow disk or bucket would look like a dead broker to others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from tiered.metadata import layout
from tiered.metadata.changes import Change
from tiered.metadata.image import Image
from tiered.metadata.layout import Entry
from tiered.metadata.recent_entries import RecentEntries

ApplyImage = Callable[[Image, Image], Awaitable[None]]
OnChanges = Callable[[Sequence[Change], Image, Image], None]


class MetadataLoader:
    """The image, the applied slot, and the newest entries for brokers that fetch them.

    `image` is the newest known. `applied_slot` is the slot up to which `apply_image` has run. `on_changes` gets the
    changes of each entry; `on_image` is called after each.
    """

    def __init__(self, apply_image: ApplyImage, on_changes: OnChanges, on_image: Callable[[], None]) -> None:
        self.image = Image()
        self.cluster_id = ""
        self.applied_slot = -1
        self.recent_entries = RecentEntries()
        self._apply_image = apply_image
        self._on_changes = on_changes
        self._on_image = on_image
        self._applied_image = self.image
        self._image_pending = asyncio.Event()
        self._image_changed = asyncio.Event()
        self._slot_applied = asyncio.Event()
        self.has_ended = False

    # -- receiving ----------------------------------------------------------------------------------------------------

    def load_image(self, image: Image) -> None:
        """Takes an image from a snapshot, without the entries between."""
        self.recent_entries.restart_at(image.slot + 1)
        self._set_image(image, ())

    def append_own(self, changes: Sequence[Change], slot: int, body: bytes) -> None:
        """Appends the next entry, which this broker wrote as controller."""
        self.recent_entries.add(slot, body)
        self._set_image(self.image.apply(changes, slot), changes)

    def append_entries(self, bodies: Sequence[bytes]) -> None:
        """Appends the next entries, as the controller sent them.

        Raises `Corrupt` if they do not follow the image, and `Refused` if they belong to another cluster.
        """
        for body in bodies:
            entry = layout.decode_entry(body, self.image.slot + 1)
            entry.verify_cluster(self.cluster_id)
            self.recent_entries.add(entry.slot, body)
            self._set_image(layout.apply_entries(self.image, (entry,)), entry.changes)

    def append_from_bucket(self, entries: Sequence[Entry]) -> None:
        """Appends the next entries, as read from the bucket."""
        self.append_entries([layout.encode_entry(entry) for entry in entries])

    async def wait_for_slot(self, slot: int, timeout: float) -> None:
        """Returns once the image is at `slot` or beyond, after `timeout` seconds, or when the loader ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.image.slot < slot and not self.has_ended:
                    await self._image_changed.wait()

    def _set_image(self, image: Image, changes: Sequence[Change]) -> None:
        before, self.image = self.image, image
        self._on_changes(changes, before, image)
        self.wake_waiters()
        self._image_pending.set()
        self._on_image()

    def wake_waiters(self) -> None:
        """Wakes all waiters: they check their conditions again."""
        changed, self._image_changed = self._image_changed, asyncio.Event()
        changed.set()

    # -- applying -----------------------------------------------------------------------------------------------------

    def start_from(self, image: Image) -> None:
        """Takes the image from which a start opened its logs as applied; later changes are applied next."""
        self.applied_slot, self._applied_image = image.slot, image
        self._image_pending.set()

    async def run(self) -> None:
        """Applies committed images until it is cancelled."""
        while True:
            await self._image_pending.wait()
            self._image_pending.clear()
            target = self.image
            if target is not self._applied_image:
                await self._apply_image(self._applied_image, target)
                self._applied_image = target
                self._set_applied_slot(target.slot)

    async def wait_until_applied(self, slot: int, timeout: float) -> None:
        """Returns once this broker has applied `slot`, after `timeout` seconds, or when the loader ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(timeout, 0.0)):
                while self.applied_slot < slot and not self.has_ended:
                    await self._slot_applied.wait()

    def end(self) -> None:
        """Ends the loader and wakes all waiters: no more entries come, and nothing more is applied."""
        self.has_ended = True
        self.wake_waiters()
        self._set_applied_slot(self.applied_slot)

    def _set_applied_slot(self, slot: int) -> None:
        self.applied_slot = slot
        applied, self._slot_applied = self._slot_applied, asyncio.Event()
        applied.set()
