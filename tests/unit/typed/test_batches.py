"""Tests of batches: Arrow's parser and the strict one sort every value alike, and rows stay beside their records."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tiered.typed import batches
from pyspark_tiered.typed.batches import sort_values
from pyspark_tiered.typed.ddl import parse_ddl
from pyspark_tiered.typed.evolve import Unfit, Value, convert, evolve
from pyspark_tiered.typed.fast import parse_all
from pyspark_tiered.typed.json_text import parse
from pyspark_tiered.typed.kinds import StructOf, describe_columns, select_columns
from pyspark_tiered.typed.reparse import reparse
from tests.unit.typed.values import BROKEN, OBJECTS, SCHEMA


def plain(rows: pa.StructArray) -> list[Any]:
    return rows.to_pylist() if len(rows.type) else [{} for _ in range(len(rows))]


def sort_singly(values: Sequence[bytes | None], schema: StructOf) -> list[Value | Unfit]:
    """Returns, for each value, its columns as Python values, or why it does not fit. The schema does not grow."""
    found: list[Value | Unfit] = []
    for data in values:
        try:
            value = {} if data is None else parse(data)
            if evolve(schema, value) is not schema:
                raise Unfit("the schema does not take it")
        except Unfit as why:
            found.append(why)
        else:
            found.append(convert(schema, value))
    return found


@given(st.lists(st.one_of(OBJECTS, BROKEN, st.none()), max_size=6))
def test_both_parsers_take_the_same_values_and_read_the_same_from_them(values: list[bytes | None]) -> None:
    fast = parse_all(pa.array(values, pa.binary()), SCHEMA).rows
    strict = sort_singly(values, SCHEMA)
    if fast is not None:
        assert [value for value in strict if isinstance(value, Unfit)] == []
    elif values and not any(re.search(rb'"j": -?[0-9]|\[\]|\{\}|null[\]}]', value or b"") for value in values):
        # Arrow's parser takes only text for a decimal, and no `{}` for an array.
        assert any(isinstance(value, Unfit) for value in strict), "the fast path refuses what fits"
    found = sort_values(pa.array(values, pa.binary()), SCHEMA)
    again = sort_singly(values, found.schema)
    dead = {at for at, _ in found.dead}
    kept = [value for at, value in enumerate(again) if at not in dead]
    columns = [field.column for field in select_columns(found.schema).fields]
    expected = [None if isinstance(value, Unfit) else {name: value[name] for name in columns} for value in kept]
    assert plain(found.rows) == expected


def text_of(number: int) -> bytes:
    return json.dumps({"id": number, "name": f"n{number}"}).encode()


@pytest.mark.parametrize("every", [2, 3, 40, 700])
def test_rows_and_dead_letters_keep_their_places(every: int) -> None:
    values = [b"{cut" if i % every == 0 else b'{"id":"text"}' if i % every == 1 else text_of(i) for i in range(3000)]
    found = sort_values(pa.array(values, pa.binary()), parse_ddl("id BIGINT, name STRING"))
    dead = [at for at, _ in found.dead]
    assert dead == [i for i in range(3000) if i % every < 2]
    assert found.rows.field("id").to_pylist() == [i for i in range(3000) if i % every > 1]


def test_columns_that_appear_late_are_null_before() -> None:
    values = [text_of(i) for i in range(500)] + [b'{"id":0.5,"new":{"deep":[1]}}'] * 500
    found = sort_values(pa.array(values, pa.binary()), StructOf())
    assert describe_columns(select_columns(found.schema)) == "id double, name string, new struct<deep: array<bigint>>"
    assert found.dead == ()
    assert found.rows.field("id").to_pylist() == [*map(float, range(500)), *[0.5] * 500]
    assert found.rows.field("new").to_pylist() == [None] * 500 + [{"deep": [1]}] * 500


def test_decimal_takes_text_exactly_and_numbers_by_their_shortest_text() -> None:
    schema = parse_ddl("a DECIMAL(5, 2), b NUMERIC(38,38), c DECIMAL")
    fits = {'"12.30"': "12.30", "12.3": "12.30", "-0": "0.00", "999.99": "999.99", "1e2": "100.00", '"-0.1"': "-0.10"}
    unfit = ["1000", '"012"', '"1.234"', "1.234", '"1e2"', '" 1"', '"+1"', "true", "1e30", "9223372036854775808", "[1]"]
    texts = [f'{{"a":{each}}}'.encode() for each in [*fits, *unfit]]
    found = sort_values(pa.array(texts, pa.binary()), schema)
    assert found.rows.field("a").to_pylist() == [Decimal(each) for each in fits.values()]
    assert [at for at, _ in found.dead] == list(range(len(fits), len(texts)))
    assert found.dead[1][1] == "a is no decimal(5,2)"
    assert set(reparse(texts, select_columns(schema)).unfit) == {at for at, _ in found.dead}
    exact = f"0.{'1' * 38}"
    (row,) = sort_values(
        pa.array([f'{{"b":"{exact}","c":"1234567890"}}'.encode()], pa.binary()), schema
    ).rows.to_pylist()
    assert (row["b"], row["c"]) == (Decimal(exact), Decimal(1234567890))


def test_text_is_the_same_timestamp_for_all_three_parsers() -> None:
    schema = parse_ddl("a TIMESTAMP")
    clocks = [
        "",
        "T10",
        "T10:11",
        " 10:11:12",
        "T10:11:12.1",
        "T10:11:12.123456",
        "T10:11:12.1234567",
        "T24:00",
        "T23:60",
    ]
    zones = ["", "Z", "z", "+01", "-0130", "+01:30", "+14:60", "-23:59", "+24:00", "+01:"]
    days = ["2020-02-29", "2021-02-29", "0001-01-01", "9999-12-31"]
    texts = [json.dumps({"a": f"{day}{clock}{zone}"}).encode() for day, clock, zone in product(days, clocks, zones)]
    strict = sort_singly(texts, schema)
    again = reparse(texts, schema)
    for at, text in enumerate(texts):
        alone = parse_all(pa.array([text], pa.binary()), schema).rows
        assert isinstance(strict[at], Unfit) == (alone is None) == (at in again.unfit), text
    fits = [text for at, text in enumerate(texts) if at not in again.unfit]
    found = sort_values(pa.array([*fits, None, b'{"a":null}'], pa.binary()), schema)
    assert found.dead == ()
    wanted = [value for value in strict if not isinstance(value, Unfit)]
    assert found.rows.to_pylist() == [*wanted, {"a": None}, {"a": None}]
    assert again.columns[0].drop_null().to_pylist() == [value["a"] for value in wanted]
    assert len(fits) > 50


def test_tombstone_is_a_row_without_values() -> None:
    found = sort_values(pa.array([None, b'{"a":1}', None], pa.binary()), StructOf())
    assert (plain(found.rows), found.dead) == ([{"a": None}, {"a": 1}, {"a": None}], ())


EMPTY_ITEMS = (
    "[null,null]", "[[],[]]", "[[null,null],[null]]", "[[[null,null]],[]]", "[{},{}]", "[{},null,{}]",
    '[{"q":null},{"q":[null,null]}]', '[{"q":{}},{"q":{"r":[null,null]}}]', '{"q":[null,null,null]}',
)  # fmt: skip


@pytest.mark.parametrize("value", EMPTY_ITEMS)
@pytest.mark.parametrize("others", [1, 5])
def test_items_without_a_value_are_rows(value: str, others: int) -> None:
    texts = [b'{"id":1}'] * others + [f'{{"b":{value}}}'.encode()] * 2
    found = sort_values(pa.array(texts, pa.binary()), StructOf())
    assert (len(found.rows), found.dead) == (len(texts), ())
    again = sort_values(pa.array(texts, pa.binary()), found.schema)
    assert (len(again.rows), again.dead, again.schema) == (len(texts), (), found.schema)
    assert describe_columns(select_columns(found.schema)) == "id bigint"


def test_large_values_are_parsed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PART_BYTES", 2000)
    values = [json.dumps({"a": "x" * size}).encode() for size in (10, 8_000_000, 20, 1999, 1)]
    found = sort_values(pa.array(values, pa.binary()), StructOf())
    assert [len(row["a"]) for row in plain(found.rows)] == [10, 8_000_000, 20, 1999, 1]


def test_million_names_of_one_object_cost_a_bounded_schema() -> None:
    values = [json.dumps({"ids": {f"k{i}-{j}": 1 for j in range(10)}}).encode() for i in range(150)]
    found = sort_values(pa.array(values, pa.binary()), StructOf())
    assert len(found.rows) == 99
    assert {reason for _, reason in found.dead} == {"more than 1000 fields in one table"}
