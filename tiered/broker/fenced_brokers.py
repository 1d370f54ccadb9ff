"""Brokers that the controller has fenced, and since when this broker knows it. The metadata log has no times."""

from __future__ import annotations

from collections.abc import Iterator

from tiered.controller.member_view import MemberView
from tiered.controller.partition_health import SILENT_MEND
from tiered.metadata.image import Image
from tiered.ports import Clock
from tiered.time_text import format_time

LISTED_MAX = 20
"""Most brokers that are listed."""


class FencedBrokers:
    """The fenced brokers of the cluster, as one broker sees them."""

    def __init__(self, view: MemberView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._since_ms: dict[int, int] = {}

    def on_image(self, old: Image, new: Image) -> None:
        """Notes the time of a change. The time of one from before the start of this broker is not known."""
        if new.brokers is old.brokers:
            return
        before, now = _find_fenced(old), _find_fenced(new)
        for node_id in now - before:
            self._since_ms[node_id] = self._clock.wall_ms()
        self._since_ms = {node_id: since for node_id, since in self._since_ms.items() if node_id in now}

    def find_since_ms(self, node_id: int) -> int:
        """Returns since when a broker is fenced, -1 if it is not or if that is not known."""
        return self._since_ms.get(node_id, -1)

    def describe(self) -> Iterator[str]:
        """Yields one sentence for each other broker that is fenced. This one knows itself that it has no contact."""
        fenced = sorted(_find_fenced(self._view.image) - {self._view.node_id})
        for node_id in fenced[:LISTED_MAX]:
            since = f" since {format_time(self._since_ms[node_id])}" if node_id in self._since_ms else ""
            yield f"broker {node_id} is fenced{since}: it does not answer the controller ({SILENT_MEND})"
        if len(fenced) > LISTED_MAX:
            yield f"and {len(fenced) - LISTED_MAX} more brokers are fenced"


def _find_fenced(image: Image) -> set[int]:
    return {node_id for node_id, each in image.brokers.items() if each.alive and each.fenced}
