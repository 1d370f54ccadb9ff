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

DOUBT_SECONDS = 1.0
"""Whoever is gone has been found to be by then, or cannot be found to be soon."""
LATELY_SECONDS = 5.0
"""How long who has gone is still named to clients."""


class Doubts:
    """`image` is what is committed; `suspect` hears of each broker that is in doubt from now on."""

    def __init__(self, clock: Clock, image: Callable[[], Image], suspect: Callable[[int], None]) -> None:
        self._clock = clock
        self._image = image
        self._suspect = suspect
        self._about: dict[int, tuple[str, int]] = {}
        """The incarnation, and since when."""
        self._fewer = asyncio.Event()
        self._live: frozenset[int] = frozenset()
        self._gone: dict[int, int] = {}
        """Since when those are gone that were live."""

    def lost(self, node_id: int) -> None:
        """A connection to a broker that answered before has ended."""
        known = self._image().brokers.get(node_id)
        if known is not None and known.live:
            self._about.setdefault(node_id, (known.incarnation, self._clock.mono_ns()))
            self._suspect(node_id)

    def heard(self, node_id: int) -> None:
        """It answers again."""
        if self._about.pop(node_id, None) is not None:
            self._fewer.set()

    def grown(self) -> None:
        """This broker has acted on another image."""
        if self._about:
            self._fewer.set()
        live = frozenset(broker.node_id for broker in self._image().brokers.values() if broker.live)
        if live != self._live:
            now_ns = self._clock.mono_ns()
            self._gone |= dict.fromkeys(self._live - live, now_ns)
            self._live = live

    def lately(self) -> frozenset[int]:
        """Who has just gone."""
        since_ns = self._clock.mono_ns() - LATELY_SECONDS * 1e9
        self._gone = {node_id: at_ns for node_id, at_ns in self._gone.items() if at_ns > since_ns}
        return frozenset(self._gone.keys() - self._live)

    async def settled(self) -> None:
        """Returns once nobody is in doubt; at once, as a rule."""
        while self._in_doubt():
            self._fewer.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(DOUBT_SECONDS):
                    await self._fewer.wait()

    def _in_doubt(self) -> bool:
        """Whether anybody is still; forgets those that are not."""
        if not self._about:
            return False
        now_ns, brokers = self._clock.mono_ns(), self._image().brokers
        self._about = {
            node_id: (incarnation, since_ns)
            for node_id, (incarnation, since_ns) in self._about.items()
            if (known := brokers.get(node_id)) is not None
            and known.live
            and known.incarnation == incarnation
            and now_ns - since_ns < DOUBT_SECONDS * 1e9
        }
        return bool(self._about)
