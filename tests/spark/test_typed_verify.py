"""Tests of the proof of typed tables, without a JVM: whatever is not as the log says is named, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_tiered.proof import comparison
from pyspark_tiered.proof.verify import RowFault
from tests.seeds import chosen
from tests.spark.typed_site import Site, encode, rewrite
from tiered.errors import Corrupt

Rows = list[dict[str, Any]]
VALUES: list[bytes | None] = [
    *encode({"id": 1, "city": "Rome", "at": {"lat": 1.5, "tags": ["a", "b"]}}, {"id": 2, "city": ""}, {"id": 3}),
    None,
    b'{"id": "x"}',
    b"no JSON",
    *encode({"id": 6, "city": "a:b", "at": {"lat": 2, "tags": []}}, {"id": 7, "late": True, "none": None}),
]
DEAD = (4, 5)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.write(VALUES)
    made.load()
    return made


def test_whole_tables_are_proved_after_each_step_of_their_schema(site: Site) -> None:
    found = site.verify()
    assert (found.ok, found.rows, found.dead, found.fitting, found.loaded) == (True, 6, 2, 0, {0: 8})
    site.write(encode({"id": 0.5, "at": {"lat": 1, "new": [{"x": 1}]}}, {"city": 5}))
    site.load()
    found = site.verify()
    assert (found.ok, found.rows, found.dead, found.loaded) == (True, 7, 3, {0: 10}), found.faults


def test_several_partitions_and_loads_are_proved(tmp_path: Path) -> None:
    site = Site(tmp_path, partitions=3)
    for turn in range(3):
        for number in range(3):
            site.write(
                encode(*({"x": "t" if i % 5 == 4 else i, f"f{turn}": number} for i in range(60))), partition=number
            )
        site.load(split_bytes=700)
    found = site.verify()
    assert (found.ok, found.rows, found.dead) == (True, 432, 108), found.faults


LATE = [
    ({}, 1), ([], 1), ({"p": None}, 1), ([None], 1), ([None, None], 1), ({}, "t"), ([], True), ({}, 0.5), ([{}], 1),
    ({}, [1]), ([], [1]), ([None, None], [1]), ([], {"p": 1}), ({}, {"p": 1}), ({"p": {}}, {"p": 1}),
    ({"q": []}, {"p": 1}), ([[]], [[1]]), ([[], [None]], [[1]]), ([{}, None], [{"p": 1}]),
    ([{"q": {}}], [{"q": {"r": 1}}]), ({"a": 1, "q": {}}, {"q": {"r": 1}}), ({"a": 1, "q": []}, {"q": 1}),
    ([{"a": 1, "q": [None]}], [{"q": ["t"]}]),
    ({"a": {"b": 1, "q": {}}}, {"a": {"q": [[1]]}}), ([{"a": 1}, {}, {"q": {}}, None], [{"q": "t"}]),
]  # fmt: skip


@pytest.mark.parametrize(("first", "then"), chosen(LATE, LATE[::5]))
def test_value_without_a_leaf_is_whole_as_null_before_its_column(
    tmp_path: Path, first: Any, then: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    site.write(encode({"x": first, "id": 1}, {"id": 2}))
    site.load()
    site.write(encode({"x": then, "id": 3}))
    site.load()
    found = site.verify()
    assert (found.ok, found.rows, found.dead) == (True, 3, 0), found.faults
    site.write(encode({"id": 0.5}))  # a wider column: all files are written again
    site.load()
    found = site.verify()
    assert (found.ok, found.rows, found.dead) == (True, 4, 0), found.faults
    monkeypatch.setattr(comparison, "COMPARED_AT_ONCE", 3)
    assert site.verify() == found


def test_value_without_a_leaf_is_null_in_a_column_of_another_form(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"x": 1}, {"x": {}}, {"x": [None]}, {"x": None}))
    site.load()
    found = site.verify()
    assert (found.ok, found.rows, found.dead) == (True, 4, 0), found.faults
    assert site.rows("x") == [(1,), (None,), (None,), (None,)]


def test_loss_beside_rows_from_before_a_column_is_found(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode(*({"id": i, "x": {"p": []}, "y": [i]} for i in range(9))))
    site.load()
    site.write(encode(*({"id": i, "x": {"p": [i]}, "y": []} for i in range(9, 17)), {"id": 0.5}))
    site.load()
    assert site.verify().ok

    def damage(rows: Rows) -> Rows:
        changes: dict[int, Any] = {
            0: {"y": []}, 1: {"y": None}, 2: {"id": None}, 10: {"x": None}, 11: {"x": {"p": []}}, 12: {"y": [None]},
            13: {"x": {"p": [None]}}, 15: {"y": [15]},
        }  # fmt: skip
        return [row | changes.get(row["_offset"], {}) for row in rows if row["_offset"] != 14]

    def damage_empties(rows: Rows) -> Rows:
        changes: dict[int, Any] = {9: {"y": None}, 10: {"y": [None]}, 17: {"y": []}}
        return [row | changes.get(row["_offset"], {}) for row in rows]

    rewrite_all(site, damage_empties)
    assert {each[:3] for each in site.verify().faults} == {("changed", 0, 10), ("changed", 0, 17)}
    rewrite_all(site, damage)
    changed = (0, 1, 2, 10, 11, 12, 13, 15, 17)
    assert {each[:3] for each in site.verify().faults} == {*(("changed", 0, at) for at in changed), ("missing", 0, 14)}


def rewrite_all(site: Site, change: Callable[[Rows], Rows]) -> None:
    for add in site.typed().files():
        path = Path(site.warehouse, "t_typed", add["path"])
        held = pq.read_table(path)
        pq.write_table(pa.Table.from_pylist(change(held.to_pylist()), schema=held.schema), path)


def edit(place: int, **cells: Any) -> Callable[[Rows], Rows]:
    return lambda rows: [row | cells if row["_offset"] == place else row for row in rows]


def drop(place: int) -> Callable[[Rows], Rows]:
    return lambda rows: [row for row in rows if row["_offset"] != place]


def double(place: int) -> Callable[[Rows], Rows]:
    return lambda rows: [row for row in rows for _ in range(2 if row["_offset"] == place else 1)]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (edit(1, city=None), "changed"),
        (edit(2, city=""), "changed"),
        (edit(3, id=0), "changed"),
        (edit(0, at={"lat": 1.5, "tags": ["ab"]}), "changed"),
        (edit(6, at={"lat": 2.0, "tags": [None]}), "changed"),
        (edit(2, at={"lat": None, "tags": None}), "changed"),
        (edit(7, late=None), "changed"),
        (edit(1, _headers=[]), "changed"),
        (edit(1, _key=b""), "changed"),
        (drop(2), "missing"),
        (double(2), "duplicate"),
        (edit(2, _offset=4), "extra"),
        (edit(2, _offset=9), "extra"),
        (edit(2, _partition=1), "extra"),
        (edit(2, _offset=None), "extra"),
    ],
)
def test_changed_row_is_found(
    site: Site, change: Callable[[Rows], Rows], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    def note(rows: Rows) -> Rows:
        after = change(rows)
        seen.extend((row["_partition"], row["_offset"]) for row in after if row not in rows)
        seen.extend((row["_partition"], row["_offset"]) for row in rows if row not in after)
        seen.extend((row["_partition"], row["_offset"]) for row in after if after.count(row) > 1)
        return after

    rewrite(site.typed(), note)
    found = site.verify().faults
    assert fault in {each.kind for each in found}
    places = {(-1, -1) if None in place else place for place in seen}
    assert {each[1:3] for each in found} == places
    assert not any(each.is_dead for each in found)
    monkeypatch.setattr(comparison, "COMPARED_AT_ONCE", 3)
    assert site.verify().faults == found


@pytest.mark.parametrize(
    ("change", "faults"),
    [
        (edit(4, _value=b"{}"), {(4, "changed", True)}),
        (edit(5, _value=None), {(5, "changed", True)}),
        (drop(5), {(5, "unfit", False), (5, "missing", False)}),
        (double(5), {(5, "duplicate", True)}),
        (edit(5, _offset=2), {(5, "unfit", False), (5, "missing", False), (2, "extra", False), (2, "changed", True)}),
        (edit(5, _offset=8), {(5, "unfit", False), (5, "missing", False), (8, "extra", True)}),
    ],
)
def test_changed_dead_letter_is_found(site: Site, change: Callable[[Rows], Rows], faults: set[Any]) -> None:
    rewrite(site.dead(), change)
    assert {(each.offset, each.kind, each.is_dead) for each in site.verify().faults} == faults


def test_row_that_became_a_dead_letter_too_is_a_duplicate_place(site: Site) -> None:
    rewrite(site.dead(), lambda rows: [*rows, rows[0] | {"_offset": 2, "_value": VALUES[2]}])
    found = site.verify()
    assert RowFault("extra", 0, 2) in found.faults
    assert found.fitting == 1


def test_erased_rows_may_be_absent_and_have_to_be(site: Site) -> None:
    assert [each[:3] for each in site.verify({0: ((1, 3),)}).faults] == [("erased", 0, 1), ("erased", 0, 2)]
    rewrite(site.typed(), lambda rows: [row for row in rows if row["_offset"] not in (1, 2)])
    assert site.verify({0: ((1, 3),)}).ok


def test_random_changes_of_a_large_table_are_each_found(tmp_path: Path) -> None:
    rng = Random(5)
    site = Site(tmp_path)
    site.write(encode(*({"id": i, "name": f"n{i % 7}", "tags": [i % 3, None], "x": None} for i in range(20_000))))
    site.load()
    wanted = set(rng.sample(range(20_000), 200))

    def change(rows: Rows) -> Rows:
        for at in wanted:
            name = rng.choice(["id", "name", "tags", "_timestamp", "_key"])
            rows[at] |= {name: None} if name != "tags" else {"tags": [None, at % 3]}
        return rows

    rewrite(site.typed(), change)
    assert {each[:3] for each in site.verify().faults} == {("changed", 0, at) for at in wanted}


def test_file_that_is_gone_or_has_other_types_is_damage(site: Site) -> None:
    (add,) = site.typed().files()
    path = Path(site.warehouse, "t_typed", add["path"])
    held = pq.read_table(path)
    at = held.schema.get_field_index("id")
    pq.write_table(held.set_column(at, "id", pa.array(["x"] * len(held))), path)
    with pytest.raises(Corrupt, match="a column is not of its type"):
        site.verify()
    path.unlink()
    with pytest.raises(Corrupt, match="it is not there"):
        site.verify()
