"""The records of a coordinator as batches of its log and of its snapshots. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiered.records import batch
from tiered.records.model import BatchHeader
from tiered.shard import CoordinatorRecord, ProducerIdAndEpoch

BATCH_RECORDS = 1_000
BATCH_BYTES = 1 << 20
"""Bytes, or `BATCH_RECORDS` records, after which a batch is full."""


def encode_batches(records: Sequence[CoordinatorRecord], now_ms: int) -> Iterator[bytes]:
    """Yields records as batches, numbered from 0 on. Other tasks may run between two of them.

    All records of a batch belong to the transaction of one producer, or to none. The base sequence of a transactional
    batch is 0, as Kafka's coordinators write it: nothing checks it.
    """
    first, size = 0, 0
    for end, each in enumerate(records, 1):
        size += len(each.key) + len(each.value or b"")
        is_last = end == len(records) or records[end].producer != each.producer
        if is_last or end - first == BATCH_RECORDS or size >= BATCH_BYTES:
            rows = [(now_ms, one.key, one.value, ()) for one in records[first:end]]
            if each.producer is None:
                yield batch.encode_batch(rows, base_offset=first)
            else:
                producer_id, epoch = each.producer
                yield batch.encode_batch(
                    rows, base_offset=first, producer_id=producer_id, producer_epoch=epoch, base_sequence=0,
                    transactional=True,
                )  # fmt: skip
            first, size = end, 0


def decode_batch(data: bytes) -> list[CoordinatorRecord]:
    """Returns the records of one batch of a snapshot. Skips records without a key."""
    producer = producer_of(batch.decode_header(data))
    rows = batch.decode_records(data)
    return [CoordinatorRecord(each.key, each.value, producer) for each in rows if each.key is not None]


def producer_of(head: BatchHeader) -> ProducerIdAndEpoch | None:
    """Returns the producer to whose transaction the records of a batch belong; None if they belong to none."""
    return ProducerIdAndEpoch(head.producer_id, head.producer_epoch) if head.is_transactional else None
