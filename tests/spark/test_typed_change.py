"""Tests of `tiered table change` without a JVM: values of other types become rows by a rule, and verify knows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyspark_tiered.typed import load as typed_load
from pyspark_tiered.typed.change import change_field
from pyspark_tiered.typed.changes import Change
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
    return change_field(site.store, "t", site.warehouse, field, to)


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
    real = typed_load.ValuesLoader._convert
    calls: list[int] = []

    def act(*arguments: Any) -> Any:
        found = real(*arguments)
        calls.append(1)
        if len(calls) == 1:
            change(site, "x", "x_text")
        return found

    monkeypatch.setattr(typed_load.ValuesLoader, "_convert", act)
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


def test_commands_name_a_rule_and_replay(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--store", site.store, "--warehouse", site.warehouse)
    assert main(["table", "change", "t", "x", "--move-to", "y", *place]) == 0
    assert "values of x that are no number move to y from the next load on" in capsys.readouterr().out
    assert main(["table", "replay-dead", "t", *place]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "done: 1 dead letters became rows, 0 do not fit"
    assert main(["table", "change", "t", "z", "--drop", *place]) == 2
    assert "has no field 'z'" in capsys.readouterr().err


def test_topic_without_a_typed_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="there is no table at"):
        change(Site(tmp_path), "x", "")
