"""Numbers of idempotent producers that a connection was refused for the time being.

A client has up to five requests under way. Where the first is refused because another broker leads, and this one leads
by the time the second is looked at, that one is no gap in its numbers: the client did not know better. Told so,
librdkafka begins a new producer epoch and sends again, under numbers that nobody can compare, whatever it had no answer
to. So what follows a refused batch is refused like it until that one comes again: to clients that means "try again".
"""

from __future__ import annotations

from collections import deque

from tiered.errors import Corrupt, Refused
from tiered.records.batch import decode_header
from tiered.replication.leader_replica import LeaderReplica

BATCHES = 5
"""Of a producer and a partition, as many as clients have under way."""
PRODUCERS_MAX = 1_000

PartitionKey = tuple[bytes, int]
"""A partition as the requests of this connection name it."""


class RefusedSequences:
    """Of one connection."""

    def __init__(self) -> None:
        self._refused: dict[tuple[PartitionKey, int], deque[tuple[int, int, Refused]]] = {}
        """By partition and producer: epoch, first sequence, and what it was told."""

    def record(self, partition: PartitionKey, records: memoryview, refused: Refused) -> None:
        """This batch was refused, and may come again."""
        try:
            head = decode_header(records)
        except Corrupt:
            return
        if head.producer_id < 0:
            return
        if len(self._refused) >= PRODUCERS_MAX:
            self._refused.clear()
        seen = self._refused.setdefault((partition, head.producer_id), deque(maxlen=BATCHES))
        # Without its traceback, which would keep the frames of the handler and the request in them.
        seen.append((head.producer_epoch, head.base_sequence, Refused(refused.code, refused.why)))

    def find_refusal(self, partition: PartitionKey, records: memoryview, replica: LeaderReplica) -> Refused | None:
        """What the batch was told that is missing before this one; None when this connection did not bring it."""
        head = decode_header(records)
        wanted = replica.log.producers.next_sequence(head.producer_id, head.producer_epoch)
        for epoch, sequence, refused in self._refused.get((partition, head.producer_id), ()):
            if epoch == head.producer_epoch and sequence == wanted:
                return refused
        return None
