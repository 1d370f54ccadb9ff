"""The one thing that a coordinator reads of what members say: the topics that a consumer subscribes to."""

from __future__ import annotations

from collections.abc import Iterable

from tiered.errors import Corrupt
from tiered.groups.record_fields import FieldReader

CONSUMER = "consumer"
"""The protocol type of consumers; other types (Connect, Streams' own) say something else in their metadata."""


def parse_topics(metadata: bytes) -> frozenset[str]:
    """The topics of a subscription: all its versions begin with a version and the topics. `Corrupt` if it is none."""
    fields = FieldReader(metadata)
    if fields.i16() < 0:
        raise Corrupt("a subscription of a negative version")
    return frozenset([fields.string() for _ in range(fields.count())])


def compute_subscribed_topics(protocol_type: str | None, subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """What a group subscribes to; None where nobody can tell: another protocol type, or metadata of another kind."""
    if protocol_type != CONSUMER:
        return None
    try:
        return frozenset().union(*map(parse_topics, subscriptions))
    except Corrupt:
        return None
