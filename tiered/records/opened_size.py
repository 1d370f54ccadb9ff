"""The decompressed size of records according to the headers of their codec, read without decompression.

Headers may state too little, so readers have their own limit.
"""

from __future__ import annotations

import struct

import cramjam
import zstandard

from tiered.ports import Buffer
from tiered.records.compression import XERIAL_MAGIC
from tiered.records.model import Codec

BLOCK_BYTES_MIN = 4096
"""Each block counts for at least this much, so that a walk over very many blocks ends soon."""
ZSTD_BLOCK = 128 << 10
ZSTD_RAW, ZSTD_RLE = 0, 1
LZ4_MAGIC = 0x184D2204
LZ4_SIZED = 0x08

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def stated_size(codec: Codec, data: Buffer) -> int:
    """Returns the decompressed size that the headers of the codec state: zstd's and lz4's content size, gzip's trailer,
    the length of raw snappy.

    Returns 0 if they state none, and for data in another format, which no reader can decompress.
    """
    view = memoryview(data)
    try:
        if codec is Codec.ZSTD:
            return max(zstandard.frame_content_size(view), 0)
        if codec is Codec.LZ4:
            is_sized = _U32.unpack_from(view)[0] == LZ4_MAGIC and view[4] & LZ4_SIZED
            return int(_U64.unpack_from(view, 6)[0]) if is_sized else 0
        if codec is Codec.SNAPPY:
            is_raw = bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC
            return int(cramjam.snappy.decompress_raw_len(view)) if is_raw else 0
        if codec is Codec.GZIP:
            return int(_U32.unpack_from(view, len(view) - 4)[0]) if len(view) >= 18 else 0
    except (zstandard.ZstdError, cramjam.DecompressionError, struct.error, IndexError):
        return 0
    return len(view)


def zstd_size_max(data: Buffer, limit: int) -> int:
    """Returns the most bytes that zstd `data` decompresses to: the stated size, or what its blocks may hold.

    The walk ends once the result is above `limit`. Returns 0 for data in another format.
    """
    view = memoryview(data)
    try:
        declared = zstandard.frame_content_size(view)
        if declared >= 0:
            return declared
        at, found, last = zstandard.frame_header_size(view), 0, False
        block_max = min(zstandard.get_frame_parameters(view).window_size, ZSTD_BLOCK)
    except zstandard.ZstdError:
        return 0
    while not last and found <= limit and at + 3 <= len(view):
        head = int.from_bytes(view[at : at + 3], "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        found += max(size if kind in (ZSTD_RAW, ZSTD_RLE) else block_max, BLOCK_BYTES_MIN)
        at += 3 + (1 if kind == ZSTD_RLE else size)
    return found
