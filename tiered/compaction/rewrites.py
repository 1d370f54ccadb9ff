"""The segments of a log that a clean writes again, if it may leave segments alone.

A segment is worth its rewrite once enough of it is superseded: a rewrite costs the bytes that are read and written, and
frees what is superseded. Records that stay superseded for longer are lawful. Keeps I26: the mark below which tombstones
may go moves only over offsets whose keys have been applied to every older segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tiered.compaction.cleanable_range import CleanableSegment, CompactionConfig, group_segments
from tiered.config.settings import LONG_MAX
from tiered.ports import Buffer
from tiered.records.key_offset_map import KeyOffsetMap

COST_MAX = 2.2
"""Limit on the bytes that are read and written, for each byte that goes."""
SMALL_SHARE = 16
"""A segment with less than this part of segment.bytes is small, and joins a neighbour that is written again."""
THOROUGH_SHARE = 0.8
"""Share of the log above `clean_to` from which on a clean writes all segments: only then tombstones there may go."""


FULL_MAP_SHARE = 0.5
"""The same share for a log whose keys above `clean_to` do not fit into the map: little of it can be written again."""


class KeyedSegment(NamedTuple):
    """A segment, and what is known of its keys.

    It has `records` in all. `superseded` counts those with a later record of their key in a later segment. `repeated`
    counts those with a later one in the segment itself, and those without a key. Keys of all records below `applied_to`
    have been applied to it. `is_known` is false if nobody knows its keys. `is_local`: a read costs no request.
    """

    base_offset: int
    next_offset: int
    size: int
    records: int
    superseded: int
    repeated: int
    applied_to: int
    is_known: bool
    is_local: bool
    index_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """True if a rewrite would leave it as it is."""
        return self.is_known and self.superseded == 0 == self.repeated

    @property
    def is_dead(self) -> bool:
        """True if each record has a key and a later record of it in a later segment. So none is a marker, and no key is
        there twice."""
        return self.is_known and 0 < self.records == self.superseded

    @property
    def free_bytes(self) -> int:
        """Returns about how many bytes a rewrite frees."""
        return min(self.size, self.size * (self.superseded + self.repeated) // self.records) if self.records else 0

    @property
    def cost(self) -> int:
        """Returns the bytes that a rewrite reads and writes in the bucket."""
        return (0 if self.is_local else self.size) + self.size - self.free_bytes


class KeySurvey:
    """The keys of a log up to `end`, as segments say them, newest first. They go into the map from the end down to
    `clean_to`, or until the map is full: the map has all keys from `map_from` on."""

    def __init__(self, key_map: KeyOffsetMap, end: int, clean_to: int) -> None:
        self.key_map = key_map
        self.map_from = end
        self._clean_to = clean_to
        self.is_full = False
        key_map.cover(end - 1)

    def takes(self, next_offset: int) -> bool:
        """True if the map takes the keys of a segment that ends there."""
        return not self.is_full and next_offset > self._clean_to

    def add_rows(self, rows: Buffer, base_offset: int, next_offset: int) -> int:
        """Adds the rows of a keys section. Returns how many of them have a later record in a later segment."""
        puts = self.takes(next_offset)
        superseded, left = self.key_map.match_keys(rows, base_offset, puts=puts)
        if puts:
            self.end_segment(base_offset, is_full=left > 0)
        return superseded

    def end_segment(self, base_offset: int, *, is_full: bool) -> None:
        """Notes that the map has all keys of a segment, unless the map is full."""
        self.is_full |= is_full
        if not self.is_full:
            self.map_from = base_offset


class RewritePlan(NamedTuple):
    """Runs of segments that become one each, oldest first, and the new `clean_to` once all of them are replaced.

    Each segment below `read_to` has known keys, or is in a run. A batch of any other may be one that no clean can open,
    and may have older records of any key.
    """

    runs: list[list[KeyedSegment]]
    clean_to: int
    read_to: int


def has_no_age_limit(config: CompactionConfig) -> bool:
    """True if a superseded record may stay for any time."""
    return config.max_compaction_lag_ms >= LONG_MAX


def needs_thorough_clean(
    segments: Sequence[CleanableSegment], clean_to: int, config: CompactionConfig, *, is_map_full: bool = False
) -> bool:
    """True if a clean has to apply all keys to all segments: the log was never clean, superseded records have a
    longest age, or most of the log is above `clean_to`."""
    if clean_to < 0 or not has_no_age_limit(config):
        return True
    above = sum(each.size for each in segments if each.next_offset > clean_to)
    share = FULL_MAP_SHARE if is_map_full else THOROUGH_SHARE
    return above > share * sum(each.size for each in segments)


def plan_rewrites(
    segments: Sequence[KeyedSegment], map_from: int, end: int, clean_to: int, segment_bytes: int, index_bytes: int
) -> RewritePlan:
    """Chooses among all segments below `end`, oldest first. All keys from `map_from` up to `end` are known.

    A segment whose keys nobody knows is written again, so that they are known next time. All other rewrites together
    cost at most `COST_MAX` times what they free.
    """
    able = [each for each in segments if each.applied_to >= map_from]
    chosen = {each.base_offset for each in able if not each.is_known or _is_worth(each)}
    known = [each for each in able if each.is_known and each.base_offset in chosen]
    slack = int(COST_MAX * sum(each.free_bytes for each in known)) - sum(each.cost for each in known)
    ends = {each.next_offset for each in able if each.base_offset in chosen}
    for each in able:
        is_beside = each.base_offset in ends or each.next_offset in chosen
        if is_beside and each.base_offset not in chosen and each.size * SMALL_SHARE < segment_bytes:
            if each.cost > slack + COST_MAX * each.free_bytes:
                continue
            slack += int(COST_MAX * each.free_bytes) - each.cost
            chosen.add(each.base_offset)
            ends.add(each.next_offset)
    runs = _group(segments, chosen, segment_bytes, index_bytes)
    read_to = next((each.base_offset for each in segments if not (each.is_known or each.base_offset in chosen)), end)
    return RewritePlan(runs, _find_mark(segments, chosen, map_from, end, clean_to), read_to)


def _is_worth(segment: KeyedSegment) -> bool:
    return not segment.is_whole and segment.cost <= COST_MAX * segment.free_bytes


def _group(
    segments: Sequence[KeyedSegment], chosen: set[int], segment_bytes: int, index_bytes: int
) -> list[list[KeyedSegment]]:
    """Returns the chosen segments, those side by side in one run as far as what stays of them fits."""
    by_offset = {each.base_offset: each for each in segments}
    neighbours: list[list[CleanableSegment]] = []
    last_end = -1
    for each in segments:
        if each.base_offset not in chosen:
            continue
        if each.base_offset != last_end:
            neighbours.append([])
        last_end = each.next_offset
        neighbours[-1].append(
            CleanableSegment(each.base_offset, each.next_offset, each.size - each.free_bytes, -1, -1, each.index_bytes)
        )
    return [
        [by_offset[each.base_offset] for each in group]
        for row in neighbours
        for group in group_segments(row, row[-1].next_offset, segment_bytes, index_bytes)
    ]


def _find_mark(segments: Sequence[KeyedSegment], chosen: set[int], map_from: int, end: int, clean_to: int) -> int:
    """Returns the greatest offset below which keys of all records are applied to every older segment."""
    mark = end
    for each in segments:
        if each.base_offset >= mark:
            break
        is_applied = each.base_offset in chosen or (each.is_whole and each.applied_to >= map_from)
        if not is_applied:
            mark = min(mark, each.applied_to)
    return max(mark, clean_to)
