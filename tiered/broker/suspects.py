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
        self._gone: dict[int, int] = {}
        """Since when."""

    def lost(self, node_id: int) -> None:
        """A connection to a broker that answered before has ended."""
        known = self._image().brokers.get(node_id)
        if known is not None and known.live:
            self._about.setdefault(node_id, (known.incarnation, self._clock.mono_ns()))
            if not known.stopping:  # it has closed its doors, and says itself when it has stopped
                self._suspect(node_id)

    def heard(self, node_id: int) -> None:
        """It answers again."""
        if self._about.pop(node_id, None) is not None:
            self._fewer.set()

    def grown(self) -> None:
        """This broker has acted on another image."""
        if self._about:
            self._judge()
            self._fewer.set()

    async def settled(self) -> None:
        """Returns once nobody is in doubt; at once, as a rule."""
        self._judge()
        while self._about:
            self._fewer.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._fewer.wait()
            self._judge()

    def lately(self) -> frozenset[int]:
        """Who has just gone, and its connections with it. Not who is only not heard: clients are better rid of one
        that answers nothing."""
        self._judge()
        since_ns, brokers = self._clock.mono_ns() - LATELY_SECONDS * 1e9, self._image().brokers
        self._gone = {
            node_id: at_ns
            for node_id, at_ns in self._gone.items()
            if at_ns > since_ns and node_id in brokers and not brokers[node_id].live
        }
        return frozenset(self._gone)

    def _seconds_left(self) -> float:
        """Until the first of them is in doubt no more."""
        since_ns = min(since_ns for _, since_ns in self._about.values())
        return DOUBT_SECONDS - (self._clock.mono_ns() - since_ns) / 1e9

    def _judge(self) -> None:
        """Whom the cluster knows to be gone is in doubt no more, nor who has been for too long."""
        if not self._about:
            return
        now_ns, brokers = self._clock.mono_ns(), self._image().brokers
        for node_id, (incarnation, since_ns) in list(self._about.items()):
            known = brokers.get(node_id)
            if known is None or not known.live or known.incarnation != incarnation:
                self._gone[node_id] = now_ns
                del self._about[node_id]
            elif now_ns - since_ns >= DOUBT_SECONDS * 1e9:
                del self._about[node_id]
