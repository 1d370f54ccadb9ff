"""Tests of erasures: erased rows leave all tables of a topic, no load, repair or replay brings them back, and `verify`
counts them as erased."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta.data_files import read_places
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.load.load import load
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.erase import EraseProgress, erase, read_value_bounds, remove_erased, remove_erased_values
from pyspark_tiered.proof.erasures import ERASED, Erasure, join_ranges, read_erasures, write_erasure
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.proof.verify import VerifyResult, verify
from pyspark_tiered.typed import load as typed_load
from pyspark_tiered.typed.replay import Replay, replay_dead
from pyspark_tiered.typed.tables import DeadLetters, TypedTable
from tests.spark import loader
from tests.spark.test_load import fill
from tests.spark.test_soundness import Lake
from tests.spark.typed_site import TOPIC, Site, encode
from tiered.errors import Refused, Unavailable

BEYOND = 1 << 64
ROWS, LETTERS = [(0, 0), (0, 2), (0, 3), (1, 0), (1, 2), (1, 3)], [(0, 1), (1, 1)]
PLACES = {"raw": sorted(ROWS + LETTERS), "dead": LETTERS, "typed": ROWS}
"""The tables of a topic, with the places of their rows."""


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


def open_table(site: Site, which: str) -> NativeTable:
    if which == "raw":
        return NativeTable(url(site), "t", TOPIC)
    return site.typed() if which == "typed" else site.dead()


def places(table: NativeTable) -> list[tuple[int, int]]:
    """Returns partition and offset of each row, in order."""
    found = list[tuple[int, int]]()
    for file in table.pin().files():
        for batch in read_places(table.folder, *file):
            found += zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    return sorted(found)


def record(site: Site, *ranges: Range, partition: int = 0) -> None:
    """Writes the record of an erasure, as `tiered table erase` does before it removes a row."""
    count = len(read_erasures(url(site), TOPIC))
    write_erasure(url(site), Erasure(TOPIC, 1, "a condition", "a reason", {partition: ranges}), f"{count}.json")


def remove(site: Site) -> int:
    return remove_erased_values(url(site), "t", TOPIC, read_erasures(url(site), TOPIC))


def remove_from(site: Site, which: str) -> int:
    return remove_erased(open_table(site, which), read_erasures(url(site), TOPIC))


def held(site: Site) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Returns the places of the rows and those of the dead letters."""
    return places(site.typed()), places(site.dead())


def is_proved(site: Site) -> bool:
    return site.verify(join_ranges(read_erasures(url(site), TOPIC))).ok


@pytest.mark.parametrize("which", PLACES)
def test_erased_rows_leave_each_table_once(site: Site, which: str) -> None:
    record(site, (1, 3))
    gone = [each for each in PLACES[which] if each in ((0, 1), (0, 2))]
    assert remove_from(site, which) == len(gone)
    table = open_table(site, which)
    assert places(table) == [each for each in PLACES[which] if each not in gone]
    version = table.pin().version
    assert (remove_from(site, which), table.pin().version) == (0, version)
    for file in table.pin().files():
        count = pq.read_metadata(Path(table.url.removeprefix("file:"), file.add["path"])).num_rows
        assert f'"numRecords": {count}' in file.add["stats"]


@pytest.mark.parametrize("which", PLACES)
def test_file_of_which_all_rows_are_erased_is_gone(site: Site, which: str) -> None:
    record(site, (0, 4))
    record(site, (0, 4), partition=1)
    assert remove_from(site, which) == len(PLACES[which])
    assert open_table(site, which).pin().files() == []


@pytest.mark.parametrize("which", PLACES)
def test_erasure_that_other_writers_overtake_tries_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    record(site, (0, 4))
    owner = type(open_table(site, which))
    real, lost = owner.replace_files, iter([False])
    with monkeypatch.context() as patch:
        patch.setattr(owner, "replace_files", lambda *_, **more: False)
        with pytest.raises(Unavailable, match="the erasure is recorded, run the same command again"):
            remove_from(site, which)
        patch.setattr(owner, "replace_files", lambda *all, **more: next(lost, None) is None and real(*all, **more))
        assert remove_from(site, which) == len(PLACES[which]) // 2


def test_erasure_of_a_topic_leaves_all_its_tables_proved(site: Site) -> None:
    assert not site.verify({0: ((1, 3),)}).ok
    done = erase(site.store, "t", site.warehouse, 'partition = 0 AND "offset" IN (1, 2)', "asked for")
    assert (done.rows, done.removed, done.values) == (2, 2, 2)
    found = verify(site.store, "t", site.warehouse)
    assert (found.ok, found.erased, found.rows) == (True, 2, 6)
    site.write(encode({"x": 5, "z": 1}))
    assert site.load().typed_rows == 1
    assert verify(site.store, "t", site.warehouse).ok


def test_dry_run_of_an_erasure_counts_the_rows_and_writes_nothing(site: Site) -> None:
    steps = list[str]()
    before = [places(open_table(site, which)) for which in PLACES]
    found = erase(
        site.store, "t", site.warehouse, '"offset" < 3', "asked for", lambda each: steps.append(each.step), dry_run=True
    )
    assert (steps, found.rows, found.removed) == (["counted"], 6, 0)
    assert read_erasures(url(site), TOPIC) == []
    assert [places(open_table(site, which)) for which in PLACES] == before
    with pytest.raises(Refused, match="--where"):
        erase(site.store, "t", site.warehouse, "nothing = 1", "asked for", dry_run=True)


class Abandoned(BaseException):
    """Ends a command at once, as a kill does: no handler catches it."""


@pytest.mark.parametrize("step", ["chosen", "recorded", "removed"])
def test_erasure_that_was_cut_off_is_completed_by_the_next_one(site: Site, step: str) -> None:
    def report(progress: EraseProgress) -> None:
        if progress.step == step:
            raise Abandoned

    with pytest.raises(Abandoned):
        erase(site.store, "t", site.warehouse, '"offset" < 3', "asked for", report)
    left, removed, values = {"chosen": (0, 6, 6), "recorded": (6, 6, 6), "removed": (0, 0, 6)}[step]
    assert [fault.kind for fault in verify(site.store, "t", site.warehouse).faults] == ["erased"] * left
    done = erase(site.store, "t", site.warehouse, '"offset" < 3', "asked for")
    assert (done.removed, done.values) == (removed, values)
    assert verify(site.store, "t", site.warehouse).ok
    assert [places(open_table(site, which)) for which in PLACES] == [[(0, 3), (1, 3)], [], [(0, 3), (1, 3)]]


def test_erasure_without_a_reason_or_with_a_wrong_condition_is_refused(site: Site) -> None:
    with pytest.raises(Refused, match="needs a reason"):
        erase(site.store, "t", site.warehouse, '"offset" = 1', " ")
    for where in ("nothing = 1", '"offset" =', '"offset" = 1; DROP TABLE x'):
        with pytest.raises(Refused, match="--where"):
            erase(site.store, "t", site.warehouse, where, "asked for")
    assert read_erasures(url(site), TOPIC) == []


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


def test_bounds_of_both_tables_are_known_and_absent_without_them(site: Site, tmp_path: Path) -> None:
    assert read_value_bounds(url(site), "t", TOPIC) == {0: 4, 1: 4}
    assert read_value_bounds(f"file:{tmp_path}/other", "t", TOPIC) == {}
    assert remove_erased_values(f"file:{tmp_path}/other", "t", TOPIC, read_erasures(url(site), TOPIC)) == 0


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def check(lake: Lake) -> VerifyResult:
    return verify(lake.store, "t", lake.warehouse, spark=lake.spark)


def erase_from(lake: Lake, where: str) -> EraseProgress:
    return erase(lake.store, "t", lake.warehouse, where, "asked for")


@pytest.mark.java
@pytest.mark.also("tests/spark/test_erase.py::test_load_and_replay_after_an_erasure_leave_it_out")
def test_erased_rows_come_back_by_no_load_repair_or_restore(lake: Lake) -> None:
    lake.sql("DELETE FROM {t} WHERE partition = 0 AND offset = 5")
    done = erase_from(
        lake, "offset = 5 OR partition = 0 AND value IN (CAST('value 10' AS binary), CAST('value 11' AS binary))"
    )
    assert (done.rows, done.removed) == (4, 3), "the log has a row that the table lacks"
    assert repair(lake.store, "t", lake.warehouse, spark=lake.spark).rows == 0
    lake.more(0, 50)
    assert lake.load() == 50
    found = check(lake)
    assert (found.ok, found.erased, found.rows) == (True, 4, 446)
    assert [gap[:3] for gap in found.gaps if gap.why == ERASED] == [(0, 5, 6), (0, 10, 12), (1, 5, 6)]
    lake.sql("RESTORE TABLE {t} TO VERSION AS OF 0")
    assert ("erased", 0, 10) in {fault[:3] for fault in check(lake).faults}
    assert repair(lake.store, "t", lake.warehouse, spark=lake.spark).rows == 50
    assert check(lake).ok and lake.count() == (446, 446)
    assert erase_from(lake, "offset = 5").rows == 0, "nothing is erased twice"


@pytest.mark.java
@pytest.mark.also("tests/spark/test_erase.py::test_erasure_that_was_cut_off_is_completed_by_the_next_one")
def test_rows_are_erased_after_a_killed_erasure_and_another_one(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "warehouse")
    fill(store)
    load(store, "flights", warehouse, spark=spark)
    killed = subprocess.Popen(
        [sys.executable, loader.__file__, store, warehouse, "recorded", "erase"], stdin=subprocess.DEVNULL
    )
    assert killed.wait(280) == -signal.SIGKILL
    assert not verify(store, "flights", warehouse, spark=spark).ok, "the kill came before the end"
    done = erase(store, "flights", warehouse, loader.ERASED, "asked for", spark=spark)
    assert (done.rows, done.removed) == (0, 200), "the record of the killed one holds"
    found = verify(store, "flights", warehouse, spark=spark)
    assert (found.ok, found.erased, found.rows) == (True, 200, 5800)
