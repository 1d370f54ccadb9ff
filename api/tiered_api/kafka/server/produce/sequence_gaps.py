"""Refused batches of idempotent producers on one connection.

A client has up to five requests in flight. If the first is refused because another broker leads, and this broker leads
when it handles the second, the second is no sequence gap: the client could not know. After an out-of-order error,
librdkafka starts a new producer epoch and sends all unacknowledged batches again, under sequences that no broker can
compare. So each batch that follows a refused one gets the same retriable error, until the refused batch comes again.
"""

from __future__ import annotations

from collections import deque

from tiered.errors import Corrupt, Refused
from tiered.records.batch import decode_header
from tiered.replication.leader_replica import LeaderReplica

BATCHES = 5
"""Remembered batches of a producer in a partition: as many as clients have in flight."""
PRODUCERS_MAX = 1_000

PartitionKey = tuple[bytes, int]
"""A partition as the requests of this connection name it."""


class RefusedSequences:
    """The refused batches of one connection."""

    def __init__(self) -> None:
        self._refused: dict[tuple[PartitionKey, int], deque[tuple[int, int, Refused]]] = {}
        """By partition and producer: epoch, first sequence, and the error of each batch."""

    def record(self, partition: PartitionKey, records: memoryview, refused: Refused) -> None:
        """Remembers a refused batch that may come again."""
        try:
            head = decode_header(records)
        except Corrupt:
            return
        if head.producer_id < 0:
            return
        if len(self._refused) >= PRODUCERS_MAX:
            self._refused.clear()
        seen = self._refused.setdefault((partition, head.producer_id), deque(maxlen=BATCHES))
        # A copy without the traceback, which would keep the frames of the handler and so the request.
        seen.append((head.producer_epoch, head.base_sequence, Refused(refused.code, refused.why)))

    def find_refusal(self, partition: PartitionKey, records: memoryview, replica: LeaderReplica) -> Refused | None:
        """Returns the error of the batch that is missing before this one. None if this connection did not refuse it."""
        head = decode_header(records)
        wanted = replica.log.producers.next_sequence(head.producer_id, head.producer_epoch)
        for epoch, sequence, refused in self._refused.get((partition, head.producer_id), ()):
            if epoch == head.producer_epoch and sequence == wanted:
                return refused
        return None
