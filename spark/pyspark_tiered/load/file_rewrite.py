"""A file of a table written again, with fewer rows or other columns, whatever the form of its rows.

The new file has the statistics of its own rows. No version names it until `NativeTable.replace_files` commits it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta import table_form
from pyspark_tiered.delta.data_files import TableFile, load_column, read_stored_rows
from pyspark_tiered.delta.table_form import MEASURED, FileRun, LoadedFile, ReplacedFile, table_schema
from pyspark_tiered.load.file_writer import FileLayout, OpenFile
from pyspark_tiered.load.native_table import NativeTable

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

RUNS_MAX = 256
"""Partitions of a file whose ranges its tag names."""
Change = Callable[["pyarrow.RecordBatch", "pyarrow.parquet.ParquetFile"], "pyarrow.RecordBatch | None"]
"""Returns stored rows of a file as they are from now on; None if the whole file stays as it is."""


def rewrite_file(
    table: NativeTable, file: TableFile, change: Change, *, changes_data: bool = True
) -> ReplacedFile | None:
    """Writes the rows of a file as `change` returns them. There is no new file if no row is left.

    Returns None for a file that stays as it is.
    """
    import pyarrow as pa

    name = f"part-rewritten-{uuid.uuid4()}.zstd.parquet"
    bounds, rows, written = _Bounds(), 0, None

    def upload(_: str, scratch: str, name: str) -> None:
        table.folder.upload(scratch, name)

    try:
        with closing(read_stored_rows(table.folder, file.add)) as stored_rows:
            for stored, held in stored_rows:
                batch = change(stored, held)
                if batch is None:
                    return None
                rows += stored.num_rows - batch.num_rows
                if not batch.num_rows:
                    continue
                measured = (table_schema().field(each) for each in MEASURED)
                bounds.add([load_column(batch, field, file.add, file.form, held) for field in measured])
                if written is None:
                    written = OpenFile(table.url, name, batch.schema, FileLayout(table.prefix), upload)
                written.write(pa.Table.from_batches([batch]))
    except BaseException:
        if written is not None:
            written.abandon()
        raise
    if written is None:
        return ReplacedFile(file.add, rows, None, "")
    name, size = written.close()
    new = LoadedFile(name, size, time.time_ns() // 1_000_000, bounds.runs())
    return ReplacedFile(file.add, rows, new, bounds.add_action(file, new, changes_data))


class _Bounds:
    """The statistics of rows: a run for each partition, and the number of NULLs."""

    def __init__(self) -> None:
        self._runs: dict[int, FileRun] = {}
        self._rows = 0
        self._nulls = dict.fromkeys(MEASURED, 0)

    def add(self, columns: Sequence[pyarrow.Array]) -> None:
        """Adds rows: their partitions, offsets and timestamps."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for name, column in zip(MEASURED, columns, strict=True):
            self._nulls[name] += column.null_count
        partitions, offsets, times = columns
        self._rows += len(partitions)
        rows = pa.table([partitions, offsets, times.cast(pa.int64())], list(MEASURED))
        rows = rows.filter(pc.and_(partitions.is_valid(), offsets.is_valid()))
        found = rows.group_by("partition").aggregate(
            [("offset", "count"), ("offset", "min"), ("offset", "max"), ("timestamp", "min"), ("timestamp", "max"),
             ("timestamp", "count")]
        )  # fmt: skip
        for each in found.to_pylist():
            run = FileRun(
                each["partition"], each["offset_count"], each["offset_min"], each["offset_max"],
                each["timestamp_min"], each["timestamp_max"], each["offset_count"] - each["timestamp_count"],
            )  # fmt: skip
            known = self._runs.get(run.partition)
            self._runs[run.partition] = run if known is None else _joined(known, run)

    def runs(self) -> tuple[FileRun, ...]:
        """Returns the runs, in order of partitions."""
        return tuple(run for _, run in sorted(self._runs.items()))

    def add_action(self, file: TableFile, written: LoadedFile, changes_data: bool) -> str:
        """Returns the action that adds the rows of `file` that stay."""
        if not written.runs:
            stats: dict[str, Any] = {"numRecords": self._rows}
            add = {"path": written.path, "size": written.size, "modificationTime": written.modified_ms}
        else:
            add = json.loads(table_form.add_action(written))["add"]
            stats = json.loads(add["stats"]) | {"numRecords": self._rows, "nullCount": self._nulls}
            for each in ("minValues", "maxValues", "nullCount"):
                stats[each] = {file.form.names[name]: value for name, value in stats[each].items()}
            if len(written.runs) > RUNS_MAX or self._nulls["partition"] or self._nulls["offset"]:
                add.pop("tags", None)
        add |= {"partitionValues": file.add.get("partitionValues") or {}, "stats": json.dumps(stats)}
        add["dataChange"] = changes_data
        return json.dumps({"add": add})


def _joined(one: FileRun, other: FileRun) -> FileRun:
    """Returns two runs of a partition, in any order, as one."""
    return one.merge(other)._replace(
        first_offset=min(one.first_offset, other.first_offset), last_offset=max(one.last_offset, other.last_offset)
    )
