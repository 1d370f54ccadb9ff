"""Names of things as small immutable values, without other behaviour."""

from __future__ import annotations

import base64
import hashlib
import uuid
from functools import lru_cache
from typing import NamedTuple, NewType

NO_EPOCH = -1
"""Leader epoch of a batch or partition that has none (Kafka also writes -1)."""

KEYED_FROM = 1 << 62
"""Producer ids from here on stand for idempotency keys of HTTP. The controller allocates ids from 0 on."""

UNKNOWN_END = -1
"""Value of a stored end that is not known."""

TopicId = NewType("TopicId", str)
"""Kafka's text form of a topic's UUID: 22 characters of URL-safe base64 without padding."""


PROCESS_STEP = 1000
"""Distance of the node ids of two processes of one machine: those of machine 7 are 7, 1007, 2007, ..."""
PROCESSES_MAX = 64
"""Most processes of one machine."""


def machine_of(node_id: int, process: int) -> int:
    """Returns the machine of a broker, which is the node id of its first process."""
    return node_id - PROCESS_STEP * process


class TopicPartition(NamedTuple):
    """One partition of one topic, by the name of the topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionId(NamedTuple):
    """One partition of one topic, by the id of the topic: a topic that is deleted and created again gets a new id."""

    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}"


def encode_uuid(value: uuid.UUID) -> TopicId:
    """Returns Kafka's text form of a UUID (22 characters, base64url, no padding)."""
    return TopicId(base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode())


def incarnation_number(incarnation: str) -> int:
    """Returns the first 63 bits of a broker's incarnation, for fields of the protocol that hold an int64 ("replica
    epoch")."""
    return int.from_bytes(decode_uuid(incarnation)[:8], "big") >> 1


def incarnation_digest(incarnation: str) -> str:
    """Returns the SHA-256 of an incarnation (hexadecimal), which may leave the cluster: it identifies an incarnation to
    those who know it, and reveals it to nobody."""
    return hashlib.sha256(incarnation.encode()).hexdigest()


@lru_cache(maxsize=4096)
def decode_uuid(value: str) -> bytes:
    """Returns the 16 bytes of an id in Kafka's text form. Raises ValueError if the text is not such an id."""
    raw = base64.urlsafe_b64decode(value + "==")
    if len(raw) != 16:
        raise ValueError(f"not a 16 byte id: {value!r}")
    return raw
