"""Tests of the chunks of a sequential reader: small, then larger, without gap or overlap, and soon on the grid that all
readers share."""

from __future__ import annotations

import pytest

from tiered.cold.chunks import MIB, Chunk, next_chunk


def ranges(position: int, end: int) -> list[tuple[float, float]]:
    """Returns all chunks of a reader from `position` on, in MiB."""
    found: list[tuple[float, float]] = []
    step, at = 0, position
    while at < end:
        chunk = next_chunk("k", at, end, step)
        assert chunk.start <= at < chunk.end <= end
        found.append((chunk.start / MIB, chunk.end / MIB))
        at, step = chunk.end, step + 1
    return found


def test_gets_grow_and_end_on_the_grid() -> None:
    assert ranges(0, 46 * MIB) == [(0, 1), (1, 4), (4, 16), (16, 32), (32, 46)]


@pytest.mark.parametrize("position", [0, 5 * MIB + 77, 7 * MIB, 11 * MIB, 12 * MIB - 1])
def test_readers_from_any_position_converge_on_the_same_chunks(position: int) -> None:
    assert ranges(position, 80 * MIB)[-4:] == [(16, 32), (32, 48), (48, 64), (64, 80)]


def test_small_log_is_one_get() -> None:
    assert next_chunk("k", 0, 1000, 0) == Chunk("k", 0, 1000)
    assert next_chunk("k", 0, 1000, 5) == Chunk("k", 0, 1000)
