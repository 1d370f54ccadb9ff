"""Tests of batches as Arrow rows, in groups that bound the decompressed bytes."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from pyspark_tiered.log import rows
from pyspark_tiered.log.rows import DECOMPRESSED_BYTES_MAX, decode_rows
from tiered.errors import Corrupt
from tiered.records.arrow import record_batch as record_batch_of
from tiered.records.batch import encode_batch
from tiered.records.model import HEADER_BYTES, Codec
from tiered.records.native import walk

BOUNDS = (0, 1 << 60)
MIB = 1 << 20


def offsets_of(data: bytes) -> tuple[list[int], list[int], str]:
    """Returns the offsets, the number in each group, and the reason of the end."""
    found: list[int] = []
    groups: list[int] = []
    try:
        for group in decode_rows([(memoryview(data), list(walk(data, check_crc=False).batches))], BOUNDS, ("offset",)):
            some = group.rows.column(0).to_pylist()
            found += some
            groups.append(len(some))
    except Corrupt as error:
        return found, groups, error.why
    return found, groups, ""


def test_expanding_batches_are_opened_a_few_at_a_time() -> None:
    data = b"".join(
        encode_batch([(0, None, bytes(MIB - 20), ())], base_offset=base, codec=Codec.ZSTD) for base in range(100)
    )
    assert len(data) < rows.GROUP_BYTES
    most = 0

    def noted(found: list[tuple[bytes, int, int, int, int]], *args: object) -> object:
        nonlocal most
        most = max(most, sum(len(payload) for payload, *_ in found))
        return made(found, *args)  # type: ignore[arg-type]

    made = record_batch_of
    with patch.object(rows, "record_batch", noted):
        found, groups, why = offsets_of(data)
    assert (found, why) == ([*range(100)], "")
    assert DECOMPRESSED_BYTES_MAX // 2 < most <= DECOMPRESSED_BYTES_MAX
    assert max(groups) <= DECOMPRESSED_BYTES_MAX // MIB + 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("bad", [0, 3, 9])
def test_rows_before_an_unparsable_batch_are_returned_once(codec: Codec, bad: int) -> None:
    batches = [bytearray(encode_batch([(0, None, b"v" * 50, ())], base_offset=base, codec=codec)) for base in range(10)]
    batches[bad][HEADER_BYTES:] = bytes(len(batches[bad]) - HEADER_BYTES)
    found, _, why = offsets_of(b"".join(batches))
    assert found == [*range(bad)]
    assert why


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_batch_that_compresses_well_is_decoded_in_pieces(codec: Codec) -> None:
    lines = [(number, None, b"x" * 5000, ()) for number in range(20_000)]
    data = encode_batch(lines, codec=codec) + encode_batch(lines[:3], base_offset=20_000)
    assert len(data) < 1 << 20
    found, groups, why = offsets_of(data)
    assert (found, why) == ([*range(20_003)], "")
    assert len(groups) > 5 and max(groups) * 5000 < DECOMPRESSED_BYTES_MAX + MIB


def test_rows_before_a_damaged_piece_are_returned_once() -> None:
    data = bytearray(encode_batch([(number, None, b"x" * 5000, ()) for number in range(20_000)], codec=Codec.LZ4))
    data[-100:] = bytes(100)
    found, _, why = offsets_of(bytes(data))
    assert found == [*range(len(found))] and 10_000 < len(found) < 20_000 and "lz4" in why
