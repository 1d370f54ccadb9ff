"""Tests of maps: objects whose names are data, which a declared schema keeps as such."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_tiered.proof.row_form import BLANKS, LEAVES
from pyspark_tiered.typed.batches import sort_values
from pyspark_tiered.typed.changes import drop_field
from pyspark_tiered.typed.ddl import parse_ddl
from pyspark_tiered.typed.evolve import is_stored_as, merge
from pyspark_tiered.typed.fast import column_type
from pyspark_tiered.typed.kinds import describe_columns, select_columns
from pyspark_tiered.typed.reparse import reparse
from tests.unit.typed.values import BROKEN, SCALARS, hash_rows

SCHEMA = parse_ddl("m MAP<STRING, BIGINT>, o ARRAY<MAP<STRING, STRUCT<d: STRING>>>, i STRING")
NAMES = st.sampled_from(["a", "b", "A", "", "a:b", "é", "\ud800", "x" * 300])
MAPS = st.dictionaries(NAMES, st.one_of(SCALARS, st.dictionaries(st.just("d"), SCALARS)), max_size=3)
OBJECTS = st.fixed_dictionaries(
    {}, optional={"m": st.one_of(SCALARS, MAPS), "o": st.lists(st.one_of(SCALARS, MAPS), max_size=2), "i": SCALARS}
).map(lambda value: json.dumps(value).encode())


@settings(max_examples=60)
@given(st.lists(st.one_of(OBJECTS, BROKEN, st.none()), max_size=5))
@example([b'{"c":[[]]}', b'{"c":{}}'])
@example([b'{"c":{"d":[]}}', b'{"c":[1]}', b'{"c":[[]]}', b'{"i":{},"o":[{},[[]]],"m":[]}'])
def test_both_parsers_take_the_same_values_and_read_the_same(values: list[bytes | None]) -> None:
    found = sort_values(pa.array(values, pa.binary()), SCHEMA)
    columns = select_columns(found.schema)
    dead = {at for at, _ in found.dead}
    again = reparse([value for at, value in enumerate(values) if at not in dead], columns)
    assert not again.unfit
    assert [list(found.rows.field(at)) for at in range(len(columns.fields))] == [list(each) for each in again.columns]
    assert len(reparse([values[at] for at in sorted(dead)], columns).unfit) == len(dead)


def sort(*values: Any, ddl: str = "m MAP<STRING, INT>") -> Any:
    return sort_values(pa.array([json.dumps(value).encode() for value in values], pa.binary()), parse_ddl(ddl))


def test_names_of_a_map_are_rows_and_no_columns() -> None:
    found = sort(
        {"m": {"a": 1, "b": None}}, {"m": {}}, {"m": None}, {"new": 1}, *({"m": {f"{i}": i}} for i in range(5000))
    )
    assert describe_columns(found.schema) == "m map<string, int>, new bigint"
    assert found.rows.field("m").to_pylist()[:5] == [[("a", 1), ("b", None)], [], None, None, [("0", 0)]]
    assert found.dead == ()


def test_values_of_a_map_widen_and_get_fields() -> None:
    assert describe_columns(sort({"m": {"a": 1 << 40}}).schema) == "m map<string, bigint>"
    one = sort({"m": {"a": {"x": 1}, "b": {"y": 0.5}}}, ddl="m MAP<STRING, STRUCT<x: INT>>")
    assert describe_columns(one.schema) == "m map<string, struct<x: int, y: double>>"
    assert one.rows.field("m").to_pylist() == [[("a", {"x": 1, "y": None}), ("b", {"x": None, "y": 0.5})]]
    assert one.rows.type.field("m").type == column_type(select_columns(one.schema)).field("m").type
    two = sort({"m": {"a": {"x": 1.5}}}, ddl="m MAP<STRING, STRUCT<x: INT>>")
    both = merge(one.schema, two.schema)
    assert describe_columns(both) == "m map<string, struct<x: double, y: double>>"
    assert not is_stored_as(one.schema, both)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"m": {"a": "x"}}, "m{} is text where the column holds int"),
        ({"m": [1]}, "m is an array where the column holds map<string, int>"),
        ({"m": {"\ud800": 1}}, "m holds half of a surrogate pair"),
    ],
)
def test_value_that_no_map_holds_is_a_dead_letter_with_a_reason(value: Any, reason: str) -> None:
    found = sort({"m": {"a": 1}}, value)
    assert found.dead == ((1, reason),)
    assert found.mistyped == (("m",) if "array" in reason else ())


def test_dropped_map_is_left_out() -> None:
    rules, schema = drop_field((), parse_ddl("a INT, m MAP<STRING, INT>"), ("m",))
    found = sort_values(pa.array([b'{"a":1,"m":{"x":1}}', b'{"a":2}'], pa.binary()), schema, rules)
    assert found.rows.to_pylist() == [{"a": 1}, {"a": 2}]


def hash_maps(rows: list[Any], at: int = 0) -> list[bytes]:
    schema, count = parse_ddl("m MAP<STRING, STRING>"), len(rows) - at
    values = pa.array(rows, column_type(schema).field("m").type).slice(at)
    found = hash_rows([values], schema, count).tobytes()
    return [found[16 * i : 16 * i + 16] for i in range(count)]


def test_hash_covers_names_values_and_order_of_a_map() -> None:
    rows = [None, [], [("a", None)], [("a", "")], [("", "a")], [("a", "b")], [("b", "a")], [("a", "b"), ("c", "d")],
            [("c", "d"), ("a", "b")], [("ab", "")], [("a", "b"), ("c", None)]]  # fmt: skip
    assert len(set(hash_maps(rows))) == len(rows)
    assert hash_maps(rows, 4) == hash_maps(rows)[4:]


def test_map_is_blank_only_without_a_name() -> None:
    rows: list[Any] = [None, [], [("a", None)], [("b", None)]]
    schema = parse_ddl("m MAP<STRING, STRING>")
    found = hash_rows([pa.array(rows, column_type(schema).field("m").type)], schema, 4, in_full=True)
    assert found[:, BLANKS].tolist() == [[0], [1], [0], [0]]
    leaves = found[:, LEAVES].tolist()
    assert leaves[0] == leaves[1]
    assert len({tuple(each) for each in leaves}) == 3


def test_field_has_a_type_from_its_first_leaf_on() -> None:
    empty = sort({"c": {"d": None}}, ddl="i INT")
    found = sort({"c": {"d": None}}, {"c": [[]]}, {"c": [1]}, {"c": {}}, {"c": {"d": 1}}, ddl="i INT")
    assert found.dead == ((4, "c is an object where the column holds array<bigint>"),)
    assert found.rows.field("c").to_pylist() == [None, [None], [1], None]
    assert describe_columns(merge(empty.schema, found.schema)) == "i int, c array<bigint>"
    assert describe_columns(merge(found.schema, empty.schema)) == "i int, c array<bigint>"
