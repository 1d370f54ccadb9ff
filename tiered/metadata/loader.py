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
from tiered.metadata.recent_entries import LogTail

Act = Callable[[Image, Image], Awaitable[None]]
Told = Callable[[Sequence[Change], Image, Image], None]


class Committed:
    """`image` is the newest that is known, `applied` the slot up to which `act` has been called, `tail` the newest
    entries for brokers that ask. `told` hears of the changes of each entry; `grown` is called after each."""

    def __init__(self, act: Act, told: Told, grown: Callable[[], None]) -> None:
        self.image = Image()
        self.cluster_id = ""
        self.applied = -1
        self.tail = LogTail()
        self._act = act
        self._told = told
        self._call = grown
        self._acted_on = self.image
        self._more = asyncio.Event()
        self._grown = asyncio.Event()
        self._did = asyncio.Event()
        self._ended = False

    # -- hearing ------------------------------------------------------------------------------------------------------

    def jump(self, image: Image) -> None:
        """To an image of which not every entry on the way is known."""
        self.tail.begin(image.slot + 1)
        self._grow(image, ())

    def add(self, changes: Sequence[Change], slot: int, body: bytes) -> None:
        """The next entry, written by this broker."""
        self.tail.add(slot, body)
        self._grow(self.image.apply(changes, slot), changes)

    def learn(self, bodies: Sequence[bytes]) -> None:
        """The next entries, as a controller sent them. `Corrupt` when they do not follow, `Refused` when they are
        another cluster's."""
        for body in bodies:
            entry = layout.decode_entry(body, self.image.slot + 1)
            entry.prove_of(self.cluster_id)
            self.tail.add(entry.slot, body)
            self._grow(layout.apply_entries(self.image, (entry,)), entry.changes)

    def read(self, entries: Sequence[Entry]) -> None:
        """The next entries, as the bucket has them."""
        self.learn([layout.encode_entry(entry) for entry in entries])

    async def until(self, slot: int, timeout: float) -> None:
        """Returns once the image is at `slot` or beyond, or the time is over, or nothing is heard any more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.image.slot < slot and not self._ended:
                    await self._grown.wait()

    def _grow(self, image: Image, changes: Sequence[Change]) -> None:
        before, self.image = self.image, image
        self._told(changes, before, image)
        self.wake()
        self._more.set()
        self._call()

    def wake(self) -> None:
        """Everybody who waits for something new has a look."""
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()

    # -- acting -------------------------------------------------------------------------------------------------------

    def begin(self, opened: Image) -> None:
        """A start opened its logs by this image: what has changed since is to be acted on."""
        self.applied, self._acted_on = opened.slot, opened
        self._more.set()

    async def carry_out(self) -> None:
        """Acts on what is committed, until it is cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            target = self.image
            if target is not self._acted_on:
                await self._act(self._acted_on, target)
                self._acted_on = target
                self._done(target.slot)

    async def until_applied(self, slot: int, timeout: float) -> None:
        """Returns once this broker has acted on `slot`, or the time is over, or it will not any more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(timeout, 0.0)):
                while self.applied < slot and not self._ended:
                    await self._did.wait()

    def end(self) -> None:
        """Nothing more is heard or done: who waits goes on."""
        self._ended = True
        self.wake()
        self._done(self.applied)

    def _done(self, slot: int) -> None:
        self.applied = slot
        did, self._did = self._did, asyncio.Event()
        did.set()
