"""The reply that an idempotency key gets again: where the batches of its transaction are.

It is committed with the transaction, as part of the coordinator's record. Which record lies in which batch follows from
the request itself, which is the same at each try, and from the number of partitions that each topic had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import orjson

from tiered.ids import TopicPartition
from tiered.transactions.limits import REPLY_BYTES_MAX
from tiered_api.http.exchange.errors import PARTITION_NOT_FOUND, HttpError
from tiered_api.http.partitions.produce import choose_partition
from tiered_api.http.transactions.body import TopicRecord
from tiered_api.http.transactions.producer import Placed

BATCH_BYTES = 48
"""Most bytes that the place of a batch takes."""


class WrittenPartition(NamedTuple):
    """The batches of one partition: the numbers of the records in each, and its place."""

    tp: TopicPartition
    runs: Sequence[Sequence[int]]
    places: Sequence[Placed]


def group_by_partition(
    records: Sequence[TopicRecord], partition_counts: Mapping[str, int], counters: Mapping[str, int]
) -> dict[TopicPartition, list[int]]:
    """Returns the numbers of the records of each partition. `counters` place the records without key and partition.

    Raises `HttpError` 404 for a partition that its topic does not have.
    """
    groups: dict[TopicPartition, list[int]] = {}
    for number, (name, record) in enumerate(records):
        chosen = choose_partition(record, partition_counts[name], counters[name])
        if chosen >= partition_counts[name]:
            raise HttpError(PARTITION_NOT_FOUND, f"records[{number}]: topic {name!r} has no partition {chosen}")
        groups.setdefault(TopicPartition(name, chosen), []).append(number)
    return groups


def check_reply_fits(partitions: Sequence[tuple[TopicPartition, int]]) -> None:
    """Raises `HttpError` 413 if the reply of so many batches in these partitions is too large to be kept."""
    size = sum(2 * len(tp.topic) + BATCH_BYTES * (batch_count + 1) for tp, batch_count in partitions)
    if size > REPLY_BYTES_MAX:
        raise HttpError(413, "a transaction with an Idempotency-Key cannot have so many batches: use several ones")


def encode_reply(partition_counts: Mapping[str, int], written: Sequence[WrittenPartition]) -> bytes:
    """Encodes the reply to keep."""
    rows = [
        [*tp, [[len(run), *place] for run, place in zip(runs, places, strict=True)]] for tp, runs, places in written
    ]
    return orjson.dumps([partition_counts, rows])


def decode_reply(raw: bytes, records: Sequence[TopicRecord], counter: int) -> list[WrittenPartition]:
    """Returns the places of the records of the same request. `counter` is that of the first try."""
    partition_counts, rows = orjson.loads(raw)
    groups = group_by_partition(records, partition_counts, dict.fromkeys(partition_counts, counter))
    written = []
    for topic, partition, batches in rows:
        tp = TopicPartition(topic, partition)
        numbers = iter(groups[tp])
        runs = [[next(numbers) for _ in range(count)] for count, _, _ in batches]
        written.append(WrittenPartition(tp, runs, [Placed(*place) for _, *place in batches]))
    return written
