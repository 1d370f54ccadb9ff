"""Tests of a data file as Iceberg describes it: bounds that leave out no row."""

from __future__ import annotations

import json
import struct

from pyspark_tiered.iceberg.data_file import DataFile, describe_file
from pyspark_tiered.iceberg.schema import build_schema
from tests.unit.iceberg.commits import LOCATION, METADATA, add

SCHEMA = build_schema(METADATA)
YEAR_2024_US = 1_704_067_200_000_000


def described(**more: object) -> DataFile:
    return describe_file(add("a%20b", 3, **more)["add"], SCHEMA, LOCATION)


def test_file_has_the_counts_and_bounds_of_delta() -> None:
    found = described()
    assert (found.path, found.rows, found.size) == (f"{LOCATION}/a b", 3, 100)
    assert found.values == {1: 3, 2: 3, 3: 3} and found.nulls == {1: 0, 2: 0, 3: 0}
    assert found.lower == {1: struct.pack("<i", 0), 2: struct.pack("<q", 5), 3: struct.pack("<q", YEAR_2024_US)}
    assert found.upper[2] == struct.pack("<q", 7)


def test_upper_time_covers_the_microseconds_that_delta_cuts() -> None:
    assert described().upper[3] == struct.pack("<q", YEAR_2024_US + 1_999)


def test_statistics_in_another_form_give_no_bounds() -> None:
    for low, high in (("x", "y"), (1 << 70, 1 << 71), (1, "y"), (None, 3), (1.5, 2.5)):
        stats = {"numRecords": 3, "minValues": {"offset": low}, "maxValues": {"offset": high}}
        found = described(stats=json.dumps(stats))
        assert (found.rows, found.lower, found.upper) == (3, {}, {})
