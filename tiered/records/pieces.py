"""The records of one batch in pieces, so that a batch that compresses well takes little memory.

A batch that stays within its usual bound is opened whole, in one piece. Any other is decompressed bit by bit, up to
`BATCH_BYTES_MAX`. A piece has whole records. One record takes up to `RECORD_BYTES_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tiered.errors import Corrupt, TooLarge
from tiered.ports import Buffer
from tiered.records import native
from tiered.records.compression import PIECE_BYTES, decompress, decompress_pieces
from tiered.records.model import HEADER_BYTES, OBJECTS_MAX, BatchHeader, Codec, Record, RecordSection
from tiered.records.opened_size import stated_size, zstd_size_max

WHOLE_BYTES_MAX = 64 << 20
"""Most decompressed bytes of a batch that is opened whole."""
RATIO_MAX, RATIO_FROM = 100, 1 << 20
"""Above `RATIO_FROM` bytes a batch is opened whole if it becomes at most `RATIO_MAX` times its compressed size.

A client that makes the broker take memory must send at least a hundredth of those bytes.
"""
BATCH_BYTES_MAX = (1 << 31) - 1
"""Limit on the decompressed bytes of a batch. Kafka's clients can build no larger one: they count in 32 bits."""
RECORD_BYTES_MAX = 16 << 20
"""Limit on a record of a batch that is opened in pieces, and on a block of snappy there."""
ITERATED_BYTES = 4 << 20
"""Decompressed bytes whose records are objects at a time."""
ITERATIONS = 16
"""Most reads of a large batch without compression, each of which begins at its start, in steps by bytes."""
INT64_MIN = -(1 << 63)
NO_VIEWS = (1 << 31) - 1
"""All keys and values are copied: none is so long."""
RECORD_BYTES = 32
"""Bytes of a record beside its key and value, as `read_records` counts them."""


class Piece(NamedTuple):
    """Consecutive records of a batch, as `native.rows` and `native.arrow` take them."""

    section: RecordSection
    first: int
    """Records of the batch before these."""
    last_offset: int
    """Offset of the last of these records. The batch's last one in the last piece, whose records may be gone."""
    is_last: bool


def whole_max(size: int, max_bytes: int = WHOLE_BYTES_MAX) -> int:
    """Returns the most decompressed bytes of a batch of `size` compressed bytes that is opened whole."""
    return min(max_bytes, max(RATIO_FROM, RATIO_MAX * size))


def open_pieces(
    buf: Buffer, at: int, head: BatchHeader, *, max_bytes: int = BATCH_BYTES_MAX, max_whole: int = WHOLE_BYTES_MAX
) -> Iterator[Piece]:
    """Yields the records of the batch at `at` with header `head`, in order: the whole batch if it becomes no more than
    `max_whole` bytes.

    Raises `Corrupt` if it cannot be opened, and `TooLarge` if it would become more than `max_bytes`, or has a larger
    record than `RECORD_BYTES_MAX`. The pieces before that are good.
    """
    raw: Buffer = memoryview(buf)[at + HEADER_BYTES : at + head.size]
    if len(raw) != head.size - HEADER_BYTES:
        raise Corrupt("batch is short", position=at)
    append_time = head.max_timestamp if head.is_log_append_time else -1
    payload = _open_whole(raw, head.codec, min(max_bytes, whole_max(len(raw), max_whole)))
    if payload is not None:
        yield Piece(
            (payload, head.base_offset, head.base_timestamp, append_time, head.count), 0, head.last_offset, True
        )
        return
    parts = decompress_pieces(head.codec, raw, RECORD_BYTES_MAX)
    waiting: list[Buffer] = []
    size = opened = done = 0
    last_delta, threshold = -1, PIECE_BYTES
    while done < head.count:
        part = next(parts, None)
        if part is not None:
            waiting.append(part)
            size, opened = size + len(part), opened + len(part)
            if opened > max_bytes:
                raise TooLarge(f"{head.codec.name.lower()}: decompresses to more than {max_bytes} bytes", position=at)
            if size < threshold:
                continue
        data = memoryview(b"".join(waiting))
        count, end, last_delta, wanted = native.split_records(data, head.count, done, last_delta)
        is_last = done + count == head.count
        if is_last and end < size:
            raise Corrupt("bytes after the last record", position=at)
        if count:
            section = data[:end], head.base_offset, head.base_timestamp, append_time, count
            last_offset = head.last_offset if is_last else head.base_offset + last_delta
            yield Piece(section, done, last_offset, is_last)
        if wanted > RECORD_BYTES_MAX:
            why = f"record {done + count} takes {wanted} bytes, and no more than {RECORD_BYTES_MAX} are opened at once"
            raise TooLarge(why, position=at)
        if part is None and not is_last:
            raise Corrupt(f"record {done + count} ends early", position=at)
        done += count
        waiting, size, threshold = [data[end:]], size - end, max(wanted, PIECE_BYTES)
    if next(parts, None):
        raise Corrupt("bytes after the last record", position=at)


def read_records(
    buf: Buffer, at: int, head: BatchHeader, start: int, size: int, objects: int, copied: int = NO_VIEWS
) -> tuple[list[Record], bool]:
    """Returns (records, True if these are all) of the batch at `at` from offset `start` on, as `native.some_rows`.
    A key or value of more than `copied` bytes is a view, so that a large record is in memory once.

    Records before one that cannot be opened are returned first. Raises `Corrupt` if that is the first one, and
    `TooLarge` with its offset if a bound is the reason.
    """
    if not head.codec:
        append_time = head.max_timestamp if head.is_log_append_time else -1
        body = memoryview(buf)[at + HEADER_BYTES : at + head.size]
        section = body, head.base_offset, head.base_timestamp, append_time, head.count
        return _some_rows(section, start, size, objects, copied)
    out: list[Record] = []
    following = max(start, head.base_offset)
    try:
        for piece in open_pieces(buf, at, head):
            following = max(start, piece.last_offset + 1)
            if piece.last_offset < start:
                continue
            found, is_whole = _some_rows(piece.section, start, size, objects, copied)
            out += found
            size -= sum(len(each.key or b"") + len(each.value or b"") + RECORD_BYTES for each in found)
            objects -= sum(1 + len(each.headers) for each in found)
            if not is_whole or (not piece.is_last and (size <= 0 or objects <= 0)):
                return out, False
    except Corrupt as error:
        if out:
            return out, False
        if isinstance(error, TooLarge):
            raise _with_offsets(error, at, head, following) from None
        raise
    return out, True


def iterate_records(buf: Buffer, at: int, head: BatchHeader, start: int = 0) -> Iterator[Record]:
    """Yields the records of the batch at `at` from offset `start` on, with few of them in memory.

    Raises `Corrupt` as `read_records` does, with `OBJECTS_MAX` as the bound.
    """
    start = max(start, head.base_offset)
    try:
        for piece in open_pieces(buf, at, head, max_whole=ITERATED_BYTES):
            is_whole = piece.last_offset < start
            size = max(ITERATED_BYTES, len(piece.section[0]) // ITERATIONS)
            while not is_whole:
                found, is_whole = _some_rows(piece.section, start, size, OBJECTS_MAX)
                yield from found
                start = found[-1].offset + 1 if found else start
            start = max(start, piece.last_offset + 1)
    except TooLarge as error:
        raise _with_offsets(error, at, head, start) from None


def _with_offsets(error: TooLarge, at: int, head: BatchHeader, offset: int) -> TooLarge:
    """Returns the error with the offset of the first record that was not read. If that cannot be opened, no record of
    the batch behind it can be opened either."""
    if error.offset >= 0:
        return error
    return TooLarge(error.why, position=at, offset=offset, next_offset=head.next_offset)


def _some_rows(
    section: RecordSection, start: int, size: int, objects: int, copied: int = NO_VIEWS
) -> tuple[list[Record], bool]:
    """Returns what `native.some_rows` does. Its `TooLarge` has the offset of the record."""
    try:
        return native.some_rows(*section, start, size, objects, copied)
    except TooLarge as error:
        body, base_offset, base_timestamp, _, count = section
        place = native.first_at_or_after(body, base_offset, base_timestamp, INT64_MIN, count, start)
        assert place is not None
        raise TooLarge(error.why, offset=place[0], next_offset=place[0] + 1) from None


def open_whole(buf: Buffer, at: int, head: BatchHeader, max_bytes: int) -> Buffer | None:
    """Returns the uncompressed records of the batch at `at`, or None if they take more than `max_bytes`, or are opened
    in pieces only. Raises `Corrupt` if they cannot be opened."""
    raw: Buffer = memoryview(buf)[at + HEADER_BYTES : at + head.size]
    return _open_whole(raw, head.codec, whole_max(len(raw), max_bytes))


def _open_whole(raw: Buffer, codec: Codec, max_bytes: int) -> Buffer | None:
    """Returns the uncompressed records, or None if they take more than `max_bytes` bytes."""
    if not codec:
        return raw
    if stated_size(codec, raw) > max_bytes:
        return None
    try:
        return decompress(codec, raw, max_bytes)
    except TooLarge:
        return None
    except Corrupt:  # zstd without a stated size gives one error for both
        if codec is Codec.ZSTD and zstd_size_max(raw, max_bytes) > max_bytes:
            return None
        raise
