"""Which splits one commit of a load takes, from where to where it moves each partition, and what of it can be
committed once the splits are converted. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pyspark_tiered.plan import ColdTopic, Split, splits
from pyspark_tiered.table import Advance, ConversionResult, LoadedFile, Stop
from tiered.errors import Code, Refused

ROUND_SPLITS_PER_TASK = 4
"""Larger rounds cost fewer commits, smaller ones lose less work to a kill: this many waves of tasks are a round."""


class Round(NamedTuple):
    """One commit: what it reads, where each touched partition then stands, and what is left for later rounds."""

    splits: tuple[Split, ...]
    advances: tuple[Advance, ...]
    bytes_left: int


class CommittableRound(NamedTuple):
    """What of a converted round is committed. `stops`: partitions that end below what was planned. `beyond`: per
    partition records (offset, milliseconds) whose timestamps became NULL."""

    splits: tuple[Split, ...]
    files: tuple[LoadedFile, ...]
    advances: tuple[Advance, ...]
    stops: tuple[Stop, ...]
    out_of_range_timestamps: Mapping[int, tuple[tuple[int, int], ...]]


class ExpiredRange(NamedTuple):
    """Offsets that retention took from the bucket before they were loaded."""

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
    """The oldest splits that are not loaded, of all partitions alike but those that `stopped`. No splits: everything
    cold is loaded.

    `Refused` when the table is ahead of the bucket: it was loaded from another, or the bucket lost what it had.
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
            bounds[partition.partition] = (start, partition.cold_end_offset)
    found = splits(topic, bounds, tasks, split_bytes)
    taken = _take_oldest(found, ROUND_SPLITS_PER_TASK * tasks)
    ends = {split.partition: split.end for split in taken}
    advances = tuple(Advance(number, loaded.get(number, -1), end) for number, end in sorted(ends.items()))
    left = sum(split.log_bytes for split in found) - sum(split.log_bytes for split in taken)
    return Round(tuple(taken), advances, left)


def select_committable(plan: Round, outcomes: Sequence[ConversionResult]) -> CommittableRound:
    """Of each partition what lies before its first stop: beyond that nothing is committed, whatever was converted."""
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
    """What a partition that was loaded before has lost since."""
    return [
        ExpiredRange(number, loaded[number], start)
        for number, start, _, _ in topic.partitions
        if number in loaded and loaded[number] < start
    ]


def has_missing_segments(planned: Sequence[Split], current: ColdTopic) -> bool:
    """Whether the bucket no longer names a segment of the plan: then that it could not be read is no fault."""
    known_keys = {entry.key for partition in current.partitions for entry in partition.entries}
    return any(entry.key not in known_keys for split in planned for entry in split.entries)


def _take_oldest(found: Sequence[Split], count: int) -> list[Split]:
    """Of each partition its first splits, as many as fit when all partitions take turns."""
    turns: dict[int, int] = {}
    order = []
    for split in found:
        turn = turns.get(split.partition, 0)
        turns[split.partition] = turn + 1
        order.append((turn, split.partition, split))
    return [split for _, _, split in sorted(order, key=lambda each: each[:2])][:count]
