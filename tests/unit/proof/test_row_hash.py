"""Tests of the hash of a row: its bytes in all three kinds of tables, and the columns that it covers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pyspark_tiered.delta.table_form import table_schema
from pyspark_tiered.proof.row_form import RAW_ROWS, Cells, LetterRows, RowForm, TypedRows
from pyspark_tiered.typed.ddl import parse_ddl
from pyspark_tiered.typed.fast import column_type

SECRET = bytes(range(16))
SCHEMA = parse_ddl("a BIGINT, b ARRAY<STRUCT<c: STRING>>, d STRUCT<e: DOUBLE>")
TYPED = TypedRows(SCHEMA, (), False, {})
RECORDS = pa.RecordBatch.from_pylist(
    [
        {"partition": 0, "offset": 7, "timestamp": 1_700_000_000_000_000, "timestamp_type": 0, "key": b"k",
         "value": b"v", "headers": [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]},
        {"partition": 3, "offset": 1 << 40, "timestamp": None, "timestamp_type": 1, "key": None, "value": None,
         "headers": None},
    ],
    schema=table_schema(),
)  # fmt: skip
_ROWS = pa.array(
    [{"a": 1, "b": [{"c": "x"}, None], "d": {"e": 0.5}}, {"a": None, "b": [], "d": {}}], column_type(SCHEMA)
)
CELLS = [_ROWS.field(at) for at in range(3)]


@pytest.mark.parametrize(
    ("form", "cells", "in_full", "wanted"),
    [
        (RAW_ROWS, (), False, "1470b2a149614808946de437a420010c91edf5d69ebc4a1a0a64ad20aff1d0f8"),
        (LetterRows(TYPED), (), False, "daf6cb1a60e4c9e1604d56df9a24b609370157dac6f3f3deaf96c82b8c19548b"),
        (TYPED, CELLS, False, "7832b06f28f3b7017a919c111ca855317df67cc81b4d4f8dd89a952959ee27ca"),
        (
            TYPED,
            CELLS,
            True,
            (
                "7832b06f28f3b7017a919c111ca855317832b06f28f3b7017a919c111ca85531"
                "00000000000000007df67cc81b4d4f8dd89a952959ee27ca440e2627b72e59f2"
                "98d13a9907924ec90200000000000000"
            ),
        ),
    ],
    ids=["raw", "dead letters", "typed", "typed in full"],
)
def test_row_of_each_table_keeps_the_bytes_of_its_hash(form: RowForm, cells: Cells, in_full: bool, wanted: str) -> None:
    assert form.hash(RECORDS, cells, SECRET, in_full=in_full).tobytes().hex() == wanted
