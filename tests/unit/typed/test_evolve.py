"""Tests of schemas: what a value does to one, how two become one, and their forms as DDL and in Delta."""

from __future__ import annotations

import json

import pytest

from pyspark_tiered.typed.ddl import parse_ddl
from pyspark_tiered.typed.evolve import FIELDS_MAX, Unfit, convert, evolve, is_stored_as, merge
from pyspark_tiered.typed.json_text import parse
from pyspark_tiered.typed.kinds import StructOf, describe_columns, from_delta, select_columns, to_delta
from tiered.errors import Refused

EMPTY = StructOf()


def after(schema: StructOf | str, *texts: str) -> str:
    """Returns the columns after these values, as DDL."""
    known = parse_ddl(schema) if isinstance(schema, str) else schema
    for text in texts:
        known = evolve(known, parse(text.encode()))
    return describe_columns(select_columns(known))


@pytest.mark.parametrize(
    ("texts", "columns"),
    [
        (['{"a":1}'], "a bigint"),
        (['{"a":1}', '{"a":1.5}'], "a double"),
        (['{"a":1.5}', '{"a":1}'], "a double"),
        (['{"a":null}'], ""),
        (['{"a":null}', '{"a":true}'], "a boolean"),
        (['{"b":"x"}', '{"a":1,"b":null}'], "b string, a bigint"),
        (['{"a":[]}'], ""),
        (['{"a":[]}', '{"a":[null,{"n":1}]}', '{"a":[{"m":"x"}]}'], "a array<struct<n: bigint, m: string>>"),
        (['{"a":{}}', '{"a":{"b":{"c":1}}}'], "a struct<b: struct<c: bigint>>"),
        (['{"a b":1}'], "`a b` bigint"),
        (["{}"], ""),
    ],
)
def test_values_teach_columns(texts: list[str], columns: str) -> None:
    assert after(EMPTY, *texts) == columns


@pytest.mark.parametrize(
    ("schema", "text", "reason"),
    [
        ("a BIGINT", '{"a":"x"}', "a is text where the column holds bigint"),
        ("a BIGINT", '{"a":true}', "a is a boolean where the column holds bigint"),
        ("a BIGINT", '{"a":[1]}', "a is an array where the column holds bigint"),
        ("a BIGINT", '{"a":9223372036854775808}', "a is a number beyond 64 bits"),
        ("a DOUBLE", '{"a":1e999}', "a is a number beyond 64 bits"),
        ("a DOUBLE", '{"a":1' + "0" * 400 + "}", "a is a number beyond 64 bits"),
        ("a STRING", '{"a":5}', "a is a number where the column holds string"),
        ("a STRING", '{"a":"\\ud800"}', "a holds half of a surrogate pair"),
        ("a ARRAY<STRUCT<b: STRING>>", '{"a":[{"b":"x"},{"b":1}]}', "a[].b is a number where the column holds string"),
        ("a TIMESTAMP", '{"a":"yesterday"}', "a is no timestamp in ISO 8601"),
        ("a DATE", '{"a":"2026-02-30"}', "a is no date in ISO 8601"),
        ("a BIGINT", '{"b":[1,"x"]}', "b[] is text where the column holds bigint"),
        ("a BIGINT", "5", "a number, not an object"),
        ("a BIGINT", "null", "null, not an object"),
        ("a BIGINT", '{"a":1', "not JSON at character 6: Expecting ',' delimiter"),
        ("a BIGINT", '{"a":NaN}', "not JSON: NaN"),
        ("a BIGINT", '{"a":1,"a":2}', "the name 'a' twice in one object"),
        ("a BIGINT", '{"a":' + "1" * 5000 + "}", "a number beyond 64 bits"),
        ("a BIGINT", "[" * 100_000, "nested too deep"),
        ("a BIGINT", '{"b":' + "[" * 40 + "1" + "]" * 40 + "}", "is nested more than 32 deep"),
        ("a BIGINT", '{"' + "k" * 256 + '":1}', "the value has a name of more than 255 bytes"),
        ("a BIGINT", json.dumps({f"k{i}": 1 for i in range(2 * FIELDS_MAX)}), f"more than {FIELDS_MAX} fields"),
    ],
)
def test_value_that_does_not_fit_has_a_reason(schema: str, text: str, reason: str) -> None:
    with pytest.raises(Unfit) as found:
        after(schema, text)
    assert reason in str(found.value)
    assert len(str(found.value)) < 500


def test_value_that_is_not_utf8_has_a_reason() -> None:
    with pytest.raises(Unfit, match="not UTF-8 at byte 6"):
        parse(b'{"a":"\xff"}')


def test_value_that_fits_leaves_the_schema_as_it_is() -> None:
    schema = parse_ddl("a INT, b DOUBLE, c ARRAY<STRUCT<d: STRING>>, e TIMESTAMP, f DATE, g BOOLEAN")
    text = b'{"a":-2147483648,"b":1,"c":[{"d":"x"},null],"e":"2026-11-25T13:00:00+01:00","f":"2026-11-25","g":null}'
    assert evolve(schema, parse(text)) is schema
    row = convert(schema, parse(text))
    assert (row["b"], row["c"], f"{row['e']} {row['f']}") == (
        1.0,
        [{"d": "x"}, None],
        "2026-11-25 12:00:00+00:00 2026-11-25",
    )


def test_int_becomes_long_and_then_double() -> None:
    assert after("a INT", '{"a":2147483647}') == "a int"
    assert after("a INT", '{"a":2147483648}') == "a bigint"
    assert after("a INT", '{"a":2147483648}', '{"a":0.5}') == "a double"


def test_columns_differ_by_more_than_case_and_keep_their_names_in_json() -> None:
    schema = evolve(EMPTY, {"Id": 1, "id": 2, "ID": 3, "_offset": 4, "a b": 5, "a,b": 6, "": 7, "x": {"_offset": 8}})
    assert [(field.json_name, field.column) for field in schema.fields] == [
        ("Id", "Id"),
        ("id", "id_2"),
        ("ID", "ID_3"),
        ("_offset", "_offset_2"),
        ("a b", "a_b"),
        ("a,b", "a_b_2"),
        ("", "_"),
        ("x", "x"),
    ]
    inner = schema.fields[-1].kind
    assert isinstance(inner, StructOf)
    assert inner.fields[0].column == "_offset"
    assert from_delta(to_delta(schema)) == schema


def test_columns_differ_by_more_than_the_upper_case_of_their_characters() -> None:
    names = ["s", "\u017f", "i", "\u0130", "I", "\u0131", "\u03c3", "\u03c2", "k", "\u212a", "\u00b5", "\u03bc"]
    columns = [field.column for field in evolve(EMPTY, dict.fromkeys(names, 1)).fields]
    assert columns == [
        "s", "\u017f_2", "i", "\u0130_2", "I_3", "\u0131_4", "\u03c3", "\u03c2_2", "k", "\u212a_2", "\u00b5",
        "\u03bc_2",
    ]  # fmt: skip


def test_schemas_merge_whatever_each_has_seen_first() -> None:
    one = evolve(EMPTY, {"a": 1, "b": {"x": []}, "n": None})
    two = evolve(EMPTY, {"c": "t", "a": 1.5, "b": {"y": True, "x": [1]}, "n": "s"})
    both = merge(one, two)
    assert describe_columns(both) == "a double, b struct<x: array<bigint>, y: boolean>, n string, c string"
    assert merge(both, one) is both
    assert merge(both, two) is both
    assert not is_stored_as(one, both), "a is a long in one and a double in both"
    assert is_stored_as(two, both)


def test_schemas_that_contradict_each_other_do_not_merge() -> None:
    with pytest.raises(Unfit, match=r"a\.b is string where the column holds bigint"):
        merge(parse_ddl("a STRUCT<b: BIGINT>"), parse_ddl("a STRUCT<b: STRING>"))


def test_a_column_with_another_name_is_not_stored_as_the_same() -> None:
    one, two = evolve(EMPTY, {"id": 1}), evolve(EMPTY, {"ID": 1, "id": 1})
    assert merge(one, two).fields[0].column == "id"
    assert not is_stored_as(two, merge(one, two))


def test_ddl_is_read_as_it_is_written() -> None:
    text = (
        "a bigint, `b c` array<struct<d: string, e: int>>, f struct<g: double>, h timestamp, i date, j decimal(9,2), "
    )
    text += "k map<string, map<string, array<int>>>"
    assert describe_columns(parse_ddl(text)) == text
    assert from_delta(to_delta(parse_ddl(text))) == parse_ddl(text)
    assert parse_ddl("A LONG,b Array < Int >") == parse_ddl("A bigint, b array<int>")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a name of a column is missing"),
        ("a", "nothing is no type of a column"),
        ("a MONEY", "money is no type of a column; there are boolean, int"),
        ("a DECIMAL(39,0)", "a decimal has 1 to 38 digits"),
        ("a DECIMAL(2,3)", "a decimal has 1 to 38 digits"),
        ("a DECIMAL(2", "')' is expected"),
        ("a DECIMAL()", "a number of digits is missing"),
        ("a INT,", "a name of a column is missing"),
        ("a INT, a STRING", "the name a twice"),
        ("a ARRAY<INT", "'>' is expected in the place of ''"),
        ("a MAP<INT, INT>", "the names of a map are string, not int"),
        ("a MAP<STRING>", "',' is expected in the place of '>'"),
        ("a INT NOT NULL", "',' is expected in the place of 'NOT'"),
        ("a INT; DROP", "';' is not expected"),
        ("a " + "ARRAY<" * 50, "more than 32 types inside each other"),
    ],
)
def test_ddl_with_a_fault_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(Refused, match=r"the schema is wrong at character \d+: ") as found:
        parse_ddl(text)
    assert reason in str(found.value)
