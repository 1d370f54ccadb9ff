"""Tests of tables in mode latest: each version equals a fold of the log, whatever is killed or comes in between."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.latest.table import LatestTable
from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.proof import latest_fold
from pyspark_tiered.proof.erase import erase
from pyspark_tiered.proof.repair import repair
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.typed.form import ValueRules
from tests.seeds import first_seeds
from tests.spark import filling
from tests.spark.latest_model import Killed, LatestModel
from tests.spark.typed_site import TOPIC, Site
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered_api.cli.main import main

LATEST = LoadOptions(mode="latest")


@pytest.mark.parametrize("seed", first_seeds(4, 200))
def test_each_version_is_a_fold_of_the_log_under_kills_and_two_loads(tmp_path: Path, seed: int) -> None:
    model = LatestModel(tmp_path, seed)
    for _ in range(model.rng.randrange(3, 7)):
        model.write()
        for _ in range(model.rng.randrange(1, 4)):
            with suppress(Killed):
                _load_with_trouble(model)
    _load_whole(model, lambda: None)
    assert model.check_versions() > 1
    found = verify(model.site.store, "t", model.site.warehouse)
    assert found.ok, found.faults
    assert found.rows == len(model.fold(found.loaded))


def _load_with_trouble(model: LatestModel) -> None:
    """Loads. The load is killed at a step, or another one loads a round at that step, or joins files there."""
    left = model.rng.randrange(1, 9)
    trouble = model.rng.choice(["kill", "load", "upkeep", "none"])

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            if trouble == "kill":
                raise Killed
            with model.loader() as (table, rounds):
                if trouble == "load":
                    rounds.run_round()
                elif trouble == "upkeep":
                    table.join_small_files(is_idle=True)

    _load_whole(model, step)


def _load_whole(model: LatestModel, step: Callable[[], None]) -> None:
    with model.loader(step) as (table, rounds):
        while not rounds.run_round() or rounds.bytes_left:
            pass
        if model.rng.random() < 0.5:
            table.join_small_files(is_idle=True)


def test_round_that_an_upkeep_overtakes_plans_again(tmp_path: Path) -> None:
    model, joined = LatestModel(tmp_path, 0), list[int]()
    for key in (b"a", b"b"):
        model.put(0, (key, b"1"))
        with model.loader() as (_, rounds):
            assert rounds.run_round()

    def step() -> None:
        if not joined:
            joined.append(0)
            with model.loader() as (table, _):
                joined[0] = table.join_small_files(is_idle=True)

    model.put(0, (b"a", b"2"))
    with model.loader(step) as (_, rounds):
        assert [rounds.run_round(), rounds.run_round()] == [False, True]
    assert joined == [2]
    assert model.check_versions() == 4


def made(site: Site, **values: str | None) -> None:
    """Writes a record for each key, and loads."""
    site.write([None if each is None else each.encode() for each in values.values()], 0, [k.encode() for k in values])
    site.load(LATEST)


def test_changes_of_rows_have_their_kinds(tmp_path: Path) -> None:
    site = Site(tmp_path)
    made(site, a="1", b="1", c=None)
    assert not Path(site.warehouse, "t", "_change_data").exists(), "a version that only adds rows needs no such file"
    made(site, a="2", b=None, c="1", d=None)
    (path,) = Path(site.warehouse, "t", "_change_data").iterdir()
    rows = [(each["key"], each["_change_type"], each["value"]) for each in pq.read_table(path).to_pylist()]
    assert sorted(rows) == [
        (b"a", "update_postimage", b"2"), (b"a", "update_preimage", b"1"), (b"b", "delete", b"1"),
        (b"c", "insert", b"1"),
    ]  # fmt: skip


def test_table_in_a_bucket_outlives_a_clean_of_its_topic(bucket: str, tmp_path: Path) -> None:
    store, tables = f"s3://{bucket}/{tmp_path.name}/store", f"s3://{bucket}/{tmp_path.name}/tables"
    filling.create_topic(store, "t", TOPIC, 1)

    def fill(first: int, count: int, value: bytes | None) -> None:
        rows = [(filling.BASE_MS + at, b"k%d" % (at % 7), value, ()) for at in range(first, first + count)]
        made = filling.segments(rows, base_offset=first, rows_per_batch=10, batches_per_segment=3)
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(made))

    fill(0, 60, b"old")
    load(store, "t", tables, engine=NativeEngine(), options=LATEST)
    filling.clean(store, "t", PartitionId(TOPIC, 0))
    fill(60, 3, None)
    fill(63, 2, b"new")
    load(store, "t", tables, engine=NativeEngine(), options=LATEST)
    found = verify(store, "t", tables)
    assert (found.faults, found.rows) == ((), 4)


def test_spark_loads_and_reads_the_rows_and_the_changes(tmp_path: Path, spark: SparkSession) -> None:
    model = LatestModel(tmp_path, 3)
    for each in (spark, None, None):
        model.write()
        model.site.load(LATEST, spark=each)
    ends = verify(model.site.store, "t", model.site.warehouse).loaded
    rows = spark.read.format("delta").load(model.url).collect()
    assert {(row.partition, bytes(row.key)): (row.offset, bytes(row.value)) for row in rows} == model.fold(ends)
    feed = spark.read.format("delta").option("readChangeFeed", True).option("startingVersion", 0).load(model.url)
    changes = feed.collect()
    added = [row for row in changes if row._change_type in ("insert", "update_postimage")]
    taken = [row for row in changes if row._change_type in ("delete", "update_preimage")]
    left = {(row.partition, row.offset) for row in added} - {(row.partition, row.offset) for row in taken}
    assert left == {(row.partition, row.offset) for row in rows}
    assert model.check_versions() >= 3


def test_queries_read_loaded_rows_and_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = Site(tmp_path)
    made(site, a="1", b="1")
    made(site, a="2", b=None)
    command = ["sql", "SELECT key, value FROM t", "--warehouse", site.warehouse, "--format", "csv"]
    assert main(command) == 0
    assert capsys.readouterr().out.split() == ["key,value", "a,2"]
    site.write([b"3"], 0, [b"a"])
    assert main([*command, "--store", site.store]) == 0
    shown = capsys.readouterr()
    assert (shown.out.split(), "the newer ones come with the next load" in shown.err) == (["key,value", "a,2"], True)
    assert main(["table", "ls", "--warehouse", site.warehouse]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["t", "latest", "1"]


@pytest.mark.parametrize("slice_records", [3, 1000])
def test_verify_finds_each_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_records: int) -> None:
    monkeypatch.setattr(latest_fold, "SLICE_RECORDS", slice_records)
    site = Site(tmp_path)
    made(site, a="1", b="1", c="1", d="1", e=None)
    made(site, a="2")
    assert (verify(site.store, "t", site.warehouse).faults, verify(site.store, "t", site.warehouse).rows) == ((), 4)
    path = max(files_of(site), key=lambda each: pq.read_metadata(each).num_rows)
    held = pq.read_table(path)
    rows = held.to_pylist()
    assert [each["offset"] for each in rows] == [1, 2, 3]
    rows[0]["value"], rows[1]["offset"] = b"other", 7
    pq.write_table(held.from_pylist([*rows, rows[2]], schema=held.schema), path)
    faults = (("changed", 0, 1), ("duplicate", 0, 3), ("extra", 0, 7), ("missing", 0, 2))
    assert tuple(each[:3] for each in verify(site.store, "t", site.warehouse).faults) == faults


def files_of(site: Site) -> list[Path]:
    with closing(LatestTable(f"file:{site.warehouse}/t", "t", TOPIC)) as table:
        return [Path(site.warehouse, "t", add["path"]) for add in table.read().files.values()]


def test_record_without_a_key_stops_its_partition(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write([b"1", b"2"], 0, [b"a", None])
    with pytest.raises(Refused, match="offset 1 has no key, and a table in mode latest"):
        site.load(LATEST)
    assert verify(site.store, "t", site.warehouse).rows == 1


def test_mode_of_a_table_stays(tmp_path: Path) -> None:
    site, other = Site(tmp_path / "1"), Site(tmp_path / "2")
    made(site, a="1")
    site.write([b"2"])
    with pytest.raises(Refused, match="is in mode latest, and a load appends: load with `--mode latest`"):
        site.load(LoadOptions())
    other.write([b"1"])
    other.load(LoadOptions())
    with pytest.raises(Refused, match="has a row for each record, and no command changes the mode"):
        other.load(LATEST)
    with pytest.raises(Refused, match="has no columns for values yet"):
        site.load(LATEST._replace(values=ValueRules("json")))
    with pytest.raises(Refused, match="is in mode latest, which no repair mends yet"):
        repair(site.store, "t", site.warehouse)
    with pytest.raises(Refused, match="from which a tombstone of the key removes a row"):
        erase(site.store, "t", site.warehouse, "true", "why")


def test_upkeep_leaves_few_deleted_rows(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for at in range(4):
        made(site, **{f"k{each}": f"{at}" for each in range(20)})
    site.load(LATEST)
    assert sum(pq.read_metadata(each).num_rows for each in files_of(site)) == 20
