"""Tests of `tiered table change` without a JVM: values of other types become rows by a rule, and verify knows it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from pyspark_tiered.typed import load as typed_load
from pyspark_tiered.typed.change import FieldChanger
from pyspark_tiered.typed.changes import Change
from pyspark_tiered.typed.names import RECORD_COLUMNS
from pyspark_tiered.typed.replay import replay_dead
from pyspark_tiered.typed.tables import TypedTable
from tests.spark.typed_site import Site, encode
from tiered.errors import Refused, Unavailable
from tiered_api.cli.main import main


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Returns a loaded topic whose field x is a number, and text in one record."""
    made = Site(tmp_path)
    made.write(encode({"x": 1}, {"x": "two"}, {"x": 3}))
    made.load()
    return made


def change(site: Site, field: str, to: str) -> Change:
    return changer(site, field).move_values(to)


def changer(site: Site, field: str) -> FieldChanger:
    return FieldChanger(site.store, "t", site.warehouse, field)


def test_values_of_another_type_are_rows_from_the_rule_on(site: Site) -> None:
    assert change(site, "x", "x_text") == Change(("x",), "number", "x_text")
    site.write(encode({"x": "four"}, {"x": 5.5}, {"x": 1 << 64, "y": 1}))
    assert (site.load().dead_letters, site.columns()) == (0, "x double, x_text string, y bigint")
    assert site.verify().fitting == 1
    assert replay_dead(site.store, "t", site.warehouse).rows == 1
    assert site.rows("x", "x_text") == [
        (1.0, None), (None, "two"), (3.0, None), (None, "four"), (5.5, None), (2.0**64, None),
    ]  # fmt: skip
    found = site.verify()
    assert (found.ok, found.rows, found.dead) == (True, 6, 0)
    site.check_offsets()


@pytest.mark.parametrize("empty", [{}, [], [None, {"p": []}]])
def test_value_without_a_leaf_makes_room_where_a_rule_would_move_it(tmp_path: Path, empty: Any) -> None:
    site = Site(tmp_path)
    site.write(encode({"x": empty, "y": "t"}, {"x": empty}))
    site.load()
    site.write(encode({"x": 1}, {"x": empty, "y": "t"}, {"x": [2], "y": "t"}))
    assert site.load().dead_letters == 1
    change(site, "x", "y")
    assert (site.verify().ok, site.verify().fitting) == (True, 0), site.verify().faults
    assert site.rows("x", "y") == [(None, "t"), (None, None), (1, None), (None, "t")]
    assert (site.verify().ok, sorted(site.letters())) == (True, [4])


def test_values_of_another_type_are_dropped_and_a_rule_stays(site: Site) -> None:
    change(site, "x", "")
    assert replay_dead(site.store, "t", site.warehouse).rows == 1
    assert (site.rows("x"), site.verify().ok) == ([(1,), (None,), (3,)], True)
    with pytest.raises(Refused, match="has a rule already"):
        change(site, "x", "other")
    with pytest.raises(Refused, match="has no field 'y'"):
        change(site, "y", "")


def test_load_that_a_rule_overtakes_plans_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write(encode({"x": "four"}))
    real = typed_load.ValuesTarget.agree
    calls: list[int] = []

    def act(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            change(site, "x", "x_text")
        return real(*arguments)

    monkeypatch.setattr(typed_load.ValuesTarget, "agree", act)
    site.load()
    assert (len(calls), site.verify().ok) == (2, True)


def test_rule_that_other_writers_overtake_tries_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = TypedTable.set_changes
    lost = iter([False])
    with monkeypatch.context() as patch:
        patch.setattr(TypedTable, "set_changes", lambda *arguments: next(lost, None) is None and real(*arguments))
        change(site, "x", "")
    assert site.typed().changes() == (Change(("x",), "number"),)
    site.write(encode({"y": 1}))
    site.load()
    with monkeypatch.context() as patch:
        patch.setattr(TypedTable, "set_changes", lambda *_: False)
        with pytest.raises(Unavailable, match="came first"):
            change(site, "y", "")


def test_column_gets_another_name_and_keeps_its_field(site: Site) -> None:
    changer(site, "x").rename("amount")
    site.write(encode({"x": 4.5}, {"amount": "y"}))
    site.load()
    assert site.columns() == "x double, amount string"
    assert site.rows("amount", "amount_2") == [(1.0, None), (3.0, None), (4.5, None), (None, "y")]
    assert (site.verify().ok, site.verify().rows) == (True, 4)
    site.check_offsets()
    changer(site, "amount_2").rename("other")
    assert site.rows("amount", "other")[3] == (None, "y")
    for name in ("amount", "_Offset", "a b", ""):
        with pytest.raises(Refused, match=r"cannot have the name|has that name already"):
            changer(site, "x").rename(name)


def test_number_becomes_text_and_dead_letters_become_rows(site: Site) -> None:
    changer(site, "x").retype("STRING")
    assert (site.columns(), site.rows("x"), site.verify().ok) == ("x string", [("1",), ("3",)], True)
    assert site.verify().fitting == 1
    assert replay_dead(site.store, "t", site.warehouse).rows == 1
    site.write(encode({"x": 4}, {"x": 1.50}, {"x": True}, {"x": None}, {"x": "t"}, {"x": []}, {"x": 1 << 64}))
    assert site.load().dead_letters == 1
    assert [each for (each,) in site.rows("x")] == ["1", "two", "3", "4", "1.5", "true", None, "t", None]
    assert (site.verify().ok, site.verify().fitting) == (True, 0)
    with pytest.raises(Refused, match="has a rule already"):
        changer(site, "x").retype("BIGINT")


def test_text_becomes_numbers_unless_a_row_is_none(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"a": [{"n": "5"}, {"n": None}, None]}, {"a": []}, {"b": "x"}, {"a": [{"n": "-0"}], "b": "7"}))
    site.load()
    with pytest.raises(Refused, match=r"'b' keeps its type, because a row of .* does not fit: 'x' is no bigint"):
        changer(site, "b").retype("BIGINT")
    assert (site.typed().changes(), site.verify().ok) == ((), True)
    changer(site, "a[].n").retype("bigint")
    site.write(encode({"a": [{"n": "6"}, {"n": 7}]}, {"a": [{"n": "07"}]}, {"a": [{"n": str(1 << 64)}]}))
    assert site.load().dead_letters == 2
    assert site.columns() == "a array<struct<n: bigint>>, b string"
    assert [each for (each,) in site.rows("a") if each] == [
        [{"n": 5}, {"n": None}, None],
        [{"n": 0}],
        [{"n": 6}, {"n": 7}],
    ]
    assert (site.verify().ok, site.verify().rows) == (True, 5)
    site.check_offsets()


def test_types_that_need_no_rule_change_the_rows_only(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"n": 1, "t": "2026-11-25T13:00+01:00", "d": "2026-11-25"}))
    site.load()
    for field, to in (("n", "double"), ("t", "timestamp"), ("d", "date"), ("d", "string"), ("d", "date")):
        changer(site, field).retype(to)
        assert site.verify().ok
    assert (site.columns(), site.typed().changes()) == ("n double, t timestamp, d date", ())
    assert str(site.rows("t", "d")[0][0]) == "2026-11-25 12:00:00+00:00"
    for field, to in (("n", "bigint"), ("t", "string"), ("d", "bigint")):
        with pytest.raises(Refused, match="cannot become"):
            changer(site, field).retype(to)
    with pytest.raises(Refused, match="is no type of a field"):
        changer(site, "n").retype("ARRAY<INT>")


def test_dropped_field_has_no_column_again(site: Site) -> None:
    site.write(encode({"y": {"secret": "s", "n": 1}, "x": 4}, {"y": {"n": 2}}))
    site.load()
    assert changer(site, "y.secret").count() == (4, 1, 1)
    assert changer(site, "x").count() == (4, 3, 2)
    changer(site, "y.secret").drop()
    assert site.columns() == "x bigint, y struct<n: bigint>"
    changer(site, "x").drop()
    site.write(encode({"x": {"any": 1}, "y": {"secret": 5, "n": 3}}, {"x": None}))
    assert site.load().dead_letters == 0
    assert replay_dead(site.store, "t", site.warehouse).rows == 1
    assert site.columns() == "y struct<n: bigint>"
    assert [each for (each,) in site.rows("y") if each] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert all(names == {*RECORD_COLUMNS, "y"} or "y" not in names for names in site.file_columns())
    assert (site.verify().ok, site.verify().rows) == (True, 7)
    changer(site, "y").drop()
    assert (site.columns(), site.verify().ok) == ("", True)


def test_rows_by_several_rules_stay_what_the_log_says(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"x": 1}, {"x": [2]}, {"x": 3.5}, {"x": False}))
    site.load()
    changer(site, "x").retype("string")
    changer(site, "x").move_values("t")
    changer(site, "x").rename("amount")
    replay_dead(site.store, "t", site.warehouse)
    site.write(encode({"x": 7}, {"x": [8]}, {"x": -0.0}))
    site.load()
    assert site.rows("amount", "t") == [
        ("1.0", None), (None, [2]), ("3.5", None), ("false", None), ("7.0", None), (None, [8]), ("0.0", None),
    ]  # fmt: skip
    assert site.verify().ok
    site.check_offsets()


def test_rule_that_would_contradict_an_earlier_one_is_refused(site: Site) -> None:
    changer(site, "x").move_values("t")
    with pytest.raises(Refused, match="has a rule already"):
        changer(site, "x").retype("string")
    site.write(encode({"y": 1, "z": 2}))
    site.load()
    changer(site, "y").drop()
    with pytest.raises(Refused, match="cannot move to 'y'"):
        changer(site, "z").move_values("y")


def test_notice_of_a_drift_names_the_command_that_makes_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path)
    site.write([*encode({"a b": [{"n": 1}]}), b"[]", *encode({"a b": [{"n": "x"}]}, {"a b": [{"n": "y"}], "c": True})])
    site.load()
    (notice,) = [
        each.getMessage() for each in caplog.records if each.name == typed_load.__name__ and "dead" in each.msg
    ]
    assert " first=partition 0, offset 1: " in notice
    letter = notice.split(" also=")[1].split(" rule=")[0]
    assert letter.startswith("partition 0, offset 2: a b[].n is text"), "the letter that the rule is for"
    words = shlex.split(notice.split(" rule=")[1])
    assert words[:6] == ["tiered", "table", "change", "t", "a b[].n", "--move-to"]
    assert main(words[1:]) == 0
    capsys.readouterr()
    assert replay_dead(site.store, "t", site.warehouse).rows == 2
    assert (site.verify().ok, site.verify().dead) == (True, 1)


def test_commands_name_a_rule_and_replay(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--store", site.store, "--warehouse", site.warehouse)
    assert main(["table", "change", "t", "x", "--move-to", "y", *place]) == 0
    assert "values of x that are no number move to y from the next load on" in capsys.readouterr().out
    assert main(["table", "replay-dead", "t", *place]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "done: 1 dead letters became rows, 0 do not fit"
    assert main(["table", "change", "t", "x", "--drop-column", "--dry-run", *place]) == 0
    assert "x has a value in 2 of 3 rows, and a column in " in capsys.readouterr().out
    assert main(["table", "change", "t", "x", "--rename-to", "z", "--dry-run", *place]) == 2
    assert "--dry-run counts what --drop-column takes out" in capsys.readouterr().err
    for rule, said in (
        (("--rename-to", "z"), "the column of x has the name z"),
        (("--retype", "DOUBLE"), "the column of x has the type double"),
        (("--drop-column",), "x has no column, and its values are left out from the next load on"),
    ):
        assert main(["table", "change", "t", "x", *rule, *place]) == 0
        assert capsys.readouterr().out.splitlines()[0] == said
    assert main(["table", "change", "t", "z", "--drop", *place]) == 2
    assert "has no field 'z'" in capsys.readouterr().err


def test_topic_without_a_typed_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no table at"):
        change(Site(tmp_path), "x", "")


def test_dry_run_of_a_drop_counts_the_rows_with_a_value(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"a b": [{"n": 1}, {}]}, {"a b": [{}]}, {"a b": []}, {"c": 1}, {"a b": [{"n": None}, {"n": 2}]}))
    site.load()
    columns = site.columns()
    assert changer(site, "`a b`[].n").count() == (5, 2, 1)
    assert changer(site, "`a b`").count() == (5, 4, 1)
    with pytest.raises(Refused, match="has no field 'd'"):
        changer(site, "d").count()
    assert site.columns() == columns and site.verify().ok
