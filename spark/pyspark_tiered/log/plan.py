"""Plans a read: bounds of a topic and the cold segments between them become even splits. Pure.

A split is a range of offsets of one partition with the segments that hold it, pinned by key: later changes of the
manifest do not change what it reads. Splits hold 128 to 512 MiB of log if there is as much: each costs a Python task,
and in a load each becomes one Parquet file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.errors import Code, Refused
from tiered.ids import TopicId

MIB = 1 << 20
SPLIT_BYTES_MIN = 128 * MIB
SPLIT_BYTES_MAX = 512 * MIB
PART_COST_BYTES = MIB
"""Cost of opening a part in a group of parts, as bytes: many small parts share a task."""

T = TypeVar("T")


class ColdPartition(NamedTuple):
    """The cold part `[log_start_offset, cold_end_offset)` of a partition. `entries` may lack segments not requested.

    `undecided_offset` is where a transaction begins whose end is not in the bucket. None: there is none, or the reader
    takes the records of such transactions too.
    """

    partition: int
    log_start_offset: int
    cold_end_offset: int
    entries: tuple[SegmentEntry, ...]
    undecided_offset: int | None = None

    @property
    def readable_end_offset(self) -> int:
        """Returns the end of the offsets that a reader gets: no transaction below it is undecided."""
        if self.undecided_offset is None:
            return self.cold_end_offset
        return max(self.log_start_offset, min(self.cold_end_offset, self.undecided_offset))


class ColdTopic(NamedTuple):
    """A topic in the bucket at one moment. A partition that never had cold segments is `[0, 0)`."""

    name: str
    topic_id: TopicId
    partitions: tuple[ColdPartition, ...]


def cleaned_ranges(cold: ColdTopic) -> dict[int, list[tuple[int, int]]]:
    """Returns the offsets of each partition that compaction has cleaned, as ranges in order that do not touch.

    A record that was loaded from there may be gone since.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for partition in cold.partitions:
        for entry in partition.entries:
            if not entry.is_cleaned:
                continue
            ranges = found.setdefault(partition.partition, [])
            start = ranges.pop()[0] if ranges and ranges[-1][1] == entry.base_offset else entry.base_offset
            ranges.append((start, entry.next_offset))
    return found


class Split(NamedTuple):
    """Offsets `[start, end)` of one partition, `log_bytes` of log, in these segments."""

    topic: str
    topic_id: TopicId
    partition: int
    start: int
    end: int
    log_bytes: int
    entries: tuple[SegmentEntry, ...]

    def manifest(self) -> Manifest:
        """Returns the pinned segments in the form that the cold reader takes."""
        return Manifest(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            log_start_offset=self.entries[0].base_offset,
            cold_end_offset=self.entries[-1].next_offset,
            nodes=self.entries,
        )


class LiveSplit(NamedTuple):
    """Offsets `[start, end)` of one partition, to be read from a broker."""

    topic: str
    topic_id: TopicId
    partition: int
    start: int
    end: int


class _Part(NamedTuple):
    """A segment, or a share of a large one."""

    entry: SegmentEntry
    start: int
    end: int
    log_bytes: int


def group_parts(parts: Sequence[T], sizes: Sequence[int], count: int) -> list[list[T]]:
    """Returns the parts, in order, in about so many groups of about equal cost. `sizes` are their bytes."""
    costs = [size + PART_COST_BYTES for size in sizes]
    most = max(sum(costs) // count, 1)
    groups: list[list[T]] = []
    room = 0
    for part, cost in zip(parts, costs, strict=True):
        if room <= 0:
            groups.append([])
            room = most
        groups[-1].append(part)
        room -= cost
    return groups


def split_size(total: int, tasks: int) -> int:
    """Returns the bytes of one split of so many bytes in all, if nobody sets them."""
    return min(max(total // max(tasks, 1), SPLIT_BYTES_MIN), SPLIT_BYTES_MAX)


def splits(
    topic: ColdTopic, bounds: Mapping[int, tuple[int, int]], tasks: int, split_bytes: int | None = None
) -> list[Split]:
    """Returns even splits of `[start, end)` per partition: enough to keep `tasks` busy if their size allows it.

    `split_bytes` overrides the size. Raises `Refused` if a bound lies outside of the cold part.
    """
    parts: dict[int, list[_Part]] = {}
    for partition in topic.partitions:
        start, end = bounds.get(partition.partition, (0, 0))
        if start < end:
            _check_bounds(topic.name, partition, start, end)
            found = [_part(entry, start, end) for entry in partition.entries]
            parts[partition.partition] = [part for part in found if part.start < part.end]
    size = split_bytes or split_size(sum(part.log_bytes for run in parts.values() for part in run), tasks)
    return [
        Split(
            topic.name,
            topic.topic_id,
            partition,
            run[0].start,
            run[-1].end,
            sum(part.log_bytes for part in run),
            tuple(dict.fromkeys(part.entry for part in run)),
        )
        for partition, whole in parts.items()
        for run in _even_runs([share for part in whole for share in _split_part(part, size)], size)
    ]


def live_splits(
    topic: str,
    topic_id: TopicId,
    bounds: Mapping[int, tuple[int, int]],
    available: Mapping[int, tuple[int, int, int]],
    tasks: int,
    split_bytes: int | None = None,
) -> list[LiveSplit]:
    """Returns even splits of `[start, end)` per partition for reads from a broker.

    `available` is (first offset, end, bytes) of each partition there. Raises `Refused` if a bound lies outside of it.
    """
    parts: list[tuple[int, int, int, int]] = []
    for partition, (start, end) in bounds.items():
        low, high, log_bytes = available[partition]
        if start < end:
            if start < low or end > high:
                raise Refused(
                    Code.OFFSET_OUT_OF_RANGE,
                    f"offsets [{start}, {end}) of {topic}-{partition} are not all in the log, which is [{low}, {high})",
                )
            parts.append((partition, start, end, log_bytes * (end - start) // (high - low)))
    size = split_bytes or split_size(sum(part[3] for part in parts), tasks)
    found = []
    for partition, start, end, log_bytes in parts:
        count = max(min(-(-log_bytes // size), end - start), 1)
        edges = [start + (end - start) * i // count for i in range(count + 1)]
        found += [LiveSplit(topic, topic_id, partition, low, high) for low, high in pairwise(edges)]
    return found


def _check_bounds(topic: str, partition: ColdPartition, start: int, end: int) -> None:
    low, high = partition.log_start_offset, partition.cold_end_offset
    if start < low or end > high:
        raise Refused(
            Code.OFFSET_OUT_OF_RANGE,
            f"offsets [{start}, {end}) of {topic}-{partition.partition} are not all in the bucket, "
            f"which holds [{low}, {high})",
        )
    if end > partition.readable_end_offset:
        raise Refused(
            Code.OFFSET_OUT_OF_RANGE,
            f"offsets [{start}, {end}) of {topic}-{partition.partition} are not all decided: a transaction is open "
            f"from offset {partition.undecided_offset} on, and its end is not in the bucket",
        )


def _part(entry: SegmentEntry, start: int, end: int) -> _Part:
    """Returns the share of a segment inside the bounds. Its bytes are in proportion to its offsets.

    A share with offsets has a byte at least: without any byte left, no offset is left.
    """
    low, high = max(entry.base_offset, start), min(entry.next_offset, end)
    offsets = entry.next_offset - entry.base_offset
    log_bytes = max(entry.log_bytes * (high - low) // offsets, 1) if low < high else 0
    return _Part(entry, low, high, log_bytes)


def _split_part(part: _Part, size: int) -> list[_Part]:
    """Cuts a part larger than a split at even offsets. The segment's index gives the reader their positions."""
    count = min(-(-part.log_bytes // size), part.end - part.start)
    if count <= 1:
        return [part]
    edges = [part.start + (part.end - part.start) * i // count for i in range(count + 1)]
    return [_part(part.entry, low, high) for low, high in pairwise(edges)]


def _even_runs(parts: Sequence[_Part], size: int) -> Iterable[list[_Part]]:
    """Yields consecutive parts in about `total / size` runs of about equal bytes."""
    total = sum(part.log_bytes for part in parts)
    count = max(1, round(total / size))
    run: list[_Part] = []
    passed, runs = 0, 1
    for part in parts:
        if run and (passed + part.log_bytes / 2) * count >= total * runs:
            yield run
            run, runs = [], runs + 1
        run.append(part)
        passed += part.log_bytes
    if run:
        yield run
