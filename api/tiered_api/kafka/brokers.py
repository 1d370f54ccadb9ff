"""Which brokers a client is told of: those that live and have the listener on which it asked, with that address."""

from __future__ import annotations

from collections.abc import Iterator

from tiered.listeners import host_and_port
from tiered.metadata.image import BrokerImage, Image


def serving(image: Image, listener: str, *, fenced: bool = False) -> Iterator[tuple[BrokerImage, str, int]]:
    """(broker, host, port), in the order of their numbers; with `fenced` also those that are away."""
    for _, broker in sorted(image.brokers.items()):
        place = host_and_port(broker.listeners.get(listener, "")) if broker.alive or fenced else None
        if place is not None:
            yield broker, *place
