"""Plans one commit of a load: the splits to read, the step of each partition, and what of it can be committed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from pyspark_tiered.delta.table_form import Advance, LoadedFile, SplitOutcome, Stop
from pyspark_tiered.log.plan import MIB, ColdTopic, Split, split_size, splits
from pyspark_tiered.typed.evolve import Path
from pyspark_tiered.typed.kinds import StructOf
from tiered.errors import Code, Refused

ROUND_SPLITS_PER_TASK = 4
"""Bytes of a round for each task, in splits of full size. Larger rounds cost fewer commits, smaller ones lose less work
to a kill."""
SHARED_FILE_BYTES_MIN = 16 * MIB
"""Log bytes of a file that small partitions share, before several tasks are worth their start."""
RUNS_WORTH = 4
"""A split shares a file if so many of its size fit into a split of full size."""
RUNS_MAX = 256
"""Partitions that share a file at most: each costs a row group, and a range in the log of the table."""

FilePlan = tuple[Split, ...]
"""The splits of one file. Several are the first ones of different partitions, so no stop before them concerns them."""


class Round(NamedTuple):
    """One commit: the files to write, the end of each partition after it, and the bytes left for later rounds."""

    files: tuple[FilePlan, ...]
    advances: tuple[Advance, ...]
    bytes_left: int

    @property
    def splits(self) -> tuple[Split, ...]:
        """Returns the splits to read, in order of partition and offset."""
        return tuple(sorted((split for file in self.files for split in file), key=lambda split: split[2:4]))


class ConversionResult(NamedTuple):
    """Result of converting the splits of one file. Without rows there is no file.

    `requests` are those to the bucket by verb. Only values have the other fields. `schema` takes those of all rows, and
    `columns` are the columns of each file. `letters` is the file of dead letters, if there are any, and `reasons` are
    those of some of them. `mistyped` is a field of one with another type than its column, and `mistyped_reason` the
    reason of that one. `has_late_letters`: another load took one of them for a row. `has_frames`: values in plain JSON
    had the frames of a schema registry, which were skipped.
    """

    files: tuple[LoadedFile, ...]
    outcomes: tuple[SplitOutcome, ...]
    requests: Mapping[str, int]
    schema: StructOf = StructOf()
    columns: tuple[StructOf, ...] = ()
    letters: tuple[LoadedFile, ...] = ()
    reasons: tuple[str, ...] = ()
    mistyped: Path = ()
    mistyped_reason: str = ""
    has_late_letters: bool = False
    has_frames: bool = False


class CommittableRound(NamedTuple):
    """The part of a converted round that is committed.

    `stops`: partitions that end below their plan. `out_of_range_timestamps`: per partition the records (offset,
    milliseconds) whose timestamps became NULL.
    """

    splits: tuple[Split, ...]
    results: tuple[ConversionResult, ...]
    advances: tuple[Advance, ...]
    stops: tuple[Stop, ...]
    out_of_range_timestamps: Mapping[int, tuple[tuple[int, int], ...]]

    @property
    def files(self) -> tuple[LoadedFile, ...]:
        """Returns the files of rows."""
        return tuple(file for each in self.results for file in each.files)


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
    splits_per_task: int = ROUND_SPLITS_PER_TASK,
) -> Round:
    """Returns the oldest splits that are not loaded, evenly over all partitions except the `stopped` ones.

    A round is cut by bytes. Small splits share files. Without splits, everything cold and decided is loaded. Raises
    `Refused` if the table is ahead of the bucket: it was loaded from another bucket, or this bucket lost objects.
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
    total = sum(split.log_bytes for split in found)
    size = split_bytes or split_size(total, tasks)
    taken = _take_oldest(found, splits_per_task * max(tasks, 1) * size)
    ends = {split.partition: split.end for split in taken}
    advances = tuple(Advance(number, loaded.get(number, -1), end) for number, end in sorted(ends.items()))
    left = total - sum(split.log_bytes for split in taken)
    return Round(tuple(_plan_files(taken, tasks, size)), advances, left)


def select_committable(plan: Round, results: Sequence[ConversionResult]) -> CommittableRound:
    """Returns, for each partition, the part before its first stop. Converted rows beyond it are not committed."""
    stops: dict[int, Stop] = {}
    ends: dict[int, int] = {}
    starts: dict[int, int] = {}
    taken: list[Split] = []
    kept: list[ConversionResult] = []
    out_of_range: dict[int, tuple[tuple[int, int], ...]] = {}
    for planned, result in sorted(zip(plan.files, results, strict=True), key=lambda pair: _commit_order(pair[0])):
        if planned[0].partition in stops:  # a file of its own, behind the stop
            continue
        taken += planned
        kept.append(result)
        for split, outcome in zip(planned, result.outcomes, strict=True):
            starts.setdefault(split.partition, split.start)
            ends[split.partition] = outcome.end
            if outcome.stop is not None:
                stops[split.partition] = outcome.stop
            if outcome.out_of_range_timestamps:
                out_of_range[split.partition] = out_of_range.get(split.partition, ()) + outcome.out_of_range_timestamps
    advances = [step._replace(end=ends[step.partition]) for step in plan.advances]
    return CommittableRound(
        tuple(taken),
        tuple(kept),
        tuple(step for step in advances if step.end > starts[step.partition]),
        tuple(stops[number] for number in sorted(stops)),
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


def _take_oldest(found: Sequence[Split], round_bytes: int) -> list[Split]:
    """Returns the first splits of each partition: partitions take turns until the round has its bytes."""
    taken = []
    passed = 0
    for _, split in sorted(_in_turns(found), key=lambda each: (each[0], each[1].partition)):
        if passed >= round_bytes:
            break
        taken.append(split)
        passed += split.log_bytes
    return taken


def _in_turns(found: Sequence[Split]) -> list[tuple[int, Split]]:
    """Returns each split with its place among those of its partition."""
    turns: dict[int, int] = {}
    order = []
    for split in found:
        turn = turns.get(split.partition, 0)
        turns[split.partition] = turn + 1
        order.append((turn, split))
    return order


def _plan_files(taken: Sequence[Split], tasks: int, size: int) -> list[FilePlan]:
    """Returns the splits by files. The first splits of several partitions share a file if they are small."""
    small = [split for turn, split in _in_turns(taken) if turn == 0 and split.log_bytes <= size // RUNS_WORTH]
    shared_bytes = min(size, max(sum(split.log_bytes for split in small) // max(tasks, 1), SHARED_FILE_BYTES_MIN))
    files: list[list[Split]] = []
    held = 0
    for split in small:
        if not files or held + split.log_bytes > shared_bytes or len(files[-1]) >= RUNS_MAX:
            files.append([])
            held = 0
        files[-1].append(split)
        held += split.log_bytes
    shared = {(split.partition, split.start) for split in small}
    alone = [(split,) for split in taken if (split.partition, split.start) not in shared]
    return [*map(tuple, files), *alone]


def _commit_order(planned: FilePlan) -> tuple[bool, int, int]:
    """Returns the key by which shared files come first, then the others by partition and offset."""
    return len(planned) == 1, planned[0].partition, planned[0].start
