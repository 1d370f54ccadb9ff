"""Tests of the sizes that codec headers state: close to the truth for honest data, and large for decompression
bombs."""

from __future__ import annotations

import random
import struct

import cramjam
import lz4.frame
import pytest
import zstandard

from tiered.records.batch import RATIO_FROM, RATIO_MAX, decompressed_max
from tiered.records.compression import XERIAL_HEADER, compress
from tiered.records.model import Codec
from tiered.records.opened_size import BLOCK_BYTES_MIN, decompressed_size

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


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("size", [1, 1000, 100_000, 3 * MIB])
def test_honest_data_is_far_below_the_bound(codec: Codec, size: int) -> None:
    data = text(size)
    packed = compress(codec, data)
    most = decompressed_max(len(packed))
    assert len(data) <= decompressed_size(codec, packed, most) + (0 if size > 1 else 8) <= max(most, RATIO_FROM)
    forms = (
        [compress_without_size(data), compress_without_size(data, 1), compress_without_size(data, 12)]
        if codec is Codec.ZSTD
        else []
    )
    if codec is Codec.LZ4:
        forms = [lz4.frame.compress(data, store_size=True, content_checksum=True, block_checksum=True)]
        forms += [lz4.frame.compress(data, block_size=n, store_size=False) for n in (4, 5, 6, 7)]
    for form in forms:
        assert len(data) <= decompressed_size(codec, form, most) + 8 <= max(most, RATIO_FROM + 8)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_bombs_are_above_the_bound(codec: Codec) -> None:
    forms = [compress(codec, ZEROS)]
    if codec is Codec.ZSTD:
        forms = [*forms, compress_without_size(ZEROS), compress_without_size(ZEROS, 1)]
    if codec is Codec.LZ4:
        forms.append(lz4.frame.compress(ZEROS, store_size=True))
    for packed in forms:
        most = decompressed_max(len(packed))
        assert len(packed) * RATIO_MAX < len(ZEROS)
        assert decompressed_size(codec, packed, most) > most


def test_stated_length_of_snappy_counts() -> None:
    stated = b"\xff\xff\xff\x7f" + bytes(20)
    assert decompressed_size(Codec.SNAPPY, stated, MIB) > 200 * MIB
    framed = XERIAL_HEADER + struct.pack(">i", len(stated)) + stated
    assert decompressed_size(Codec.SNAPPY, framed, MIB) > 200 * MIB
    block = bytes(cramjam.snappy.compress_raw(b"x" * 100))
    assert (
        decompressed_size(Codec.SNAPPY, XERIAL_HEADER + (struct.pack(">i", len(block)) + block) * 3, MIB)
        == 3 * BLOCK_BYTES_MIN
    )


@pytest.mark.parametrize("codec", PACKED)
def test_any_bytes_have_a_size_fast_and_without_an_error(codec: Codec) -> None:
    rng = random.Random(7)
    whole = compress(codec, text(200_000))
    for _ in range(500):
        cut = bytearray(whole[: rng.randint(0, len(whole))])
        for _ in range(rng.randint(0, 3)):
            if cut:
                cut[rng.randrange(min(len(cut), 40))] = rng.randrange(256)
        assert decompressed_size(codec, cut, MIB) >= 0


def test_walk_over_many_small_blocks_is_bounded() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    head = (frame.compress(b"") + frame.flush())[:6]
    blocks = head + bytes(3) * 350_000  # raw blocks of nothing
    lz4_blocks = lz4.frame.compress(b"", store_size=False)[:7] + struct.pack("<Ix", 0x80000001) * 250_000
    for codec, data in ((Codec.ZSTD, blocks), (Codec.LZ4, lz4_blocks)):
        limit = decompressed_max(len(data))
        assert limit < decompressed_size(codec, data, limit) <= limit + BLOCK_BYTES_MIN < 250_000 * BLOCK_BYTES_MIN
