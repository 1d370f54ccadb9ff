"""The functions of compaction in plain Python: keys into a table, and batches without what the table supersedes.

A table has slots of 24 bytes: 16 bytes of a keyed hash of the key, and the offset plus 1; an empty slot is all zeros.
The hash is SipHash-1-3 with 128 bits, as in C: objects in the bucket have such hashes, as rows of 20 bytes. A row is a
hash, and four bytes for the offset of the key's last record, from the base offset of the object on.
"""

from __future__ import annotations

import struct
from bisect import bisect_left

from tiered.errors import Corrupt
from tiered.ports import Buffer
from tiered.records import varint
from tiered.records.model import (
    APPEND_TIME,
    CODEC_MASK,
    CONTROL,
    CRC_AT,
    CRC_FROM,
    DELETE_HORIZON,
    HEADER,
    HEADER_BYTES,
    LENGTH_FROM,
    TRANSACTIONAL,
    FilterResult,
    PutResult,
    WalkedBatch,
)
from tiered.records.pure import SectionReader, crc32c, walk, wrap
from tiered.records.pure_hash import siphash

SLOT_BYTES = 24
SPECIAL = "special"
"""The reason to stop before a batch that C does not decide: compressed, transactional or control."""
FULL = "full"
PIECE_WITH_HORIZON = 2
"""The value of `one` for a piece of a batch that gets a delete horizon, whatever the piece itself holds."""
_SPECIAL = CODEC_MASK | CONTROL | TRANSACTIONAL
_HASH = struct.Struct("=QQ")
_OFFSET = struct.Struct("=Q")
_INT64 = struct.Struct("=q")


def _find_slot(table: memoryview, digest: bytes) -> tuple[int, int]:
    """Returns (position of the slot with this hash, its offset), or (position of a free slot, -1)."""
    slots = len(table) // SLOT_BYTES
    slot = _HASH.unpack(digest)[0] % slots
    for _ in range(slots):
        at = slot * SLOT_BYTES
        stored: int = _OFFSET.unpack_from(table, at + 16)[0]
        if stored == 0 or table[at : at + 16] == digest:
            return at, stored - 1
        slot = (slot + 1) % slots
    return -1, -1


def _hash(seed: bytes, key: bytes) -> bytes:
    return siphash(seed, key, 1, 3)


def _next_batch(data: Buffer, at: int, end: int, one: bool) -> tuple[WalkedBatch | None, str]:
    found = walk(data, at, end, check_crc=not one, max_batches=1)
    if not found.batches:
        return None, found.why
    if not one and found.batches[0].attributes & _SPECIAL:
        return None, SPECIAL
    return found.batches[0], ""


def _open(data: memoryview, batch: WalkedBatch) -> SectionReader:
    return SectionReader(data[batch.position + HEADER_BYTES : batch.position + batch.size], batch.count)


def put_keys(
    table: bytearray | memoryview,
    seed: bytes,
    keys: int,
    keys_max: int,
    latest_offset: int,
    data: Buffer,
    start: int,
    end: int,
    from_offset: int,
    one: bool,
) -> PutResult:
    """Puts the offset of each key at or above `from_offset` into `table`, for the plain batches in `data[start:end]`.

    `keys` says how many the table has, and `keys_max` how many it may get. Stops with SPECIAL before a batch that is
    compressed, transactional or control. `one` is for these: exactly one batch, uncompressed, whose CRC is not checked.
    Stops with FULL before the first key without a place. All records up to `latest_offset` are in the table then.
    """
    slots, whole = memoryview(table), memoryview(data)
    at, records, keyless = start, 0, 0
    while at < end:
        batch, why = _next_batch(whole, at, end, one)
        if batch is None:
            return PutResult(at, keys, latest_offset, records, keyless, why)
        try:
            section = _open(whole, batch)
            while (parsed := section.next_record()) is not None:
                offset = batch.base_offset + parsed[1]
                if offset > batch.last_offset:
                    raise Corrupt(f"record {section.number - 1} has an offset out of range")
                if offset < from_offset:
                    continue
                key = section.bytes(parsed[2])
                records += 1
                if key is None:
                    keyless += 1
                    latest_offset = max(latest_offset, offset)
                    continue
                digest = _hash(seed, key)
                slot, stored = _find_slot(slots, digest)
                if stored < 0:
                    if slot < 0 or keys >= keys_max:
                        return PutResult(at, keys, latest_offset, records - 1, keyless, FULL)
                    keys += 1
                    slots[slot : slot + 16] = digest
                if offset > stored:
                    _OFFSET.pack_into(slots, slot + 16, offset + 1)
                latest_offset = max(latest_offset, offset)
        except Corrupt as error:
            return PutResult(at, keys, latest_offset, records, keyless, error.why)
        if batch.last_offset >= from_offset:
            latest_offset = max(latest_offset, batch.last_offset)
        at += batch.size
        if one:
            break
    return PutResult(at, keys, latest_offset, records, keyless, "")


def filter_batches(
    table: Buffer,
    seed: bytes,
    latest_offset: int,
    data: Buffer,
    start: int,
    end: int,
    kept_offsets: bytes,
    last_next_offset: int,
    now_ms: int,
    horizon_ms: int,
    one: int,
) -> FilterResult:
    """Returns the plain batches of `data[start:end]` without the records that `table` supersedes.

    A record above `latest_offset` stays. One at or below it stays if it is the last of its key, and is no tombstone
    whose delete horizon has passed at `now_ms`. `horizon_ms` is the horizon of tombstones that have none yet. They get
    none with a negative `now_ms`, or if their batch has one above `latest_offset`: older records of its key stay. A
    batch without a record left stays as a header, if it ends at `last_next_offset` or at one of `kept_offsets`: sorted
    native int64. Stops as `put_keys` does, without FULL. `one` may be PIECE_WITH_HORIZON, too.
    """
    whole, slots = memoryview(data), memoryview(table)
    out = bytearray()
    at, batches, read, kept = start, 0, 0, 0
    while at < end:
        batch, why = _next_batch(whole, at, end, bool(one))
        if batch is None:
            return FilterResult(bytes(out), at, batches, read, kept, why)
        try:
            cleaned, stayed = _filter_batch(whole, batch, slots, seed, latest_offset, now_ms, horizon_ms, one)
        except Corrupt as error:
            return FilterResult(bytes(out), at, batches, read, kept, error.why)
        if not stayed and (batch.last_offset + 1 == last_next_offset or has_offset(kept_offsets, batch.last_offset)):
            cleaned = empty_batch(whole, batch.position)
        read += batch.count
        kept += stayed
        batches += bool(cleaned)
        out += cleaned
        at += batch.size
        if one:
            break
    return FilterResult(bytes(out), at, batches, read, kept, "")


def find_keyless(payload: Buffer, count: int, most: int) -> list[int]:
    """Returns the numbers of the first `most` records of an uncompressed section that have no key. Reads no further
    than the last of them."""
    section = SectionReader(payload, count)
    found: list[int] = []
    while len(found) < most and (parsed := section.next_record()) is not None:
        if parsed[2][0] < 0:
            found.append(section.number - 1)
    return found


def has_offset(offsets: bytes, offset: int) -> bool:
    """True if `offset` is among `offsets`: sorted native int64."""
    found = bisect_left(range(len(offsets) // 8), offset, key=lambda i: int(_INT64.unpack_from(offsets, i * 8)[0]))
    return found < len(offsets) // 8 and _INT64.unpack_from(offsets, found * 8)[0] == offset


def _filter_batch(
    whole: memoryview,
    batch: WalkedBatch,
    table: memoryview,
    seed: bytes,
    latest_offset: int,
    now_ms: int,
    horizon_ms: int,
    one: int,
) -> tuple[Buffer, int]:
    """Returns (the batch with the records that stay, their number)."""
    has_horizon = bool(batch.attributes & DELETE_HORIZON)
    keeps_tombstones = not has_horizon or now_ms < batch.base_timestamp
    section = _open(whole, batch)
    stay: list[tuple[int, int, int]] = []  # start, end, timestamp
    position, last_tombstone = 0, -1
    while (parsed := section.next_record()) is not None:
        start, position = position, section.position
        offset = batch.base_offset + parsed[1]
        if offset > batch.last_offset:
            raise Corrupt(f"record {section.number - 1} has an offset out of range")
        key, is_tombstone = section.bytes(parsed[2]), parsed[3][0] < 0
        if offset <= latest_offset and (
            key is None or offset < _find_slot(table, _hash(seed, key))[1] or (is_tombstone and not keeps_tombstones)
        ):
            continue
        if is_tombstone:
            last_tombstone = max(last_tombstone, offset)
        _, timestamp = section.offset_and_timestamp(parsed, batch.base_offset, batch.base_timestamp, -1)
        stay.append((start, position, timestamp))
    if not stay:
        return b"", 0
    needs_horizon = one == PIECE_WITH_HORIZON or (
        0 <= last_tombstone <= latest_offset and not has_horizon and now_ms >= 0
    )
    if len(stay) == batch.count and not needs_horizon:
        return whole[batch.position : batch.position + batch.size], len(stay)
    base_timestamp = horizon_ms if needs_horizon else batch.base_timestamp
    body = bytearray()
    for start, end, timestamp in stay:
        if needs_horizon:
            _append_moved(body, section.data, start, end, wrap(timestamp - horizon_ms))
        else:
            body += section.data[start:end]
    newest = max(timestamp for *_, timestamp in stay)
    return rebuild_batch(
        whole,
        batch.position,
        body,
        count=len(stay),
        attributes=batch.attributes | (DELETE_HORIZON if needs_horizon else 0),
        base_timestamp=base_timestamp,
        max_timestamp=batch.max_timestamp if batch.attributes & APPEND_TIME else newest,
    ), len(stay)


def _append_moved(out: bytearray, data: bytes, start: int, end: int, delta: int) -> None:
    """Appends the record at `data[start:end]` with another timestamp delta."""
    _, at = varint.read(data, start, end)
    body = bytearray(data[at : at + 1])
    _, rest = varint.read(data, at + 1, end, varint.INT64_BYTES)
    varint.append(body, delta)
    varint.append(out, len(body) + end - rest)
    out += body
    out += data[rest:end]


def rebuild_batch(
    data: Buffer,
    at: int,
    body: Buffer,
    *,
    count: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    last_offset_delta: int | None = None,
) -> bytearray:
    """Returns the batch at `at` with another body and the fields that follow from it. Offsets and sequences stay, but
    for another `last_offset_delta`."""
    (base_offset, _, epoch, magic, _, _, last_delta, _, _, producer_id, producer_epoch, sequence, _) = (
        HEADER.unpack_from(data, at)
    )
    out = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        out, 0, base_offset, HEADER_BYTES - LENGTH_FROM + len(body), epoch, magic, 0, attributes,
        last_delta if last_offset_delta is None else last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, sequence, count,
    )  # fmt: skip
    out += body
    struct.pack_into(">I", out, CRC_AT, crc32c(memoryview(out)[CRC_FROM:]))
    return out


def empty_batch(data: Buffer, at: int) -> bytearray:
    """Returns the batch at `at` without records: its offsets, producer and greatest timestamp stay."""
    attributes, max_timestamp = HEADER.unpack_from(data, at)[5], HEADER.unpack_from(data, at)[8]
    return rebuild_batch(
        data, at, b"", count=0, attributes=attributes & (APPEND_TIME | TRANSACTIONAL | CONTROL), base_timestamp=-1,
        max_timestamp=max_timestamp,
    )  # fmt: skip
