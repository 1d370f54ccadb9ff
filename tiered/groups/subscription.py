"""Reads the subscribed topics of a consumer: the only part of a member's metadata that a coordinator reads."""

from __future__ import annotations

from collections.abc import Iterable

from tiered.errors import Corrupt
from tiered.record_fields import FieldReader

CONSUMER = "consumer"
"""The protocol type of consumers. Other types (Connect, Streams' own) carry other metadata."""


def parse_topics(metadata: bytes) -> frozenset[str]:
    """Returns the topics of a subscription. Every version begins with the version and the topics.

    Raises `Corrupt` if the bytes are no subscription.
    """
    fields = FieldReader(metadata)
    if fields.i16() < 0:
        raise Corrupt("subscription has a negative version")
    return frozenset([fields.string() for _ in range(fields.count())])


def compute_subscribed_topics(protocol_type: str | None, subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Returns the topics that a group subscribes to.

    Returns None if they are unknown: for another protocol type, or if a member's metadata is no subscription.
    """
    if protocol_type != CONSUMER:
        return None
    try:
        return frozenset().union(*map(parse_topics, subscriptions))
    except Corrupt:
        return None
