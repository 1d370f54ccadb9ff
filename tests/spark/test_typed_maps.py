"""Tests of typed tables with a map: objects whose names are data."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.load.load import LoadOptions
from pyspark_tiered.query.engine import SqlSession
from pyspark_tiered.typed.form import ValueRules
from tests.spark.typed_site import Site, encode, rewrite

MAPS = LoadOptions(values=ValueRules("json", "id INT, m MAP<STRING, INT>, of MAP<STRING, STRUCT<x: STRING>>"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.write(encode({"id": 1, "m": {"a": 1, "b": None}}, {"m": {}, "of": {"k": {"x": "y"}}}, {"m": {"a": "x"}}))
    made.load(MAPS)
    return made


def test_maps_are_loaded_widened_and_proved(site: Site) -> None:
    assert site.letters() == {2: "m{} is text where the column holds int"}
    site.write(encode({"m": {"a": 0.5}, "of": {"k": {"x": None, "late": True}}, "new": 1}))
    assert site.load(LoadOptions()).dead_letters == 0
    assert (
        site.columns() == "id int, m map<string, double>, of map<string, struct<x: string, late: boolean>>, new bigint"
    )
    assert site.rows("m", "of") == [
        ([("a", 1.0), ("b", None)], None),
        ([], [("k", {"x": "y", "late": None})]),
        ([("a", 0.5)], [("k", {"x": None, "late": True})]),
    ]
    assert (site.verify().ok, site.verify().rows, site.verify().dead) == (True, 3, 1)


def test_changed_map_is_found(site: Site) -> None:
    rewrite(site.typed(), lambda rows: [row | {"m": [("a", 1), ("c", None)]} if row["id"] else row for row in rows])
    assert [each[:3] for each in site.verify().faults] == [("changed", 0, 0)]


@pytest.mark.also("tests/spark/test_typed_maps.py::test_duckdb_reads_the_map")
def test_spark_reads_the_map(site: Site, spark: SparkSession) -> None:
    rows = spark.sql(f"SELECT m['a'], of['k'].x FROM delta.`{site.warehouse}/t_typed` ORDER BY _offset").collect()
    assert [tuple(row) for row in rows] == [(1, None), (None, "y")]


def test_duckdb_reads_the_map(site: Site) -> None:
    with SqlSession(site.warehouse) as session:
        found = session.run("SELECT m['a'], of['k'].x FROM t_typed ORDER BY _offset").collect()
    assert [tuple(row) for row in found.rows] == [(1, None), (None, "y")]
