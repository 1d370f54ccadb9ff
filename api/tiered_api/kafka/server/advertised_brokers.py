"""Which brokers a client is told of: those that live and have the listener on which it asked, with that address. One
that stopped, or that the controller does not hear, leads nothing: whoever asked it would ask in vain."""

from __future__ import annotations

from collections.abc import Container, Iterator

from tiered.config.listeners import parse_host_port
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import BrokerImage, Image


def advertised_brokers(
    image: Image, listener: str, include: Container[int] = ()
) -> Iterator[tuple[BrokerImage, str, int]]:
    """(broker, host, port), in the order of their numbers; of those that are away, the ones in `also`."""
    for _, broker in sorted(image.brokers.items()):
        place = (
            parse_host_port(broker.listeners.get(listener, "")) if broker.live or broker.node_id in include else None
        )
        if place is not None:
            yield broker, *place


def live_brokers(image: Image) -> frozenset[int]:
    """Who may lead."""
    return frozenset(broker.node_id for broker in image.brokers.values() if broker.live)


def advertised_controller(image: Image) -> int:
    """Who is controller, as clients are told: -1 while the last one is away and nobody has taken its place."""
    known = image.brokers.get(image.controller)
    return image.controller if known is not None and known.live else NO_LEADER
