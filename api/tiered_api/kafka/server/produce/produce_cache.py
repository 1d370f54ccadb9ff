"""The partitions and requests that one caller has produced to, by the bytes that name them.

Clients repeat the bytes before the records: topic, partition, acks. Bytes that led to an append are remembered. When
they come again from the same caller, no parsing is needed.
"""

from __future__ import annotations

from typing import NamedTuple

from tiered.replication.leader_replica import LeaderReplica
from tiered.security.principal import Caller
from tiered_api.kafka.server.produce.frames import ResponseTemplate


class CachedProduce(NamedTuple):
    """The meaning of the bytes before the records of a request, if all records are for one partition."""

    acks: int
    replica: LeaderReplica
    template: ResponseTemplate
    transactional_id: str | None


class ProduceCache:
    """The cache of one caller. `requests` is keyed by version and bytes, the others by topic and partition."""

    __slots__ = ("__weakref__", "by_id", "by_name", "caller", "requests")

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.by_name: dict[tuple[bytes, int], LeaderReplica] = {}
        self.by_id: dict[tuple[bytes, int], LeaderReplica] = {}
        self.requests: dict[tuple[int, bytes], CachedProduce] = {}

    def __len__(self) -> int:
        return len(self.by_name) + len(self.by_id) + len(self.requests)

    def clear(self) -> None:
        """Forgets everything."""
        self.by_name.clear()
        self.by_id.clear()
        self.requests.clear()

    def evict_stale(self) -> None:
        """Forgets replicas that have stopped."""
        self.by_name = {at: replica for at, replica in self.by_name.items() if not replica.is_stopped}
        self.by_id = {at: replica for at, replica in self.by_id.items() if not replica.is_stopped}
        self.requests = {begun: head for begun, head in self.requests.items() if not head.replica.is_stopped}
