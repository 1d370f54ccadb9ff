"""Tests of typed tables whose load stops at a record, or is overtaken by retention: neither happens without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.proof import sums
from pyspark_tiered.proof.gaps import EXPIRED, Gap
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tests.spark.typed_site import TOPIC, Site, rows_of
from tiered.errors import Refused
from tiered.ids import PartitionId

FAR_MS = 1 << 62
"""A time that Spark cannot hold."""
NULL_TIMES = LoadOptions(null_timestamps=True)


def write_at(site: Site, times: list[int], partition: int = 0) -> None:
    """Writes a segment for each record. Those at odd offsets become dead letters."""
    rows = [(ms, b"k", b'{"x": 1}' if at % 2 == 0 else b"no JSON", ()) for at, ms in enumerate(times)]
    made = filling.segments(rows, rows_per_batch=1, batches_per_segment=1)
    filling.upload(site.store, "t", PartitionId(TOPIC, partition), list(made))


def load_raw(site: Site) -> int:
    return load(site.store, "t", site.warehouse, engine=NativeEngine(), options=NULL_TIMES).rows


def test_stop_of_the_typed_table_alone_is_an_error(tmp_path: Path) -> None:
    site = Site(tmp_path)
    write_at(site, [1, 2, FAR_MS, 4])
    assert load_raw(site) == 4
    with pytest.raises(Refused, match="loaded up to offset 2: in the typed table, the timestamp of offset 2 is"):
        site.load()
    assert [row[0] for row in site.rows("_offset")] == [0]
    assert site.load(LoadOptions(null_timestamps=True, values=ValueRules("json"))).typed_rows == 1
    assert site.verify().ok


def test_typed_table_goes_on_after_a_stop_in_an_early_round(tmp_path: Path) -> None:
    site = Site(tmp_path, partitions=2)
    write_at(site, [FAR_MS, 2, 3])
    write_at(site, list(range(1, 41)), 1)
    with pytest.raises(Refused, match="timestamps null"):
        site.load(split_bytes=100)
    done = site.load(LoadOptions(null_timestamps=True, values=ValueRules("json")))
    assert (done.rows, done.typed_rows, done.dead_letters) == (3, 2, 1), "nothing says that the typed table has all"


@pytest.mark.parametrize("runs_max", [sums.RUNS_MAX, 1])
def test_records_that_expire_before_the_typed_table_has_them_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, runs_max: int
) -> None:
    site = Site(tmp_path)
    write_at(site, [1, 2, 3, FAR_MS, 5, 6, 7, 8, 9, 10])
    load_raw(site)
    with pytest.raises(Refused):
        site.load()
    assert site.verify().gaps == ()
    filling.expire(site.store, "t", PartitionId(TOPIC, 0), 6)
    caplog.clear()
    site.load()
    assert f"records expired before they were loaded table={site.typed().url}" in caplog.text
    filling.expire(site.store, "t", PartitionId(TOPIC, 0), 9)
    monkeypatch.setattr(sums, "RUNS_MAX", runs_max)
    assert [row[0] for row in site.rows("_offset")] == [0, 2, 6, 8]
    assert [row[0] for row in rows_of(site.dead(), ("_offset",))] == [1, 7, 9]
    found = site.verify()
    assert (found.ok, found.gaps) == (True, (Gap(0, 3, 6, EXPIRED),))
    assert site.verify({0: ((4, 5),)}).gaps == (Gap(0, 3, 4, EXPIRED), Gap(0, 5, 6, EXPIRED))
