"""Tests of the chunks of a sequential reader: small, then larger, without gap or overlap, and soon on the grid that all
readers share."""

from __future__ import annotations

import pytest

from tiered.cold.chunks import MIB, STEPS, Chunk, largest_step, next_chunk, step_in_share


def ranges(position: int, end: int, window: int = 192 * MIB) -> list[tuple[float, float]]:
    """Returns all chunks of a reader from `position` on, in MiB."""
    found: list[tuple[float, float]] = []
    step, at, last = 0, position, largest_step(window)
    while at < end:
        chunk = next_chunk("k", at, end, step)
        assert chunk.start <= at < chunk.end <= end
        found.append((chunk.start / MIB, chunk.end / MIB))
        at, step = chunk.end, min(step + 1, last)
    return found


def test_gets_grow_and_end_on_the_grid() -> None:
    assert ranges(0, 46 * MIB) == [(0, 1), (1, 4), (4, 8), (8, 16), (16, 32), (32, 46)]


def test_reader_with_little_room_has_several_smaller_gets_in_flight() -> None:
    assert ranges(0, 30 * MIB, 64 * MIB) == [(0, 1), (1, 4), (4, 8), (8, 16), (16, 24), (24, 30)]
    assert [STEPS[largest_step(size * MIB)] // MIB for size in (0, 1, 31, 32, 127, 128, 1000)] == [
        1,
        1,
        1,
        4,
        8,
        16,
        16,
    ]


def test_chunks_of_a_reader_fit_in_its_share_of_the_cache() -> None:
    shares = (0, 1, 15, 16, 31, 32, 63, 64, 1000)
    assert [STEPS[step_in_share(size * MIB)] // MIB for size in shares] == [1, 1, 1, 4, 4, 8, 8, 16, 16]


@pytest.mark.parametrize("position", [0, 5 * MIB + 77, 7 * MIB, 15 * MIB, 16 * MIB - 1])
def test_readers_from_any_position_converge_on_the_same_chunks(position: int) -> None:
    assert ranges(position, 96 * MIB)[-4:] == [(32, 48), (48, 64), (64, 80), (80, 96)]


def test_small_log_is_one_get() -> None:
    assert next_chunk("k", 0, 1000, 0) == Chunk("k", 0, 1000)
    assert next_chunk("k", 0, 1000, 3) == Chunk("k", 0, 1000)
