"""The words that name things: tiny immutable values, no behaviour beyond naming."""

from __future__ import annotations

import base64
import hashlib
import uuid
from typing import NamedTuple, NewType

NO_EPOCH = -1
"""Leader epoch of a batch or partition that has none (Kafka writes -1 for it)."""

UNKNOWN_END = -1
"""Offset of a stored end that is not known."""

TopicId = NewType("TopicId", str)
"""Kafka's text form of a topic's UUID: 22 characters of URL-safe base64 without padding."""


class TopicPartition(NamedTuple):
    """One partition of one topic, by the topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionId(NamedTuple):
    """One partition of one topic, by the topic's id: survives deletion and re-creation of a name."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"


def encode_uuid(value: uuid.UUID) -> TopicId:
    """Kafka's text form of a UUID (22 characters, base64url, no padding)."""
    return TopicId(base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode())


def incarnation_number(incarnation: str) -> int:
    """A broker's incarnation where the wire has room for an int64 only ("replica epoch"): its first 63 bits."""
    return int.from_bytes(decode_uuid(incarnation)[:8], "big") >> 1


def incarnation_digest(incarnation: str) -> str:
    """What strangers may be told of an incarnation (SHA-256, hexadecimal): who knows it finds it again, nobody learns
    it."""
    return hashlib.sha256(incarnation.encode()).hexdigest()


def decode_uuid(value: str) -> bytes:
    """The 16 bytes of an id in Kafka's text form; ValueError when it is not one."""
    raw = base64.urlsafe_b64decode(value + "==")
    if len(raw) != 16:
        raise ValueError(f"not a 16 byte id: {value!r}")
    return raw
