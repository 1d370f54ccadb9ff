"""What the cluster has agreed on, as far as this broker has heard, and how far it has acted on it (rule M5).

Entries are carried out in order, several at once where acting lags, and apart from hearing of them: a slow log or
bucket must not look like a death to others.
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
    """`image` is the newest that is known, `applied` the slot up to which `act` has been called, `tail` the newest
    entries for brokers that ask. `told` hears of the changes of each entry; `grown` is called after each."""

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
        self._ended = False

    # -- hearing ------------------------------------------------------------------------------------------------------

    def load_image(self, image: Image) -> None:
        """To an image of which not every entry on the way is known."""
        self.recent_entries.restart_at(image.slot + 1)
        self._set_image(image, ())

    def append_own(self, changes: Sequence[Change], slot: int, body: bytes) -> None:
        """The next entry, written by this broker."""
        self.recent_entries.add(slot, body)
        self._set_image(self.image.apply(changes, slot), changes)

    def append_entries(self, bodies: Sequence[bytes]) -> None:
        """The next entries, as a controller sent them. `Corrupt` when they do not follow, `Refused` when they are
        another cluster's."""
        for body in bodies:
            entry = layout.decode_entry(body, self.image.slot + 1)
            entry.verify_cluster(self.cluster_id)
            self.recent_entries.add(entry.slot, body)
            self._set_image(layout.apply_entries(self.image, (entry,)), entry.changes)

    def append_from_bucket(self, entries: Sequence[Entry]) -> None:
        """The next entries, as the bucket has them."""
        self.append_entries([layout.encode_entry(entry) for entry in entries])

    async def wait_for_slot(self, slot: int, timeout: float) -> None:
        """Returns once the image is at `slot` or beyond, or the time is over, or nothing is heard any more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.image.slot < slot and not self._ended:
                    await self._image_changed.wait()

    def _set_image(self, image: Image, changes: Sequence[Change]) -> None:
        before, self.image = self.image, image
        self._on_changes(changes, before, image)
        self.wake_waiters()
        self._image_pending.set()
        self._on_image()

    def wake_waiters(self) -> None:
        """Everybody who waits for something new has a look."""
        grown, self._image_changed = self._image_changed, asyncio.Event()
        grown.set()

    # -- acting -------------------------------------------------------------------------------------------------------

    def start_from(self, image: Image) -> None:
        """A start opened its logs by this image: what has changed since is to be acted on."""
        self.applied_slot, self._applied_image = image.slot, image
        self._image_pending.set()

    async def run(self) -> None:
        """Acts on what is committed, until it is cancelled."""
        while True:
            await self._image_pending.wait()
            self._image_pending.clear()
            target = self.image
            if target is not self._applied_image:
                await self._apply_image(self._applied_image, target)
                self._applied_image = target
                self._set_applied_slot(target.slot)

    async def wait_until_applied(self, slot: int, timeout: float) -> None:
        """Returns once this broker has acted on `slot`, or the time is over, or it will not any more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(timeout, 0.0)):
                while self.applied_slot < slot and not self._ended:
                    await self._slot_applied.wait()

    def end(self) -> None:
        """Nothing more is heard or done: who waits goes on."""
        self._ended = True
        self.wake_waiters()
        self._set_applied_slot(self.applied_slot)

    def _set_applied_slot(self, slot: int) -> None:
        self.applied_slot = slot
        did, self._slot_applied = self._slot_applied, asyncio.Event()
        did.set()
