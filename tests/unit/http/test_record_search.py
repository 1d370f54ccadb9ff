"""Tests of a search in record batches: the records that fit a filter, in each codec, and the bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tiered.errors import Corrupt
from tiered.records.batch import Codec, encode_batch
from tiered.records.model import BatchHeader, ProducerRecord, Record
from tiered_api.http.partitions import record_search
from tiered_api.http.partitions.reads import read_batch
from tiered_api.http.partitions.record_filter import RecordFilter, parse_filter
from tiered_api.http.partitions.record_json import encode_found
from tiered_api.http.partitions.record_search import RecordSearch

ROOM = 1 << 20


def make_log(codec: Codec = Codec.NONE, batches: int = 4, size: int = 5) -> bytes:
    """Returns batches of records. Each tenth record has its number in words: in its key, value or a header."""
    parts = []
    for first in range(0, batches * size, size):
        records: list[ProducerRecord] = []
        for offset in range(first, first + size):
            word = b"Ten %d" % offset if offset % 10 == 7 else b"other"
            place = offset // 10 % 4
            parts_of = [word if place == each else b"x" for each in range(4)]
            records.append((1_000 + offset, parts_of[0], parts_of[1], ((parts_of[2].decode(), parts_of[3]),)))
        parts.append(encode_batch(records, base_offset=first, codec=codec))
    return b"".join(parts)


def search(data: bytes, text: str, offset: int = 0, most: int = 100, **more: Any) -> dict[str, Any]:
    return search_for(data, RecordFilter(text.encode()), offset, most, **more)


def search_for(
    data: bytes, wanted: RecordFilter, offset: int = 0, most: int = 100, aborted: list[tuple[int, int]] | None = None
) -> dict[str, Any]:
    rendered = encode_found(RecordSearch(data, wanted), offset, most, ROOM, "string", {}, aborted or [])
    found: dict[str, Any] = json.loads(b"".join(rendered.pieces))
    assert len(found["records"]) == rendered.shown and found["next_offset"] == rendered.next_offset
    return found


def offsets(found: dict[str, Any]) -> list[int]:
    return [each["offset"] for each in found["records"]]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_with_the_text_are_found_wherever_it_is(codec: Codec) -> None:
    found = search(make_log(codec, 8), "ten")
    assert offsets(found) == [7, 17, 27, 37] and (found["next_offset"], found["scanned"]) == (40, 40)
    assert offsets(search(make_log(codec, 8), "ten 2")) == [27]
    none = search(make_log(codec, 8), "eleven")
    assert (offsets(none), none["next_offset"], none["scanned"]) == ([], 40, 40)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_search_begins_at_its_offset_and_ends_at_its_limit(codec: Codec) -> None:
    data = make_log(codec, 8)
    first = search(data, "ten", offset=8, most=2)
    assert offsets(first) == [17, 27] and first["scanned"] == first["next_offset"] - 8
    rest = search(data, "ten", offset=first["next_offset"], most=2)
    assert offsets(rest) == [37] and rest["next_offset"] == 40
    assert first["scanned"] + rest["scanned"] == 32
    many = search(data, "other", offset=1, most=3)
    assert offsets(many) == [1, 2, 3] and (many["next_offset"], many["scanned"]) == (4, 3)


def test_batches_without_the_text_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def count(data: bytes, at: int, head: BatchHeader, *bounds: int) -> tuple[list[Record], bool]:
        decoded.append(head.base_offset)
        return read_batch(data, at, head, *bounds)

    monkeypatch.setattr(record_search, "read_batch", count)
    assert offsets(search(make_log(batches=8), "ten 27")) == [27]
    assert decoded == [25]


def test_text_across_two_fields_is_not_in_a_record() -> None:
    data = encode_batch([(1, b"ab", b"cd", ())])
    assert offsets(search(data, "ab")) == [0] and offsets(search(data, "bc")) == []


def test_control_batches_and_aborted_transactions_have_no_records() -> None:
    committed = encode_batch([(1, b"k", b"ten", ())])
    aborted = encode_batch([(1, b"k", b"ten", ())], base_offset=1, producer_id=9, transactional=True, base_sequence=0)
    marker = encode_batch([(1, b"ten", b"ten", ())], base_offset=2, producer_id=9, transactional=True, control=True)
    data = committed + aborted + marker
    assert offsets(search(data, "ten", aborted=[(9, 1)])) == [0]
    assert offsets(search(data, "ten")) == [0, 1]
    assert search(data, "ten")["next_offset"] == 3


def test_search_ends_before_a_damaged_batch_and_refuses_a_first_one() -> None:
    data = bytearray(make_log(batches=8))
    last = len(make_log(batches=7))
    data[-3] ^= 1
    found = search(bytes(data), "ten")
    assert offsets(found) == [7, 17, 27] and found["next_offset"] == 35
    with pytest.raises(Corrupt, match="crc mismatch"):
        search(bytes(data[last:]), "ten")


def test_search_ends_after_many_decompressed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "OPENED_BYTES_MAX", 100)
    found = search(make_log(Codec.ZSTD, 8), "nowhere")
    assert 0 < found["next_offset"] < 40 and found["scanned"] == found["next_offset"]


ORDERS: list[ProducerRecord] = [
    (1, b"a", b'{"status":"failed","price":9}', (("trace", b"Seven"),)),
    (2, b"a", b'{"status":"ok","price":11}', (("other", b"seven"),)),
    (3, b"ab", b'{"status":"f\\u0061iled"}', (("Trace", b"seven"),)),
    (4, None, b'"failed"', (("trace", None),)),
    (5, b"A", b"failed", ()),
    (6, b"a", None, ()),
]
WANTED = {
    "key=a": [0, 1, 5],
    "header=trace": [0, 3],
    "header=trace:sEven": [0],
    "header=trace: seven": [0],
    "header=race": [],
    'json=$.status == "failed"': [0, 2],
    "json=.price>10": [1],
    "json=$.price": [0, 1],
    'json=$ == "failed"': [3],
    "json=$.absent": [],
    "contains=failed": [0, 3, 4],
    "contains=seven&key=a": [0, 1],
    'contains=seven&key=a&header=other&json=$.status == "ok"': [1],
    'key=a&json=$.status != "failed"': [1],
}


@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("query", WANTED)
def test_each_part_of_a_filter_has_to_fit(query: str, codec: Codec, size: int) -> None:
    data = b"".join(encode_batch(ORDERS[at : at + size], base_offset=at, codec=codec) for at in range(0, 6, size))
    wanted = parse_filter(dict(part.split("=", 1) for part in query.split("&")))
    assert wanted is not None
    found = search_for(data, wanted)
    assert (offsets(found), found["scanned"], found["next_offset"]) == (WANTED[query], 6, 6)


def test_query_without_a_filter_has_none() -> None:
    assert parse_filter({"offset": "1"}) is None


@pytest.mark.parametrize("name", ["contains", "key", "header", "json"])
@pytest.mark.parametrize("text", ["", "x" * 257, "\u00e9" * 129])
def test_part_of_a_filter_has_bounds(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has to be a text of 1 to 256 bytes"):
        parse_filter({name: text})


def test_json_that_takes_long_to_parse_does_not_fit() -> None:
    wanted = parse_filter({"json": "$[0]"})
    data = encode_batch([(1, None, b"[" + b"1," * 100_000 + b"1]", ()), (2, None, b"[1]", ())])
    assert wanted is not None and offsets(search_for(data, wanted)) == [1]
