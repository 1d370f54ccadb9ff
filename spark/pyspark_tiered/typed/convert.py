"""The rows of a typed table and of its dead letters, from the records of a task of a load.

The schema may grow on the way. Rows that wait get the newer columns; a file that was begun with fewer columns ends, and
another one begins. The result says with which columns each file was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta.table_form import Range, SplitOutcome, Stop
from pyspark_tiered.load.convert import RowSink
from pyspark_tiered.load.file_writer import VALUE_FILES, FileWriter, Upload, upload
from pyspark_tiered.load.recent_rows import RecentRows
from pyspark_tiered.load.rounds import ConversionResult
from pyspark_tiered.log.rows import constant_int_column
from pyspark_tiered.proof.sums import drop_erased
from pyspark_tiered.schemas.sorting import RegisteredKinds, sort_records
from pyspark_tiered.typed.changes import FieldRule
from pyspark_tiered.typed.evolve import Path
from pyspark_tiered.typed.fast import column_field, column_type, shape
from pyspark_tiered.typed.form import DEAD_COLUMNS, FIELD_IDS, HEADER_IDS
from pyspark_tiered.typed.garbage import collection_paused
from pyspark_tiered.typed.kinds import StructOf, select_columns
from pyspark_tiered.typed.names import RECORD_COLUMNS

if TYPE_CHECKING:
    import pyarrow

REASONS_MAX = 5
"""Reasons of dead letters that a result lists."""


class Decided(NamedTuple):
    """Offsets of a partition below `end` whose place another load decided: those in `dead` are dead letters."""

    end: int
    dead: tuple[int, ...]


class ValuesForm(NamedTuple):
    """The form of a typed table and its dead letters, and what the load knew when it was planned."""

    url: str
    dead_url: str
    schema: StructOf
    decided: Mapping[int, Decided]
    erased: Mapping[int, Sequence[Range]]
    changes: tuple[FieldRule, ...]
    registered: RegisteredKinds | None = None

    def open(self, name: str, upload: Upload, recent: RecentRows | None) -> RowSink:
        """Opens the files of a task."""
        return _ValuesSink(self, open_rows(self.url, name, upload), open_letters(self.dead_url, name, upload))


class _ValuesSink:
    def __init__(self, form: ValuesForm, rows: FileWriter, letters: FileWriter) -> None:
        self._form = form
        self._schema = form.schema
        self._rows = rows
        self._letters = letters
        self._reasons: list[str] = []
        self._mistyped: Path = ()
        self._mistyped_reason = ""
        self._has_late = False
        self._has_frames = False

    def __enter__(self) -> _ValuesSink:
        return self

    def __exit__(self, kind: object, *failure: object) -> None:
        for each in (self._rows, self._letters):
            each.__exit__(kind, *failure)

    def add(self, records: pyarrow.RecordBatch, partition: int) -> Stop | None:
        decided = self._form.decided.get(partition, Decided(-1, ()))
        kept = drop_erased(_drop_dead(records, decided), self._form.erased.get(partition, ()))
        if not kept.num_rows:
            return None
        with collection_paused():
            parts = [kept.column(name) for name in ("key", "value", "headers")]
            found, waits, has_frames = sort_records(parts, self._schema, self._form.changes, self._form.registered)
        self._has_frames |= has_frames
        stop = None
        if waits is not None:
            at, why = waits
            stop = Stop(partition, kept.column("offset")[at].as_py(), False, why)
            kept = kept.slice(0, at)
        self._schema = found.schema
        fits, unfit = _split_rows(kept, [at for at, _ in found.dead])
        self._rows.add(typed_batch(fits, partition, found.rows, self._schema), select_columns(self._schema))
        self._letters.add(dead_batch(unfit, partition, [why for _, why in found.dead]))
        self._has_late |= bool(found.dead) and unfit.column("offset")[0].as_py() < decided.end
        dead_rows = zip(found.dead, unfit.column("offset"), strict=True)
        if found.mistyped and not self._mistyped:
            self._mistyped = found.mistyped
            why, offset = next((why, offset) for (at, why), offset in dead_rows if at == found.mistyped_at)
            self._mistyped_reason = _describe_letter(partition, offset.as_py(), why)
        self._reasons += [
            _describe_letter(partition, offset.as_py(), why)
            for (_, why), offset in zip(found.dead, unfit.column("offset")[:REASONS_MAX], strict=False)
        ][: REASONS_MAX - len(self._reasons)]
        return stop

    def end_run(self) -> bool:
        has_rows, has_letters = self._rows.end_run(), self._letters.end_run()
        return has_rows or has_letters

    def result(self, outcomes: tuple[SplitOutcome, ...], requests: Mapping[str, int]) -> ConversionResult:
        return ConversionResult(
            tuple(self._rows.files),
            outcomes,
            requests,
            self._schema,
            tuple(self._rows.columns),
            tuple(self._letters.files),
            tuple(self._reasons),
            self._mistyped,
            self._mistyped_reason,
            self._has_late,
            self._has_frames,
        )


def open_rows(url: str, name: str, upload: Upload = upload) -> FileWriter:
    """Returns a writer of files of a typed table."""
    return FileWriter(url, name, VALUE_FILES, upload, widen=widen_batch)


def open_letters(url: str, name: str, upload: Upload = upload) -> FileWriter:
    """Returns a writer of files of dead letters."""
    return FileWriter(url, name, VALUE_FILES, upload)


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

    def with_id(name: str, kind: pyarrow.DataType, number: int) -> pyarrow.Field:
        return pa.field(name, kind, metadata={b"PARQUET:field_id": str(number).encode()})

    parts = [
        with_id(name, kind, HEADER_IDS[f"headers.{name}"])
        for name, kind in (("key", pa.string()), ("value", pa.binary()))
    ]
    header = with_id("element", pa.struct(parts), HEADER_IDS["headers.element"])
    kinds = {
        "_partition": pa.int32(),
        "_offset": pa.int64(),
        "_timestamp": pa.timestamp("us", tz="UTC"),
        "_key": pa.binary(),
        "_value": pa.binary(),
        "_headers": pa.list_(header),
        "_error": pa.string(),
    }
    return [with_id(name, kinds[name], FIELD_IDS[name]) for name in names]


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
