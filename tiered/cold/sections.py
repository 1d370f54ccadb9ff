"""The sections behind the log of a cold segment: look-ups in its indexes, and its leader-epoch lineage.

Bytes are Kafka's own (docs/FORMATS.md): entries relative to the segment's base offset, the lineage as its checkpoint
text. All functions take the whole section and touch only the entries that they need.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from tiered.errors import Corrupt

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")

Lineage = tuple[tuple[int, int], ...]
"""(leader epoch, first offset written under it), both increasing."""


class Sections(NamedTuple):
    """All sections of one cold segment, proved by their CRCs. `producers` is Kafka's snapshot file, empty when none."""

    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    producers: bytes
    lineage: Lineage


def position_of(offset_index: bytes, base_offset: int, offset: int) -> int:
    """A byte position in the log at or before the batch that holds `offset`; 0 when the index knows nothing nearer."""
    relative = offset - base_offset
    low, high = 0, len(offset_index) // _OFFSET_ENTRY.size
    position = 0
    while low < high:
        middle = (low + high) // 2
        entry_offset, entry_position = _OFFSET_ENTRY.unpack_from(offset_index, middle * _OFFSET_ENTRY.size)
        if entry_offset <= relative:
            position, low = entry_position, middle + 1
        else:
            high = middle
    return position


def offset_before(time_index: bytes, base_offset: int, timestamp: int) -> int:
    """An offset at or before the first record with a timestamp >= `timestamp` (milliseconds)."""
    low, high = 0, len(time_index) // _TIME_ENTRY.size
    relative = 0
    while low < high:
        middle = (low + high) // 2
        entry_time, entry_offset = _TIME_ENTRY.unpack_from(time_index, middle * _TIME_ENTRY.size)
        if entry_time < timestamp:
            relative, low = entry_offset, middle + 1
        else:
            high = middle
    return base_offset + relative


def lineage_text(lineage: Iterable[tuple[int, int]]) -> bytes:
    """As Kafka's `leader-epoch-checkpoint`: version, count, one `epoch start` a line."""
    lines = [f"{epoch} {start}\n" for epoch, start in lineage]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def parse_lineage(data: bytes, *, where: str = "") -> Lineage:
    """The reverse of `lineage_text`; Corrupt when it is anything else."""
    try:
        version, count, *rows = data.decode("ascii").split("\n")[:-1]
        pairs = tuple((int(epoch), int(start)) for epoch, start in (row.split(" ") for row in rows))
    except ValueError:
        raise Corrupt("lineage is not a leader epoch checkpoint", where=where) from None
    if version != "0" or count != str(len(pairs)) or not _is_increasing(pairs):
        raise Corrupt("lineage does not add up", where=where)
    return pairs


def _is_increasing(pairs: Lineage) -> bool:
    return all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(pairs))


def lineage_between(lineage: Iterable[tuple[int, int]], base_offset: int, next_offset: int) -> Lineage:
    """The part of a lineage that wrote `[base_offset, next_offset)`: the epoch in force at the base, and later ones."""
    rows = [row for row in lineage if row[1] < next_offset]
    first = 0
    for i, (_, start) in enumerate(rows):
        if start <= base_offset:
            first = i
    return tuple(rows[first:])


def epoch_at(lineage: Lineage, offset: int) -> int:
    """The leader epoch that wrote `offset`; -1 when the lineage begins after it."""
    found = -1
    for epoch, start in lineage:
        if start > offset:
            break
        found = epoch
    return found
