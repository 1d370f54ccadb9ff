"""Tests of Delta readers of others on our tables: delta-rs, polars and DuckDB, also with deletion vectors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_tiered.load.load import LoadOptions, load
from pyspark_tiered.load.native_engine import NativeEngine
from pyspark_tiered.typed.form import ValueRules
from tests.spark import filling
from tiered.ids import PartitionId

TOPIC = filling.topic_id(1)
COLUMNS = "id BIGINT, tags ARRAY<BIGINT>, of MAP<STRING, INT>"
TABLES = {"appended/t": 15, "appended/t_typed": 14, "appended/t__dead": 1, "latest/t": 4, "variants/t_typed": 14}
"""Table, and the rows that it has."""


@pytest.fixture(scope="module")
def warehouses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with warehouses of three kinds, each after three loads of one topic with four keys."""
    root = tmp_path_factory.mktemp("warehouses")
    store = f"file://{root}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    kinds = {
        "appended": LoadOptions(values=ValueRules("json", COLUMNS)),
        "latest": LoadOptions(mode="latest"),
        "variants": LoadOptions(values=ValueRules("variant")),
    }
    for base in (0, 5, 10):
        values = [json.dumps({"id": at, "tags": [at], "of": {"a": at}}) for at in range(base, base + 5)]
        if not base:
            values[0] = "no JSON"
        rows = [(filling.BASE_MS + base + at, b"k%d" % (at % 4), text.encode(), ()) for at, text in enumerate(values)]
        filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows, base_offset=base)))
        for name, options in kinds.items():
            load(store, "t", str(root / name), engine=NativeEngine(), options=options)
    return root


def count_by_delta_rs(table: Path) -> int:
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(table)))
    return int(builder.execute("SELECT count(*) AS n FROM t").read_all()["n"][0].as_py())


def count_by_polars(table: Path) -> int:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    return int(polars.read_delta(str(table)).height)


def count_by_duckdb(table: Path) -> int:
    import duckdb

    with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
        try:
            connection.load_extension("delta")
        except duckdb.Error:
            pytest.skip("DuckDB's extension delta is not installed")
        return int(connection.execute("SELECT count(*) FROM delta_scan(?)", [str(table)]).fetchall()[0][0])


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("count", [count_by_delta_rs, count_by_polars, count_by_duckdb])
def test_other_readers_find_the_rows_of_a_table(count: Callable[[Path], int], name: str, warehouses: Path) -> None:
    assert count(warehouses / name) == TABLES[name]


def test_delta_rs_reads_deletion_vectors_by_queries_only(warehouses: Path) -> None:
    """Its Arrow reader refuses such a table by name: nobody reads rows that were replaced."""
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    with pytest.raises(deltalake.exceptions.DeltaProtocolError, match="deletionVectors"):
        deltalake.DeltaTable(str(warehouses / "latest" / "t")).to_pyarrow_table()


def test_polars_reads_nested_columns_as_they_were_loaded(warehouses: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    pytest.importorskip("deltalake", reason="deltalake is not installed")
    rows = polars.read_delta(str(warehouses / "appended" / "t_typed")).sort("id").to_dicts()
    assert [(row["_offset"], row["id"], row["tags"]) for row in rows[:2]] == [(1, 1, [1]), (2, 2, [2])]
    assert rows[0]["of"] in ({"a": 1}, [{"key": "a", "value": 1}])
