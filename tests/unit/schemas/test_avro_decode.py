"""Tests of the decoder of Avro: columns and cells, by the values of fastavro, and no bytes that break it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pyspark_tiered.schemas.avro_decode import Decoded, decode_avro
from pyspark_tiered.schemas.avro_plan import AvroPlan, plan_avro
from pyspark_tiered.schemas.avro_reparse import AvroReparser, NoCell
from pyspark_tiered.schemas.avro_value import BadValue, read_cell
from pyspark_tiered.schemas.cursors import PAD
from pyspark_tiered.schemas.unreadable import UnreadableSchema
from pyspark_tiered.typed.fast import column_type, shape
from pyspark_tiered.typed.kinds import describe_columns, select_columns
from tests.seeds import first_seeds
from tests.unit.schemas.avro_values import EVERYTHING, draw_order, write


def decode(plan: AvroPlan, values: list[bytes]) -> Decoded:
    lengths = np.array([len(each) for each in values], dtype=np.int64)
    ends = np.cumsum(lengths)
    return decode_avro(plan, b"".join([*values, PAD]), ends - lengths, ends)


def cells_of(plan: AvroPlan, found: Decoded) -> list[Any]:
    rows: list[Any] = shape(found.rows, plan.columns, select_columns(plan.columns)).to_pylist()
    return rows


def plan_of(schema: Any) -> AvroPlan:
    return plan_avro(json.dumps(schema), [])


def test_each_type_has_a_column() -> None:
    assert describe_columns(select_columns(plan_of(EVERYTHING).columns)).replace(", ", "\n") == "\n".join(
        [
            "flag boolean", "n int", "id bigint", "f double", "d double", "s string", "raw binary", "opt bigint",
            "late string", "color string", "other string", "hash binary", "day date", "at timestamp", "us timestamp",
            "clock int", "price decimal(9,2)", "sum decimal(38,9)", "huge string", "uuid string", "tags array<string>",
            "items array<struct<sku: string", "of: array<int>>>", "attributes map<string", "double>",
            "deep map<string", "array<struct<sku: string", "of: array<int>>>>", "wide bigint",
            "any struct<string: string", "long: bigint", "Item: struct<sku: string", "of: array<int>>",
            "array: array<int>>", "tree struct<v: int", "next: string", "kids: array<string>>", "ID string",
        ]
    )  # fmt: skip


def test_cells_are_those_that_another_decoder_gives() -> None:
    drawn = Random(1)
    plan, text = plan_of(EVERYTHING), json.dumps(EVERYTHING)
    values = write(EVERYTHING, [draw_order(drawn) for _ in range(600)])
    found = decode(plan, values)
    assert found.bad == {}
    columns, reparser = select_columns(plan.columns), AvroReparser(text, [])
    again = pa.array([reparser.read(each, columns) for each in values], column_type(columns))
    rows = cells_of(plan, found)
    assert rows == again.to_pylist()
    singly = [read_cell(plan, plan.root, each, 0, len(each), 0) for each in values]
    assert [at for _, at in singly] == [len(each) for each in values]
    alone = pa.array([cell for cell, _ in singly], found.rows.type)
    assert shape(alone, plan.columns, columns).to_pylist() == rows
    assert json.loads(next(each["tree"]["next"] for each in rows if each["tree"] and each["tree"]["next"]))["v"] == 1


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
def test_damaged_values_are_bad_and_leave_the_others_alone(seed: int) -> None:
    drawn = Random(seed)
    plan, text = plan_of(EVERYTHING), json.dumps(EVERYTHING)
    values = write(EVERYTHING, [draw_order(drawn) for _ in range(120)])
    whole = cells_of(plan, decode(plan, values))
    damaged = list(values)
    for at in drawn.sample(range(len(values)), 60):
        changed = bytearray(values[at])
        for _ in range(drawn.randrange(1, 4)):
            changed[drawn.randrange(len(changed))] = drawn.choice([0, 1, 0x7F, 0x80, 0xFF, drawn.randrange(256)])
        damaged[at] = bytes(changed[: drawn.choice([len(changed), drawn.randrange(len(changed))])])
    found = decode(plan, damaged)
    rows, reparser, columns = cells_of(plan, found), AvroReparser(text, []), select_columns(plan.columns)
    for at, (before, data) in enumerate(zip(values, damaged, strict=True)):
        if data == before:
            assert (at in found.bad, rows[at]) == (False, whole[at])
            continue
        try:
            cell, end = read_cell(plan, plan.root, data, 0, len(data), 0)
            is_good = end == len(data)
        except BadValue:
            is_good = False
        assert is_good is (at not in found.bad), found.bad.get(at)
        if is_good:
            alone = shape(pa.array([cell], found.rows.type), plan.columns, columns).to_pylist()
            again = pa.array([reparser.read(data, columns)], column_type(columns)).to_pylist()
            assert repr(alone) == repr(again) == repr([rows[at]])


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        ("long", b"", "the value ends within a field"),
        ("long", b"\xff" * 10 + b"\1", "a number beyond 64 bits"),
        ("int", b"\xff\xff\xff\xff\xff\x01", "an int beyond 32 bits"),
        ("string", b"\x08abc", "the value ends within a field"),
        ("string", b"\1", "the value ends within a field"),
        ("string", b"\2\xff", "a text is not UTF-8"),
        ("boolean", b"\2", "a boolean is neither 0 nor 1"),
        ("double", b"1234567", "the value ends within a field"),
        (["null", "long"], b"\4", "a union has no such branch"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", "an array has more items"),
        ({"type": "map", "values": "int"}, b"\4\2a\2\2a\2\0", "a name twice in a map"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\2", "an enum has no such symbol"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "outside of the years 1 to 9999"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\4\1\0", "a decimal of more than 2 digits"),
        ("long", b"\2\0", "bytes are left behind the value"),
    ],
)
def test_reason_of_a_bad_value(schema: Any, data: bytes, why: str) -> None:
    plan = plan_of(schema)
    assert why in decode(plan, [data]).bad[0]
    with pytest.raises(BadValue, match=why):
        _, at = read_cell(plan, plan.root, data, 0, len(data), 0)
        if at < len(data):
            raise BadValue("bytes are left behind the value")
    lenient = ("a name twice in a map", "a boolean is neither 0 nor 1", "a number beyond 64 bits")
    if why not in lenient and select_columns(plan.columns).fields:
        with pytest.raises(NoCell):
            AvroReparser(json.dumps(schema), []).read(data, select_columns(plan.columns).fields[0].kind)


def test_deep_value_of_a_recursive_schema_is_bad() -> None:
    schema = {"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}
    plan, deep = plan_of(schema), b"\2" * 100_000 + b"\0"
    assert "nested too deep" in decode(plan, [deep]).bad[0]
    with pytest.raises(NoCell):
        AvroReparser(json.dumps(schema), []).read(deep, plan.columns)
    assert cells_of(plan, decode(plan, [b"\2\0", b"\0"])) == [{"next": '{"next":null}'}, {"next": None}]


def test_long_arrays_are_read_in_blocks_with_and_without_sizes() -> None:
    plan = plan_of({"type": "array", "items": "int"})
    values = [b"\4\2\4\2\6\0", b"\3\4\2\4\0", b"\0", b"\xa0\x9c\1" + b"\2" * 10_000 + b"\0"]
    found = decode(plan, values)
    assert (found.bad, [len(each["value"]) for each in found.rows.to_pylist()]) == ({}, [3, 2, 0, 10_000])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}, "holds itself without end"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "S"}]}, "S"),
        (["int", {"type": "int", "logicalType": "date"}], "two branches of one name"),
        ({"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": "int"} for i in range(1001)]}, "1000"),
        ({"type": 7}, "."),
        (7, "."),
    ],
)
def test_unreadable_schema(schema: Any, why: str) -> None:
    with pytest.raises(UnreadableSchema, match=why):
        plan_of(schema)


def test_schema_after_those_that_it_refers_to() -> None:
    item = {"type": "record", "name": "a.Item", "fields": [{"name": "x", "type": "int"}]}
    order = {"type": "record", "name": "b.Order", "fields": [{"name": "item", "type": "a.Item"}]}
    plan = plan_avro(json.dumps(order), [json.dumps(item)])
    assert describe_columns(plan.columns) == "item struct<x: int>"
    assert AvroReparser(json.dumps(order), [json.dumps(item)]).read(b"\2", plan.columns) == {"item": {"x": 1}}
