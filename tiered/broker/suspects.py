"""Brokers that have just gone, or may have: how clients find the next leader without a detour.

A client that loses a leader asks at once who leads now. An answer from before the cluster knows sends it back to the
dead, and librdkafka asks again only after up to two seconds: so such a question waits here for a moment. And an answer
that names the new leader and no longer the old one's address makes librdkafka (2.10 and later) drop the old one while
it moves the partitions from there, which it then finds again after a second: so who has just gone is still named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tiered.metadata.image import Image
from tiered.ports import Clock

SUSPECT_SECONDS = 1.0
"""Whoever is gone has been found to be by then, or cannot be found to be soon."""
RECENTLY_GONE_SECONDS = 5.0
"""How long who has gone is still named to clients."""


class SuspectedBrokers:
    """`image` is what is committed; `suspect` hears of each broker that is in doubt from now on."""

    def __init__(self, clock: Clock, image: Callable[[], Image], on_suspect: Callable[[int], None]) -> None:
        self._clock = clock
        self._image = image
        self._on_suspect = on_suspect
        self._suspects: dict[int, tuple[str, int]] = {}
        """The incarnation, and since when."""
        self._resolved = asyncio.Event()
        self._gone: dict[int, int] = {}
        """Since when."""

    def connection_lost(self, node_id: int) -> None:
        """A connection to a broker that answered before has ended."""
        known = self._image().brokers.get(node_id)
        if known is not None and known.live:
            self._suspects.setdefault(node_id, (known.incarnation, self._clock.mono_ns()))
            if not known.stopping:  # it has closed its doors, and says itself when it has stopped
                self._on_suspect(node_id)

    def answered(self, node_id: int) -> None:
        """It answers again."""
        if self._suspects.pop(node_id, None) is not None:
            self._resolved.set()

    def on_image(self) -> None:
        """This broker has acted on another image."""
        if self._suspects:
            self._drop_resolved()
            self._resolved.set()

    async def wait_resolved(self) -> None:
        """Returns once nobody is in doubt; at once, as a rule."""
        self._drop_resolved()
        while self._suspects:
            self._resolved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._resolved.wait()
            self._drop_resolved()

    def recently_gone(self) -> frozenset[int]:
        """Who has just gone, and its connections with it. Not who is only not heard: clients are better rid of one
        that answers nothing."""
        self._drop_resolved()
        since_ns, brokers = self._clock.mono_ns() - RECENTLY_GONE_SECONDS * 1e9, self._image().brokers
        self._gone = {
            node_id: at_ns
            for node_id, at_ns in self._gone.items()
            if at_ns > since_ns and node_id in brokers and not brokers[node_id].live
        }
        return frozenset(self._gone)

    def _seconds_left(self) -> float:
        """Until the first of them is in doubt no more."""
        since_ns = min(since_ns for _, since_ns in self._suspects.values())
        return SUSPECT_SECONDS - (self._clock.mono_ns() - since_ns) / 1e9

    def _drop_resolved(self) -> None:
        """Whom the cluster knows to be gone is in doubt no more, nor who has been for too long."""
        if not self._suspects:
            return
        now_ns, brokers = self._clock.mono_ns(), self._image().brokers
        for node_id, (incarnation, since_ns) in list(self._suspects.items()):
            known = brokers.get(node_id)
            if known is None or not known.live or known.incarnation != incarnation:
                self._gone[node_id] = now_ns
                del self._suspects[node_id]
            elif now_ns - since_ns >= SUSPECT_SECONDS * 1e9:
                del self._suspects[node_id]
