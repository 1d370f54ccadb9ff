"""Tests of the comparison of a table with the log: any change of one row is found, by sums and row by row."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pyspark_tiered.delta.data_files import FileForm, TableFile
from pyspark_tiered.delta.table_form import table_schema
from pyspark_tiered.load.load import load
from pyspark_tiered.log.plan import splits
from pyspark_tiered.proof.comparison import read_cold_topic
from pyspark_tiered.proof.summing import SumRules, read_parts
from pyspark_tiered.proof.sums import differing_ranges
from pyspark_tiered.proof.verify import verify
from tests.spark import filling
from tests.spark.changes import CHANGES, change_row, drawn_row
from tiered.ids import PartitionId

TOPIC = filling.topic_id(6)
SECRET = bytes(range(16))


def fill(store: str, drawn: Random, count: int) -> None:
    """Fills a topic of one partition with random rows."""
    filling.create_topic(store, "t", TOPIC, 1)
    rows = [drawn_row(drawn, i) for i in range(count)]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))


def test_ten_thousand_changes_of_single_rows_change_their_sums(tmp_path: Path) -> None:
    store, count = f"file://{tmp_path}/store", 12_000
    drawn = Random(11)
    filling.create_topic(store, "t", TOPIC, 1)
    rows = [drawn_row(drawn, i) for i in range(count)]
    filling.upload(store, "t", PartitionId(TOPIC, 0), list(filling.segments(rows)))
    (split,) = splits(read_cold_topic(store, "t"), {0: (0, count)}, 1)
    rules = SumRules(SECRET, 0, {0: (0, count)}, {})  # each offset is a range of its own
    held = [
        {
            "partition": 0,
            "offset": offset,
            "timestamp": timestamp * 1000,
            "timestamp_type": 0,
            "key": key,
            "value": value,
            "headers": [{"key": name, "value": content} for name, content in headers] or None,
        }
        for offset, (timestamp, key, value, headers) in enumerate(rows)
    ]
    whole = pa.RecordBatch.from_pylist(held, table_schema())
    names: dict[int, str] = {}
    changed = whole.to_pylist()
    for offset in drawn.sample(range(count), 10_000):
        names[offset], changed[offset] = change_row(changed[offset], drawn)
    assert set(names.values()) == set(CHANGES), "each kind of change has its turn"
    run = read_parts(store, f"file:{tmp_path}", rules)
    log = run([split]).log
    found = []
    for number, table in enumerate((whole, pa.RecordBatch.from_pylist(changed, table_schema()))):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.Table.from_batches([table]), path, row_group_size=5000)
        form = FileForm({name: name for name in table_schema().names})
        sums = run([TableFile({"path": path.name}, form)]).table
        found.append({each.start + i for each in differing_ranges(log, sums, 0) for i in range(each.end - each.start)})
    assert found[0] == set()
    assert {offset: name for offset, name in names.items() if offset not in found[1]} == {}
    assert found[1] == set(names)


@pytest.mark.java
@pytest.mark.also("tests/spark/test_compare.py::test_ten_thousand_changes_of_single_rows_change_their_sums")
def test_changes_of_single_rows_are_named_by_verify(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "warehouse")
    drawn = Random(11)
    fill(store, drawn, 500)
    load(store, "t", warehouse, spark=spark)
    url = f"{warehouse}/t"
    loaded = spark.read.format("delta").load(url).orderBy("offset")
    held = [row.asDict(recursive=True) for row in loaded.collect()]
    names: dict[int, str] = {}
    for offset in drawn.sample(range(500), 440):
        names[offset], held[offset] = change_row(held[offset], drawn)
    assert set(names.values()) == set(CHANGES), "each kind of change has its turn"
    spark.createDataFrame(held, loaded.schema).write.format("delta").mode("overwrite").save(url)
    faults = verify(store, "t", warehouse, spark=spark).faults
    assert {fault.kind for fault in faults} == {"changed"}
    found = {fault.offset for fault in faults}
    assert {offset: name for offset, name in names.items() if offset not in found} == {}
    assert found == set(names)
