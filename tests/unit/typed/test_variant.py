"""Tests of variants: what is encoded is decoded, both parsers take the same values, and damage is seen."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_tiered.typed import evolve
from pyspark_tiered.typed.batches import sort_values
from pyspark_tiered.typed.changes import add_change, drop_field
from pyspark_tiered.typed.ddl import parse_ddl
from pyspark_tiered.typed.form import ValueRules, declared_schema, typed_fields
from pyspark_tiered.typed.kinds import StructOf, describe_columns, from_delta, select_columns
from pyspark_tiered.typed.reparse import canonical_json, reparse
from pyspark_tiered.typed.variant import EncodedVariant, decode_variant, encode_variant
from tests.unit.typed.values import BROKEN, OBJECTS, SCALARS, hash_rows
from tiered.errors import Refused

WHOLE = declared_schema(ValueRules("variant"))
PART = parse_ddl("id BIGINT, v VARIANT, m MAP<STRING, ARRAY<VARIANT>>")
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), FLOATS, st.text(max_size=70))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
)
ANY = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.sampled_from("ab:é"), inner)))
TEXTS = st.one_of(ANY.map(json.dumps).map(str.encode), OBJECTS, BROKEN, st.none())


@settings(max_examples=60)
@given(TREES)
def test_encoded_value_is_decoded(value: Any) -> None:
    found = decode_variant(*encode_variant(value))
    assert canonical_json(found) == canonical_json(value)
    assert type(found) is type(value)


@pytest.mark.parametrize("count", [0, 1, 255, 256, 300])
@pytest.mark.parametrize("make", [lambda n: list(range(n)), lambda n: {f"k{i}": i for i in range(n)}, "é".__mul__])
def test_sizes_around_each_form_are_decoded(make: Any, count: int) -> None:
    value = [make(count), "x" * 300 * count, make(3)]
    assert decode_variant(*encode_variant(value)) == value


def test_forms_are_those_of_the_specification() -> None:
    assert encode_variant({"b": 1, "a": [True, None]}) == EncodedVariant(
        bytes([0b10, 2, 0, 1, 0, 7, 9, 0b11, 2, 0, 1, 2, 4, 0, 12, 1]), b"\x11\x02\x00\x01\x02ab"
    )
    assert [encode_variant(number).value[0] >> 2 for number in (127, -128, 128, -(1 << 15), 1 << 15, 1 << 31, 0.5)] == [
        3, 3, 4, 4, 5, 6, 7,
    ]  # fmt: skip


@settings(max_examples=60)
@given(st.lists(TEXTS, max_size=4), st.sampled_from([WHOLE, PART]))
def test_both_parsers_take_the_same_values_and_read_the_same(values: list[bytes | None], schema: StructOf) -> None:
    found = sort_values(pa.array(values, pa.binary()), schema)
    columns = select_columns(found.schema)
    dead = {at for at, _ in found.dead}
    kept = [value for at, value in enumerate(values) if at not in dead]
    again = reparse(kept, columns)
    assert not again.unfit
    rows = [found.rows.field(at) for at in range(len(columns.fields))]
    assert (hash_rows(rows, columns, len(kept)) == hash_rows(again.columns, columns, len(kept))).all()


def test_whole_value_of_any_form_is_one_column() -> None:
    values = [b'{"a":1}', b"[1,2]", b'"t"', b"5", b"null", None, b"{", b'{"a":18446744073709551616}', b'{"a":1,"a":2}']
    found = sort_values(pa.array(values, pa.binary()), WHOLE)
    assert describe_columns(found.schema) == "value variant"
    assert [None if each is None else decode_variant(**each) for each in found.rows.field(0).to_pylist()] == [
        {"a": 1}, [1, 2], "t", 5, None, None,
    ]  # fmt: skip
    assert [why for _, why in found.dead][1:] == [
        "value is a number beyond 64 bits",
        "the name 'a' twice in one object",
    ]
    assert from_delta(typed_fields(WHOLE)[-1:]) == WHOLE
    with pytest.raises(Refused, match="leave out --schema"):
        declared_schema(ValueRules("variant", "a INT"))


def test_too_deep_and_too_large_values_are_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = b"[" * 102 + b"]" * 102
    monkeypatch.setattr(evolve, "VARIANT_BYTES_MAX", 50)
    values = [deep, b"[" + b'"' + b"x" * 40 + b'"]', b"[" + b'"' + b"x" * 60 + b'"]', b"[" * 10 + b"]" * 10]
    found = sort_values(pa.array(values, pa.binary()), WHOLE)
    assert found.dead == (
        (0, "value is nested more than 100 deep"),
        (2, "value takes more than 50 bytes as a variant"),
    )


def test_variant_has_no_values_of_another_type() -> None:
    with pytest.raises(Refused, match="'v' takes each value"):
        add_change((), PART, ("v",), "w")
    with pytest.raises(Refused, match="value is the whole value: it stays"):
        drop_field((), WHOLE, ("value",))


def test_damaged_variant_is_no_value_and_has_another_hash() -> None:
    good = encode_variant({"a": [1, "x" * 80], "b": {"c": 1.5}})
    assert decode_variant(*good) == {"a": [1, "x" * 80], "b": {"c": 1.5}}
    kind = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    wanted = hash_rows([pa.array([good._asdict()], kind)], WHOLE, 1).tobytes()
    unseen = []
    for part, name in enumerate(good._fields):
        for at, byte in enumerate(good[part]):
            broken = good[part][:at] + bytes([byte ^ 0x41]) + good[part][at + 1 :]
            if hash_rows([pa.array([good._asdict() | {name: broken}], kind)], WHOLE, 1).tobytes() == wanted:
                unseen.append((name, at))
    ends_of_parts = [("value", 6), ("value", 11), ("value", 103)]  # a reader needs where the parts begin
    assert unseen == ends_of_parts
    loop = bytes([0b11, 2, 0, 0, 0])  # an array of which each item begins where the array does
    with pytest.raises(ValueError, match="a damaged variant"):
        decode_variant(loop * 3, good.metadata)
