"""Converts splits to files of a typed table and of its dead letters. Each task of a load does this, without the JVM.

The schema may grow on the way. Rows that wait get the newer columns; a file that was begun with fewer columns ends, and
another one begins. The result says with which columns each file was written.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pyspark_tiered.delta.table_form import FileRun, LoadedFile, Range, SplitOutcome
from pyspark_tiered.load.convert import DELTA, ROW_GROUP_BYTES, ZSTD_LEVEL, SplitReader, new_file, upload
from pyspark_tiered.log.bucket import BatchReader
from pyspark_tiered.log.plan import Split
from pyspark_tiered.log.rows import constant_int_column
from pyspark_tiered.proof.sums import drop_erased
from pyspark_tiered.typed.batches import sort_values
from pyspark_tiered.typed.changes import FieldRule
from pyspark_tiered.typed.evolve import Path
from pyspark_tiered.typed.fast import column_field, column_type, shape
from pyspark_tiered.typed.form import DEAD_COLUMNS, FIELD_IDS
from pyspark_tiered.typed.garbage import collection_paused
from pyspark_tiered.typed.kinds import StructOf, select_columns
from pyspark_tiered.typed.names import RECORD_COLUMNS

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

REASONS_MAX = 5
"""Reasons of dead letters that a result lists."""


class Decided(NamedTuple):
    """Offsets of a partition below `end` whose place another load decided: those in `dead` are dead letters."""

    end: int
    dead: tuple[int, ...]


class ValuesTask(NamedTuple):
    """The splits of one file, and what the load knew when it was planned."""

    store: str
    splits: tuple[Split, ...]
    typed_url: str
    dead_url: str
    schema: StructOf
    decided: Mapping[int, Decided]
    null_timestamps: bool
    erased: Mapping[int, Sequence[Range]]
    changes: tuple[FieldRule, ...]


class TypedFile(NamedTuple):
    """A file, and the columns with which it was written."""

    file: LoadedFile
    columns: StructOf


class ValuesResult(NamedTuple):
    """Result of converting splits. `schema` takes the values of all rows.

    `reasons` are those of some dead letters. `mistyped` is a field of one with another type than its column, and
    `mistyped_reason` the reason of that one.
    `has_late_letters`: another load took one of them for a row.
    """

    files: tuple[TypedFile, ...]
    dead: LoadedFile | None
    outcomes: tuple[SplitOutcome, ...]
    schema: StructOf
    reasons: tuple[str, ...]
    mistyped: Path
    mistyped_reason: str
    has_late_letters: bool
    requests: Mapping[str, int]


def convert_values(task: ValuesTask) -> ValuesResult:
    """Writes the rows of splits and their dead letters to files below the two tables."""
    unusable: dict[int, SplitOutcome] = {}
    with BatchReader(task.store) as reader:
        while True:
            result = _convert(reader, task, unusable)
            # A false transaction index shows after rows of its split were written: they are written again without it.
            found = {
                outcome.partition: outcome
                for split, outcome in zip(task.splits, result.outcomes, strict=True)
                if outcome.stop is not None and outcome.end == split.start and split.partition not in unusable
            }
            if not found or not any(run.partition in found for file in _all_files(result) for run in file.runs):
                return result
            unusable |= found


def _all_files(result: ValuesResult) -> list[LoadedFile]:
    return [*(each.file for each in result.files), *([result.dead] if result.dead is not None else [])]


def _convert(reader: BatchReader, task: ValuesTask, unusable: Mapping[int, SplitOutcome]) -> ValuesResult:
    schema = task.schema
    first = task.splits[0]
    is_alone = len(task.splits) == 1
    name = f"{first.partition:05d}-{first.start:020d}" if is_alone else f"shared-{len(task.splits):05d}"
    typed, dead = FileWriter(task.typed_url, name), FileWriter(task.dead_url, name)
    outcomes: list[SplitOutcome] = []
    reasons: list[str] = []
    mistyped: Path = ()
    mistyped_reason = ""
    has_late = False
    with typed, dead:
        for split in task.splits:
            if split.partition in unusable:
                outcomes.append(unusable[split.partition])
                continue
            rows = SplitReader(reader, split, task.null_timestamps)
            decided = task.decided.get(split.partition, Decided(-1, ()))
            erased = task.erased.get(split.partition, ())
            for batch in rows.rows():
                kept = drop_erased(_drop_dead(batch, decided), erased)
                if not kept.num_rows:
                    continue
                with collection_paused():
                    found = sort_values(kept.column("value"), schema, task.changes, kept.column("key"))
                schema = found.schema
                fits, unfit = _split_rows(kept, [at for at, _ in found.dead])
                typed.add(typed_batch(fits, split.partition, found.rows, schema), select_columns(schema))
                dead.add(dead_batch(unfit, split.partition, [why for _, why in found.dead]), StructOf())
                has_late |= bool(found.dead) and unfit.column("offset")[0].as_py() < decided.end
                dead_rows = zip(found.dead, unfit.column("offset"), strict=True)
                if found.mistyped and not mistyped:
                    mistyped = found.mistyped
                    why, offset = next((why, offset) for (at, why), offset in dead_rows if at == found.mistyped_at)
                    mistyped_reason = _describe_letter(split.partition, offset.as_py(), why)
                reasons += [
                    _describe_letter(split.partition, offset.as_py(), why)
                    for (_, why), offset in zip(found.dead, unfit.column("offset")[:REASONS_MAX], strict=False)
                ][: REASONS_MAX - len(reasons)]
            outcomes.append(rows.outcome())
            typed.end_run()
            dead.end_run()
    letters = [each.file for each in dead.files]
    requests = Counter(reader.count_requests())
    if urlsplit(task.typed_url).scheme != "file":
        requests["upload"] += len(typed.files) + len(letters)
    return ValuesResult(
        tuple(typed.files),
        letters[0] if letters else None,
        tuple(outcomes),
        schema,
        tuple(reasons),
        mistyped,
        mistyped_reason,
        has_late,
        dict(requests),
    )


def _describe_letter(partition: int, offset: int, why: str) -> str:
    return f"partition {partition}, offset {offset}: {why}"


def _drop_dead(batch: pyarrow.RecordBatch, decided: Decided) -> pyarrow.RecordBatch:
    """Returns the rows without those that are dead letters already."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not decided.dead or batch.column("offset")[0].as_py() >= decided.end:
        return batch
    known = pa.array(decided.dead, pa.int64())
    return batch.filter(pc.invert(pc.is_in(batch.column("offset"), known)))


def _split_rows(batch: pyarrow.RecordBatch, unfit: Sequence[int]) -> tuple[pyarrow.RecordBatch, pyarrow.RecordBatch]:
    """Returns the rows that fit, and those at the places `unfit`."""
    import numpy as np
    import pyarrow as pa

    if not unfit:
        return batch, batch.slice(0, 0)
    fits = np.ones(batch.num_rows, dtype=bool)
    fits[list(unfit)] = False
    return batch.filter(pa.array(fits)), batch.take(pa.array(unfit, pa.int64()))


def typed_batch(
    rows: pyarrow.RecordBatch, partition: int, values: pyarrow.StructArray, schema: StructOf
) -> pyarrow.RecordBatch:
    """Returns records and their values as rows of a typed table."""
    import pyarrow as pa

    columns = select_columns(schema)
    arrays = [
        constant_int_column(partition, rows.num_rows),
        *(rows.column(name) for name in ("offset", "timestamp", "key", "headers")),
        *(values.field(at) for at in range(len(columns.fields))),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=typed_arrow_schema(columns))


def dead_batch(rows: pyarrow.RecordBatch, partition: int, reasons: Sequence[str]) -> pyarrow.RecordBatch:
    """Returns records as dead letters."""
    import pyarrow as pa

    names = ("offset", "timestamp", "key", "value", "headers")
    arrays = [constant_int_column(partition, rows.num_rows), *(rows.column(name) for name in names)]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(reasons, pa.string())], schema=dead_arrow_schema())


def keep_letters(letters: pyarrow.RecordBatch, which: pyarrow.Array) -> pyarrow.RecordBatch:
    """Returns some of these dead letters, as they are written."""
    return keep_rows(letters, which, dead_arrow_schema())


def keep_rows(rows: pyarrow.RecordBatch, which: pyarrow.Array, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Returns some of these rows of a file, in the types of a schema with the same columns."""
    return cast_rows(rows.filter(which), schema)


def cast_rows(rows: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Returns rows of a file in the types of a schema with the same columns. Spark writes times without a zone."""
    import pyarrow as pa

    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def dead_arrow_schema() -> pyarrow.Schema:
    """Returns the Arrow schema of the files of dead letters."""
    import pyarrow as pa

    return pa.schema(_record_fields(DEAD_COLUMNS))


def typed_arrow_schema(columns: StructOf) -> pyarrow.Schema:
    """Returns the Arrow schema of the files of a typed table."""
    import pyarrow as pa

    return pa.schema([*_record_fields(RECORD_COLUMNS), *(column_field(field) for field in columns.fields)])


def _record_fields(names: Sequence[str]) -> list[pyarrow.Field]:
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    kinds = {
        "_partition": pa.int32(),
        "_offset": pa.int64(),
        "_timestamp": pa.timestamp("us", tz="UTC"),
        "_key": pa.binary(),
        "_value": pa.binary(),
        "_headers": pa.list_(header),
        "_error": pa.string(),
    }
    return [
        pa.field(name, kinds[name], metadata={b"PARQUET:field_id": str(FIELD_IDS[name]).encode()}) for name in names
    ]


class FileWriter:
    """Writes batches to files of one table: one file as long as the columns stay the same."""

    def __init__(self, url: str, name: str) -> None:
        self.files: list[TypedFile] = []
        self._url = url
        self._name = name
        self._columns = StructOf()
        self._waiting: list[pyarrow.RecordBatch] = []
        self._bytes = 0
        self._open: OpenFile | None = None
        self._runs: list[FileRun] = []
        self._run: FileRun | None = None

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: object, *failure: object) -> None:
        if kind is None:
            self._end_file()
        elif self._open is not None:
            self._open.abandon()

    def add(self, batch: pyarrow.RecordBatch, columns: StructOf) -> None:
        """Adds rows behind those of the same partition."""
        if not batch.num_rows:
            return
        if columns != self._columns:
            if self._open is not None:
                self._end_file()
            self._waiting = [widen_batch(each, self._columns, columns) for each in self._waiting]
            self._columns = columns
        if self._bytes >= ROW_GROUP_BYTES:
            self._write_row_group()
        measured = _measure(batch)
        self._run = measured if self._run is None else self._run.merge(measured)
        self._waiting.append(batch)
        self._bytes += batch.nbytes

    def end_run(self) -> None:
        """Ends the rows of a partition. Small partitions share a row group as well."""
        if self._run is not None:
            self._runs.append(self._run)
            self._run = None

    def _write_row_group(self) -> None:
        if not self._waiting:
            return
        if self._open is None:
            self._open = OpenFile(self._url, f"part-{self._name}-{uuid.uuid4()}.zstd.parquet", self._waiting[0].schema)
        self._open.write(self._waiting)
        self._waiting, self._bytes = [], 0

    def _end_file(self) -> None:
        self._write_row_group()
        self.end_run()
        if self._open is not None:
            name, size = self._open.close()
            file = LoadedFile(name, size, time.time_ns() // 1_000_000, tuple(self._runs))
            self.files.append(TypedFile(file, self._columns))
        self._open, self._runs = None, []


class OpenFile:
    """A Parquet file that is written. It is in the table's folder once it is closed."""

    def __init__(self, url: str, name: str, schema: pyarrow.Schema) -> None:
        import pyarrow.parquet as pq

        self._name = name
        self._stack = ExitStack()
        self._path = self._stack.enter_context(new_file(url, name, upload))
        paths = [path for field in schema for path in _leaves(field)]
        encoded = {f"_{name}": encoding for name, encoding in DELTA.items() if f"_{name}" in schema.names}
        self._writer = pq.ParquetWriter(
            self._path,
            schema,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=[path for path in paths if path not in encoded],
            column_encoding=encoded,
        )

    def write(self, batches: Sequence[pyarrow.RecordBatch]) -> None:
        """Writes a row group."""
        import pyarrow as pa

        self._writer.write_table(pa.Table.from_batches(batches))

    def close(self) -> tuple[str, int]:
        """Completes the file. Returns its name and size."""
        self._writer.close()
        size = self._path.stat().st_size
        self._stack.close()
        return self._name, size

    def abandon(self) -> None:
        """Drops the file."""
        self._writer.close()
        self._path.unlink(missing_ok=True)
        self._stack.close()


def _leaves(field: pyarrow.Field, prefix: str = "") -> Iterator[str]:
    """Yields the paths of the Parquet columns of a field."""
    import pyarrow as pa

    path = f"{prefix}{field.name}"
    if pa.types.is_map(field.type):
        yield f"{path}.key_value.key"
        yield from _leaves(field.type.item_field.with_name("value"), f"{path}.key_value.")
    elif pa.types.is_list(field.type):
        yield from _leaves(field.type.value_field.with_name("element"), f"{path}.list.")
    elif pa.types.is_struct(field.type):
        for part in field.type:
            yield from _leaves(part, f"{path}.")
    else:
        yield path


def widen_batch(batch: pyarrow.RecordBatch, before: StructOf, after: StructOf) -> pyarrow.RecordBatch:
    """Returns rows with other columns: `after` has the names, types and order."""
    import pyarrow as pa

    count = len(RECORD_COLUMNS)
    kind = column_type(before)
    values = pa.StructArray.from_arrays(batch.columns[count:], fields=list(kind)) if before.fields else None
    if values is None:
        arrays = [pa.nulls(batch.num_rows, field.type) for field in column_type(after)]
    else:
        wide = shape(values, before, after) if after.fields else None
        arrays = [wide.field(at) for at in range(len(after.fields))] if wide is not None else []
    return pa.RecordBatch.from_arrays([*batch.columns[:count], *arrays], schema=typed_arrow_schema(after))


def _measure(batch: pyarrow.RecordBatch) -> FileRun:
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets, timestamps = batch.column("_offset"), batch.column("_timestamp")
    times = pc.min_max(timestamps.cast(pa.int64()))
    ends = pc.min_max(offsets)
    partition = batch.column("_partition")[0].as_py()
    low, high = times["min"].as_py(), times["max"].as_py()
    first, last = ends["min"].as_py(), ends["max"].as_py()
    return FileRun(partition, batch.num_rows, first, last, low, high, timestamps.null_count)
