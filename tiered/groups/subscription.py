"""The bytes of consumers of the classic protocol: their subscriptions and their assignments.

For a classic group a coordinator reads only the subscribed topics. In a consumer group it takes the place of the
leader, so it also reads what a member owns, and writes its assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.record_fields import I16, I32, FieldReader, encode_string

CONSUMER = "consumer"
"""The protocol type of consumers. Other types (Connect, Streams' own) carry other metadata."""


WITH_OWNED, WITH_GENERATION, WITH_RACK = 1, 2, 3
"""Versions of a subscription from which on it has these fields."""
_NO_USER_DATA = I32.pack(-1)

TopicPartitions = Mapping[str, frozenset[int]]
"""Partitions by name of the topic."""


class Subscription(NamedTuple):
    """A subscription. A member that owns nothing, or whose version does not say, has no `owned`."""

    version: int
    topics: frozenset[str]
    owned: TopicPartitions
    rack_id: str | None = None


def parse_subscription(metadata: bytes) -> Subscription:
    """Returns a subscription with all that a coordinator uses. Raises `Corrupt` if the bytes are none."""
    version, topics = FieldReader(metadata).i16(), parse_topics(metadata)
    fields = FieldReader(metadata, 2)
    for _ in range(fields.count()):
        fields.string()
    _skip_user_data(fields)
    owned = _parse_partitions(fields) if version >= WITH_OWNED else {}
    if version >= WITH_GENERATION:
        fields.i32()
    return Subscription(version, topics, owned, fields.nullable_string() if version >= WITH_RACK else None)


def parse_assignment(raw: bytes) -> TopicPartitions:
    """Returns the partitions of an assignment, none for no bytes. Raises `Corrupt` if the bytes are no assignment."""
    if not raw:
        return {}
    fields = FieldReader(raw)
    if fields.i16() < 0:
        raise Corrupt("assignment has a negative version")
    return _parse_partitions(fields)


def encode_assignment(partitions: TopicPartitions, version: int = 0) -> bytes:
    """Encodes an assignment: all versions have the same fields."""
    parts = [I16.pack(version), I32.pack(len(partitions))]
    for name in sorted(partitions):
        numbers = sorted(partitions[name])
        parts += (encode_string(name), I32.pack(len(numbers)), *map(I32.pack, numbers))
    return b"".join((*parts, _NO_USER_DATA))


def _skip_user_data(fields: FieldReader) -> None:
    size = fields.i32()
    if size > 0:
        fields.take(size)


def _parse_partitions(fields: FieldReader) -> TopicPartitions:
    found: dict[str, frozenset[int]] = {}
    for _ in range(fields.count()):
        name = fields.string()
        found[name] = found.get(name, frozenset()).union([fields.i32() for _ in range(fields.count())])
    return {name: partitions for name, partitions in found.items() if partitions}


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
