"""Tests of the sparse indexes in Kafka's formats: they follow from the batches, are searched by bisection, and are cut
at the first wrong entry."""

from __future__ import annotations

import struct
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tiered.hot.index import (
    FULL_BYTES_MIN,
    INTERVAL_MAX,
    OFFSET_ENTRY,
    RELATIVE_MAX,
    TIME_ENTRY,
    IndexBuilder,
    lookup_offset,
    lookup_position,
    lookup_timestamp,
    rebase_indexes,
    valid_offset_bytes,
    valid_time_bytes,
)
from tiered.records.model import HEADER_BYTES

BATCHES = st.lists(st.tuples(st.integers(HEADER_BYTES + 1, 900), st.integers(1, 5), st.integers(-1, 1000)), max_size=60)


def build_indexes(
    batches: list[tuple[int, int, int]], base: int = 100, interval: int = 500
) -> tuple[IndexBuilder, list[int]]:
    """Returns indexes of batches of (size, records, max timestamp), and the positions of the batches."""
    builder, positions, position, offset = IndexBuilder(base, interval), [], 0, base
    for size, count, timestamp in batches:
        builder.add_batch(position, size, offset + count - 1, timestamp)
        positions.append(position)
        position, offset = position + size, offset + count
    return builder, positions


def test_entry_has_the_last_offset_and_the_position_of_a_batch() -> None:
    builder, _ = build_indexes([(400, 2, 5), (200, 2, 7), (100, 3, 6), (600, 1, 9), (100, 1, 8)])
    assert builder.offsets == struct.pack(">iiii", 6, 600, 8, 1300)
    assert builder.times == struct.pack(">qiqi", 7, 3, 9, 7)


def test_time_index_of_a_closed_segment_has_the_greatest_timestamp() -> None:
    builder, _ = build_indexes([(100, 2, 5), (100, 2, 7)])
    assert builder.times == b""
    builder.finish()
    builder.finish()
    assert builder.times == struct.pack(">qi", 7, 3)


def test_index_is_full_one_time_entry_early() -> None:
    entries = FULL_BYTES_MIN // TIME_ENTRY.size - 1
    builder, _ = build_indexes([(600, 1, at) for at in range(1, entries + 2)])
    assert (len(builder.times), len(builder.offsets)) == (12 * entries, 8 * entries)
    assert builder.is_full(FULL_BYTES_MIN)
    assert not builder.is_full(FULL_BYTES_MIN + TIME_ENTRY.size)


def test_smallest_index_is_not_full_without_entries() -> None:
    """A topic may set 4 bytes, as in Kafka: each batch would otherwise close a segment without a record."""
    builder, _ = build_indexes([(600, 1, 1)])
    assert not builder.is_full(4)


def test_index_has_an_entry_every_64_kib_with_any_interval() -> None:
    builder, _ = build_indexes([(100, 1, 5)] * 5_000, interval=RELATIVE_MAX)
    positions = [0, *(position for _, position in OFFSET_ENTRY.iter_unpack(builder.offsets)), 500_000]
    assert max(after - before for before, after in pairwise(positions)) <= INTERVAL_MAX + 100


@given(BATCHES)
def test_search_ends_at_or_before_the_batch_with_the_offset(batches: list[tuple[int, int, int]]) -> None:
    builder, positions = build_indexes(batches)
    offset = 0
    for (_, count, _), position in zip(batches, positions, strict=True):
        for relative in range(offset, offset + count):
            assert lookup_offset(builder.offsets, relative)[1] <= position
        offset += count
    assert lookup_offset(builder.offsets, -1) == (-1, 0)


@given(BATCHES, st.integers(0, 20_000))
def test_last_indexed_position_below_a_limit_is_a_batch(batches: list[tuple[int, int, int]], limit: int) -> None:
    builder, positions = build_indexes(batches)
    found = lookup_position(builder.offsets, limit)
    assert found == 0 or (found in positions and found <= limit)


@given(BATCHES, st.integers(-1, 1001))
def test_records_up_to_a_time_entry_are_earlier(batches: list[tuple[int, int, int]], timestamp: int) -> None:
    builder, _ = build_indexes(batches)
    bound = lookup_timestamp(builder.times, timestamp)
    offset = 0
    for _, count, newest in batches:
        if offset + count - 1 <= bound:
            assert newest < timestamp
        offset += count


@given(BATCHES, st.binary(max_size=40))
def test_invalid_index_bytes_are_truncated(batches: list[tuple[int, int, int]], tail: bytes) -> None:
    builder, _ = build_indexes(batches)
    size = sum(batch[0] for batch in batches)
    zeros = bytes(24)
    assert valid_offset_bytes(bytes(builder.offsets) + zeros + tail, size) == len(builder.offsets)
    assert valid_time_bytes(bytes(builder.times) + b"\xff" * 24 + tail) == len(builder.times)


def test_entry_behind_the_log_end_is_ignored() -> None:
    assert valid_offset_bytes(struct.pack(">iiii", 3, 100, 5, 200), 200) == 8
    assert valid_offset_bytes(struct.pack(">ii", RELATIVE_MAX, 0), 200) == 0


def test_indexes_are_relative_to_the_base_offset() -> None:
    builder, _ = build_indexes([(600, 2, 5), (600, 2, 7), (600, 2, 9)])
    offsets, times = rebase_indexes(builder.offsets, builder.times, 2, 600)
    assert offsets == struct.pack(">ii", 3, 600)
    assert times == struct.pack(">qiqi", 7, 1, 9, 3)
