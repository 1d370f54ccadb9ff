"""Tests of rules for values of other types than their columns, by both parsers."""

from __future__ import annotations

import copy
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tiered.typed import batches
from pyspark_tiered.typed.batches import sort_values
from pyspark_tiered.typed.changes import (
    CHANGES_MAX,
    Change,
    DroppedField,
    Envelope,
    FieldRule,
    RetypedField,
    add_change,
    apply_changes,
    decode_changes,
    drop_field,
    encode_changes,
    format_path,
    parse_path,
)
from pyspark_tiered.typed.ddl import parse_ddl
from pyspark_tiered.typed.evolve import Unfit
from pyspark_tiered.typed.kinds import DOUBLE, ListOf, describe_columns, select_columns
from pyspark_tiered.typed.reparse import reparse
from tests.unit.typed.values import BROKEN, OBJECTS, SCHEMA
from tiered.errors import Corrupt, Refused


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("a", ("a",)),
        ("items[].sku", ("items", "[]", "sku")),
        ("a[][].b.c", ("a", "[]", "[]", "b", "c")),
        ("`a.b`.`c``d`", ("a.b", "c`d")),
        ("my field", ("my field",)),
    ],
)
def test_path_is_parsed(text: str, path: tuple[str, ...]) -> None:
    assert parse_path(text) == path
    assert parse_path(format_path(path)) == path


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a[]", "a[0]", "a[", "`a", "`[]`.b", "a]b"])
def test_text_that_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"is no path|has to end"):
        parse_path(text)


DROP, MOVE = Change(("a",), "number"), Change(("a",), "number", "b")


@pytest.mark.parametrize(
    ("change", "value", "after"),
    [
        (DROP, {"a": 1}, None),
        (DROP, {"a": None}, None),
        (DROP, {"c": "x"}, None),
        (DROP, {"a": True}, {}),
        (DROP, {"a": "x", "c": 1}, {"c": 1}),
        (MOVE, {"a": "x"}, {"b": "x"}),
        (MOVE, {"a": [1], "b": None}, {"b": [1]}),
        (MOVE, {"a": 1.5, "b": "x"}, None),
        (Change(("o", "[]", "a"), "text"), {"o": [{"a": 1}, 5, {"a": "x"}, None, {"a": {}}]},
         {"o": [{}, 5, {"a": "x"}, None, {}]}),
        (Change(("o", "a"), "text"), {"o": [{"a": 1}]}, None),
        (DROP, [{"a": "x"}], None),
    ],
)  # fmt: skip
def test_rule_changes_values_of_other_types_only(change: Change, value: Any, after: Any) -> None:
    found = copy.deepcopy(value)
    assert apply_changes([change], found) == (after is not None)
    assert found == (value if after is None else after)


def test_value_that_cannot_move_does_not_fit() -> None:
    with pytest.raises(Unfit, match="'a' has another type, and 'b' is taken"):
        apply_changes([MOVE], {"a": "x", "b": 1})


@pytest.mark.parametrize("value", ["\ud800", ["x", 10**400], {"y": {"\ud800": None}}])
def test_value_that_no_column_holds_is_not_dropped(value: Any) -> None:
    with pytest.raises(Unfit):
        apply_changes([DROP], {"a": value})


@pytest.mark.parametrize(
    ("before", "to", "value", "after"),
    [
        ("long", "string", 5, "5"),
        ("long", "string", 1.5, "1.5"),
        ("long", "string", True, "true"),
        ("double", "string", 5, "5.0"),
        ("double", "string", -0.0, "0.0"),
        ("double", "string", 1 << 70, "1.1805916207174113e+21"),
        ("boolean", "string", [1], [1]),
        ("string", "long", "-12", -12),
        ("string", "long", "1.5", "1.5"),
        ("string", "int", "007", "007"),
        ("string", "double", "1.5e3", 1500.0),
        ("string", "double", "nan", "nan"),
        ("string", "boolean", "false", False),
        ("string", "boolean", "False", "False"),
    ],
)
def test_scalar_becomes_one_of_another_type(before: str, to: str, value: Any, after: Any) -> None:
    found = {"o": [{"a": copy.deepcopy(value)}, {}, None]}
    assert apply_changes([RetypedField(("o", "[]", "a"), before, to)], found) == (value != after)
    assert found["o"][0] == {"a": after}


@pytest.mark.parametrize(("before", "value"), [("long", 1 << 63), ("long", 2.0**64), ("double", 10**400)])
def test_number_beyond_64_bits_becomes_no_text(before: str, value: Any) -> None:
    with pytest.raises(Unfit, match="beyond 64 bits"):
        apply_changes([RetypedField(("a",), before, "string")], {"a": value})


@pytest.mark.parametrize(
    ("value", "after"),
    [
        (
            {"schema": {"fields": [{"default": 1}]}, "payload": {"op": "c", "after": {"id": 1}}},
            {"op": "c", "after": {"id": 1}},
        ),
        ({"schema": None, "payload": None}, {}),
        ({"op": "c", "schema": 1}, None),
        ({"schema": 1, "payload": None, "op": "c"}, None),
        ([1], None),
    ],
)
def test_payload_takes_the_place_of_its_envelope(value: Any, after: Any) -> None:
    found = copy.deepcopy(value)
    assert apply_changes([Envelope()], found) == (after is not None)
    assert found == (value if after is None else after)


@pytest.mark.parametrize("payload", [5, [], {"schema": 1, "payload": 2}])
@pytest.mark.parametrize("more", [{}, {"op": "c"}])
def test_payload_that_is_no_event_does_not_fit(payload: Any, more: dict[str, str]) -> None:
    with pytest.raises(Unfit, match="payload"):
        apply_changes([Envelope()], {"schema": {}, "payload": payload, **more})


def test_rules_are_kept_and_a_damaged_one_is_told() -> None:
    rules = (DROP, MOVE, RetypedField(("a", "[]", "b"), "long", "string"), DroppedField(("drop",), ListOf(DOUBLE)))
    assert decode_changes(encode_changes(rules)) == rules
    assert decode_changes("") == ()
    for text in (
        "{",
        "5",
        "[[]]",
        '[["a", "number"]]',
        '[["drop"]]',
        '[["drop", ["a"], "x"]]',
        '[["retype", ["a"], "long", "date"]]',
        '[[[], "number", ""]]',
        '[[["a"], "colour", ""]]',
    ):
        with pytest.raises(Corrupt, match="rules of a typed table"):
            decode_changes(text)


def test_rule_names_the_type_of_its_column() -> None:
    schema = parse_ddl("a INT, b ARRAY<STRUCT<c: TIMESTAMP, d: ARRAY<INT>>>, e STRUCT<f: BOOLEAN>")
    for text, stays in (("a", "number"), ("b[].c", "text"), ("b[].d", "array"), ("e", "object"), ("e.f", "boolean")):
        assert add_change((), schema, parse_path(text), "x") == (Change(parse_path(text), stays, "x"),)
    for text in ("z", "b.c", "a.x", "e.g", "b[][].c"):
        with pytest.raises(Refused, match="has no field"):
            add_change((), schema, parse_path(text), "")
    with pytest.raises(Refused, match="has a rule already"):
        add_change([DROP], schema, ("a",), "x")
    with pytest.raises(Refused, match="cannot move"):
        add_change((), schema, ("a",), "a")
    with pytest.raises(Refused, match="at most"):
        add_change([Change((f"x{at}",), "text") for at in range(CHANGES_MAX)], schema, ("a",), "")


def test_one_value_of_another_type_between_others_is_moved_or_dropped() -> None:
    values = [b'{"a":1,"c":"x:y"}', b'{"a":"one"}', b'{"a":3}', b'{"a":[1]}'] * 300
    found = sort_values(pa.array(values, pa.binary()), parse_ddl("a BIGINT, c STRING"), [MOVE])
    assert describe_columns(found.schema) == "a bigint, c string, b string"
    assert len(found.dead) == 300, "an array does not fit the new column"
    assert found.rows.to_pylist()[:3] == [
        {"a": 1, "c": "x:y", "b": None}, {"a": None, "c": None, "b": "one"}, {"a": 3, "c": None, "b": None},
    ]  # fmt: skip


def test_name_twice_is_seen_beside_changed_values() -> None:
    schema = parse_ddl("a BIGINT, b STRING, c STRING")
    texts = [
        b'{"a":"x:y","c":":"}',
        b'{"a":1,"c":"x"}',
        b'{"a":1,"a":2}',
        b'{"a":"x","c":"1","c":"2"}',
        b'{"a":[1],"b":5}',
    ]
    assert set(reparse(texts, schema, [MOVE]).unfit) == {2, 3, 4}
    assert reparse(texts[:2] * 9, schema, [MOVE]).unfit == {}


def test_values_with_a_dropped_field_are_read_by_arrow_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, schema = drop_field((), parse_ddl("a BIGINT, o ARRAY<STRUCT<b: STRING, c: DATE>>"), parse_path("o[].b"))
    rules, schema = drop_field(rules, schema, parse_path("a"))
    texts = [b'{"a":1,"o":[{"b":"x","c":"2026-11-26"}]}', b'{"a":null,"o":[{"b":"y"},null]}', b'{"o":[{"b":5}]}']
    strict = sort_values(pa.array(texts, pa.binary()), schema, rules).rows.to_pylist()
    assert strict == [{"o": [{"c": date(2026, 11, 26)}]}, {"o": [{"c": None}, None]}, {"o": [{"c": None}]}]
    monkeypatch.delattr(batches, "parse")
    assert sort_values(pa.array(texts[:2], pa.binary()), schema, rules).rows.to_pylist() == strict[:2]


RULES: list[FieldRule] = [
    RetypedField(("h",), "string", "int"),
    RetypedField(("i",), "double", "string"),
    DroppedField(("d",), SCHEMA.fields[2].kind),
    Change(("a",), "number", "i"),
    Change(("b",), "number"),
    Change(("c", "[]", "d"), "text"),
    Change(("g",), "boolean", "z"),
]


@given(st.lists(st.one_of(OBJECTS, BROKEN, st.none()), max_size=6))
def test_both_parsers_read_the_same_by_rules(values: list[bytes | None]) -> None:
    found = sort_values(pa.array(values, pa.binary()), SCHEMA, RULES)
    columns = select_columns(found.schema)
    again = reparse(values, columns, RULES)
    dead = {at for at, _ in found.dead}
    # A value may be a dead letter that a later value of the batch made fit; no row does not fit.
    assert set(again.unfit) <= dead
    kept = [at for at in range(len(values)) if at not in dead]
    for number, field in enumerate(columns.fields):
        cells = again.columns[number].to_pylist()
        assert [cells[at] for at in kept] == found.rows.field(field.column).to_pylist()
