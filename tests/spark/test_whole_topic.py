"""Tests of a whole topic as one frame: the table up to its bounds, the log from there on, each record once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_tiered import table
from tests.spark.test_soundness import Lake
from tiered.errors import Refused

pytestmark = pytest.mark.java


def counted(frame: DataFrame) -> tuple[int, int]:
    """Returns the number of rows, and of distinct offsets."""
    (found,) = frame.selectExpr("count(*)", "count(DISTINCT partition, offset)").collect()
    return found[0], found[1]


def test_whole_topic_has_each_record_once_while_loads_go_on(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    lake.more(0, 30)
    with pytest.raises(Refused, match="store or bootstrap are needed"):
        table(spark, "t", warehouse=lake.warehouse)
    before = table(spark, "t", warehouse=lake.warehouse, store=lake.store)
    assert before.columns == ["partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
    assert counted(before) == (430, 430)
    assert lake.load() == 30
    lake.more(1, 7)
    assert counted(before) == (430, 430), "a frame is cut once"
    assert counted(table(spark, "t", warehouse=lake.warehouse, store=lake.store)) == (437, 437)
