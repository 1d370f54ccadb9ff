"""Writes the last record of each key of a split to a file, in the order of partition and key.

A tombstone is a row of the file, so that the commit learns of it. The commit puts it into the deletion vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta.table_form import SplitOutcome, Stop, table_schema
from pyspark_tiered.latest.fold import keep_last
from pyspark_tiered.load.convert import RowSink, with_field_ids
from pyspark_tiered.load.file_writer import FileLayout, FileWriter, Upload
from pyspark_tiered.load.recent_rows import RecentRows
from pyspark_tiered.load.rounds import ConversionResult
from pyspark_tiered.log.rows import constant_int_column

if TYPE_CHECKING:
    import pyarrow

GROUP_ROWS = 32_768
"""Rows of a row group: a look-up of few keys reads few of them."""
FOLD_BYTES = 64 << 20
"""Bytes of records that wait before those of older records of their keys are dropped."""
LATEST_FILES = FileLayout(
    "",
    ("partition", "timestamp_type"),
    ("partition", "offset", "timestamp", "key"),
    groups_by_partition=True,
    group_rows=GROUP_ROWS,
)


class LatestForm(NamedTuple):
    """The form of a table in mode latest: the last record of each key is a row."""

    url: str

    def open(self, name: str, upload: Upload, recent: RecentRows | None) -> RowSink:
        """Opens the file of a task."""
        return _LatestSink(FileWriter(self.url, name, LATEST_FILES, upload))


class _LatestSink:
    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer
        self._schema = with_field_ids(table_schema())
        self._waiting: list[pyarrow.RecordBatch] = []
        self._bytes = 0
        self._fold_at = FOLD_BYTES

    def __enter__(self) -> _LatestSink:
        return self

    def __exit__(self, kind: object, *failure: object) -> None:
        self._writer.__exit__(kind, *failure)

    def add(self, records: pyarrow.RecordBatch, partition: int) -> Stop | None:
        import pyarrow as pa

        stop = None
        if records.column("key").null_count:
            at = records.column("key").is_null().to_pylist().index(True)
            offset = records.column("offset")[at].as_py()
            why = f"the record at offset {offset} has no key, and a table in mode latest has one row for each key"
            stop, records = Stop(partition, offset, False, why), records.slice(0, at)
        if records.num_rows:
            offset, timestamp, kind, *others = records.columns
            number = constant_int_column(partition, records.num_rows)
            arrays = [number, offset, timestamp, kind.cast(pa.int8()), *others]
            self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            self._bytes += records.nbytes
        if self._bytes >= self._fold_at:
            self._fold()
            self._fold_at = max(FOLD_BYTES, 2 * self._bytes)
        return stop

    def _fold(self) -> None:
        import pyarrow as pa

        folded = keep_last(pa.Table.from_batches(self._waiting, self._schema)).combine_chunks()
        self._waiting = folded.to_batches()
        self._bytes = folded.nbytes

    def end_run(self) -> bool:
        if self._waiting:
            self._fold()
        for batch in self._waiting:
            self._writer.add(batch)
        self._waiting, self._bytes, self._fold_at = [], 0, FOLD_BYTES
        return self._writer.end_run()

    def result(self, outcomes: tuple[SplitOutcome, ...], requests: Mapping[str, int]) -> ConversionResult:
        return ConversionResult(tuple(self._writer.files), outcomes, requests)
