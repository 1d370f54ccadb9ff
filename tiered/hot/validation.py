"""Validates produced batches, and stamps them with offsets and leader epoch. The first fault raises `Refused`.

Pure. Keeps I3 and I13. The rules for sequences and transactions are in tiered.producers. Works on the caller's buffer
in place, and allocates nothing by a length that it read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, NoReturn

from tiered.compaction.cleanable_range import COMPACT
from tiered.config.kafka_aliases import HOUR_MS
from tiered.config.settings import LONG_MAX, TopicConfig
from tiered.errors import Code, Corrupt, Refused
from tiered.ports import Buffer
from tiered.records.batch import (
    check_batch,
    decode_header,
    read_times,
    set_append_time,
    set_max_timestamp,
    stamp,
    times_of,
)
from tiered.records.model import (
    APPEND_TIME,
    BAD_RECORDS,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    Codec,
    WalkedBatch,
    codec_of,
)
from tiered.records.native import find_keyless, fit, time_range, walk
from tiered.records.opened_size import stated_size
from tiered.records.pieces import BATCH_BYTES_MAX, Piece, open_pieces, open_whole

_FORBIDDEN = APPEND_TIME | CONTROL | DELETE_HORIZON
NO_KEY = "has no key, which a compacted topic needs"
OPENED_BYTES_MAX = 4 << 20
"""Most decompressed bytes of a batch that the event loop opens, in some milliseconds."""


class RecordsUnopened(Refused):
    """The records of a batch have to be read, and are not opened within a turn of the event loop."""


RecordFaults = Sequence[tuple[int, str]]
"""Faulty records of a batch: the number of each, and what is wrong with it."""


class RecordsRefused(Refused):
    """Records of a batch are refused one by one, and so is the batch."""

    def __init__(self, faults: RecordFaults) -> None:
        number, why = faults[0]
        super().__init__(Code.INVALID_RECORD, f"record {number} {why}")
        self.faults = faults


class OpenedBatch(NamedTuple):
    """Facts of the records of a batch: their timestamps as `read_times` gives them, and the number of the first record
    without a key, or -1. `why` is not empty if they cannot be opened. `faults` are the records that the schema registry
    does not permit."""

    times: tuple[int, int, int] | None
    keyless: int = -1
    why: str = ""
    faults: RecordFaults = ()


class TimestampBounds(NamedTuple):
    """The timestamps that the records of a batch may have: from `low` to `high`.

    `is_narrow`: the topic sets a bound below Kafka's default. Then each compressed batch is opened to keep it.
    """

    low: int
    high: int
    is_narrow: bool


class LogAppendInfo(NamedTuple):
    """Offsets of the records of an accepted request. `append_time_ms` is -1 if the producer's timestamps count."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    is_duplicate: bool


def validate_batches(
    data: bytearray | memoryview,
    next_offset: int,
    leader_epoch: int,
    config: TopicConfig,
    now_ms: int,
    check_each_record: bool,
    from_coordinator: bool = False,
    opened: Sequence[OpenedBatch] = (),
) -> Sequence[WalkedBatch]:
    """Returns the batches of `data`, stamped in place with offsets from `next_offset` on and with `leader_epoch`.

    A coordinator of this broker may write markers, and batches of a producer without sequences.

    The first batch is stamped before it is walked, because its CRC does not cover the stamp. Therefore the usual
    request of one batch is walked once and has its offsets then. `check_each_record` also decodes every record, within
    a bound. Raises `RecordsUnopened` if `open_batches` has to open the batches first, whose result is `opened` then.
    """
    if len(data) < HEADER_BYTES:
        raise Refused(Code.CORRUPT_MESSAGE, f"{len(data)} bytes are too few for a record batch")
    if (
        not check_each_record
        and (single := _validate_single(data, next_offset, leader_epoch, config, now_ms)) is not None
    ):
        return (single,)
    stamp(data, 0, next_offset, leader_epoch)
    walked = walk(data, records=True)
    if walked.why:
        raise _walk_error(data, walked.end, walked.why)
    batches = walked.batches
    is_compacted, is_create_time = COMPACT in config.cleanup_policy, config.message_timestamp_type == "CreateTime"
    bounds, is_changed, newest = timestamp_bounds(config, now_ms), False, list[int]()
    for number, batch in enumerate(batches):
        if (
            batch.attributes & _FORBIDDEN
            or batch.count != batch.last_offset - batch.base_offset + 1
            or batch.size > config.max_message_bytes
            or batch.producer_id >= 0
            or batch.attributes & (CODEC_MASK | TRANSACTIONAL)
        ):
            _check_shape(batch, config, from_coordinator)
        if batch.attributes & CODEC_MASK:
            _check_stated_size(data, batch)
        times = _check_all_records(data, batch) if check_each_record else None
        if is_compacted or (is_create_time and times is None and _needs_times(batch, bounds)):
            found = opened[number] if opened else _open_batch(data, batch, with_keys=is_compacted)
            if found.why and (is_compacted or _is_header_false(batch)):
                _refuse(Code.INVALID_RECORD, batch, found.why)
            if found.keyless >= 0 and is_compacted:
                _refuse(Code.INVALID_RECORD, batch, f"record {found.keyless} {NO_KEY}")
            times = found.times  # without them, the header counts
        if is_create_time:
            newest.append(_check_times(batch, times, bounds, config, now_ms))
    for number, batch in enumerate(batches):  # only now: a caller may come again with what a thread has opened
        if not is_create_time:
            set_append_time(data, batch.position, now_ms)
            is_changed = True
        elif newest[number] != batch.max_timestamp:
            set_max_timestamp(data, batch.position, newest[number])
            is_changed = True
    return batches if len(batches) == 1 and not is_changed else assign_offsets(data, next_offset, leader_epoch)


def timestamp_bounds(config: TopicConfig, now_ms: int) -> TimestampBounds:
    """Returns the timestamps that a topic takes at `now_ms`."""
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    return TimestampBounds(now_ms - before, min(now_ms + after, LONG_MAX), before < LONG_MAX or after < HOUR_MS)


def assign_offsets(data: bytearray | memoryview, next_offset: int, leader_epoch: int) -> Sequence[WalkedBatch]:
    """Stamps batches that were validated before, one after the other from `next_offset` on."""
    batch_offset = next_offset
    for batch in walk(data, check_crc=False).batches:
        stamp(data, batch.position, batch_offset, leader_epoch)
        batch_offset += batch.last_offset - batch.base_offset + 1
    return walk(data, check_crc=False).batches


def walk_follower_batches(
    data: bytearray | memoryview | bytes, next_offset: int, may_have_gaps: bool
) -> tuple[Sequence[WalkedBatch], bool]:
    """Returns batches that have their offsets and epochs already, and True if offsets before any of them are missing.

    Raises `Refused` with CORRUPT_MESSAGE if the batches are invalid or do not begin at `next_offset`. With
    `may_have_gaps` they may begin later: the leader's cleaner has removed the offsets before.
    """
    walked, has_gaps = walk(data), False
    if walked.why or not walked.batches:
        raise Refused(Code.CORRUPT_MESSAGE, f"batch at byte {walked.end}: {walked.why or 'none'}")
    for batch in walked.batches:
        if batch.base_offset != next_offset:
            if batch.base_offset < next_offset or not may_have_gaps:
                why = f"batch at offset {batch.base_offset} does not follow {next_offset - 1}"
                raise Refused(Code.CORRUPT_MESSAGE, why)
            has_gaps = True
        next_offset = batch.last_offset + 1
    return walked.batches, has_gaps


def _validate_single(
    data: bytearray | memoryview, next_offset: int, leader_epoch: int, config: TopicConfig, now_ms: int
) -> WalkedBatch | None:
    """Returns the batch of a request that has exactly one plain batch, after a single pass. Returns None for all
    others."""
    if config.message_timestamp_type != "CreateTime" or COMPACT in config.cleanup_policy:
        return None
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    batch = fit(data, next_offset, leader_epoch, config.max_message_bytes, now_ms, before, after)
    if batch is not None and batch.attributes & CODEC_MASK:
        if timestamp_bounds(config, now_ms).is_narrow:
            return None
        _check_stated_size(data, batch)
    return batch


def _check_shape(batch: WalkedBatch, config: TopicConfig, from_coordinator: bool) -> None:
    if batch.size > config.max_message_bytes:
        _refuse(Code.MESSAGE_TOO_LARGE, batch, f"{batch.size} bytes, max.message.bytes is {config.max_message_bytes}")
    if batch.count != batch.last_offset - batch.base_offset + 1 or batch.count == 0:
        span = batch.last_offset - batch.base_offset
        _refuse(Code.INVALID_RECORD, batch, f"{batch.count} records, but last offset delta {span}")
    if batch.attributes & CODEC_MASK > Codec.ZSTD:
        _refuse(Code.UNSUPPORTED_COMPRESSION_TYPE, batch, f"codec {batch.attributes & CODEC_MASK} is unknown")
    if batch.attributes & CONTROL and not from_coordinator:
        _refuse(Code.INVALID_RECORD, batch, "only the broker may write control batches")
    if batch.attributes & APPEND_TIME:
        _refuse(Code.INVALID_TIMESTAMP, batch, "the timestamp type of a produced batch must be CreateTime")
    has_sequence = batch.base_sequence >= 0 or from_coordinator
    if batch.producer_id >= 0 and (batch.producer_epoch < 0 or not has_sequence):
        _refuse(Code.INVALID_RECORD, batch, "a producer id needs a sequence and an epoch")
    if batch.attributes & DELETE_HORIZON:
        _refuse(Code.INVALID_RECORD, batch, "only the cleaner may set a delete horizon")
    if batch.attributes & TRANSACTIONAL and batch.producer_id < 0:
        _refuse(Code.INVALID_RECORD, batch, "a transactional batch needs a producer id")


def _needs_times(batch: WalkedBatch, bounds: TimestampBounds) -> bool:
    """True if the timestamps of the records are to be read, and not those of the header.

    A compressed batch is opened only if its header is false or out of bounds, or if a bound is narrow.
    """
    if batch.attributes & CONTROL:
        return False
    return (
        not batch.attributes & CODEC_MASK
        or bounds.is_narrow
        or _is_header_false(batch)
        or batch.max_timestamp > bounds.high
        or NO_TIMESTAMP != batch.base_timestamp < bounds.low
    )


def _is_header_false(batch: WalkedBatch) -> bool:
    """True if the header leaves the greatest timestamp unset, or has one below that of the first record."""
    return batch.max_timestamp < max(batch.base_timestamp, 0)


def _check_times(
    batch: WalkedBatch, times: tuple[int, int, int] | None, bounds: TimestampBounds, config: TopicConfig, now_ms: int
) -> int:
    """Returns the greatest timestamp of the records, by `times` as `read_times` gives them. The header counts if they
    are None."""
    oldest, newest, beyond = times or (batch.base_timestamp, batch.max_timestamp, -1)
    if beyond >= 0:
        _refuse(Code.INVALID_TIMESTAMP, batch, f"record {beyond} has a timestamp beyond 64 bits")
    if newest > bounds.high:
        most = f"message.timestamp.after.max.ms is {config.message_timestamp_after_max_ms}"
        _refuse(Code.INVALID_TIMESTAMP, batch, f"timestamp {newest} is ahead of the broker's {now_ms}, {most}")
    if NO_TIMESTAMP != oldest < bounds.low:
        most = f"message.timestamp.before.max.ms is {config.message_timestamp_before_max_ms}"
        _refuse(Code.INVALID_TIMESTAMP, batch, f"timestamp {oldest} is behind the broker's {now_ms}, {most}")
    return newest


def open_batches(data: Buffer) -> list[OpenedBatch]:
    """Opens batches in pieces, whatever they become without compression. This may take seconds."""
    return [_read_in_pieces(data, batch) for batch in walk(data, check_crc=False).batches]


def _read_in_pieces(data: Buffer, batch: WalkedBatch) -> OpenedBatch:
    keyless: list[int] = []
    head = decode_header(data, batch.position)
    pieces = open_pieces(data, batch.position, head, max_whole=OPENED_BYTES_MAX)
    try:
        times = times_of(_note_keyless(pieces, keyless))
    except Corrupt as error:
        return OpenedBatch(None, why=str(error))
    return OpenedBatch(times, keyless[0] if keyless else -1)


def _note_keyless(pieces: Iterable[Piece], keyless: list[int]) -> Iterator[Piece]:
    """Yields the pieces, and appends the number of the first record without a key to `keyless`: the batch is opened
    once for both."""
    for piece in pieces:
        if not keyless:
            keyless += (piece.first + number for number in find_keyless(piece.section[0], piece.section[4], 1))
        yield piece


def _open_batch(data: bytearray | memoryview, batch: WalkedBatch, *, with_keys: bool) -> OpenedBatch:
    """Reads the records of a batch, but for a control batch, and their keys only if they count. Raises
    `RecordsUnopened` if the records are too many bytes."""
    if batch.attributes & CONTROL:
        return OpenedBatch(None)
    try:
        body = open_whole(data, batch.position, decode_header(data, batch.position), OPENED_BYTES_MAX)
        if body is None:
            raise RecordsUnopened(Code.INVALID_RECORD, "the batch is too large to open it at once")
        keyless = find_keyless(body, batch.count, 1) if with_keys else []
        return OpenedBatch(time_range(body, batch.base_timestamp, batch.count), keyless[0] if keyless else -1)
    except Corrupt as error:
        return OpenedBatch(None, why=str(error))


def _check_stated_size(data: bytearray | memoryview, batch: WalkedBatch) -> None:
    """Refuses a batch if the headers of its codec state more bytes than readers open."""
    compressed = memoryview(data)[batch.position + HEADER_BYTES : batch.position + batch.size]
    stated = stated_size(codec_of(batch.attributes), compressed)
    if stated > BATCH_BYTES_MAX:
        why = f"the records state {stated} bytes without compression, and a batch has at most {BATCH_BYTES_MAX}"
        _refuse(Code.INVALID_RECORD, batch, why)


def _check_all_records(data: bytearray | memoryview, batch: WalkedBatch) -> tuple[int, int, int]:
    try:
        check_batch(data, batch.position)
        return read_times(data, batch.position)
    except Corrupt as error:
        _refuse(Code.INVALID_RECORD, batch, str(error))


def _walk_error(data: bytearray | memoryview, end: int, why: str) -> Refused:
    if why.startswith(BAD_RECORDS):
        return Refused(Code.INVALID_RECORD, f"batch at byte {end}: {why.removeprefix(BAD_RECORDS)}")
    if why == "short":
        why = f"{len(data) - end} bytes are left of a batch that is longer"
    return Refused(Code.CORRUPT_MESSAGE, f"batch at byte {end}: {why}")


def _refuse(code: Code, batch: WalkedBatch, why: str) -> NoReturn:
    raise Refused(code, f"batch at byte {batch.position}: {why}")
