"""Which replica a consumer reads from, by its rack (KIP-392). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReplicaView(NamedTuple):
    """A replica in sync that consumers can reach: it has [start, end) on its disk."""

    node_id: int
    rack: str
    start: int
    end: int


def select_replica(rack: str, offset: int, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int | None:
    """Who in the consumer's rack has what it asks for, the one that is furthest; None: the leader, also where nobody
    there has it."""
    if not rack or leader.rack == rack:
        return None
    found = [each for each in followers if each.rack == rack and each.start <= offset <= each.end]
    return max(found, key=lambda each: (each.end, -each.node_id)).node_id if found else None
