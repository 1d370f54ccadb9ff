"""Keys and values by their schemas: JSON to framed bytes and back, held against the libraries' own encodings."""

from __future__ import annotations

import io
import json
import math
from contextlib import suppress
from typing import Any

import fastavro
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.registry.registration import Resolved
from tiered.registry.schema import AVRO, JSON, PROTOBUF, Schema
from tiered.registry.values import FramedValues, SchemaCodec, SchemaUnread, make_codec, split_id

RECORD = {
    "type": "record", "name": "R", "namespace": "n",
    "fields": [
        {"name": "u", "type": ["null", "int", "string", {"type": "array", "items": "n.R"}]},
        {"name": "b", "type": "bytes"},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X", "Y"]}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "l", "type": "long"},
        {"name": "t", "type": "boolean"},
    ],
}  # fmt: skip
VALUE: dict[str, Any] = {
    "u": {"string": "ä"}, "b": "\u00ff\u0000", "f": "ab", "m": {"x": 1.5}, "e": "Y", "d": "\u0001", "l": -(1 << 63),
    "t": True,
}  # fmt: skip
PROTO = """
syntax = "proto3"; package p;
message M { string a_b = 1; int64 n = 2; message I { int32 x = 1; } repeated I i = 3; }
message Other { bool yes = 1; }
"""


def codec(schema: Any, kind: str = AVRO) -> SchemaCodec:
    text = schema if isinstance(schema, str) and kind != AVRO else json.dumps(schema)
    return make_codec(7, Resolved(Schema(text, kind)))


def round_trip(made: SchemaCodec, value: Any) -> Any:
    id, own = split_id(made.encode(orjson.dumps(value)))
    assert id == 7
    return made.codec.decode(own)


def test_value_of_avro_goes_both_ways_as_the_specification_writes_it() -> None:
    made = codec(RECORD)
    assert made.record_names == ("n.R",)
    unions: list[Any] = [{"string": "ä"}, {"int": 5}, None, {"array": []}, {"array": [VALUE]}]
    for union in unions:
        value = {**VALUE, "u": union}
        assert round_trip(made, value) == value
    own = made.encode(orjson.dumps(VALUE))[5:]
    plain: Any = fastavro.schemaless_reader(io.BytesIO(own), RECORD, None)
    assert (plain["u"], plain["b"], plain["e"], plain["l"]) == ("ä", b"\xff\0", "Y", -(1 << 63))


@given(st.one_of(st.floats(), st.sampled_from([math.inf, -math.inf])))
def test_numbers_that_json_lacks_are_texts(number: float) -> None:
    shown = number if math.isfinite(number) else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(number, "NaN")
    assert round_trip(codec("double"), shown) == shown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"u": "bare"}, 'the value.u has to be written as {"int": ...}'),
        ({"u": {"long": 1}}, "the value.u has to be one of null, int, string, array"),
        ({"u": {"int": 1 << 31}}, "the value.u has to be an 32-bit integer"),
        ({"u": {"array": [{}]}}, "the value.u[0] lacks the field 'u' of n.R"),
        ({"b": "\u0100"}, "the value.b has to be a string of bytes"),
        ({"f": "abc"}, "the value.f has to be a string of 2 bytes"),
        ({"m": {"x": "1"}}, "the value.m.x has to be a number"),
        ({"e": "Z"}, "the value.e has to be a symbol of n.E"),
        ({"t": 1}, "the value.t has to be true or false"),
        ({"l": 1.5}, "the value.l has to be an 64-bit integer"),
        ({"typo": 1}, "the value has a field 'typo', which n.R does not have"),
    ],
)
def test_value_that_is_not_of_its_schema_is_refused_with_its_place(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="value") as refused:
        codec(RECORD).encode(orjson.dumps({**VALUE, **change}))
    assert str(refused.value).startswith(words)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    for made in (codec(RECORD), codec({"type": "array", "items": "null"}), codec(PROTO, PROTOBUF)):
        with suppress(ValueError):
            orjson.dumps(made.codec.decode(data))


def test_items_without_bytes_are_bounded() -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, {"type": "array", "items": "null"}, [None] * 200_000)
    with pytest.raises(ValueError, match="more than 100000 items"):
        codec({"type": "array", "items": "null"}).codec.decode(out.getvalue())


def test_record_that_holds_itself_is_bounded() -> None:
    node = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    with pytest.raises(ValueError, match="nested deeper"):
        codec(node).codec.decode(b"\2" * 500 + b"\0")


def test_first_message_of_protobuf_is_written_and_any_is_read() -> None:
    made = codec(PROTO, PROTOBUF)
    assert set(made.record_names) == {"p.M", "p.M.I", "p.Other"}
    value = {"a_b": "x", "n": "5", "i": [{"x": 1}]}
    assert round_trip(made, value) == value
    assert made.encode(orjson.dumps(value))[5:6] == b"\0"
    assert made.codec.decode(b"\2\2\x08\1") == {"yes": True}
    assert made.codec.decode(b"\4\0\0\x08\5") == {"x": 5}
    for wrong in (b'{"typo": 1}', b"[]", b'{"n": "x"}'):
        with pytest.raises(ValueError, match=r"message|field|value"):
            made.encode(wrong)


def test_json_schema_keeps_the_value_as_it_is() -> None:
    assert round_trip(codec('{"type": "string", "title": "T"}', JSON), {"any": 1}) == {"any": 1}


def test_values_are_shown_once_their_schema_is_known() -> None:
    values, made = FramedValues("avro"), codec("string")
    data = made.encode(b'"x"')
    with pytest.raises(SchemaUnread) as unread:
        values(data)
    values.known |= {unread.value.id: made, 8: "Schema 8 not found"}
    assert values(data) == "x"
    for wrong, words in ((b"\0\0\0\0\x08x", "Schema 8 not found"), (b"x", "no zero byte")):
        with pytest.raises(ValueError, match=words):
            values(wrong)
    other = FramedValues("jsonschema")
    other.known[7] = made
    with pytest.raises(ValueError, match="schema id 7 is of AVRO"):
        other(data)
