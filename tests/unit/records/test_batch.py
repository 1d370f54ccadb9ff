"""Tests of record batches: layout, stamps, encoding, decoding, and batches that Apache Kafka 4.2 wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Corrupt
from tiered.records import native
from tiered.records.batch import (
    HEADER_BYTES,
    check_batch,
    decode_header,
    decode_records,
    encode_batch,
    first_at_or_after,
    set_append_time,
    stamp,
)
from tiered.records.model import Codec, Header, ProducerRecord, Record
from tiered.records.pieces import whole_max

KAFKA = Path(__file__).parent / "kafka"
"""Files `<codec>.log`: one batch of twenty records each, sent by Kafka's console producer with that codec."""

Plain = tuple[int, bytes | None, bytes | None, list[Header]]
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
BYTES = st.none() | st.binary(max_size=100)
PRODUCED = st.tuples(st.integers(0, 2**50), BYTES, BYTES, HEADERS)


def three() -> list[ProducerRecord]:
    return [(1000, b"k", b"first", ()), (1005, None, b"second", (("h", b"x"), ("n", None))), (998, b"", None, ())]


@pytest.mark.parametrize("codec", Codec)
@given(produced=st.lists(PRODUCED, min_size=1, max_size=20), base_offset=st.integers(0, 2**62))
def test_batch_decodes_to_what_was_encoded(codec: Codec, produced: list[Plain], base_offset: int) -> None:
    batch = encode_batch(produced, codec=codec, base_offset=base_offset)
    assert decode_records(batch) == [
        Record(base_offset + n, timestamp, key, value, tuple(headers))
        for n, (timestamp, key, value, headers) in enumerate(produced)
    ]
    assert check_batch(batch).codec is codec
    assert native.walk(batch).why == ""


def test_header_has_the_fields_of_the_batch() -> None:
    batch = encode_batch(
        three(), base_offset=7, leader_epoch=3, codec=Codec.ZSTD, producer_id=9, producer_epoch=2,
        base_sequence=2**31 - 2, transactional=True,
    )  # fmt: skip
    head = decode_header(b"xx" + batch, 2)
    assert head.size == len(batch)
    assert (head.base_offset, head.last_offset, head.next_offset, head.count) == (7, 9, 10, 3)
    assert (head.leader_epoch, head.producer_id, head.producer_epoch) == (3, 9, 2)
    assert (head.base_timestamp, head.max_timestamp) == (1000, 1005)
    assert (head.is_transactional, head.is_control, head.is_log_append_time) == (True, False, False)
    assert head.last_sequence == 0  # sequences wrap
    assert decode_header(encode_batch(three())).last_sequence == -1
    assert decode_header(encode_batch(three(), control=True)).is_control


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (encode_batch(three())[:60], "header is short"),
        (bytes(8) + b"\0\0\0\x30" + bytes(60), "batch length 48 is below 49"),
        (bytes(8) + b"\xff\xff\xff\xff" + bytes(60), "batch length -1 is below 49"),
        (bytes(8) + b"\0\0\0\x31" + bytes(4) + b"\x01" + bytes(60), "magic 1 is not 2"),
    ],
)
def test_invalid_header_is_corrupt(batch: bytes, words: str) -> None:
    with pytest.raises(Corrupt, match=words):
        decode_header(batch)


def test_unknown_codec_is_corrupt() -> None:
    batch = bytearray(encode_batch(three()))
    batch[22] = 5
    with pytest.raises(Corrupt, match="unknown compression codec 5"):
        decode_records(batch)


def test_cut_batch_is_corrupt() -> None:
    batch = encode_batch(three())
    with pytest.raises(Corrupt, match="batch is short"):
        decode_records(batch[:-1])
    with pytest.raises(Corrupt, match="batch is short"):
        set_append_time(bytearray(batch[:-1]), 0, 1)


def test_stamp_keeps_the_crc() -> None:
    batch = bytearray(b"before" + encode_batch(three()))
    stamp(batch, 6, 123456789012, 42)
    assert native.walk(batch, 6).why == ""
    assert decode_header(batch, 6).base_offset == 123456789012
    assert decode_header(batch, 6).leader_epoch == 42
    assert batch[:6] == b"before"


@pytest.mark.parametrize("codec", Codec)
def test_append_time_replaces_all_timestamps(codec: Codec) -> None:
    batch = bytearray(encode_batch(three(), codec=codec))
    set_append_time(batch, 0, 5_000)
    assert native.walk(batch).why == ""
    assert [record.timestamp for record in decode_records(batch)] == [5_000] * 3
    assert decode_header(batch).max_timestamp == 5_000
    assert first_at_or_after(batch, 0, 5_000) == (0, 5_000)
    assert first_at_or_after(batch, 0, 5_001) is None


@pytest.mark.parametrize(
    ("timestamp", "found"), [(0, (10, 1000)), (1000, (10, 1000)), (1001, (11, 1005)), (1006, None)]
)
def test_first_record_at_or_after_a_time_is_found(timestamp: int, found: tuple[int, int] | None) -> None:
    assert first_at_or_after(encode_batch(three(), base_offset=10, codec=Codec.LZ4), 0, timestamp) == found


def test_batch_without_records_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode_batch([])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_batch_that_expands_too_far_is_corrupt(codec: Codec) -> None:
    batch = encode_batch([(0, None, bytes(1 << 20), ())], codec=codec)
    with pytest.raises(Corrupt, match="more than 65536 bytes"):
        decode_records(batch, max_bytes=1 << 16)
    with pytest.raises(Corrupt, match="more than 65536 bytes"):
        check_batch(batch, max_bytes=1 << 16)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_batch_above_a_mebibyte_is_opened_whole_up_to_a_hundredfold(codec: Codec) -> None:
    """Otherwise each stored byte could make readers take a thousand bytes of memory."""
    small, bomb = (encode_batch([(0, None, bytes(size), ())], codec=codec) for size in ((1 << 20) - 20, 20 << 20))
    assert decode_records(small)[0].value == bytes((1 << 20) - 20)
    with pytest.raises(Corrupt, match=f"more than {whole_max(len(bomb) - HEADER_BYTES)} bytes"):
        decode_records(bomb)
    noise = bytes(n * n % 251 for n in range(100_000))
    packed = encode_batch([(0, None, noise * 20, ())], codec=Codec.SNAPPY)
    assert len(decode_records(packed)[0].value or b"") == 2_000_000, "twenty times is nothing"


def test_records_above_the_last_offset_are_corrupt() -> None:
    batch = bytearray(encode_batch(three()))
    batch[23:27] = (1).to_bytes(4, "big")
    with pytest.raises(Corrupt, match="record offset 2 is above"):
        decode_records(batch)


def kafka_batch(codec: Codec) -> bytes:
    return (KAFKA / f"{codec.name.lower()}.log").read_bytes()


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_kafka_decode(codec: Codec) -> None:
    log = kafka_batch(codec)
    walked = native.walk(log)
    assert (len(walked.batches), walked.end, walked.why) == (1, len(log), "")
    assert check_batch(log).codec is codec
    found = decode_records(log)
    assert [record.offset for record in found] == list(range(20))
    assert found[0].key == b"key-0"
    assert found[0].value == '{"n":0,"name":"flight 0 from Zürich"}'.encode()
    assert found[0].headers == (("trace", b"t0"), ("kind", None))
    assert [record.offset for record in found if record.key is None] == [4, 9, 14, 19]
    assert [record.offset for record in found if record.value is None] == [6, 13]
    assert found[4].headers == (("ü", b"x"),)
    assert max(record.timestamp for record in found) == decode_header(log).max_timestamp


def test_encoder_writes_kafkas_bytes() -> None:
    log = kafka_batch(Codec.NONE)
    head = decode_header(log)
    produced = [(r.timestamp, r.key, r.value, r.headers) for r in decode_records(log)]
    again = encode_batch(
        produced, leader_epoch=head.leader_epoch, producer_id=head.producer_id, producer_epoch=head.producer_epoch,
        base_sequence=head.base_sequence,
    )  # fmt: skip
    assert again == log
    assert len(again) > HEADER_BYTES
