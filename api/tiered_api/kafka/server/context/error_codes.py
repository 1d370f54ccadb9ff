"""Engine errors as Kafka error codes, and limits that several handlers share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tiered.errors import Code, Corrupt, Fenced, Refused, Unavailable
from tiered_api.kafka.protocol.schema import ZERO_ID

ENGINE_ERRORS = (Refused, Unavailable, Corrupt, Fenced)

TOPIC_OPERATIONS = 0b110111111000
"""Allowed operations of everybody on a topic, as Kafka replies without an authorizer."""
CLUSTER_OPERATIONS = 0b1111110100000
"""Allowed operations of everybody on the cluster, likewise."""

CONCURRENT_CHANGES_MAX = 500
"""Most changes of one request that wait for the metadata log together. The log has room for more waiting changes in
all."""
PARTITIONS_PER_REQUEST_MAX = 10_000
"""Most partitions that one request creates: each is a directory, and all are opened before the reply."""
TIMEOUT_MAX_MS = 120_000
DEFAULT_TIMEOUT_MS = 30_000
"""Timeout of a request that has none."""


def error_code_of(error: Refused | Unavailable | Corrupt | Fenced) -> Code:
    """Returns the error code. A bucket or disk that does not respond is a retriable error."""
    if isinstance(error, Refused):
        return error.code
    return Code.NOT_LEADER_OR_FOLLOWER if isinstance(error, Fenced) else Code.KAFKA_STORAGE_ERROR


def find_duplicates(names: Iterable[str]) -> set[str]:
    """Returns the names that occur more than once."""
    return {name for name, times in Counter(names).items() if times > 1}


def has_id(topic_id: str) -> bool:
    """True if the id is not the zero id."""
    return topic_id != ZERO_ID


def clamp_timeout_ms(requested_ms: int) -> int:
    """Returns the timeout of a request within the limits."""
    return max(min(requested_ms, TIMEOUT_MAX_MS), 0)
