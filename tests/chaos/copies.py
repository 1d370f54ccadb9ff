"""The batches of each partition as every broker has them in its log directory, and as the bucket has them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.chaos.audit import Findings, Place, Sender
from tiered.ids import PartitionId
from tiered.offline.bucket import open_bucket
from tiered.records import batch
from tiered.records.model import BatchHeader


class Batch(NamedTuple):
    """A batch as a copy has it: equal CRC and epoch mean equal bytes."""

    first: int
    end: int
    epoch: int
    crc: int
    sender: Sender = Sender(-1, -1)


class Cold(NamedTuple):
    """What the manifest of a partition says, and the batches that it names."""

    start: int
    end: int
    epoch: int
    """The highest leader epoch that took the manifest over."""
    batches: list[Batch]


def _batch(head: BatchHeader) -> Batch:
    sender = Sender(head.producer_id, head.producer_epoch)
    return Batch(head.base_offset, head.last_offset + 1, head.leader_epoch, head.crc, sender)


def copies(directory: Path) -> dict[Place, list[Batch]]:
    """The batches in the log directory of a broker that has stopped; every CRC is checked."""
    found: dict[Place, list[Batch]] = {}
    for folder in sorted(path for path in (directory / "log").iterdir() if path.is_dir()):
        topic, _, number = folder.name.rpartition("-")
        if not number.isdigit() or topic.startswith("_"):
            continue
        batches = found.setdefault((topic, int(number)), [])
        for file in sorted(folder.glob("*.log")):
            data, at = file.read_bytes(), 0
            while at < len(data):
                head = batch.check_batch(data, at)
                batches.append(_batch(head))
                at += head.size
    return found


async def cold(store: str, places: Iterable[Place]) -> dict[Place, Cold]:
    """What the bucket has of these, read as a broker reads it; of some it may have nothing. `Corrupt`."""
    found: dict[Place, Cold] = {}
    async with open_bucket(store) as bucket:
        for topic, number in places:
            pid = PartitionId((await bucket.find_topic(topic)).topic_id, number)
            manifest = await bucket.manifests.load(pid)
            if manifest is None:
                continue
            batches: list[Batch] = []
            async for piece in bucket.reader.iterate(pid, manifest.log_start_offset, manifest=manifest):
                origin = piece.batches[0].position
                batches += [_batch(batch.check_batch(piece.data, each.position - origin)) for each in piece.batches]
            found[topic, number] = Cold(
                manifest.log_start_offset, manifest.cold_end_offset, manifest.leader_epoch, batches
            )
    return found


def compare(those: Mapping[int, Mapping[Place, Sequence[Batch]]], found: Findings) -> int:
    """Adds where the copies of brokers differ. They may begin at different offsets (what is cold goes at different
    times), they end at the same one. How many batches were compared."""
    compared = 0
    for place in sorted({place for each in those.values() for place in each}):
        logs = {node: each.get(place, []) for node, each in those.items()}
        ends = {node: log[-1].end if log else -1 for node, log in logs.items()}
        if len(set(ends.values())) > 1:
            found.unequal.append(f"{place}: ends {ends}")
        first, *others = sorted(logs)
        start = max(log[0].first if log else 0 for log in logs.values())
        compared += len([each for each in logs[first] if each.first >= start])
        for other in others:
            _compare_two(place, {f"broker {node}": logs[node] for node in (first, other)}, start, None, found)
    return compared


def compare_cold(
    those: Mapping[int, Mapping[Place, Sequence[Batch]]],
    bucket: Mapping[Place, Cold],
    bounds: Mapping[Place, tuple[int, int]],
    found: Findings,
) -> int:
    """Adds where the bucket differs from the copies, or from the bounds that clients are told. It begins where the log
    does, has no hole, and what both have is the same. How many batches were compared."""
    compared = 0
    for place, part in sorted(bucket.items()):
        low, high = bounds[place]
        if part.start != low or part.end > high:
            found.unequal.append(f"{place}: the manifest has {part.start} to {part.end}, clients read {low} to {high}")
        at = part.start
        for each in part.batches:
            if each.first > at:
                found.unequal.append(f"{place}: the bucket has nothing from {at} to {each.first}")
            at = max(at, each.end)
        if at < part.end:
            found.unequal.append(f"{place}: the bucket has nothing from {at} to {part.end}, where its manifest ends")
        if part.batches and part.epoch < part.batches[-1].epoch:
            found.unequal.append(
                f"{place}: the manifest of epoch {part.epoch} names batches of {part.batches[-1].epoch}"
            )
        for node, each_log in sorted(those.items()):
            log = each_log.get(place, [])
            start = log[0].first if log else high
            if start > part.end:
                found.unequal.append(f"{place}: broker {node} begins at {start}, the bucket ends at {part.end}")
            pair = {"the bucket": part.batches, f"broker {node}": log}
            compared += _compare_two(place, pair, max(start, part.start), part.end, found)
    for place, (low, _) in bounds.items():
        if place not in bucket and low:
            found.unequal.append(f"{place}: clients read from {low}, and the bucket has no manifest")
    return compared


def _compare_two(
    place: Place, logs: Mapping[str, Sequence[Batch]], start: int, end: int | None, found: Findings
) -> int:
    """Adds where two differ between these offsets (None: no end); how many batches both have there."""
    (one, left), (other, right) = (
        (name, [each for each in log if each.first >= start and (end is None or each.first < end)])
        for name, log in logs.items()
    )
    unequal = next((pair for pair in zip(left, right, strict=False) if pair[0] != pair[1]), None)
    if unequal is not None:
        found.unequal.append(f"{place}: {one} has {unequal[0]}, {other} {unequal[1]}")
    elif end is not None and len(left) != len(right):
        found.unequal.append(f"{place}: {one} has {len(left)} batches from {start} to {end}, {other} {len(right)}")
    return min(len(left), len(right))


def senders(those: Iterable[Mapping[Place, Sequence[Batch]]]) -> Callable[[Place, int], Sender | None]:
    """Tells who sent the record at an offset, by any copy that has it."""
    known = {(place, each.first): each for log in those for place, batches in log.items() for each in batches}
    sorted_by_place: dict[Place, list[Batch]] = {}
    for (place, _), each in sorted(known.items()):
        sorted_by_place.setdefault(place, []).append(each)

    def sender(place: Place, offset: int) -> Sender | None:
        batches = sorted_by_place.get(place, [])
        at = bisect_right(batches, offset, key=lambda each: each.first) - 1
        return batches[at].sender if at >= 0 and offset < batches[at].end else None

    return sender
