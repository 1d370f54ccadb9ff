"""Brokers that may be gone, or have just gone, for Metadata replies during a failover.

A client that loses a leader sends a Metadata request at once. A reply that still names the old leader sends the client
back there, and librdkafka repeats the request only after up to two seconds. Therefore such a request waits here for a
moment.

A reply that no longer names the old leader makes librdkafka (2.10 and later) drop that broker while it moves the
partitions away, which takes it a second longer. Therefore replies still name brokers that have just gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tiered.controller.member_view import MemberView
from tiered.ports import Clock

SUSPECT_SECONDS = 1.0
"""Longest time that a broker is suspect: by then the controller has fenced it, or cannot soon."""
RECENTLY_GONE_SECONDS = 5.0
"""Time for which Metadata replies still name a broker that has gone."""


class SuspectedBrokers:
    """The suspects of one broker. `on_suspect` is called with each broker that becomes suspect."""

    def __init__(self, clock: Clock, view: MemberView, on_suspect: Callable[[int], None]) -> None:
        self._clock = clock
        self._view = view
        self._on_suspect = on_suspect
        self._suspects: dict[int, tuple[str, int]] = {}
        """By node id: the incarnation, and since when it is suspect."""
        self._resolved = asyncio.Event()
        self._gone: dict[int, int] = {}
        """By node id: since when the broker is known to be gone."""

    def connection_lost(self, node_id: int) -> None:
        """Makes a broker suspect: a connection on which it had replied has ended."""
        known = self._view.image.brokers.get(node_id)
        if known is not None and known.live:
            self._suspects.setdefault(node_id, (known.incarnation, self._clock.mono_ns()))
            if not known.stopping:  # a stopping broker closes its connections, and reports the end itself
                self._on_suspect(node_id)

    def on_reply(self, node_id: int) -> None:
        """Ends the suspicion: the broker replies again."""
        if self._suspects.pop(node_id, None) is not None:
            self._resolved.set()

    def on_image(self) -> None:
        """Checks the suspects against a newly applied image, and wakes the requests that wait."""
        if self._suspects:
            self._drop_resolved()
            self._resolved.set()

    async def wait_resolved(self) -> None:
        """Returns once no broker is suspect: usually at once."""
        self._drop_resolved()
        while self._suspects:
            self._resolved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    await self._resolved.wait()
            self._drop_resolved()

    def recently_gone(self) -> frozenset[int]:
        """Returns the ids of brokers whose process ended in the last five seconds.

        Leaves out brokers that are only silent: clients should drop those.
        """
        self._drop_resolved()
        since_ns, brokers = self._clock.mono_ns() - RECENTLY_GONE_SECONDS * 1e9, self._view.image.brokers
        self._gone = {
            node_id: at_ns
            for node_id, at_ns in self._gone.items()
            if at_ns > since_ns and node_id in brokers and not brokers[node_id].live
        }
        return frozenset(self._gone)

    def _seconds_left(self) -> float:
        """Returns the time until the first suspicion ends by itself."""
        since_ns = min(since_ns for _, since_ns in self._suspects.values())
        return SUSPECT_SECONDS - (self._clock.mono_ns() - since_ns) / 1e9

    def _drop_resolved(self) -> None:
        """Ends the suspicion of brokers that are known to be gone, or have been suspect for too long."""
        if not self._suspects:
            return
        now_ns, brokers = self._clock.mono_ns(), self._view.image.brokers
        for node_id, (incarnation, since_ns) in list(self._suspects.items()):
            known = brokers.get(node_id)
            if known is None or not known.live or known.incarnation != incarnation:
                self._gone[node_id] = now_ns
                del self._suspects[node_id]
            elif now_ns - since_ns >= SUSPECT_SECONDS * 1e9:
                del self._suspects[node_id]
