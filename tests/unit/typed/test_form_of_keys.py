"""Tests of typed keys: a row needs a key and a value that fit, and both parsers read the same from both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_tiered.typed.batches import SortedValues, sort_values
from pyspark_tiered.typed.changes import (
    Change,
    FieldRule,
    add_change,
    drop_field,
    envelope_rules,
    parse_path,
    rename_field,
)
from pyspark_tiered.typed.ddl import parse_ddl, parse_key_ddl
from pyspark_tiered.typed.fast import KEYS, parse_all
from pyspark_tiered.typed.form import (
    ValueRules,
    declared_schema,
    read_rules,
    read_schema,
    typed_fields,
    typed_properties,
)
from pyspark_tiered.typed.kinds import StructOf, describe, describe_columns, key_field, key_part, select_columns
from pyspark_tiered.typed.names import KEY
from pyspark_tiered.typed.reparse import reparse
from tests.unit.typed.values import BROKEN, OBJECTS, SCALARS
from tiered.errors import Refused

Bytes = bytes | None
SCHEMA = StructOf(
    (key_field(parse_key_ddl("a BIGINT, c ARRAY<STRUCT<d: STRING>>, i STRING")), *parse_ddl("a INT").fields)
)
TEXTS = SCALARS.map(json.dumps).map(str.encode)
TRICKS = st.sampled_from(
    [
        b'1},"w":{"a":2', b'1,"\\u0000key":2', b'1}}\n{"v":{"\\u0000key":2', b'{"a":1', b'{"a":1}}', b"1}}", b'"x',
        b"1 2", b'{"\\u0000key":1}', b'{"a":1,"a":2}', b' {"a":1}\n', b"nul", b"\xef\xbb\xbf1",
        b'{"a":1}}\n{"v":{"\\u0000key":{}',
    ]
)  # fmt: skip
KEY_BYTES = st.one_of(OBJECTS, TEXTS, BROKEN, TRICKS, st.none())
VALUE_BYTES = st.one_of(OBJECTS, BROKEN, st.none())


def sort(
    keys: Sequence[Bytes], values: Sequence[Bytes], schema: StructOf, rules: tuple[FieldRule, ...] = ()
) -> SortedValues:
    return sort_values(pa.array(values, pa.binary()), schema, rules, pa.array(keys, pa.binary()))


def rows_of(found: SortedValues) -> list[dict[str, Any]]:
    return list(found.rows.to_pylist())


@settings(max_examples=60)
@given(st.lists(st.tuples(KEY_BYTES, VALUE_BYTES), max_size=5), st.booleans())
def test_both_parsers_take_the_same_records_and_read_the_same(pairs: list[tuple[Bytes, Bytes]], declared: bool) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    found = sort(keys, values, SCHEMA if declared else StructOf((key_field(),)))
    columns = select_columns(found.schema)
    dead = {at for at, _ in found.dead}
    fits = [at for at in range(len(pairs)) if at not in dead]
    again = reparse([values[at] for at in fits], columns, (), [keys[at] for at in fits])
    assert not again.unfit
    parsed = [{field.column: cells[row].as_py() for field, cells in zip(columns.fields, again.columns, strict=True)}
              for row in range(len(fits))]  # fmt: skip
    assert rows_of(found) == (parsed if columns.fields else [])
    letters = sorted(dead)
    refused = reparse([values[at] for at in letters], columns, (), [keys[at] for at in letters])
    assert len(refused.unfit) == len(letters), "the second parser takes a dead letter"


@pytest.mark.parametrize(
    "key", [b'1},"w":{"a":2', b'1,"\\u0000key":2', b'1}}\n{"v":{"\\u0000key":2', b'{"a":1}}', b"1 2", b""]
)
def test_key_that_is_more_or_less_than_one_value_is_refused_by_arrow(key: bytes) -> None:
    schema = StructOf((key_field(parse_key_ddl("BIGINT")),))
    for others in ([b"1"], [b"1", b"2"]):
        assert parse_all(pa.array([*others, key], pa.binary()), schema, KEYS).rows is None
    assert parse_all(pa.array([b"1", None, b" 2\n"], pa.binary()), schema, KEYS).rows is not None


def test_row_needs_both_and_a_dead_letter_adds_nothing_to_the_schema() -> None:
    keys = [b'{"id":1}', b'{"id":2}', b"no JSON", b'{"id":"x"}', b'{"late":5}', None]
    values = [b'{"v":1}', b'{"v":', b'{"new":1}', b'{"new":2}', b'{"v":"x"}', b'{"v":6}']
    found = sort(keys, values, StructOf((key_field(),)))
    assert [(at, why.partition(" at")[0]) for at, why in found.dead] == [
        (1, "not JSON"),
        (2, "key: not JSON"),
        (3, "_typed_key.id is text where the column holds bigint"),
        (4, "v is text where the column holds bigint"),
    ]
    assert describe_columns(found.schema) == "_typed_key struct<id: bigint>, v bigint"
    assert rows_of(found) == [{"_typed_key": {"id": 1}, "v": 1}, {"_typed_key": None, "v": 6}]


def test_many_keys_are_sorted_with_their_values() -> None:
    keys = [b"cut" if at % 700 == 5 else b"%d" % at for at in range(3000)]
    values = [b"{" if at % 900 == 7 else b'{"n":%d}' % at for at in range(3000)]
    found = sort(keys, values, StructOf((key_field(),)))
    dead = [at for at in range(3000) if at % 700 == 5 or at % 900 == 7]
    assert [at for at, _ in found.dead] == dead
    assert rows_of(found) == [{"_typed_key": at, "n": at} for at in range(3000) if at not in dead]


def test_field_of_the_value_with_the_name_of_the_key_gets_another_column() -> None:
    found = sort([b"1"], [b'{"_typed_key":2}'], StructOf((key_field(),)))
    assert rows_of(found) == [{"_typed_key": 1, "_typed_key_2": 2}]
    assert [at for at, _ in sort([b"1"], [b'{"\\u0000key":2}'], StructOf((key_field(),))).dead] == [0]


def test_key_of_a_change_event_is_what_its_payload_is() -> None:
    rules = envelope_rules("json", "debezium")
    keys = [
        b'{"schema":{"x":1},"payload":{"id":1}}',
        b'{"id":2}',
        b'{"schema":null,"payload":7}',
        b'{"payload":1}',
        None,
    ]
    found = sort(keys, [None] * 5, StructOf((key_field(),)), rules)
    assert rows_of(found) == [{"_typed_key": {"id": 1}}, {"_typed_key": {"id": 2}}, {"_typed_key": None}]
    assert [why for _, why in found.dead] == [
        "_typed_key is a number where the column holds struct<id: bigint>",
        "the key of a change event has no field 'payload'",
    ]
    again = reparse([None] * 5, select_columns(found.schema), rules, keys)
    assert sorted(again.unfit) == [2, 3]
    assert again.columns[0].to_pylist()[:2] == [{"id": 1}, {"id": 2}]


def test_rules_for_fields_of_the_key_leave_the_value_alone() -> None:
    schema = StructOf((key_field(parse_key_ddl("id BIGINT, x STRING")), *parse_ddl("id BIGINT").fields))
    rules: tuple[FieldRule, ...] = (Change((KEY, "id"), "number", "id_text"),)
    rules, schema = drop_field(rules, schema, parse_path("_typed_key.x"))
    keys, values = [b'{"id":"a","x":"gone"}', b'{"id":1}'], [b'{"id":1}', b'{"id":"a"}']
    found = sort(keys, values, schema, rules)
    assert rows_of(found) == [{"_typed_key": {"id": None, "id_text": "a"}, "id": 1}]
    again = reparse(values, select_columns(found.schema), rules, keys)
    assert (sorted(again.unfit), again.columns[0][0].as_py()) == ([1], {"id": None, "id_text": "a"})


def test_whole_key_keeps_its_column() -> None:
    schema, path = StructOf((key_field(parse_key_ddl("BIGINT")),)), ("_typed_key",)
    with pytest.raises(Refused, match="_typed_key is the whole key: it stays"):
        drop_field((), schema, path)
    with pytest.raises(Refused, match="_typed_key is the whole key: it keeps its name"):
        rename_field(schema, path, "k")
    with pytest.raises(Refused, match="_typed_key is the whole key: its values cannot move"):
        add_change((), schema, path, "k")
    (rule,) = add_change((), schema, path, "")
    assert rows_of(sort([b'"x"', b"1"], [None, None], schema, (rule,))) == [{"_typed_key": None}, {"_typed_key": 1}]


@pytest.mark.parametrize(
    ("text", "described"),
    [
        ("BIGINT", "bigint"),
        ("ARRAY<INT>", "array<int>"),
        ("id BIGINT", "struct<id: bigint>"),
        ("date DATE, n INT", "struct<date: date, n: int>"),
        ("STRUCT<id: STRING>", "struct<id: string>"),
    ],
)
def test_type_of_a_key_is_declared(text: str, described: str) -> None:
    assert describe(parse_key_ddl(text)) == described
    rules = ValueRules("json", "a INT, _typed_key STRING", "json", text)
    schema = declared_schema(rules)
    assert [field.column for field in schema.fields] == ["_typed_key", "a", "_typed_key_2"]
    assert read_rules(typed_properties(rules)) == rules
    fields = typed_fields(schema)
    metadata = {"configuration": typed_properties(rules), "schemaString": json.dumps({"fields": fields[::-1]})}
    assert key_part(read_schema(metadata)) == key_part(schema), "the key is known by its mark, wherever it stands"


def test_key_schema_with_a_fault_is_refused() -> None:
    with pytest.raises(Refused, match="the schema is wrong at character"):
        declared_schema(ValueRules("json", "", "json", "id"))
