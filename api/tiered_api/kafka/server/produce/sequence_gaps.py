"""Refused batches of idempotent producers on one connection.

After an out-of-order error, librdkafka starts a new producer epoch and sends all unacknowledged batches again, under
sequences that no broker can compare. So a batch gets a retriable error instead, if the batches before it come again:

- A client has up to five requests in flight. If the first is refused because another broker leads, and this broker
  leads when it handles the second, the second is no sequence gap: the client could not know. Each batch that follows a
  refused one gets the same error, until the refused batch comes again.
- A batch that the old leader refused may come to the new one after the next batch. In librdkafka (issue 4953) one
  thread queues it again, and another thread sends to the new leader without a look at that. So a leader that has no
  batch of the producer in its epoch refuses each batch behind a gap once. If that batch comes again before the missing
  one, it gets the out-of-order error.
"""

from __future__ import annotations

from collections import deque

from tiered.errors import Code, Corrupt, Refused
from tiered.producers.entry import SEQUENCE_MAX
from tiered.records.batch import decode_header
from tiered.records.model import BatchHeader
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
        if head.producer_id >= 0:
            self._add(partition, head, refused)

    def find_refusal(self, partition: PartitionKey, records: memoryview, replica: LeaderReplica) -> Refused | None:
        """Returns the retriable error of a batch behind a sequence gap. None if the gap stays."""
        head = decode_header(records)
        wanted = replica.log.producers.next_sequence(head.producer_id, head.producer_epoch)
        seen = self._refused.get((partition, head.producer_id), ())
        for epoch, sequence, refused in seen:
            if epoch == head.producer_epoch and sequence == wanted:
                return refused
        is_retry = any(each[:2] == (head.producer_epoch, head.base_sequence) for each in seen)
        if is_retry or wanted is None or not _may_have_overtaken(head, wanted, replica):
            return None
        why = f"producer {head.producer_id}: sequence {wanted} may be on its way from the earlier leader, retry"
        overtaking = Refused(Code.NOT_LEADER_OR_FOLLOWER, why)
        self._add(partition, head, overtaking)
        return overtaking

    def _add(self, partition: PartitionKey, head: BatchHeader, refused: Refused) -> None:
        if len(self._refused) >= PRODUCERS_MAX:
            self._refused.clear()
        seen = self._refused.setdefault((partition, head.producer_id), deque(maxlen=BATCHES))
        # A copy without the traceback, which would keep the frames of the handler and so the request.
        seen.append((head.producer_epoch, head.base_sequence, Refused(refused.code, refused.why)))


def _may_have_overtaken(head: BatchHeader, wanted: int, replica: LeaderReplica) -> bool:
    """True if the batch is behind the wanted one, and its producer has written nothing to this leader yet."""
    if replica.leader_epoch == 0 or (head.base_sequence - wanted) & SEQUENCE_MAX > SEQUENCE_MAX // 2:
        return False
    producer = replica.log.producers.get(head.producer_id)
    return producer is None or not producer.batches or producer.batches[-1].last_offset < replica.epoch_start
