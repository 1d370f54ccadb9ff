"""Tests of the sizes that codec headers state: close to the truth for honest data, and large for decompression
bombs."""

from __future__ import annotations

import random

import cramjam
import lz4.frame
import pytest
import zstandard

from tiered.records.compression import compress
from tiered.records.model import Codec
from tiered.records.opened_size import BLOCK_BYTES_MIN, stated_size, zstd_size_max
from tiered.records.pieces import RATIO_FROM, whole_max

MIB = 1 << 20
PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
ZEROS = bytes(20 * MIB)


def text(size: int) -> bytes:
    """Returns text that compresses to about a quarter."""
    rng = random.Random(size)
    words = [bytes(rng.choices(b"abcdefghij ", k=rng.randint(3, 12))) for _ in range(200)]
    made = b" ".join(rng.choices(words, k=size // 6))
    return made[:size]


def compress_without_size(data: bytes, level: int = 3) -> bytes:
    """Returns zstd data as Kafka's Java and librdkafka write it: without the size."""
    writer = zstandard.ZstdCompressor(level=level, write_content_size=False).compressobj()
    return b"".join([*(writer.compress(data[at : at + 16_384]) for at in range(0, len(data), 16_384)), writer.flush()])


@pytest.mark.parametrize("level", [1, 3, 12])
@pytest.mark.parametrize("size", [1, 1000, 100_000, 3 * MIB])
def test_blocks_of_honest_zstd_are_far_below_the_bound(size: int, level: int) -> None:
    data = text(size)
    for form in (compress(Codec.ZSTD, data), compress_without_size(data, level)):
        most = whole_max(len(form))
        assert len(data) <= zstd_size_max(form, most) + (0 if size > 1 else 8) <= max(most, RATIO_FROM)


@pytest.mark.parametrize(
    "form", [compress(Codec.ZSTD, ZEROS), compress_without_size(ZEROS), compress_without_size(ZEROS, 1)]
)
def test_zstd_that_becomes_much_is_above_the_bound(form: bytes) -> None:
    most = whole_max(len(form))
    assert most < len(ZEROS) and zstd_size_max(form, most) > most


def test_stated_sizes_are_read() -> None:
    assert stated_size(Codec.GZIP, compress(Codec.GZIP, ZEROS)) == len(ZEROS)
    assert stated_size(Codec.ZSTD, compress(Codec.ZSTD, ZEROS)) == len(ZEROS)
    assert stated_size(Codec.ZSTD, compress_without_size(ZEROS)) == 0
    assert stated_size(Codec.LZ4, lz4.frame.compress(ZEROS, store_size=True)) == len(ZEROS)
    assert stated_size(Codec.LZ4, compress(Codec.LZ4, ZEROS)) == 0
    assert stated_size(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(ZEROS))) == len(ZEROS)
    assert stated_size(Codec.SNAPPY, compress(Codec.SNAPPY, ZEROS)) == 0
    assert stated_size(Codec.SNAPPY, b"\xff\xff\xff\x7f" + bytes(20)) > 200 * MIB


@pytest.mark.parametrize("codec", PACKED)
def test_any_bytes_have_a_size_fast_and_without_an_error(codec: Codec) -> None:
    rng = random.Random(7)
    whole = compress(codec, text(200_000))
    for _ in range(500):
        cut = bytearray(whole[: rng.randint(0, len(whole))])
        for _ in range(rng.randint(0, 3)):
            if cut:
                cut[rng.randrange(min(len(cut), 40))] = rng.randrange(256)
        assert stated_size(codec, cut) >= 0
        assert zstd_size_max(cut, MIB) >= 0


def test_walk_over_many_small_blocks_is_bounded() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    head = (frame.compress(b"") + frame.flush())[:6]
    data = head + bytes(3) * 350_000  # raw blocks of nothing
    limit = whole_max(len(data))
    assert limit < zstd_size_max(data, limit) <= limit + BLOCK_BYTES_MIN < 250_000 * BLOCK_BYTES_MIN
