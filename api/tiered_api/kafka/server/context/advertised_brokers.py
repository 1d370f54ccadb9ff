"""Brokers and addresses in replies to clients: live brokers that have the client's listener. A stopped or
fenced broker leads nothing, so requests to it would fail."""

from __future__ import annotations

from collections.abc import Container, Iterator

from tiered.config.listeners import parse_host_port
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage


def advertised_brokers(
    image: Image, listener: str, include: Container[int] = ()
) -> Iterator[tuple[BrokerImage, str, int]]:
    """Yields (broker, host, port) in the order of broker ids: live brokers, and those in `include`."""
    for _, broker in sorted(image.brokers.items()):
        place = (
            parse_host_port(broker.listeners.get(listener, "")) if broker.live or broker.node_id in include else None
        )
        if place is not None:
            yield broker, *place


def live_brokers(image: Image) -> frozenset[int]:
    """Returns the ids of brokers that may lead."""
    return frozenset(broker.node_id for broker in image.brokers.values() if broker.live)


def advertised_controller(image: Image) -> int:
    """Returns the controller for clients: -1 while the last controller is not live and no other has taken over."""
    known = image.brokers.get(image.controller)
    return image.controller if known is not None and known.live else NO_LEADER
