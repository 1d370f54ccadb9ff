"""The five codecs of record batches: whole, or in pieces. Decompression is bounded before memory is allocated.

Contexts are expensive to create, and threads must not share them (zstandard then reports corrupt data). Therefore each
thread has its own.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator

import cramjam
import lz4.frame
import zstandard

from tiered.errors import Corrupt, TooLarge
from tiered.ports import Buffer
from tiered.records.model import Codec

GZIP_WINDOW = 31
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
"""Frame of Java's SnappyOutputStream: this header, then blocks of raw snappy, each after its int32 length."""
XERIAL_BLOCK = 32 << 10
SNAPPY_RATIO = 64
"""Raw snappy cannot grow by more: its widest copy gives 64 bytes for 3 or less."""
PIECE_BYTES = 1 << 20
INPUT_SLICE = 1 << 16
"""Compressed bytes that a decompressor gets at a time: it copies those that it does not use yet, and those behind a
gzip member."""
GZIP_PIECE_BYTES = 32 << 10
"""Bytes that gzip compresses at once: hostile data takes some 60 ms at the highest level."""
GZIP_MEMBERS_MAX = 1_000
"""Limit on gzip members. Clients write one. An empty member takes 20 bytes and a pass of its own."""
ZSTD_GUESS = 16
"""Kafka's clients do not write the content size: the first try allows zstd this many times the compressed size."""


ZSTD_WINDOW_MAX = 1 << 27
"""Largest window of zstd, which a batch that is opened in pieces takes as memory. Java's producers have it at level
22."""
ZSTD_WINDOW_KEPT = 8 << 20
"""Windows up to this size stay in the context of a thread: those of levels up to 19. A larger one is freed."""

LEVEL_COSTS: dict[Codec, tuple[tuple[int, int], ...]] = {
    Codec.NONE: (),
    Codec.GZIP: ((6, 1), (7, 2), (8, 8), (9, 24)),
    Codec.SNAPPY: (),
    Codec.LZ4: ((3, 1), (8, 2), (10, 4), (11, 8), (17, 32)),
    Codec.ZSTD: ((9, 1), (12, 2), (15, 4), (22, 8)),
}
"""CPU time of levels: (highest level, cost). Cost 1 takes at most 5 ms for 64 KiB of any data (measured, one core of
2026). Random letters of two kinds take longest."""
COSTLY_BYTES_MAX = 1 << 20
"""Above this size a batch is compressed at a level of cost `CHEAP`: one job takes seconds of CPU, not minutes."""
CHEAP = 2
CONTEXTS_MAX = 4
"""zstd compressors of one thread. Each takes up to 60 MB, and levels are what owners of topics choose."""


def level_cost(codec: Codec, level: int | None) -> int:
    """Returns the cost of a level as in `LEVEL_COSTS`; None is the default level of the codec. 0 without
    compression."""
    if level is not None:
        for highest, cost in LEVEL_COSTS[codec]:
            if level <= highest:
                return cost
    return 1 if codec else 0


def affordable_level(codec: Codec, level: int | None, size: int) -> int | None:
    """Returns the level at which `size` bytes are compressed: the default of the codec if the given one takes too long
    for so many."""
    return level if size <= COSTLY_BYTES_MAX or level_cost(codec, level) <= CHEAP else None


class _Contexts(threading.local):
    """zstd contexts of one thread."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX)
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        found = self.compressors.get(level)
        if found is None:
            if len(self.compressors) >= CONTEXTS_MAX:
                del self.compressors[next(iter(self.compressors))]
            found = self.compressors[level] = zstandard.ZstdCompressor(level=level)
        return found


_contexts = _Contexts()


def compress(
    codec: Codec, data: Buffer, level: int | None = None, between: Callable[[], object] | None = None
) -> bytes:
    """Compresses `data` in the form that Kafka's clients read. `level` is the codec's own; None means its default. gzip
    calls `between` after each piece: the function may raise an error, which ends the work."""
    if codec is Codec.ZSTD:
        return _contexts.compressor(3 if level is None else level).compress(data)
    if codec is Codec.LZ4:
        # Java's reader refuses blocks that depend on each other.
        return bytes(lz4.frame.compress(data, compression_level=level or 0, block_linked=False, store_size=False))
    if codec is Codec.SNAPPY:
        return _compress_snappy(memoryview(data))
    if codec is Codec.GZIP:
        return _compress_gzip(memoryview(data), -1 if level is None else level, between)
    return bytes(data)


def _compress_gzip(data: memoryview, level: int, between: Callable[[], object] | None) -> bytes:
    if between is None or data.nbytes <= GZIP_PIECE_BYTES:
        return zlib.compress(data, level, GZIP_WINDOW)
    gzip, out = zlib.compressobj(level, wbits=GZIP_WINDOW), []
    for at in range(0, data.nbytes, GZIP_PIECE_BYTES):
        out.append(gzip.compress(data[at : at + GZIP_PIECE_BYTES]))
        between()
    out.append(gzip.flush())
    return b"".join(out)


def decompress(codec: Codec, data: Buffer, max_bytes: int) -> bytes:
    """Decompresses `data`. Raises `Corrupt` if it is incomplete or has bytes left over, and `TooLarge` if it would
    exceed `max_bytes`."""
    try:
        if codec is Codec.ZSTD:
            return _decompress_zstd(data, max_bytes)
        if codec is Codec.LZ4:
            return _decompress_lz4(data, max_bytes)
        if codec is Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), max_bytes)
        if codec is Codec.GZIP:
            return _decompress_gzip(data, max_bytes)
    except _ERRORS as error:
        raise Corrupt(f"{codec.name.lower()}: {error}") from None
    if len(data) > max_bytes:
        raise _too_large(codec, max_bytes)
    return bytes(data)


def decompress_pieces(codec: Codec, data: Buffer, block_max: int) -> Iterator[Buffer]:
    """Decompresses `data` in pieces of at most `PIECE_BYTES`; those of snappy are its blocks, of up to `block_max`.

    The pieces have no end of their own: the caller counts them. Raises `Corrupt` as `decompress` does. zstd that is
    incomplete only ends early.
    """
    view = memoryview(data)
    try:
        if codec is Codec.ZSTD:
            yield from _zstd_pieces(view)
        elif codec is Codec.LZ4:
            yield from _lz4_pieces(view)
        elif codec is Codec.SNAPPY:
            yield from (_decompress_snappy_block(block, block_max, block_max) for block in _snappy_blocks(view))
        elif codec is Codec.GZIP:
            yield from _gzip_pieces(view)
        else:
            yield view
    except _ERRORS as error:
        raise Corrupt(f"{codec.name.lower()}: {error}") from None


def compress_pieces(codec: Codec, pieces: Iterable[Buffer]) -> bytes:
    """Compresses the pieces one after the other, in the form of `compress`."""
    out: list[bytes] = []
    if codec is Codec.ZSTD:
        zstd = zstandard.ZstdCompressor().compressobj()
        out += [zstd.compress(piece) for piece in pieces]
        out.append(zstd.flush())
    elif codec is Codec.LZ4:
        with lz4.frame.LZ4FrameCompressor(block_linked=False) as frame:
            out.append(frame.begin())
            out += [frame.compress(piece) for piece in pieces]
            out.append(frame.flush())
    elif codec is Codec.SNAPPY:
        out.append(XERIAL_HEADER)
        out += [_compress_snappy(memoryview(piece))[len(XERIAL_HEADER) :] for piece in pieces]
    elif codec is Codec.GZIP:
        gzip = zlib.compressobj(wbits=GZIP_WINDOW)
        out += [gzip.compress(piece) for piece in pieces]
        out.append(gzip.flush())
    else:
        out += [bytes(piece) for piece in pieces]
    return b"".join(out)


_ERRORS = (zstandard.ZstdError, zlib.error, RuntimeError, cramjam.DecompressionError, EOFError)


def _too_large(codec: Codec, max_bytes: int) -> TooLarge:
    return TooLarge(f"{codec.name.lower()}: decompresses to more than {max_bytes} bytes")


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    declared = zstandard.frame_content_size(data)
    if declared > max_bytes:
        raise _too_large(Codec.ZSTD, max_bytes)
    if declared >= 0:
        return _contexts.decompressor.decompress(data, allow_extra_data=False)
    # One pass into one buffer is fast, and zstandard releases the memory that it did not fill. A buffer that is too
    # small and a frame that is cut short give the same error, so both are tried again up to the limit.
    output_max = min(max_bytes, max(ZSTD_GUESS * len(data), 1 << 16))
    while True:
        try:
            return _decompressor(data).decompress(data, max_output_size=output_max, allow_extra_data=False)
        except zstandard.ZstdError:
            if output_max >= max_bytes:
                raise
            output_max = min(max_bytes, output_max * 8)


def _decompressor(frame: Buffer) -> zstandard.ZstdDecompressor:
    """Returns the one that the thread keeps; another for a wide window, since a decompressor keeps its window."""
    if zstandard.get_frame_parameters(frame).window_size > ZSTD_WINDOW_KEPT:
        return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX)
    return _contexts.decompressor


def _zstd_pieces(view: memoryview) -> Iterator[bytes]:
    with _decompressor(view).stream_reader(view) as reader:
        while piece := reader.read(PIECE_BYTES):
            yield piece


def _lz4_pieces(view: memoryview) -> Iterator[bytes]:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    at = 0
    while not decompressor.eof:
        part: Buffer = b""
        if decompressor.needs_input:
            part = view[at : at + INPUT_SLICE]
            if not part:
                raise Corrupt("lz4: frame is cut short")
            at += len(part)
        if piece := decompressor.decompress(part, max_length=PIECE_BYTES):
            yield piece
    if at < len(view) or decompressor.unused_data:
        raise Corrupt("lz4: bytes after the frame")


def _gzip_pieces(view: memoryview) -> Iterator[bytes]:
    at = 0
    for _ in range(GZIP_MEMBERS_MAX):
        member = zlib.decompressobj(GZIP_WINDOW)
        while not member.eof:
            part: Buffer = member.unconsumed_tail
            if not part:
                part = view[at : at + INPUT_SLICE]
                at += len(part)
            piece = member.decompress(part, PIECE_BYTES)
            if piece:
                yield piece
            elif not part and not member.eof:
                raise Corrupt("gzip: stream is cut short")
        at -= len(member.unused_data)
        if at == len(view):
            return
    raise TooLarge(f"gzip: more than {GZIP_MEMBERS_MAX} members")


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    decompressor = lz4.frame.LZ4FrameDecompressor()
    out: list[bytes] = []
    left = max_bytes
    piece = decompressor.decompress(data, max_length=min(PIECE_BYTES, left + 1))
    while True:
        out.append(piece)
        left -= len(piece)
        if left < 0:
            raise _too_large(Codec.LZ4, max_bytes)
        if decompressor.eof:
            break
        if decompressor.needs_input:
            raise Corrupt("lz4: frame is cut short")
        piece = decompressor.decompress(b"", max_length=min(PIECE_BYTES, left + 1))
    if decompressor.unused_data:
        raise Corrupt("lz4: bytes after the frame")
    return out[0] if len(out) == 1 else b"".join(out)


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    """Decompresses to a joined copy of pieces: zlib's one-call form takes twice `max_bytes` before it gives up."""
    out: list[bytes] = []
    left = max_bytes
    for piece in _gzip_pieces(memoryview(data)):
        left -= len(piece)
        if left < 0:
            raise _too_large(Codec.GZIP, max_bytes)
        out.append(piece)
    return out[0] if len(out) == 1 else b"".join(out)


def _compress_snappy(view: memoryview) -> bytes:
    out = [XERIAL_HEADER]
    for at in range(0, len(view), XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + XERIAL_BLOCK]))
        out += (len(block).to_bytes(4, "big"), block)
    return b"".join(out)


def _decompress_snappy(view: memoryview, max_bytes: int) -> bytes:
    out: list[bytes] = []
    left = max_bytes
    for block in _snappy_blocks(view):
        out.append(_decompress_snappy_block(block, left, max_bytes))
        left -= len(out[-1])
    return out[0] if len(out) == 1 else b"".join(out)


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    """Yields the blocks of raw snappy."""
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield view
        return
    at = len(XERIAL_HEADER)
    if len(view) < at:
        raise Corrupt("snappy: header is cut short")
    while at < len(view):
        start = at + 4
        at = start + int.from_bytes(view[at:start], "big")
        if at > len(view):
            raise Corrupt("snappy: block is cut short")
        yield view[start:at]


def _decompress_snappy_block(view: memoryview, left: int, max_bytes: int) -> bytes:
    """Decompresses raw snappy. Its declared length, and not the library, decides how much memory is allocated."""
    if not len(view):
        raise Corrupt("snappy: nothing there")
    declared = cramjam.snappy.decompress_raw_len(view)
    if declared > left:
        raise _too_large(Codec.SNAPPY, max_bytes)
    if declared > SNAPPY_RATIO * len(view):
        raise Corrupt("snappy: declared length is impossible")
    return bytes(cramjam.snappy.decompress_raw(view))
