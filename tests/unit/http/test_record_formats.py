import pytest

from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions.record_formats import (
    ProducerRecord,
    format_timestamp,
    parse_record_v2,
    parse_record_v3,
    parse_timestamp,
)

NOW = 1_700_000_000_123


def test_v3_record_has_all_fields_by_type() -> None:
    record = {
        "partition_id": 3,
        "key": {"type": "STRING", "data": "käse"},
        "value": {"type": "JSON", "data": {"n": [1, None]}},
        "headers": [{"name": "a", "value": "AAE="}, {"name": "b"}],
        "timestamp": "2013-01-01T05:00:00.25-05:00",
    }
    assert parse_record_v3(record, NOW) == ProducerRecord(
        3, 1357034400250, "käse".encode(), b'{"n":[1,null]}', (("a", b"\0\1"), ("b", None)), ("STRING", "JSON")
    )


def test_missing_fields_of_a_v3_record_are_null_and_now() -> None:
    assert parse_record_v3({}, NOW) == ProducerRecord(None, NOW, None, None, ())
    tombstone = parse_record_v3(
        {"key": {"type": "BINARY", "data": "aw=="}, "value": {"type": "BINARY", "data": None}}, NOW
    )
    assert (tombstone.key, tombstone.value) == (b"k", None)


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ([], 42206),
        ({"value": "text"}, 42206),
        ({"value": {"data": "no type"}}, 42206),
        ({"value": {"type": "THRIFT", "data": "x"}}, 42206),
        ({"value": {"type": "JSON", "schema_id": 1, "data": "x"}}, 42206),
        ({"value": {"type": ["STRING"], "data": "x"}}, 42206),
        ({"value": {"type": "STRING", "data": 7}}, 42206),
        ({"value": {"type": "BINARY", "data": "a"}}, 42206),
        ({"value": {"type": "BINARY", "data": "AA=="}, "headers": [{"value": "AA=="}]}, 42206),
        ({"headers": {"name": "a"}}, 42206),
        ({"timestamp": "2013-01-01T05:00:00"}, 42206),
        ({"timestamp": "yesterday"}, 42206),
        ({"timestamp": -1}, 42206),
        ({"timestamp": True}, 42206),
        ({"timestamp": 1e12}, 42206),
        ({"partition_id": -1}, 40002),
        ({"partition_id": True}, 40002),
        ({"partition_id": "0"}, 40002),
    ],
)
def test_invalid_v3_record_is_refused_with_a_reason(record: object, code: int) -> None:
    with pytest.raises(HttpError) as refused:
        parse_record_v3(record, NOW)
    assert refused.value.error_code == code


def test_too_deeply_nested_json_is_refused() -> None:
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(HttpError) as refused:
        parse_record_v3({"value": {"type": "JSON", "data": deep}}, NOW)
    assert refused.value.status == 422


def test_v2_records_are_base64_or_json_by_the_content_type() -> None:
    assert parse_record_v2({"key": "aw==", "value": "dg=="}, "binary", NOW) == ProducerRecord(None, NOW, b"k", b"v", ())
    assert parse_record_v2({"value": {"a": 1}, "partition": 2}, "json", NOW) == ProducerRecord(
        2, NOW, None, b'{"a":1}', ()
    )
    for wrong in ({"value": {"a": 1}}, {"value": "?"}, "text", {"key": 1}):
        with pytest.raises(HttpError):
            parse_record_v2(wrong, "binary", NOW)


@pytest.mark.parametrize("ms", [0, 1, 999, NOW, 253_402_300_799_999])
def test_timestamps_are_formatted_and_parsed(ms: int) -> None:
    assert parse_timestamp(format_timestamp(ms)) == ms == parse_timestamp(ms)
