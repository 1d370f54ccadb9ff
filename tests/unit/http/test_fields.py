"""Tests of JSON bodies with lists that are parsed in pieces, and of the limits on values, records and headers."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_api.http.exchange import fields, json_entries
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.fields import ELEMENTS_MAX, TEXT_BYTES, V2_FREE, V3_FREE, load_json
from tiered_api.http.exchange.json_entries import REST_BYTES, JsonEntries, load_with_entries
from tiered_api.http.partitions.record_formats import BODY_HEADERS_MAX, HEADERS_MAX, ProducerRecord
from tiered_api.http.transactions.body import parse_body
from tiered_api.http.v2.produce import RECORDS_MAX, parse_records
from tiered_api.http.v3.produce import _parse_single, parse_entries
from tiered_api.http.v3.streaming import parse_whole

NOW = 1_700_000_000_000
MIB = 1 << 20
WIDE = b"[" + b"1," * (ELEMENTS_MAX - 10) + b"1]"
"""A value with nearly the most values and names."""
TOO_WIDE = b"[" + b"1," * ELEMENTS_MAX + b"1]"
LARGE_HEADERS = b'"headers":[' + b",".join([b'{"name":"h"}'] * HEADERS_MAX) + b"]"
Parse = Callable[[bytes], Any]


def parse_v2(body: bytes) -> list[ProducerRecord]:
    """Returns the records of a v2 body whose values are JSON."""
    return parse_records(body, "json", NOW, None)


def parse_batch(body: bytes) -> list[tuple[str, ProducerRecord | HttpError]]:
    """Returns the entries of a `records:batch`."""
    return parse_entries(load_with_entries(body, "entries", V3_FREE), 1_000, NOW)


def parse_transaction(body: bytes) -> Any:
    """Returns the body of a transaction."""
    return parse_body(load_with_entries(body, "records", V3_FREE, 422), NOW)


def refusal(parse: Parse, body: bytes) -> HttpError:
    """Returns the error that refuses a body."""
    with pytest.raises(HttpError) as refused:
        parse(body)
    return refused.value


def peak_bytes(parse: Parse, body: bytes) -> int:
    """Returns the most bytes of Python objects during a call."""
    tracemalloc.start()
    try:
        parse(body)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@given(
    st.lists(st.recursive(st.none() | st.integers(0, 9) | st.text('a"\\', max_size=3), st.lists), max_size=30),
    st.integers(1, 20),
    st.integers(1, 100),
)
def test_entries_are_those_of_the_whole_body(values: list[Any], elements: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_entries, "PIECE_ELEMENTS", elements)
        patched.setattr(json_entries, "PIECE_BYTES", size)
        body = load_with_entries(json.dumps({"a": 1, "records": values, "b": [2]}).encode(), "records")
    entries = body["records"]
    assert isinstance(entries, JsonEntries)
    assert (len(entries), list(entries), list(entries)) == (len(values), values, values)
    assert {**body, "records": values} == {"a": 1, "records": values, "b": [2]}


@pytest.mark.parametrize("most", [1, 1_000], ids=["each entry alone", "all in one piece"])
@pytest.mark.parametrize(
    "entries", [b"1,", b",1", b"1,,2", b"1 2", b"1}", b"{]", b'"open', b"[1,2", b"{},,", b'{"a":1', b"1],2", b","]
)
def test_entries_that_are_no_json_are_400(entries: bytes, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_entries, "PIECE_ELEMENTS", most)

    def parse(body: bytes) -> None:
        try:
            list(load_with_entries(body, "records")["records"])
        except orjson.JSONDecodeError as error:
            raise json_entries.malformed_json(error) from None

    error = refusal(parse, b'{"records":[' + entries + b"]}")
    assert (error.status, error.message[:14]) == (400, "malformed JSON")


def test_field_twice_in_an_entry_or_beside_the_list_is_named() -> None:
    body = b'{"records":[{"value":1},{"value":{"a":1,"a":2},"partition":0,"partition":1}]}'
    assert refusal(parse_v2, body).message == "field 'partition' appears twice in one object"
    for twice in (b'{"records":[{}],"records":[]}', b'{"records":[{}],"r\\u0065cords":[{}]}'):
        assert refusal(parse_v2, twice).message == "field 'records' appears twice in one object"


def test_list_under_an_escaped_name_or_in_an_array_is_parsed_whole() -> None:
    assert len(parse_v2(b'{"r\\u0065cords":[{"value":1},{}]}')) == 2
    assert load_with_entries(b'[{"records":[1]}]', "records") == [{"records": [1]}]


@pytest.mark.parametrize("code", [400, 422])
def test_text_with_too_many_values_and_names_is_413_before_it_is_parsed(code: int) -> None:
    assert len(load_json(WIDE, (), code)) == ELEMENTS_MAX - 9
    for text in (TOO_WIDE, TOO_WIDE[:-1], b"[" * (ELEMENTS_MAX + 1), b"{" + b'"a":1,' * ELEMENTS_MAX):
        error = refusal(lambda text: load_json(text, (), code), text)
        assert error.status == 413
        assert re.fullmatch(r"the body has \d+ JSON values and names: 100000 are the most", error.message)
    assert load_json(b'["' + b"[" * 2 * ELEMENTS_MAX + b'"]') == ["[" * 2 * ELEMENTS_MAX], "a long text is one value"


def test_record_with_too_many_values_and_names_is_413_and_named() -> None:
    value = b'{"value":{"type":"JSON","data":%b}%b}'
    named = {
        parse_v2: b'{"records":[{"value":1},{"value":%b}]}',
        parse_batch: b'{"entries":[{"id":"1"},%b]}' % (value % (b"%b", b',"id":"2"')),
        parse_transaction: b'{"records":[{"topic_name":"t"},%b]}' % (value % (b"%b", b',"topic_name":"t"')),
    }
    for parse, body in named.items():
        assert parse(body % WIDE)
        error = refusal(parse, body % TOO_WIDE)
        assert error.status == 413
        assert re.match(r"(records|entries)\[1\] has 100\d\d\d JSON values and names: 100000 are", error.message)
    assert isinstance(_parse_single(value % (WIDE, b""), NOW), ProducerRecord)
    assert refusal(lambda body: _parse_single(body, NOW), value % (TOO_WIDE, b"")).status == 413


def test_stream_of_many_values_is_a_stream_and_one_large_record_is_not() -> None:
    assert _parse_single(b"{}" * ELEMENTS_MAX, NOW) is None
    assert _parse_single(b'{"value":{"type":"JSON","data":1}} 1', NOW) is None
    assert refusal(lambda body: _parse_single(body, NOW), TOO_WIDE + b" {}").status == 413
    assert refusal(lambda body: _parse_single(body, NOW), b"{} x"[2:]).status == 400


def test_whole_stream_names_the_fault_of_each_record() -> None:
    records = parse_whole(b'{} 1 {"valu":1}\n' + TOO_WIDE + b"{}", NOW)
    assert [each.status if isinstance(each, HttpError) else each.value for each in records] == [
        None,
        422,
        400,
        413,
        None,
    ]
    for torn in (b'{} {"a":', b'{} "a', b"{} ]", b"", b" "):
        assert refusal(lambda body: parse_whole(body, NOW), torn).status == 400
    many = refusal(lambda body: parse_whole(body, NOW), b"1 " * 10_000)
    assert (many.status, many.message) == (413, "a request with an Idempotency-Key has at most 5000 records")


def test_more_records_than_the_most_are_413() -> None:
    body = b'{"records":[' + b",".join([b"{}"] * RECORDS_MAX) + b"]}"
    assert len(parse_v2(body)) == RECORDS_MAX
    error = refusal(parse_v2, body.replace(b"]", b",{}]"))
    assert (error.status, error.message) == (413, "records has 100001 entries: 100000 are the most in one request")


def test_more_headers_in_one_body_than_the_most_are_413() -> None:
    count = BODY_HEADERS_MAX // HEADERS_MAX
    bodies: dict[Parse, tuple[bytes, bytes, bytes]] = {
        parse_batch: (b'{"id":"%d",%b}', b'{"entries":[%b]}', b","),
        parse_transaction: (b'{"topic_name":"t%d",%b}', b'{"records":[%b]}', b","),
        lambda body: parse_whole(body, NOW): (b'{"partition_id":%d,%b}', b"%b", b"\n"),
    }
    for parse, (record, body, between) in bodies.items():
        records = [record % (n, LARGE_HEADERS) for n in range(count + 1)]
        assert parse(body % between.join(records[:count]))
        error = refusal(parse, body % between.join(records))
        assert (error.status, error.message[:39]) == (413, "the records have more than 200000 heade")


@pytest.mark.parametrize(
    ("parse", "record"),
    [
        (parse_v2, b'{"value":[%b]}' % (b"[]," * 1_000 + b"1")),
        (parse_transaction, b'{"topic_name":"t","value":{"type":"JSON","data":[%b]}}' % (b"{}," * 1_000 + b"1")),
    ],
    ids=["v2", "transactions"],
)
def test_objects_of_one_piece_exist_at_a_time(parse: Parse, record: bytes) -> None:
    body = b'{"records":[' + b",".join([record] * 250) + b"]}"
    assert peak_bytes(orjson.loads, body) > 12 * MIB
    assert peak_bytes(parse, body) < len(body) + 4 * MIB


@pytest.mark.parametrize(
    ("parse", "body", "between"),
    [(parse_batch, b'{"entries":[%b]}', b","), (lambda body: parse_whole(body, NOW), b"%b", b"\n")],
    ids=["batch", "stream with a key"],
)
def test_refused_record_is_not_kept_in_memory(parse: Parse, body: bytes, between: bytes) -> None:
    records = [b'{"id":"%d","value":{"type":"STRING","data":[%b1]}}' % (n, b"[]," * 1_000) for n in range(900)]
    assert peak_bytes(parse, body % between.join(records)) < 6 * MIB


@pytest.mark.parametrize(
    ("parse", "record", "body"),
    [
        (parse_v2, b'{"key":1,"value":1}', b'{"records":[%b]}'),
        (
            parse_transaction,
            b'{"topic_name":"t","key":{"type":"JSON","data":1},"value":{"type":"JSON","data":1}}',
            b'{"records":[%b]}',
        ),
        (
            lambda body: parse_whole(body.replace(b"},{", b"}{"), NOW),
            b'{"key":{"type":"JSON","data":1},"value":{"type":"JSON","data":1}}',
            b"%b",
        ),
    ],
    ids=["v2", "transactions", "stream with a key"],
)
def test_short_json_values_take_little_memory(parse: Parse, record: bytes, body: bytes) -> None:
    assert peak_bytes(parse, body % b",".join([record] * 5_000)) < 5_000 * 500 + 2 * MIB


@pytest.mark.parametrize("parse", [parse_v2, parse_batch, parse_transaction])
def test_record_and_rest_of_a_body_that_are_too_long_are_413(parse: Parse) -> None:
    name = "entries" if parse is parse_batch else "records"
    text = b"x" * TEXT_BYTES
    body = b'{"%b":[%b]%b}'
    error = refusal(parse, body % (name.encode(), b'{"id":"%b"}' % text, b""))
    assert (error.status, error.message) == (413, f"{name}[0] has 16777225 bytes of JSON: 16777216 are the most")
    error = refusal(parse, body % (name.encode(), b"{}", b',"more":"%b"' % text[:REST_BYTES]))
    assert (error.status, error.message) == (413, f"the body has more than 4194304 bytes of JSON beside {name!r}")
    error = refusal(parse, (body % (name.encode(), b'"%b"' % text, b""))[:-2])
    assert (error.status, error.message[:14]) == (400, "malformed JSON")
    error = refusal(load_json, b'"%b"' % text)
    assert (error.status, error.message) == (413, "the body has 16777218 bytes of JSON: 16777216 are the most")


def test_long_timestamp_is_refused_at_once() -> None:
    assert refusal(lambda body: _parse_single(body, NOW), b'{"timestamp":"%b"}' % (b"2" * 65)).error_code == 42206
    assert isinstance(_parse_single(b'{"timestamp":"2026-01-01T00:00:00.000000+00:00"}', NOW), ProducerRecord)


def test_limit_of_values_counts_each_value_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "ELEMENTS_MAX", 6)
    assert refusal(load_json, b'{"a":[1,2],"b":3}').message == "the body has 7 JSON values and names: 6 are the most"
    assert load_json(b'{"a":[1],"b":3}', V2_FREE) == {"a": [1], "b": 3}
