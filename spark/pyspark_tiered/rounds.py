"""Plans one commit of a load: the splits to read, the step of each partition, and what of it can be committed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pyspark_tiered.plan import ColdTopic, Split, splits
from pyspark_tiered.table import Advance, ConversionResult, LoadedFile, Stop
from tiered.errors import Code, Refused

ROUND_SPLITS_PER_TASK = 4
"""Waves of tasks in one round. Larger rounds cost fewer commits, smaller ones lose less work to a kill."""


class Round(NamedTuple):
    """One commit: the splits to read, the end of each partition after it, and the bytes left for later rounds."""

    splits: tuple[Split, ...]
    advances: tuple[Advance, ...]
    bytes_left: int


class CommittableRound(NamedTuple):
    """The part of a converted round that is committed.

    `stops`: partitions that end below their plan. `out_of_range_timestamps`: per partition the records (offset,
    milliseconds) whose timestamps became NULL.
    """

    splits: tuple[Split, ...]
    files: tuple[LoadedFile, ...]
    advances: tuple[Advance, ...]
    stops: tuple[Stop, ...]
    out_of_range_timestamps: Mapping[int, tuple[tuple[int, int], ...]]


class ExpiredRange(NamedTuple):
    """Offsets that retention removed from the bucket before they were loaded."""

    partition: int
    start: int
    end: int


def next_round(
    topic: ColdTopic,
    loaded: Mapping[int, int],
    tasks: int,
    split_bytes: int | None = None,
    stopped: Collection[int] = (),
) -> Round:
    """Returns the oldest splits that are not loaded, evenly over all partitions except the `stopped` ones.

    Without splits, everything cold and decided is loaded. Raises `Refused` if the table is ahead of the bucket: it was
    loaded from another bucket, or this bucket lost objects.
    """
    bounds = {}
    for partition in topic.partitions:
        start = max(loaded.get(partition.partition, -1), partition.log_start_offset)
        if start > partition.cold_end_offset:
            raise Refused(
                Code.OFFSET_OUT_OF_RANGE,
                f"the table holds {topic.name}-{partition.partition} up to offset {start}, the bucket only up to "
                f"{partition.cold_end_offset}: it is not the bucket that was loaded, or it lost objects",
            )
        if partition.partition not in stopped:
            bounds[partition.partition] = (start, partition.readable_end_offset)
    found = splits(topic, bounds, tasks, split_bytes)
    taken = _take_oldest(found, ROUND_SPLITS_PER_TASK * tasks)
    ends = {split.partition: split.end for split in taken}
    advances = tuple(Advance(number, loaded.get(number, -1), end) for number, end in sorted(ends.items()))
    left = sum(split.log_bytes for split in found) - sum(split.log_bytes for split in taken)
    return Round(tuple(taken), advances, left)


def select_committable(plan: Round, outcomes: Sequence[ConversionResult]) -> CommittableRound:
    """Returns, for each partition, the part before its first stop. Converted rows beyond it are not committed."""
    stops: dict[int, Stop] = {}
    ends: dict[int, int] = {}
    taken: list[tuple[Split, ConversionResult]] = []
    for split, outcome in sorted(zip(plan.splits, outcomes, strict=True), key=lambda pair: pair[0][2:4]):
        if split.partition in stops:
            continue
        taken.append((split, outcome))
        ends[split.partition] = outcome.end
        if outcome.stop is not None:
            stops[split.partition] = outcome.stop
    advances = [step._replace(end=ends[step.partition]) for step in plan.advances]
    starts = {split.partition: split.start for split, _ in reversed(taken)}
    out_of_range: dict[int, tuple[tuple[int, int], ...]] = {}
    for split, outcome in taken:
        if outcome.out_of_range_timestamps:
            out_of_range[split.partition] = out_of_range.get(split.partition, ()) + outcome.out_of_range_timestamps
    return CommittableRound(
        tuple(split for split, _ in taken),
        tuple(outcome.file for _, outcome in taken if outcome.file is not None),
        tuple(step for step in advances if step.end > starts[step.partition]),
        tuple(stops.values()),
        out_of_range,
    )


def find_expired_ranges(topic: ColdTopic, loaded: Mapping[int, int]) -> list[ExpiredRange]:
    """Returns the offsets that loaded partitions have lost since the last load."""
    return [
        ExpiredRange(number, loaded[number], start)
        for number, start, *_ in topic.partitions
        if number in loaded and loaded[number] < start
    ]


def has_missing_segments(planned: Sequence[Split], current: ColdTopic) -> bool:
    """True if the bucket no longer names a segment of the plan. Then a read that failed is no damage."""
    known_keys = {entry.key for partition in current.partitions for entry in partition.entries}
    return any(entry.key not in known_keys for split in planned for entry in split.entries)


def _take_oldest(found: Sequence[Split], count: int) -> list[Split]:
    """Returns the first splits of each partition: partitions take turns until there are `count`."""
    turns: dict[int, int] = {}
    order = []
    for split in found:
        turn = turns.get(split.partition, 0)
        turns[split.partition] = turn + 1
        order.append((turn, split.partition, split))
    return [split for _, _, split in sorted(order, key=lambda each: each[:2])][:count]
