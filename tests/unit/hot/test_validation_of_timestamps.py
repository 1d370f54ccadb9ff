"""Tests that the header of each batch in the log names the latest timestamp of its records, whatever a producer wrote
there, and that the bounds of a topic hold for each record."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from tests.unit.hot.fixtures import NOW, config
from tiered.config.settings import LONG_MAX
from tiered.errors import Code, Refused
from tiered.hot.validation import validate_batches
from tiered.records import native
from tiered.records.batch import decode_header, decode_records, encode_batch
from tiered.records.compression import compress
from tiered.records.model import BASE_TIMESTAMP_AT, CRC_AT, CRC_FROM, HEADER, HEADER_BYTES, MAX_TIMESTAMP_AT, Codec

HOUR = 3_600_000


def with_header(data: bytes | bytearray, *, base: int | None = None, newest: int | None = None) -> bytearray:
    """Returns the batch with other timestamps in its header, under a right CRC."""
    made = bytearray(data)
    if base is not None:
        struct.pack_into(">q", made, BASE_TIMESTAMP_AT, base)
    if newest is not None:
        struct.pack_into(">q", made, MAX_TIMESTAMP_AT, newest)
    struct.pack_into(">I", made, CRC_AT, native.crc32c(memoryview(made)[CRC_FROM:]))
    return made


def made(times: list[int], codec: Codec = Codec.NONE, newest: int | None = None, sequence: int = -1) -> bytearray:
    rows = [(time, b"k", b"v" * 9, ()) for time in times]
    producer = 7 if sequence >= 0 else -1
    return with_header(
        encode_batch(rows, codec=codec, producer_id=producer, producer_epoch=producer and 0, base_sequence=sequence),
        newest=newest,
    )


def overflowing(codec: Codec = Codec.NONE, newest: int = NOW, base: int = LONG_MAX) -> bytearray:
    """Returns a batch whose second record is a millisecond later than 64 bits can say."""
    body = native.encode_records([(0, b"k", b"v", ()), (1, b"k", b"v", ())], 0)
    front = list(HEADER.unpack_from(encode_batch([(NOW, b"k", b"v", ())] * 2, codec=codec)))
    body = compress(codec, body, None) if codec else body
    front[1] = HEADER_BYTES - 12 + len(body)
    return with_header(HEADER.pack(*front) + body, base=base, newest=newest)


def taken(data: bytearray, *, deep: bool = False, **settings: Any) -> list[tuple[int, list[int]]]:
    """Returns the greatest timestamp and the timestamps of the records of each batch that the log gets."""
    batches = validate_batches(data, 40, 6, config(**settings), NOW, deep)
    assert native.walk(data).why == ""
    heads = [decode_header(data, each.position) for each in batches]
    assert [head.max_timestamp for head in heads] == [each.max_timestamp for each in batches]
    return [
        (each.max_timestamp, [record.timestamp for record in decode_records(data, each.position)]) for each in batches
    ]


def refused(data: bytearray, **settings: object) -> Code:
    with pytest.raises(Refused) as caught:
        validate_batches(data, 40, 6, config(**settings), NOW, False)
    return caught.value.code


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("codec", Codec)
def test_unset_latest_timestamp_becomes_that_of_the_records(codec: Codec, policy: str) -> None:
    times = [NOW - 5, NOW - 1, NOW - 3]
    assert taken(made(times, codec, newest=-1), cleanup_policy=(policy,)) == [(NOW - 1, times)]
    several = made(times, codec, newest=-1) + made([NOW], codec) + made([NOW - 9], codec, newest=-1)
    assert [newest for newest, _ in taken(several, cleanup_policy=(policy,))] == [NOW - 1, NOW, NOW - 9]


@pytest.mark.parametrize("newest", [0, NOW - 4, NOW, NOW + 2 * HOUR, LONG_MAX, -(1 << 63)])
def test_wrong_latest_timestamp_becomes_that_of_the_records(newest: int) -> None:
    times = [NOW - 5, NOW - 1, NOW - 3]
    assert taken(made(times, newest=newest)) == [(NOW - 1, times)]
    for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        assert taken(made(times, codec, newest=newest), cleanup_policy=("compact",)) == [(NOW - 1, times)]
        narrow = taken(made(times, codec, newest=newest), message_timestamp_before_max_ms=HOUR)
        assert narrow == [(NOW - 1, times)]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_header_that_cannot_be_true_is_replaced(codec: Codec) -> None:
    times = [NOW - 5, NOW - 1, NOW - 3]
    for newest in (-1, 0, NOW - 6, NOW + HOUR + 1, LONG_MAX):
        assert taken(made(times, codec, newest=newest)) == [(NOW - 1, times)]
    assert taken(made([-1, -1], codec)) == [(-1, [-1, -1])]
    for newest in (-1, NOW - 4, NOW - 1, NOW + 9, LONG_MAX):
        assert taken(made(times, codec, newest=newest), deep=True) == [(NOW - 1, times)]


def test_compressed_batch_with_a_header_that_may_be_true_stays_closed() -> None:
    junk = with_header(made([NOW], Codec.LZ4)[:HEADER_BYTES] + bytes(12))
    struct.pack_into(">i", junk, 8, len(junk) - 12)
    junk = with_header(junk)
    assert validate_batches(bytearray(junk), 0, 0, config(), NOW, False)[0].max_timestamp == NOW
    narrow = config(message_timestamp_before_max_ms=HOUR)
    assert validate_batches(bytearray(junk), 0, 0, narrow, NOW, False)[0].max_timestamp == NOW
    assert refused(with_header(junk, newest=-1)) is Code.INVALID_RECORD


@pytest.mark.parametrize("codec", Codec)
def test_bounds_hold_for_each_record(codec: Codec) -> None:
    before: dict[str, Any] = {"message_timestamp_before_max_ms": HOUR}
    after: dict[str, Any] = {"message_timestamp_after_max_ms": 1000}
    assert refused(made([NOW, NOW - HOUR - 1, NOW], codec), **before) is Code.INVALID_TIMESTAMP
    assert taken(made([NOW, NOW - HOUR], codec), **before) == [(NOW, [NOW, NOW - HOUR])]
    assert taken(made([NOW, -1], codec), **before) == [(NOW, [NOW, -1])], "a record without a timestamp has no age"
    assert refused(made([NOW, NOW + 1001], codec, newest=NOW), **after) is Code.INVALID_TIMESTAMP
    assert refused(made([NOW, NOW + 240 * HOUR], codec, newest=-1)) is Code.INVALID_TIMESTAMP
    assert taken(made([NOW, NOW + 1000], codec, newest=NOW), **after) == [(NOW + 1000, [NOW, NOW + 1000])]
    both = made([NOW], codec) + made([NOW, NOW - HOUR - 1], codec)
    assert refused(both, **before) is Code.INVALID_TIMESTAMP


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("newest", [-1, NOW])
def test_timestamp_beyond_64_bits_is_refused(codec: Codec, newest: int) -> None:
    unbounded = {"message_timestamp_after_max_ms": LONG_MAX}
    assert refused(overflowing(codec, newest)) is Code.INVALID_TIMESTAMP
    assert refused(overflowing(codec, newest), **unbounded) is Code.INVALID_TIMESTAMP
    assert refused(overflowing(codec, newest), cleanup_policy=("compact",), **unbounded) is Code.INVALID_TIMESTAMP
    appended = taken(overflowing(codec, newest), message_timestamp_type="LogAppendTime")
    assert appended == [(NOW, [NOW, NOW])], "the producer's timestamps do not count"


def test_timestamps_below_zero_leave_the_header_unset() -> None:
    for codec in Codec:
        assert taken(made([-5, -2, -9], codec)) == [(-1, [-5, -2, -9])]
        assert taken(made([-5, 3], codec)) == [(3, [-5, 3])]


def test_any_headers_and_requests_match_the_records() -> None:
    """Compares requests of one to three batches with the lists of timestamps they were made from."""
    rng, sequence, refusals = random.Random(39), 0, 0
    for _ in range(1500):
        codec, policy = rng.choice(list(Codec)), rng.choice([("delete",), ("compact",), ("compact", "delete")])
        before = rng.choice([LONG_MAX, LONG_MAX, HOUR])
        rows = [
            [NOW + rng.randrange(-9, 9) for _ in range(rng.randrange(1, 5))] for _ in range(rng.choice([1, 1, 2, 3]))
        ]
        if rng.random() < 0.2:
            rng.choice(rows).append(NOW + rng.choice([-HOUR - 1, HOUR + 1, -HOUR, HOUR]))
        is_exact = codec is Codec.NONE or before == HOUR or "compact" in policy
        data = bytearray()
        for times in rows:
            claims = [-1, max(times), times[0] - 1, NOW + HOUR + 1, LONG_MAX]
            newest = rng.choice(claims + [max(times) - 1, max(times) + 5] * is_exact)
            has_sequence = rng.random() < 0.3
            data += made(times, codec, newest, sequence if has_sequence else -1)
            sequence += len(times) * has_sequence
        within = all(NOW - before <= time <= NOW + HOUR for times in rows for time in times)
        settings: dict[str, Any] = {"cleanup_policy": policy, "message_timestamp_before_max_ms": before}
        if within:
            assert taken(data, **settings) == [(max(times), times) for times in rows]
        else:
            refusals += 1
            assert refused(data, **settings) is Code.INVALID_TIMESTAMP
    assert 50 < refusals < 400
