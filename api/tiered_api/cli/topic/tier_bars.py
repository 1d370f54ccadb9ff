"""The tiers of partitions as bars of characters: what is in the bucket, on the disk of the leader, or in both. Pure.

The line below a bar has what is loaded into the table of the topic, and the positions of groups.

The console draws the same stretches. Each kind has a character of its own, so that a bar needs no colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from tiered_api.cli.output import Row, format_size

NAMED_GROUPS = 3
"""Groups that are named below a bar."""


class Cell(Enum):
    """A cell of a picture: its character, its colour, and the words of the legend."""

    _value_: tuple[str, str, str]

    @property
    def character(self) -> str:
        return self.value[0]

    @property
    def colour(self) -> str:
        return self.value[1]

    @property
    def words(self) -> str:
        return self.value[2]


class Tier(Cell):
    """A place of records."""

    BUCKET = ("░", "yellow", "in the bucket")
    BOTH = ("▒", "green", "on disk and in the bucket")
    DISK = ("█", "blue", "on disk alone")
    OPEN = ("/", "magenta", "beyond the last stable offset")
    EMPTY = ("·", "bright_black", "no records")


class Mark(Cell):
    """A cell of the line below a bar."""

    NOTHING = (" ", "", "")
    LOADED = ("═", "cyan", "loaded into the Delta table")
    GROUP = ("▲", "default", "position of a group")


class Piece(NamedTuple):
    """Neighbouring cells of one kind."""

    tier: Tier
    cells: int


class BarLine(NamedTuple):
    """The line of one partition: its number, the offsets at both ends, its bar, and its sizes in words.

    `marks` are the cells of the line below the bar, empty without marks, and `positions` its words.
    """

    partition: str
    start: str
    pieces: tuple[Piece, ...]
    end: str
    sizes: str
    marks: tuple[Mark, ...] = ()
    positions: str = ""


class Stretch(NamedTuple):
    """A range of offsets `[start, end)` that are in the same places."""

    tier: Tier
    start: int
    end: int


def find_stretches(row: Row) -> list[Stretch]:
    """Returns the stretches of a partition in the order of its offsets. Empty without records, or without a leader."""
    start, end = row["log_start_offset"], row["high_watermark"]
    if start is None or end is None:
        return []
    local, tiered = row["local_start_offset"], row["last_tiered_offset"]
    on_disk_from = min(max(start if local is None else local, start), end)
    in_bucket_to = min(max(start if tiered is None else tiered + 1, start), end)
    found = (
        Stretch(Tier.BUCKET, start, min(on_disk_from, in_bucket_to)),
        Stretch(Tier.BOTH, on_disk_from, in_bucket_to),
        Stretch(Tier.DISK, max(on_disk_from, in_bucket_to), end),
    )
    return [each for each in found if each.end > each.start]


def draw_cells(row: Row, width: int, stable: int | None = None) -> list[Tier]:
    """Returns the cells of a bar. Each stretch has one at least, however small it is. `stable`: the last stable
    offset; transactions are open beyond it."""
    stretches = find_stretches(row)
    if not stretches:
        return [Tier.EMPTY] * width
    start, end = stretches[0].start, stretches[-1].end
    cells = [Tier.EMPTY] * width
    first = -1
    for number, each in enumerate(stretches):
        share = (each.start - start) * width // (end - start)
        first = max(first + 1, min(share, width - len(stretches) + number))
        cells[first:] = [each.tier] * (width - first)
    if stable is not None and stable < end:
        first = min((max(stable, start) - start) * width // (end - start), width - 1)
        cells[first:] = [Tier.OPEN] * (width - first)
    return cells


def draw_marks(row: Row, width: int) -> list[Mark]:
    """Returns the cells below a bar: what is loaded into the table of the topic, and where groups are. Empty if there
    is neither."""
    start, end, loaded = row["log_start_offset"], row["high_watermark"], row.get("loaded_offset")
    cells = [Mark.NOTHING] * width
    if start is None or end is None or end <= start:
        return []
    if loaded is not None and loaded > start:
        count = max(1, (min(loaded, end) - start) * width // (end - start))
        cells[:count] = [Mark.LOADED] * count
    for offset in row["groups"].values():
        cells[min((min(max(offset, start), end) - start) * width // (end - start), width - 1)] = Mark.GROUP
    return cells if set(cells) != {Mark.NOTHING} else []


def draw_bars(rows: Sequence[Row], width: int, stable: Sequence[int | None] = ()) -> list[BarLine]:
    """Returns the lines of a topic's partitions, each `width` wide without its sizes. A bar has ten cells at least."""
    labels = [str(row["partition"]) for row in rows]
    starts, ends = ([_number(row[name]) for row in rows] for name in ("log_start_offset", "high_watermark"))
    room = width - sum(max(map(len, column), default=0) + 1 for column in (labels, starts, ends))
    sizes = [_describe_sizes(row) for row in rows]
    cells = max(10, room - max(map(len, sizes), default=0) - 2)
    found = []
    for number, row in enumerate(rows):
        drawn = draw_cells(row, cells, stable[number] if number < len(stable) else None)
        pieces = tuple(Piece(tier, len(list(same))) for tier, same in groupby(drawn))
        marks = tuple(draw_marks(row, cells))
        found.append(
            BarLine(labels[number], starts[number], pieces, ends[number], sizes[number], marks, _list_positions(row))
        )
    return found


def _list_positions(row: Row) -> str:
    """Returns the groups and their offsets in words, those that are furthest behind first."""
    groups = sorted(row["groups"].items(), key=lambda each: (each[1], each[0]))
    words = [f"{group} {offset:,}" for group, offset in groups[:NAMED_GROUPS]]
    return ", ".join(words + ([f"{len(groups) - NAMED_GROUPS} more"] if len(groups) > NAMED_GROUPS else []))


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _describe_sizes(row: Row) -> str:
    if row["high_watermark"] is None:
        return "its leader does not reply"
    disk, bucket = row["local_bytes"], row["remote_bytes"]
    words = [] if disk is None else [f"{format_size(disk)} on disk"]
    return ", ".join(words + ([] if bucket is None else [f"{format_size(bucket)} in the bucket"]))
