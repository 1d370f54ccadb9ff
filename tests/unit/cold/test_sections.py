"""Look-ups in the indexes of a cold segment, and its lineage."""

from __future__ import annotations

import struct

import pytest

from tiered.cold.sections import (
    epoch_at,
    lineage_between,
    lineage_text,
    offset_before,
    parse_lineage,
    position_of,
)
from tiered.errors import Corrupt

OFFSETS = b"".join(struct.pack(">ii", *row) for row in [(9, 1000), (19, 2000), (29, 3000)])
TIMES = b"".join(struct.pack(">qi", *row) for row in [(500, 9), (700, 19), (700, 29)])


@pytest.mark.parametrize(
    ("offset", "position"), [(100, 0), (108, 0), (109, 1000), (118, 1000), (119, 2000), (129, 3000), (500, 3000)]
)
def test_position_is_that_of_the_last_entry_not_beyond_the_offset(offset: int, position: int) -> None:
    assert position_of(OFFSETS, 100, offset) == position
    assert position_of(b"", 100, offset) == 0


@pytest.mark.parametrize(("timestamp", "offset"), [(0, 100), (500, 100), (501, 109), (700, 109), (701, 129)])
def test_time_look_up_never_passes_the_first_record_of_that_time(timestamp: int, offset: int) -> None:
    assert offset_before(TIMES, 100, timestamp) == offset
    assert offset_before(b"", 100, timestamp) == 100


def test_lineage_is_kafkas_checkpoint_text() -> None:
    lineage = ((1, 0), (4, 120), (5, 300))
    assert lineage_text(lineage) == b"0\n3\n1 0\n4 120\n5 300\n"
    assert parse_lineage(lineage_text(lineage)) == lineage
    assert parse_lineage(lineage_text(())) == ()


@pytest.mark.parametrize(
    "data", [b"", b"1\n0\n", b"0\n2\n1 0\n", b"0\n1\nx 0\n", b"0\n2\n2 0\n1 5\n", b"0\n1\n1 0", b"\xff"]
)
def test_what_is_not_a_lineage_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        parse_lineage(data, where="key")


def test_a_segments_part_of_the_lineage_begins_with_the_epoch_in_force() -> None:
    lineage = ((1, 0), (4, 120), (5, 300), (9, 400))
    assert lineage_between(lineage, 150, 400) == ((4, 120), (5, 300))
    assert lineage_between(lineage, 0, 100) == ((1, 0),)
    assert lineage_between(lineage, 120, 121) == ((4, 120),)
    assert [epoch_at(lineage, offset) for offset in (0, 119, 120, 399, 400)] == [1, 1, 4, 5, 9]
    assert epoch_at(((4, 120),), 119) == -1
