"""The choice of the replica that a consumer reads from, by rack (KIP-392). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReplicaView(NamedTuple):
    """A replica in the ISR that consumers can reach, with offsets [start, end) on its disk."""

    node_id: int
    rack: str
    start: int
    end: int


def select_replica(rack: str, offset: int, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int | None:
    """Returns the replica in the consumer's rack that has `offset`; of several, the one with the highest end. Returns
    None for the leader: if the leader is in that rack, or no replica there has the offset."""
    if not rack or leader.rack == rack:
        return None
    found = [each for each in followers if each.rack == rack and each.start <= offset <= each.end]
    return max(found, key=lambda each: (each.end, -each.node_id)).node_id if found else None
