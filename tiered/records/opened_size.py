"""The decompressed size of records according to the headers of their codec, read without decompression.

If the headers state the size, the result is that (zstd's and lz4's content size, gzip's trailer, snappy's lengths).
Otherwise it is the most that their blocks may hold. Headers may state too little, so readers have their own limit. A
batch that states too much is refused before it is stored.
"""

from __future__ import annotations

import struct

import cramjam
import zstandard

from tiered.ports import Buffer
from tiered.records.compression import XERIAL_HEADER, XERIAL_MAGIC
from tiered.records.model import Codec

BLOCK_BYTES_MIN = 4096
"""Each block counts for at least this much, so that a walk over very many blocks ends soon."""
ZSTD_BLOCK = 128 << 10
ZSTD_RAW, ZSTD_RLE = 0, 1
LZ4_MAGIC = 0x184D2204
LZ4_SIZED, LZ4_BLOCK_SUMS, LZ4_DICTIONARY = 0x08, 0x10, 0x01
LZ4_RATIO = 255
"""Limit on the output of each byte of a block."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def decompressed_size(codec: Codec, data: Buffer, limit: int) -> int:
    """Returns about how many bytes `data` decompresses to. The walk ends once the result is above `limit`.

    Returns 0 for data in another format, which no reader can decompress.
    """
    view = memoryview(data)
    try:
        if codec is Codec.ZSTD:
            return _zstd_size(view, limit)
        if codec is Codec.LZ4:
            return _lz4_size(view, limit)
        if codec is Codec.SNAPPY:
            return _snappy_size(view, limit)
        if codec is Codec.GZIP:
            return int(_U32.unpack_from(view, len(view) - 4)[0]) if len(view) >= 18 else 0
    except (zstandard.ZstdError, cramjam.DecompressionError, struct.error):
        return 0
    return len(view)


def _zstd_size(view: memoryview, limit: int) -> int:
    declared = zstandard.frame_content_size(view)
    if declared >= 0:
        return declared
    at, found, last = zstandard.frame_header_size(view), 0, False
    block_max = min(zstandard.get_frame_parameters(view).window_size, ZSTD_BLOCK)
    while not last and found <= limit and at + 3 <= len(view):
        head = int.from_bytes(view[at : at + 3], "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        found += max(size if kind in (ZSTD_RAW, ZSTD_RLE) else block_max, BLOCK_BYTES_MIN)
        at += 3 + (1 if kind == ZSTD_RLE else size)
    return found


def _lz4_size(view: memoryview, limit: int) -> int:
    if _U32.unpack_from(view)[0] != LZ4_MAGIC:
        return 0
    flags, block_max = view[4], 1 << (8 + 2 * (view[5] >> 4 & 7))
    if flags & LZ4_SIZED:
        return int(_U64.unpack_from(view, 6)[0])
    at, found = 7 + (4 if flags & LZ4_DICTIONARY else 0), 0
    while found <= limit and at + 4 <= len(view):
        size = _U32.unpack_from(view, at)[0]
        if not size:
            break
        length = size & 0x7FFFFFFF
        found += max(min(block_max, length if size >> 31 else LZ4_RATIO * length), BLOCK_BYTES_MIN)
        at += 4 + length + (4 if flags & LZ4_BLOCK_SUMS else 0)
    return found


def _snappy_size(view: memoryview, limit: int) -> int:
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return int(cramjam.snappy.decompress_raw_len(view))
    at, found = len(XERIAL_HEADER), 0
    while found <= limit and at + 4 < len(view):
        length = int.from_bytes(view[at : at + 4], "big")
        found += max(int(cramjam.snappy.decompress_raw_len(view[at + 4 : at + 4 + min(length, 8)])), BLOCK_BYTES_MIN)
        at += 4 + length
    return found
