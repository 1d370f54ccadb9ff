"""Tests of opened batches as a pyarrow RecordBatch: valid, typed as Spark's Kafka source, equal to the rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.records import native, pure
from tiered.records.batch import encode_batch, open_section
from tiered.records.model import Codec, ProducerRecord, RecordSection

pa = pytest.importorskip("pyarrow")

from tiered.records.arrow import arrow_types, record_batch, to_arrays  # noqa: E402

COLUMNS = list(arrow_types())
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BYTES = st.none() | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3)
PRODUCED = st.lists(st.tuples(st.integers(0, 2**41), BYTES, BYTES, HEADERS), min_size=1, max_size=8)


def open_sections(log: bytes) -> list[RecordSection]:
    """Returns the decompressed sections of all batches."""
    return [open_section(log, batch.position) for batch in native.walk(log).batches]


@given(st.lists(PRODUCED, max_size=4), st.sampled_from(Codec), st.integers(0, 20), st.integers(0, 40))
def test_columns_equal_the_rows(batches: list[list[ProducerRecord]], codec: Codec, start: int, end: int) -> None:
    log, base = b"", 0
    for produced in batches:
        log += encode_batch(produced, base_offset=base, codec=codec)
        base += len(produced)
    opened = open_sections(log)
    table = record_batch(opened, COLUMNS, start, end)
    table.validate(full=True)
    assert table.schema.types == list(arrow_types().values())
    rows = [row for section in opened for row in native.rows(*section) if start <= row.offset < end]
    assert table.to_pylist() == [
        {
            "offset": row.offset,
            "timestamp": EPOCH + timedelta(milliseconds=row.timestamp),
            "timestampType": 0,
            "key": row.key,
            "value": row.value,
            "headers": [{"key": k, "value": v} for k, v in row.headers] or None,
        }
        for row in rows
    ]


@pytest.mark.parametrize("implementation", [native, pure], ids=["native", "pure"])
def test_batch_without_records_gives_empty_arrays(implementation: ModuleType) -> None:
    for array in to_arrays(implementation.arrow([], COLUMNS)).values():
        array.validate(full=True)
        assert len(array) == 0


def test_only_requested_columns_are_returned_in_their_order() -> None:
    log = encode_batch([(5, b"k", b"v", ())], log_append_time=True)
    table = record_batch(open_sections(log), ["value", "timestampType"])
    assert table.to_pydict() == {"value": [b"v"], "timestampType": [1]}


def test_timestamps_beyond_microseconds_are_clamped() -> None:
    log = encode_batch([(2**62, None, None, ())]) + encode_batch([(-(2**62), None, None, ())])
    column = record_batch(open_sections(log), ["timestamp"]).column(0)
    assert column.cast(pa.int64()).to_pylist() == [2**63 - 1, -(2**63)]
