"""What goes wrong below a handler, as the number that a client gets for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered_api.kafka.protocol.schema import ZERO_ID

ENGINE_ERRORS = (Refused, Unavailable, Corrupt, Fenced)

TOPIC_OPERATIONS = 0b110111111000
"""What anybody may do with a topic while nobody is asked who he is: as Kafka answers without an authorizer."""
CLUSTER_OPERATIONS = 0b1111110100000
"""Likewise with the cluster."""

CONCURRENT_CHANGES_MAX = 500
"""Changes of one request that may wait for the metadata log together: fewer than may wait there in all."""
PARTITIONS_PER_REQUEST_MAX = 10_000
"""Partitions that one request may create: each is a directory, and all are opened before the answer."""
TIMEOUT_MAX_MS = 120_000
DEFAULT_TIMEOUT_MS = 30_000
"""Time of a request that names none."""


def error_code_of(error: Refused | Unavailable | Corrupt | Fenced) -> Code:
    """A bucket or disk that does not answer is one that a client may ask again."""
    if isinstance(error, Refused):
        return error.code
    return Code.NOT_LEADER_OR_FOLLOWER if isinstance(error, Fenced) else Code.KAFKA_STORAGE_ERROR


def find_duplicates(names: Iterable[str]) -> set[str]:
    """Those that are there more than once."""
    return {name for name, times in Counter(names).items() if times > 1}


def has_id(topic_id: str) -> bool:
    """Whether a topic id names a topic."""
    return topic_id != ZERO_ID


def clamp_timeout_ms(requested_ms: int) -> int:
    """How long a request may take that names its own time."""
    return max(min(requested_ms, TIMEOUT_MAX_MS), 0)
