"""Tests of the validation of produced batches: valid batches are stamped in place, and each fault has its Kafka error
code."""

from __future__ import annotations

import struct
from unittest.mock import patch

import pytest

from tests.refusal import refuses
from tests.unit.hot.fixtures import NOW, batch, config
from tiered.config.kafka_aliases import HOUR_MS
from tiered.config.settings import LONG_MAX
from tiered.errors import Code, Refused
from tiered.hot import validation
from tiered.hot.validation import OpenedBatch, open_batches, validate_batches, walk_follower_batches
from tiered.records import compression, pieces
from tiered.records.batch import decode_header, decode_records, encode_batch, stamp
from tiered.records.model import Codec
from tiered.records.native import crc32c, fit

ATTRIBUTES, LAST_DELTA, COUNT, BASE_TIME = 21, 23, 57, 27


def set_header_field(data: bytearray, at: int, form: str, value: int) -> bytearray:
    """Returns the batch with one header field set to another value, and a right CRC."""
    struct.pack_into(form, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def refusal(data: bytearray, *, deep: bool = False, **settings: object) -> Code:
    with pytest.raises(Refused) as caught:
        validate_batches(data, 0, 0, config(**settings), NOW, deep)
    return caught.value.code


def test_batches_get_offsets_and_leader_epoch_in_place() -> None:
    data = batch(0, 2) + batch(2, 3)
    admitted = validate_batches(data, 40, 6, config(), NOW, True)
    assert [(one.base_offset, one.last_offset, one.leader_epoch) for one in admitted] == [(40, 41, 6), (42, 44, 6)]
    assert [record.offset for record in decode_records(data, admitted[1].position)] == [42, 43, 44]
    assert decode_header(data).leader_epoch == 6


def test_log_append_time_replaces_timestamps() -> None:
    data = batch(0, 2, at=5)
    admitted = validate_batches(data, 0, 0, config(message_timestamp_type="LogAppendTime"), NOW, False)
    assert admitted[0].max_timestamp == NOW
    assert [record.timestamp for record in decode_records(data)] == [NOW, NOW]


def test_batch_with_a_wrong_crc_or_length_is_corrupt() -> None:
    whole = batch(0)
    assert refusal(whole[:60]) is Code.CORRUPT_MESSAGE
    assert refusal(whole[:-1]) is Code.CORRUPT_MESSAGE
    assert refusal(whole + b"\x00") is Code.CORRUPT_MESSAGE
    flipped = batch(0)
    flipped[-2] ^= 1
    assert refusal(flipped) is Code.CORRUPT_MESSAGE
    old = batch(0)
    old[16] = 1
    assert refusal(old) is Code.CORRUPT_MESSAGE
    assert refusal(bytearray(200)) is Code.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("at", "form", "value", "code"),
    [
        (COUNT, ">i", 3, Code.INVALID_RECORD),
        (LAST_DELTA, ">i", 5, Code.INVALID_RECORD),
        (ATTRIBUTES, ">h", 7, Code.UNSUPPORTED_COMPRESSION_TYPE),
        (ATTRIBUTES, ">h", 0x20, Code.INVALID_RECORD),
        (ATTRIBUTES, ">h", 0x08, Code.INVALID_TIMESTAMP),
        (ATTRIBUTES, ">h", 0x10, Code.INVALID_RECORD),
        (BASE_TIME, ">q", NOW - 2001, Code.INVALID_TIMESTAMP),
    ],
)
def test_invalid_header_field_has_its_error_code(at: int, form: str, value: int, code: Code) -> None:
    assert refusal(set_header_field(batch(0, 2), at, form, value), message_timestamp_before_max_ms=2000) is code


def test_producer_id_without_a_sequence_is_refused() -> None:
    assert (
        refusal(bytearray(encode_batch([(NOW, None, b"v", ())], producer_id=1, producer_epoch=0)))
        is Code.INVALID_RECORD
    )


def test_batch_above_the_size_limit_is_refused() -> None:
    assert refusal(batch(0, size=500), max_message_bytes=300) is Code.MESSAGE_TOO_LARGE


def test_records_are_opened_only_on_request() -> None:
    data = bytearray(encode_batch([(NOW, None, b"v", ())] * 2, codec=Codec.ZSTD))
    data = set_header_field(data, COUNT, ">i", 9)
    data = set_header_field(data, LAST_DELTA, ">i", 8)
    assert validate_batches(bytearray(data), 0, 0, config(), NOW, False)[0].count == 9
    assert refusal(data, deep=True) is Code.INVALID_RECORD


def test_uncompressed_records_are_checked_one_by_one() -> None:
    data = bytearray(encode_batch([(NOW, None, b"v", ())] * 3))
    second = data.index(b"v") + 2
    data[second + 3] += 2  # its offset delta, under a right CRC
    with pytest.raises(Refused, match="record 1 is out of order") as caught:
        validate_batches(set_header_field(data, COUNT, ">i", 3), 0, 0, config(), NOW, False)
    assert caught.value.code is Code.INVALID_RECORD


def _validate(data: bytearray, **settings: object) -> object:
    """Returns the result of `validate_batches` for `data`, and `data` afterwards."""
    try:
        return tuple(validate_batches(data, 40, 6, config(**settings), NOW, False)), bytes(data)
    except Refused as refused:
        return refused.code, refused.why


def test_single_pass_and_full_validation_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries every value of every header byte under a right CRC, wrong CRCs, cut batches, and two batches."""
    usual = encode_batch(
        [(NOW, b"k", b"v", ()), (NOW, None, b"w", ())], producer_id=3, producer_epoch=1, base_sequence=7
    )
    codecs = [encode_batch([(NOW, b"k", b"v" * 50, ())], codec=codec) for codec in Codec]
    cases = [bytes(usual), *map(bytes, codecs), usual * 2, usual[:-1], usual[:60], usual + b"x"]
    for whole in (usual, codecs[Codec.LZ4]):
        for at in (*range(8, 17), *range(21, 61)):
            for value in {0, 1, 2, 5, 8, 0x10, 0x20, 0x7F, 0x80, 0xFF, whole[at] ^ 1}:
                cases.append(bytes(set_header_field(bytearray(whole), at, ">B", value)))
    cases += [usual[:at] + bytes((usual[at] ^ 1,)) + usual[at + 1 :] for at in range(len(usual))]
    short = [
        (_validate(bytearray(case)), fit(bytearray(case), 40, 6, 1 << 20, NOW, LONG_MAX, HOUR_MS) is not None)
        for case in cases
    ]
    limits: dict[str, object] = {"max_message_bytes": len(usual) - 1}
    limited = _validate(bytearray(usual), **limits)
    monkeypatch.setattr(validation, "fit", lambda *_: None)
    assert [said for said, _ in short] == [_validate(bytearray(case)) for case in cases]
    assert limited == _validate(bytearray(usual), **limits)
    assert {fits for _, fits in short} == {True, False}
    assert all(fits for _, fits in short[: 1 + len(codecs)])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_batch_that_compresses_well_is_taken(codec: Codec) -> None:
    """A topic that is compacted has to see each key in the turn of the request, and opens no more than a bound."""
    packed = bytearray(encode_batch([(NOW, b"k", bytes(1 << 16), ())] * 200, codec=codec))
    assert len(packed) * 100 < 200 << 16
    for kind in ("CreateTime", "LogAppendTime"):
        assert len(validate_batches(bytearray(packed), 0, 0, config(message_timestamp_type=kind), NOW, False)) == 1
    assert len(validate_batches(bytearray(packed), 0, 0, config(), NOW, True)) == 1
    assert len(validate_batches(packed + packed, 0, 0, config(), NOW, False)) == 2
    assert refusal(packed, cleanup_policy=("compact",)) is Code.INVALID_RECORD


def test_batch_that_states_more_than_any_reader_opens_is_refused() -> None:
    stated = bytearray(encode_batch([(NOW, None, b"v", ())], codec=Codec.GZIP))
    stated[-4:] = struct.pack("<I", 1 << 31)
    stated[17:21] = struct.pack(">I", crc32c(memoryview(stated)[21:]))
    for kind in ("CreateTime", "LogAppendTime"):
        assert refusal(stated, message_timestamp_type=kind) is Code.INVALID_RECORD


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_batch_that_a_thread_opens_is_decompressed_once(codec: Codec) -> None:
    """Keys and timestamps come from the same pieces: a second pass over a gigabyte takes seconds of a core."""
    keys = [b"k", b"k", b"k", None, b"k", None]
    data = encode_batch([(NOW + n, key, bytes(1_500_000), ()) for n, key in enumerate(keys)], codec=codec)
    with patch.object(pieces, "decompress_pieces", wraps=compression.decompress_pieces) as opened:
        (facts,) = open_batches(data)
    assert facts == OpenedBatch((NOW, NOW + 5, -1), 3)
    assert opened.call_count == 1


def follower_batches(*offsets: int) -> bytes:
    """Returns batches of one record each, at these offsets, as a leader has them."""
    made = b""
    for offset in offsets:
        one = batch(offset)
        stamp(one, 0, offset, 3)
        made += bytes(one)
    return made


@pytest.mark.parametrize(
    ("offsets", "may_have_gaps", "taken", "has_gaps"),
    [
        ((5, 6, 7), False, True, False),
        ((5, 6, 7), True, True, False),
        ((6, 7), False, False, False),
        ((6, 7), True, True, True),
        ((5, 7), False, False, False),
        ((5, 7), True, True, True),
        ((4, 5), True, False, False),
        ((5, 5), True, False, False),
    ],
)
def test_follower_takes_batches_that_follow_its_log_end(
    offsets: tuple[int, ...], may_have_gaps: bool, taken: bool, has_gaps: bool
) -> None:
    data = follower_batches(*offsets)
    if not taken:
        with refuses(Code.CORRUPT_MESSAGE):
            walk_follower_batches(data, 5, may_have_gaps)
        return
    batches, found = walk_follower_batches(data, 5, may_have_gaps)
    assert [each.base_offset for each in batches] == list(offsets) and found is has_gaps


@pytest.mark.parametrize("damage", ["none", "cut", "bit"])
def test_follower_takes_whole_valid_batches_only(damage: str) -> None:
    data = bytearray(follower_batches(5, 6))
    if damage == "bit":
        data[-1] ^= 1
    with refuses(Code.CORRUPT_MESSAGE):
        walk_follower_batches(b"" if damage == "none" else data[:-1] if damage == "cut" else data, 5, True)
