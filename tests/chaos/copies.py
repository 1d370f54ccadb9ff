"""Batches of each partition in the log directory of every broker, and in the bucket."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos.audit import AuditFindings, PartitionKey, ProducerEpoch
from tiered.errors import Corrupt
from tiered.ids import PartitionId
from tiered.offline.bucket import open_bucket
from tiered.ports import Buffer
from tiered.records import batch
from tiered.records.model import BatchHeader
from tiered.records.native import walk


class StoredBatch(NamedTuple):
    """A batch of a copy: equal CRC and epoch mean equal bytes."""

    first: int
    end: int
    epoch: int
    crc: int
    sender: ProducerEpoch = ProducerEpoch(-1, -1)


class BucketPartition(NamedTuple):
    """The manifest of a partition, and the batches that it names."""

    start: int
    end: int
    epoch: int
    """Highest leader epoch that took the manifest over."""
    batches: list[StoredBatch]


def _batch(head: BatchHeader) -> StoredBatch:
    sender = ProducerEpoch(head.producer_id, head.producer_epoch)
    return StoredBatch(head.base_offset, head.last_offset + 1, head.leader_epoch, head.crc, sender)


def check_stored_batch(data: Buffer, at: int) -> BatchHeader:
    """Checks CRC and records of a stored batch, and that its header has their latest timestamp. Raises `Corrupt`.

    The broker computes that timestamp, unless the batch is compressed. The clients here state a true one."""
    if why := walk(data, at, max_batches=1).why:
        raise Corrupt(why, position=at)
    head = batch.check_batch(data, at)
    newest = head.max_timestamp if head.is_log_append_time else batch.read_times(data, at)[1]
    if newest != head.max_timestamp:
        raise Corrupt(f"latest timestamp {head.max_timestamp}, but the records have {newest}", position=at)
    return head


def read_log_batches(directory: Path) -> dict[PartitionKey, list[StoredBatch]]:
    """Returns the batches in the log directory of a stopped broker; checks every one."""
    found: dict[PartitionKey, list[StoredBatch]] = {}
    for folder in sorted(path for path in (directory / "log").iterdir() if path.is_dir()):
        topic, _, number = folder.name.rpartition("-")
        if not number.isdigit() or topic.startswith("_"):
            continue
        batches = found.setdefault((topic, int(number)), [])
        for file in sorted(folder.glob("*.log")):
            data, at = file.read_bytes(), 0
            while at < len(data):
                head = check_stored_batch(data, at)
                batches.append(_batch(head))
                at += head.size
    return found


async def read_cold_batches(store: str, places: Iterable[PartitionKey]) -> dict[PartitionKey, BucketPartition]:
    """Returns the cold batches of these partitions, read as a broker reads them; a partition may have none. Raises
    `Corrupt`."""
    found: dict[PartitionKey, BucketPartition] = {}
    async with open_bucket(store) as bucket:
        for topic, number in places:
            partition_id = PartitionId((await bucket.find_topic(topic)).topic_id, number)
            manifest = await bucket.manifests.load(partition_id)
            if manifest is None:
                continue
            batches: list[StoredBatch] = []
            async for piece in bucket.reader.iterate(partition_id, manifest.log_start_offset, manifest=manifest):
                origin = piece.batches[0].position
                batches += [_batch(check_stored_batch(piece.data, each.position - origin)) for each in piece.batches]
            found[topic, number] = BucketPartition(
                manifest.log_start_offset, manifest.cold_end_offset, manifest.leader_epoch, batches
            )
    return found


def compare_brokers(
    logs_by_broker: Mapping[int, Mapping[PartitionKey, Sequence[StoredBatch]]], found: AuditFindings
) -> int:
    """Adds differences between the copies of brokers. They may begin at different offsets, because cold segments are
    deleted at different times, and end at the same one. Returns how many batches it compared."""
    compared = 0
    for place in sorted({place for each in logs_by_broker.values() for place in each}):
        logs = {node: each.get(place, []) for node, each in logs_by_broker.items()}
        ends = {node: log[-1].end if log else -1 for node, log in logs.items()}
        if len(set(ends.values())) > 1:
            found.differing.append(f"{place}: ends {ends}")
        first, *others = sorted(logs)
        start = max(log[0].first if log else 0 for log in logs.values())
        compared += len([each for each in logs[first] if each.first >= start])
        for other in others:
            _compare_two(place, {f"broker {node}": logs[node] for node in (first, other)}, start, None, found)
    return compared


def compare_cold(
    logs_by_broker: Mapping[int, Mapping[PartitionKey, Sequence[StoredBatch]]],
    bucket: Mapping[PartitionKey, BucketPartition],
    bounds: Mapping[PartitionKey, tuple[int, int]],
    found: AuditFindings,
) -> int:
    """Adds differences of the bucket from the copies, or from the bounds that clients are told. The bucket begins at
    the log start, has no hole, and equals the copies where both have records. Returns how many batches it compared."""
    compared = 0
    for place, part in sorted(bucket.items()):
        low, high = bounds[place]
        if part.start != low or part.end > high:
            found.differing.append(
                f"{place}: the manifest has {part.start} to {part.end}, clients read {low} to {high}"
            )
        at = part.start
        for each in part.batches:
            if each.first > at:
                found.differing.append(f"{place}: the bucket has nothing from {at} to {each.first}")
            at = max(at, each.end)
        if at < part.end:
            found.differing.append(f"{place}: the bucket has nothing from {at} to {part.end}, where its manifest ends")
        if part.batches and part.epoch < part.batches[-1].epoch:
            found.differing.append(
                f"{place}: the manifest of epoch {part.epoch} names batches of {part.batches[-1].epoch}"
            )
        for node, each_log in sorted(logs_by_broker.items()):
            log = each_log.get(place, [])
            start = log[0].first if log else high
            if start > part.end:
                found.differing.append(f"{place}: broker {node} begins at {start}, the bucket ends at {part.end}")
            pair = {"the bucket": part.batches, f"broker {node}": log}
            compared += _compare_two(place, pair, max(start, part.start), part.end, found)
    for place, (low, _) in bounds.items():
        if place not in bucket and low:
            found.differing.append(f"{place}: clients read from {low}, and the bucket has no manifest")
    return compared


def _compare_two(
    place: PartitionKey, logs: Mapping[str, Sequence[StoredBatch]], start: int, end: int | None, found: AuditFindings
) -> int:
    """Adds differences between these offsets (None: no end); returns how many batches both have there."""
    (one, left), (other, right) = (
        (name, [each for each in log if each.first >= start and (end is None or each.first < end)])
        for name, log in logs.items()
    )
    unequal = next((pair for pair in zip(left, right, strict=False) if pair[0] != pair[1]), None)
    if unequal is not None:
        found.differing.append(f"{place}: {one} has {unequal[0]}, {other} {unequal[1]}")
    elif end is not None and len(left) != len(right):
        found.differing.append(f"{place}: {one} has {len(left)} batches from {start} to {end}, {other} {len(right)}")
    return min(len(left), len(right))


def producer_lookup(
    copies: Iterable[Mapping[PartitionKey, Sequence[StoredBatch]]],
) -> Callable[[PartitionKey, int], ProducerEpoch | None]:
    """Returns a function that finds the producer of the record at an offset, by any copy that has it."""
    known = {(place, each.first): each for log in copies for place, batches in log.items() for each in batches}
    sorted_by_place: dict[PartitionKey, list[StoredBatch]] = {}
    for (place, _), each in sorted(known.items()):
        sorted_by_place.setdefault(place, []).append(each)

    def sender(place: PartitionKey, offset: int) -> ProducerEpoch | None:
        batches = sorted_by_place.get(place, [])
        at = bisect_right(batches, offset, key=lambda each: each.first) - 1
        return batches[at].sender if at >= 0 and offset < batches[at].end else None

    return sender
