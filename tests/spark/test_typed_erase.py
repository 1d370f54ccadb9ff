"""Tests of erasures in typed tables without a JVM: erased rows leave both tables, and no load or replay brings them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.proof.erase import read_value_bounds, remove_erased_values
from pyspark_tiered.proof.erasures import Erasure, join_ranges, read_erasures, write_erasure
from pyspark_tiered.typed import load as typed_load
from pyspark_tiered.typed.replay import Replay, replay_dead
from pyspark_tiered.typed.tables import DeadLetters, TypedTable
from tests.spark.typed_site import TOPIC, Site, encode, rows_of
from tiered.errors import Unavailable

BEYOND = 1 << 64


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Returns a topic of two partitions, loaded: offsets 1 are dead letters, and would fit a column of doubles."""
    made = Site(tmp_path, partitions=2)
    for number in (0, 1):
        made.write(encode({"x": 1}, {"x": BEYOND}, {"x": 3, "y": "who"}, {"x": 4}), partition=number)
    made.load()
    return made


def url(site: Site) -> str:
    return f"file:{site.warehouse}/t"


def record(site: Site, *ranges: Range, partition: int = 0) -> None:
    """Writes the record of an erasure, as `tiered table erase` does before it removes a row."""
    count = len(read_erasures(url(site), TOPIC))
    write_erasure(url(site), Erasure(TOPIC, 1, "a condition", "a reason", {partition: ranges}), f"{count}.json")


def remove(site: Site) -> int:
    return remove_erased_values(url(site), "t", TOPIC, read_erasures(url(site), TOPIC))


def held(site: Site) -> tuple[list[Any], list[Any]]:
    """Returns the places of the rows and those of the dead letters."""
    names = ("_partition", "_offset")
    return rows_of(site.typed(), names), rows_of(site.dead(), names)


def is_proved(site: Site) -> bool:
    return site.verify(join_ranges(read_erasures(url(site), TOPIC))).ok


ROWS, LETTERS = [(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)], [(0, 1), (1, 1)]


def test_erased_rows_and_letters_leave_both_tables_once(site: Site) -> None:
    record(site, (1, 3))
    assert not is_proved(site)
    assert remove(site) == 2
    assert held(site) == ([each for each in ROWS if each != (0, 2)], [(1, 1)])
    assert is_proved(site)
    versions = site.typed().version, site.dead().version
    assert (remove(site), site.typed().version, site.dead().version) == (0, *versions)
    for add in site.typed().files():
        file = pq.read_metadata(Path(site.warehouse, "t_typed", add["path"]))
        assert f'"numRecords": {file.num_rows}' in add["stats"] or f'"numRecords":{file.num_rows}' in add["stats"]
    site.write(encode({"x": 5, "z": 1}))
    assert site.load().typed_rows == 1
    assert is_proved(site)


def test_file_of_which_all_rows_are_erased_is_gone(site: Site) -> None:
    record(site, (0, 4))
    record(site, (0, 4), partition=1)
    assert remove(site) == 8
    assert (held(site), site.typed().files(), site.dead().files()) == (([], []), [], [])
    assert is_proved(site)


def test_load_and_replay_after_an_erasure_leave_it_out(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write(encode({"x": 1}, {"x": BEYOND}, {"x": BEYOND}))
    record(site, (0, 2))
    assert (site.load().typed_rows, held(site)) == (0, ([], [(0, 2)])), "the typed table came after the erasure"
    site.write(encode({"x": 0.5}, {"x": BEYOND}))
    site.load()
    record(site, (2, 3))
    assert replay_dead(site.store, "t", site.warehouse).rows == 0, "an erased letter is no row later"
    assert remove(site) == 1
    assert (held(site), is_proved(site)) == (([(0, 3), (0, 4)], []), True)


def erase_before(site: Site, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *ranges: Range) -> None:
    """Makes an erasure run whole right before the first call of a method."""
    real: Callable[..., Any] = getattr(owner, name)
    calls: list[int] = []

    def act(*arguments: Any, **more: Any) -> Any:
        if not calls:
            calls.append(1)
            record(site, *ranges)
            remove(site)
        return real(*arguments, **more)

    monkeypatch.setattr(owner, name, act)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (typed_load.ValuesTarget, "task"),
        (DeadLetters, "commit"),
        (TypedTable, "commit"),
        (TypedTable, "grow"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_load_that_an_erasure_overtakes_plans_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_first: bool
) -> None:
    site = Site(tmp_path)
    if not is_first:
        site.write(encode({"x": 1}))
        site.load()
    site.write(encode({"y": 1}, {"y": 2}, {"y": "text"}, {"y": 4}))
    with monkeypatch.context() as patch:
        erase_before(site, patch, owner, name, (1, 5))
        site.load()
    assert len(read_erasures(url(site), TOPIC)) == 1
    assert held(site) == ([(0, 0)], [])
    assert is_proved(site)


@pytest.mark.parametrize("owner", [TypedTable, DeadLetters])
def test_rows_of_a_load_that_commits_while_files_are_read_are_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any
) -> None:
    """The load has planned before the record of the erasure, and commits after the erasure has listed the files."""
    site = Site(tmp_path)
    site.write(encode({"x": 1}))
    site.load()
    site.write(encode({"x": 2}, {"x": "text"}))
    real_commit, real_replace_files = owner.commit, owner.replace_files

    def commit(table: Any, *arguments: Any, **given: Any) -> bool:
        def replace_files(other: Any, *taken: Any, **more: Any) -> bool:
            if type(other) is owner:
                monkeypatch.setattr(owner, "replace_files", real_replace_files)
                assert real_commit(table, *arguments, **given)
            return bool(real_replace_files(other, *taken, **more))

        monkeypatch.setattr(owner, "commit", real_commit)
        monkeypatch.setattr(owner, "replace_files", replace_files)
        record(site, (1, 3))
        remove(site)
        return False

    monkeypatch.setattr(owner, "commit", commit)
    site.load()
    assert held(site) == ([(0, 0)], [])
    assert is_proved(site)


@pytest.mark.parametrize(("owner", "name"), [(Replay, "_convert"), (TypedTable, "append_replayed")])
def test_replay_that_an_erasure_overtakes_makes_no_row_of_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    site.write(encode({"x": 0.5}))
    site.load()
    with monkeypatch.context() as patch:
        erase_before(site, patch, owner, name, (1, 2))
        assert replay_dead(site.store, "t", site.warehouse).rows == 1
    assert held(site) == ([*ROWS[:3], (0, 4), (1, 0), (1, 1), *ROWS[4:]], [])
    assert is_proved(site)


def test_erasure_that_other_writers_overtake_tries_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    record(site, (2, 3))
    real = TypedTable.replace_files
    lost = iter([False])
    with monkeypatch.context() as patch:
        patch.setattr(
            TypedTable,
            "replace_files",
            lambda *arguments, **more: next(lost, None) is None and real(*arguments, **more),
        )
        assert remove(site) == 1
    record(site, (3, 4))
    with monkeypatch.context() as patch:
        patch.setattr(TypedTable, "replace_files", lambda *_, **more: False)
        with pytest.raises(Unavailable, match="the erasure is recorded, run the same command again"):
            remove(site)
    assert remove(site) == 1 and is_proved(site)


def test_bounds_of_both_tables_are_known_and_absent_without_them(site: Site, tmp_path: Path) -> None:
    assert read_value_bounds(url(site), "t", TOPIC) == {0: 4, 1: 4}
    assert read_value_bounds(f"file:{tmp_path}/other", "t", TOPIC) == {}
    assert remove_erased_values(f"file:{tmp_path}/other", "t", TOPIC, read_erasures(url(site), TOPIC)) == 0
