"""Tests of the second parser and of the hash of typed rows: both parsers agree, and no change of a row is unseen."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyspark_tiered.proof.comparison import compare_rows
from pyspark_tiered.proof.summing import ListedRows
from pyspark_tiered.typed.batches import sort_values
from pyspark_tiered.typed.ddl import parse_ddl, parse_key_ddl
from pyspark_tiered.typed.evolve import Unfit, convert, evolve
from pyspark_tiered.typed.fast import column_type
from pyspark_tiered.typed.json_text import parse
from pyspark_tiered.typed.kinds import StructOf, key_field, select_columns
from pyspark_tiered.typed.reparse import reparse
from tests.unit.typed.values import BROKEN, OBJECTS, SCHEMA, hash_rows


def expect(value: bytes | None, schema: StructOf) -> dict[str, Any] | None:
    """Returns the cells that the loader's definition gives a value, None if it does not fit the columns."""
    try:
        parsed = {} if value is None else parse(value)
        return convert(schema, parsed) if select_columns(evolve(schema, parsed)) == schema else None
    except Unfit:
        return None


def cells(columns: list[Any], schema: StructOf, row: int) -> dict[str, Any]:
    return {field.column: column[row].as_py() for field, column in zip(schema.fields, columns, strict=True)}


@given(st.lists(st.one_of(OBJECTS, BROKEN, st.none()), max_size=6))
def test_second_parser_takes_the_values_of_the_first_and_reads_the_same(values: list[bytes | None]) -> None:
    found = reparse(values, SCHEMA)
    for row, value in enumerate(values):
        expected = expect(value, SCHEMA)
        assert (row in found.unfit) == (expected is None), found.unfit
        if expected is not None:
            assert cells(found.columns, SCHEMA, row) == expected


@pytest.mark.parametrize(
    "value",
    [
        b'{"a":1,"a":1}', b'{"a":1,"i":"x:y","a":1}', b'{"c":[{"d":"x","d":"x"}]}', b'{"i":"\\u003a","i":":"}',
        b'{"a":1,"i":"\\u003A","a":1}', b'{"z":{"y":null,"y":null}}',
    ],
)  # fmt: skip
def test_name_twice_in_an_object_is_seen_wherever_it_is(value: bytes) -> None:
    others = [b'{"a":1}', b'{"i":"::"}', b'{"i":"\\u003a"}', b'{"z:":{"y":[]}}', None]
    assert set(reparse([*others, value, *others], SCHEMA).unfit) == {len(others)}


EMPTIES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, [], {}]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=8,
)


@given(EMPTIES, st.sampled_from(["z", "a", "c", "i"]))
@example([{"a": []}, {"a": {}}], "c")
@example([{"a": []}, {"a": None}, {"a": [[]]}], "c")
def test_value_without_a_leaf_fits_every_column(value: Any, name: str) -> None:
    text = json.dumps({name: value}).encode()
    found, expected = reparse([text, b"{}"], SCHEMA), expect(text, SCHEMA)
    assert not found.unfit
    assert expected is not None
    assert cells(found.columns, SCHEMA, 0) == expected


def test_value_of_another_type_with_a_leaf_does_not_fit_beside_one_without() -> None:
    schema = parse_ddl("a BIGINT, b BIGINT")
    texts = [b'{"a":{},"b":"x"}', b'{"a":"x","b":{}}', b'{"a":{"p":[]},"b":[null]}', b'{"a":[1]}', b'{"a":{"p":false}}']
    assert sorted(reparse(texts, schema).unfit) == [0, 1, 3, 4]
    keyed = reparse(texts, StructOf((key_field(parse_key_ddl("BIGINT")), *schema.fields)), (), [b"{}"] * 4 + [b'"x"'])
    assert sorted(keyed.unfit) == [0, 1, 3, 4]


def test_number_has_the_bits_that_its_column_holds() -> None:
    texts = ["-0", "-0.0", "1e2", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
             "0.1000000000000000055511151231257827", "123456789012345678901234567890", "5e-324"]  # fmt: skip
    for text in texts:
        for schema in (parse_ddl("a BIGINT"), parse_ddl("a DOUBLE")):
            value = f'{{"a":{text}}}'.encode()
            expected, found = expect(value, schema), reparse([value], schema)
            assert (0 in found.unfit) == (expected is None), (text, schema)
            if expected is not None:
                loaded = sort_values(pa.array([value], pa.binary()), schema).rows.field("a")
                cell = found.columns[0][0].as_py()
                assert str(cell) == str(expected["a"])
                assert str(cell + 0) == str(loaded[0].as_py() + 0), "a zero may have another sign"


HASHED = parse_ddl(
    "a BIGINT, b DOUBLE, c ARRAY<STRUCT<d: STRING, e: STRING>>, f TIMESTAMP, g DATE, h BOOLEAN, i INT, j STRING, "
    "k STRING, l STRUCT<m: STRING, n: ARRAY<ARRAY<BIGINT>>>"
)


def random_row(rng: Random) -> dict[str, Any]:
    def some(make: Callable[[], Any]) -> Any:
        return None if rng.random() < 0.25 else make()

    def text() -> str:
        return rng.choice(["", "x", "y", "xy", "0", "null"])

    return {
        "a": some(lambda: rng.getrandbits(63)),
        "b": some(rng.random),
        "c": some(lambda: [some(lambda: {"d": some(text), "e": some(text)}) for _ in range(rng.randrange(3))]),
        "f": some(lambda: rng.getrandbits(50)),
        "g": some(lambda: rng.getrandbits(14)),
        "h": some(lambda: rng.random() < 0.5),
        "i": some(lambda: rng.getrandbits(31)),
        "j": some(text),
        "k": some(text),
        "l": some(
            lambda: {"m": some(text), "n": some(lambda: [some(lambda: [1] * rng.randrange(3)) for _ in range(2)])}
        ),
    }


def change(rng: Random, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row with one cell changed."""
    while True:
        name = rng.choice("abcfghijkl")
        held = row[name]
        match name, held:
            case "j", _ if rng.random() < 0.5:  # a value moves to the column beside
                changed = row | {"j": row["k"], "k": row["j"]}
            case (("a" | "f" | "g" | "i"), int()):
                changed = row | {name: held ^ 1 << rng.randrange(14)}
            case "b", float():
                changed = row | {name: held + 2**-53}
            case "c", list() if held:
                at = rng.randrange(len(held))
                item = held[at]
                other = {"d": item["e"], "e": item["d"]} if item and rng.random() < 0.5 else {"d": None, "e": None}
                changed = row | {"c": [*held[:at], None if item == other else other, *held[at + 1 :]]}
            case "l", dict():
                n = held["n"]
                inner = [] if n is None else None if not n else [*n[1:], n[0]] if n[0] != n[1] else n[:1]
                changed = row | {"l": held | {"n": inner}}
            case _, None:
                changed = row | {name: random_row(rng)[name]}
            case (("j" | "k"), ""):
                changed = row | {name: None}
            case _:
                changed = row | {name: None if rng.random() < 0.5 else random_row(rng)[name]}
        if changed != row:
            return changed


def hash_each(rows: list[dict[str, Any]], cuts: list[int] | None = None, *, in_full: bool = False) -> list[bytes]:
    whole = pa.array(rows, column_type(HASHED))
    found = b""
    for start, end in pairwise([0, *(cuts or []), len(rows)]):
        part = whole.slice(start, end - start)
        values = [part.field(at) for at in range(len(HASHED.fields))]
        found += hash_rows(values, HASHED, end - start, first=start, in_full=in_full).tobytes()
    size = len(found) // len(rows)
    return [found[size * at : size * (at + 1)] for at in range(len(rows))]


def test_ten_thousand_changes_of_single_cells_change_the_hash_of_their_row() -> None:
    rng = Random(3)
    rows = [random_row(rng) for _ in range(10_000)]
    changed = [change(rng, row) for row in rows]
    before, after = hash_each(rows), hash_each(changed)
    unseen = [(row, other) for row, other, one, two in zip(rows, changed, before, after, strict=True) if one == two]
    assert unseen == []


def list_rows(hashes: list[bytes]) -> ListedRows:
    words = np.frombuffer(b"".join(hashes), dtype="<u8").reshape(len(hashes), -1)
    return ListedRows(0, np.arange(len(hashes)), words)


def has_leaf(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(has_leaf, value.values() if isinstance(value, dict) else value))
    return value is not None


def stands_for(log: Any, table: Any) -> bool:
    """True if a field of the table is that of the log, or NULL in the place of a value without a leaf."""
    if table is None and not has_leaf(log):
        return True
    if isinstance(log, dict) and isinstance(table, dict):
        return all(stands_for(log[name], table[name]) for name in log)
    return bool(log == table)


def test_only_null_in_the_place_of_a_value_without_a_leaf_is_whole() -> None:
    rng = Random(6)
    rows = [random_row(rng) for _ in range(10_000)]
    changed = [change(rng, row) for row in rows]
    before, after = hash_each(rows, in_full=True), hash_each(changed, in_full=True)
    wanted = [stands_for(row, other) for row, other in zip(rows, changed, strict=True)]
    faults, whole = compare_rows(0, [list_rows(before)], [list_rows(after)])
    found = set(whole.tolist())
    assert [(rows[at], changed[at]) for at in range(len(rows)) if (at in found) != wanted[at]] == []
    assert {each.kind for each in faults} == {"changed"}
    assert sum(each.end - each.start for each in faults) == len(rows) - len(found)
    assert 100 < sum(wanted) < 5000
    assert hash_each(rows[:300], [1, 7, 100, 299], in_full=True) == before[:300]


def test_hash_of_a_row_does_not_depend_on_the_batch_that_it_stands_in() -> None:
    rng = Random(4)
    rows = [random_row(rng) for _ in range(300)]
    assert hash_each(rows) == hash_each(rows, [1, 7, 100, 101, 299])


def test_column_that_a_file_lacks_counts_as_null() -> None:
    schema = parse_ddl(
        "a BIGINT, b STRING, c ARRAY<INT>, d STRUCT<e: BIGINT, f: STRING, g: INT>, h DOUBLE, i DECIMAL(4,2)"
    )
    values = [json.dumps({"a": at, "d": {"e": 1}}).encode() for at in range(5)]
    full = reparse(values, schema).columns
    short = [full[0], None, None, pa.StructArray.from_arrays([full[3].field("e")], names=["e"]), None, None]
    one, two = (hash_rows(columns, schema, 5).tobytes() for columns in (full, short))
    assert one == two
