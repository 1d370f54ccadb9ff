"""Tests of the rebuild of a raw table: readers see the old rows or the new ones, whatever kills or overtakes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.rebuild_folder import APP_ID, FOLDER, next_number
from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.load.load import LoadOptions
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.log.bucket import ColdTopicReader
from pyspark_tiered.proof import rebuild as rebuilding
from pyspark_tiered.proof.erase import erase
from pyspark_tiered.proof.exchange import check_rebuildable, plan_advances
from pyspark_tiered.proof.rebuild import RebuildProgress, rebuild
from pyspark_tiered.proof.verify import verify
from tests.spark import filling
from tests.spark.test_vacuum import make_old, run_vacuum
from tests.spark.typed_site import TOPIC, Site
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered_api.cli.main import main

PLAIN = LoadOptions()
ROWS = 6


class Killed(BaseException):
    """Ends a process at a step: nothing catches it."""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    found = Site(tmp_path, partitions=2)
    for values in ([b"a", b"b"], [b"c"]):  # a file for each load
        for partition in range(2):
            found.write(values, partition)
        found.load(PLAIN)
    return found


def open_table(site: Site) -> closing[NativeTable]:
    return closing(NativeTable(f"file:{site.warehouse}/t", "t", TOPIC))


def read_state(site: Site) -> TableState:
    with open_table(site) as table:
        return table.pin().state


def is_rebuilt(site: Site) -> bool:
    """True if all files are new ones, false if all are old ones."""
    (found,) = {str(add["path"]).startswith(f"{FOLDER}/") for add in read_state(site).files.values()}
    return found


def check_rows(site: Site, rows: int) -> None:
    """Each record is a row once."""
    found = verify(site.store, "t", site.warehouse)
    assert (found.ok, found.rows) == (True, rows)


def test_exchange_is_one_commit_and_loads_go_on_from_it(site: Site) -> None:
    before = read_state(site)
    steps: list[RebuildProgress] = []
    rebuild(site.store, "t", site.warehouse, steps.append)
    assert [(each.step, each.rows) for each in steps] == [("loaded", ROWS), ("verified", ROWS), ("exchanged", ROWS)]
    assert (read_state(site).version, read_state(site).metadata) == (before.version + 1, before.metadata)
    assert is_rebuilt(site)
    assert all(Path(site.warehouse, "t", str(add["path"])).exists() for add in before.files.values()), "time travel"
    site.write([b"d"])
    assert site.load(PLAIN).rows == 1
    check_rows(site, ROWS + 1)
    assert rebuild(site.store, "t", site.warehouse).rows == ROWS + 1
    check_rows(site, ROWS + 1)


@pytest.mark.parametrize("step", ["loaded", "verified", "exchanged"])
def test_killed_rebuild_leaves_a_whole_table_and_goes_on(site: Site, step: str) -> None:
    def kill(progress: RebuildProgress) -> None:
        if progress.step == step:
            raise Killed

    with pytest.raises(Killed):
        rebuild(site.store, "t", site.warehouse, kill)
    assert is_rebuilt(site) is (step == "exchanged")
    check_rows(site, ROWS)
    files = set(Path(site.warehouse, "t", FOLDER, "000001").rglob("*.parquet"))
    if step != "exchanged":
        rebuild(site.store, "t", site.warehouse)
        assert set(Path(site.warehouse, "t", FOLDER).rglob("*.parquet")) == files, "no file was made again"
        assert is_rebuilt(site)
        check_rows(site, ROWS)


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("nth", [0, 1], ids=["load", "exchange"])
def test_rebuild_that_is_killed_at_a_commit_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch, nth: int, is_after: bool
) -> None:
    real, done = NativeTable._create_commit, list[str]()

    def create(table: NativeTable, *given: object) -> bool:
        done.append(table.url)
        if len(done) == nth + 1 and not is_after:
            raise Killed
        found = real(table, *given)  # type: ignore[arg-type]
        if len(done) == nth + 1:
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(NativeTable, "_create_commit", create)
        with pytest.raises(Killed):
            rebuild(site.store, "t", site.warehouse)
    assert (f"/{FOLDER}/" in done[-1]) is (nth == 0)
    assert is_rebuilt(site) is (nth == 1 and is_after)
    check_rows(site, ROWS)
    rebuild(site.store, "t", site.warehouse)
    assert is_rebuilt(site)
    check_rows(site, ROWS)


def test_load_that_comes_first_is_caught_up_with(site: Site) -> None:
    steps = list[str]()

    def load_more(progress: RebuildProgress) -> None:
        steps.append(progress.step)
        if progress.step == "verified":
            site.write([b"d"])
            site.load(PLAIN)

    assert rebuild(site.store, "t", site.warehouse, load_more).rows == ROWS + 1
    assert steps == ["loaded", "verified", "behind", "exchanged"]
    check_rows(site, ROWS + 1)


@pytest.mark.parametrize("has_loaded", [False, True])
def test_load_whose_plan_is_older_than_the_exchange_plans_again(site: Site, has_loaded: bool) -> None:
    with open_table(site) as table:
        old = table.loaded_offsets()
        if has_loaded:
            site.write([b"d"])
        rebuild(site.store, "t", site.warehouse)
        is_committed = table.commit([], [Advance(0, old[0], old[0] + 1)])
    assert is_committed is not has_loaded


def test_exchange_fails_if_another_writer_commits_between(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = rebuilding._exchange, iter([True])

    def overtaken(*given: object) -> bool:
        if next(left, False):
            site.write([b"d"])
            site.load(PLAIN)
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(rebuilding, "_exchange", overtaken)
    rebuild(site.store, "t", site.warehouse)
    check_rows(site, ROWS + 1)


def test_two_rebuilds_at_once_make_one_exchange(site: Site) -> None:
    def join(progress: RebuildProgress) -> None:
        if progress.step == "verified":
            rebuild(site.store, "t", site.warehouse)

    assert rebuild(site.store, "t", site.warehouse, join).step == "exchanged"
    assert read_state(site).versions()[APP_ID] == 1
    check_rows(site, ROWS)


def test_rows_that_the_bucket_lost_are_named_before_they_go(site: Site) -> None:
    site.write([b"d"] * 2000)
    site.load(PLAIN)
    filling.expire(site.store, "t", PartitionId(TOPIC, 0), 3)
    with pytest.raises(Refused, match="holds 3 rows that the bucket no longer has"):
        rebuild(site.store, "t", site.warehouse, accept_lost=2)
    assert rebuild(site.store, "t", site.warehouse, accept_lost=3).rows == 2003
    check_rows(site, 2003)


def test_command_prints_each_step_and_a_dry_run_writes_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("table", "rebuild", "t", "--store", site.store, "--warehouse", site.warehouse)
    assert main([*line, "--dry-run"]) == 0
    assert capsys.readouterr().out == "dry run: 6 offsets are left to load, and nothing was\n"
    assert not Path(site.warehouse, "t", FOLDER).exists()
    assert main(line) == 0
    assert capsys.readouterr().out == (
        "loaded: 6 rows\nverified: 6 rows\n"
        "exchanged: 6 rows; older versions keep the old files until `tiered table vacuum`\n"
    )


def test_spark_reads_the_rows_before_and_after_the_exchange(site: Site, spark: SparkSession) -> None:
    before = read_state(site).version
    rebuild(site.store, "t", site.warehouse)
    place = f"{site.warehouse}/t"
    rows = [spark.read.format("delta").option("versionAsOf", each).load(place) for each in (before, before + 1)]
    old, new = (sorted(map(str, each.collect())) for each in rows)
    assert old == new and len(new) == ROWS


def test_erased_rows_do_not_come_back(site: Site) -> None:
    def erase_late(progress: RebuildProgress) -> None:
        if progress.step == "verified":
            erase(site.store, "t", site.warehouse, '"offset" = 1', "asked for")

    with pytest.raises(Refused, match="2 rows of it were erased"):
        rebuild(site.store, "t", site.warehouse, erase_late)
    assert not is_rebuilt(site)
    with pytest.raises(Refused, match="2 rows of it were erased"):
        rebuild(site.store, "t", site.warehouse)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"partitionColumns": ["partition"]}, "partition columns"),
        ({"configuration": {"delta.appendOnly": "true"}}, "append-only"),
        ({"configuration": {"tiered.mode": "latest"}}, "mode latest"),
        ({"schemaString": '{"type": "struct", "fields": []}'}, "columns are not those"),
    ],
)
def test_table_that_a_rebuild_would_change_is_refused(site: Site, more: dict[str, object], why: str) -> None:
    state = read_state(site)
    state.metadata = {**state.metadata, **more}
    with closing(ColdTopicReader(site.store)) as reader, pytest.raises(Refused, match=why):
        check_rebuildable(state, "file:/t", reader.read("t", {}), 0)


def test_number_of_a_rebuild_is_above_every_folder_that_the_table_names() -> None:
    def numbers() -> Iterator[int]:
        state = TableState()
        yield next_number(state)
        state.apply(0, [{"add": {"path": f"{FOLDER}/000004/t/part-1.parquet"}}])
        yield next_number(state)
        state.apply(1, [{"remove": {"path": f"{FOLDER}/000007/t/part-1.parquet"}}])
        yield next_number(state)
        state.apply(2, [{"txn": {"appId": APP_ID, "version": 8}}])
        yield next_number(state)

    assert list(numbers()) == [1, 5, 8, 9]


def test_new_table_that_lacks_records_of_the_old_one_is_behind() -> None:
    assert plan_advances({0: 5, 1: 2}, {0: 5, 1: 1}) is None
    assert plan_advances({0: 5, 1: 2}, {0: 5}) is None
    assert plan_advances({0: 5}, {0: 6, 1: 2}) == [Advance(0, 5, 6), Advance(1, -1, 2)]


def test_vacuum_removes_replaced_files_and_spares_a_rebuild_in_progress(site: Site) -> None:
    def kill(progress: RebuildProgress) -> None:
        raise Killed

    root = Path(site.warehouse, "t")
    rebuild(site.store, "t", site.warehouse)
    first = set((root / FOLDER / "000001").rglob("*.parquet"))
    rebuild(site.store, "t", site.warehouse)
    with pytest.raises(Killed):
        rebuild(site.store, "t", site.warehouse, kill)
    assert run_vacuum(f"file:{root}").files == 0, "versions of this week need all files"
    replaced = first | set(root.glob("*.parquet"))
    kept = set(root.rglob("*.parquet")) - replaced
    make_old(root)
    assert run_vacuum(f"file:{root}").files == len(replaced)
    assert set(root.rglob("*.parquet")) == kept
    check_rows(site, ROWS)
    rebuild(site.store, "t", site.warehouse)
    check_rows(site, ROWS)
