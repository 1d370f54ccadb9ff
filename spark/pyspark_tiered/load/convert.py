"""Converts splits to finished Parquet files in a table's folder. Each task of a load does this, without the JVM.

If the log cannot be read on, a file ends before that place, and the result names place and reason. Everything below it
was checked. A file of several partitions has them one behind the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from pyspark_tiered.delta.table_form import (
    COLUMNS,
    FIELD_IDS,
    LoadedFile,
    Range,
    SplitOutcome,
    Stop,
    table_schema,
)
from pyspark_tiered.load.file_writer import RAW_FILES, FileWriter, Upload, upload
from pyspark_tiered.load.recent_rows import FILE_BYTES_MAX, RecentRows
from pyspark_tiered.load.rounds import ConversionResult, FilePlan
from pyspark_tiered.log.bucket import BatchReader
from pyspark_tiered.log.plan import Split
from pyspark_tiered.log.rows import constant_int_column, decode_rows
from pyspark_tiered.proof.sums import is_inside
from tiered.errors import Corrupt, TooLarge
from tiered.offline.committed import FalseTransactionIndex
from tiered.records.batch import first_at_or_after
from tiered.records.model import WalkedBatch
from tiered.records.pieces import INT64_MIN

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

DECODED = ("offset", "timestamp", "timestampType", "key", "value", "headers")
GROUP_BYTES = 2 << 20
READ_ROWS = 1024
"""Rows of a small file that are read at once."""
OUT_OF_RANGE_LISTED_MAX = 20
"""Records of one file whose timestamps became NULL that are listed with their value in the log."""


class RowSink(Protocol):
    """The files that a task writes, of one form. Left by an exception, it drops those that are not complete."""

    def __enter__(self) -> RowSink: ...

    def __exit__(self, kind: object, *failure: object) -> None: ...

    def add(self, records: pyarrow.RecordBatch, partition: int) -> Stop | None:
        """Adds records of a partition, with the columns `DECODED`, behind its others.

        Returns the place at which the partition stops, None as usual: only the records below it were added.
        """

    def end_run(self) -> bool:
        """Ends the records of a partition. Returns true if there is any row of them."""

    def result(self, outcomes: tuple[SplitOutcome, ...], requests: Mapping[str, int]) -> ConversionResult:
        """Returns what was written, at the end."""


class RowForm(Protocol):
    """The form of the rows that a task writes, and what the load knew of the tables when it was planned."""

    @property
    def url(self) -> str:
        """Returns the URL of the table of the rows."""

    def open(self, name: str, upload: Upload, recent: RecentRows | None) -> RowSink:
        """Opens the files of a task. Their names have `name` in them. Rows of a small file may go to `recent`."""


class ConversionTask(NamedTuple):
    """The splits of one file. They are of different partitions, or it is one.

    A record whose timestamp microseconds cannot hold stops its split. With `null_timestamps` it gets NULL and is listed
    instead.
    """

    store: str
    splits: FilePlan
    form: RowForm
    null_timestamps: bool = False


class RawForm(NamedTuple):
    """The form of a raw table: each record is a row. Only those in `ranges` are written, if there are any."""

    url: str
    ranges: Sequence[Range] | None = None

    def open(self, name: str, upload: Upload, recent: RecentRows | None) -> RowSink:
        """Opens the file of a task. Without rows there is none: only control batches and aborted transactions."""
        return _RawSink(FileWriter(self.url, name, RAW_FILES, upload, recent=recent), self.ranges)


class _RawSink:
    def __init__(self, writer: FileWriter, ranges: Sequence[Range] | None) -> None:
        self._writer = writer
        self._ranges = ranges
        self._schema = with_field_ids(table_schema())

    def __enter__(self) -> _RawSink:
        return self

    def __exit__(self, kind: object, *failure: object) -> None:
        self._writer.__exit__(kind, *failure)

    def add(self, records: pyarrow.RecordBatch, partition: int) -> Stop | None:
        import pyarrow as pa

        if self._ranges is not None:
            records = records.filter(pa.array(is_inside(records.column("offset").to_numpy(), self._ranges)))
        if not records.num_rows:
            return None
        offset, timestamp, kind, *others = records.columns
        arrays = [constant_int_column(partition, records.num_rows), offset, timestamp, kind.cast(pa.int8()), *others]
        self._writer.add(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        return None

    def end_run(self) -> bool:
        return self._writer.end_run()

    def result(self, outcomes: tuple[SplitOutcome, ...], requests: Mapping[str, int]) -> ConversionResult:
        return ConversionResult(tuple(self._writer.files), outcomes, requests)


def convert(task: ConversionTask) -> ConversionResult:
    """Writes the rows of splits to files of their tables."""
    with BatchReader(task.store) as reader:
        return convert_with(reader, task, upload)


def convert_with(
    reader: BatchReader, task: ConversionTask, upload: Upload, recent: RecentRows | None = None
) -> ConversionResult:
    """Does what `convert` does, by an open reader and a function that uploads. Rows of a small file go to `recent`.

    A false transaction index shows after rows of its split were written. Then the files are written again without them.
    """
    first, before = task.splits[0], Counter(reader.count_requests())
    is_alone = len(task.splits) == 1
    name = f"{first.partition:05d}-{first.start:020d}" if is_alone else f"shared-{len(task.splits):05d}"
    unusable: dict[int, SplitOutcome] = {}
    while True:
        try:
            with task.form.open(name, upload, recent) as sink:
                outcomes = tuple(
                    unusable.get(split.partition) or _write_split(reader, task, split, sink) for split in task.splits
                )
        except _FalseRowsError as fault:
            unusable[fault.outcome.partition] = fault.outcome
            continue
        requests = Counter(reader.count_requests()) - before
        found = sink.result(outcomes, requests)
        if urlsplit(task.form.url).scheme != "file":
            requests["upload"] += len(found.files) + len(found.letters)
        return found._replace(requests=dict(requests))


class _FalseRowsError(Exception):
    """Rows of a split were written that are none."""

    def __init__(self, outcome: SplitOutcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def _write_split(reader: BatchReader, task: ConversionTask, split: Split, sink: RowSink) -> SplitOutcome:
    rows = SplitReader(reader, split, task.null_timestamps)
    with closing(rows.rows()) as found:
        for records in found:
            if (stop := sink.add(records, split.partition)) is not None:
                rows.stop_at(stop)
                break
    outcome = rows.outcome()
    if sink.end_run() and outcome.end == split.start:
        raise _FalseRowsError(outcome)
    return outcome


class SplitReader:
    """The rows of a split, in order, as far as the log can be read. All rows below `end_offset` were yielded."""

    def __init__(self, reader: BatchReader, split: Split, null_timestamps: bool) -> None:
        self.end_offset = split.start
        self.stop: Stop | None = None
        self.out_of_range_timestamps: list[tuple[int, int]] = []
        self._reader = reader
        self._split = split
        self._null_timestamps = null_timestamps
        self._piece: tuple[memoryview, list[WalkedBatch]] = (memoryview(b""), [])

    def outcome(self) -> SplitOutcome:
        """Returns the result, after the last row."""
        split = self._split
        return SplitOutcome(
            split.partition, split.start, self.end_offset, self.stop, tuple(self.out_of_range_timestamps)
        )

    def stop_at(self, stop: Stop) -> None:
        """Ends the split at a record that the sink cannot take yet."""
        self.stop, self.end_offset = stop, stop.offset

    def rows(self) -> Generator[pyarrow.RecordBatch]:
        """Yields record batches that have rows. After the last one `end_offset` and `stop` are final."""
        split, pieces = self._split, self._pieces()
        try:
            for next_offset, rows in decode_rows(pieces, (split.start, split.end), DECODED, GROUP_BYTES):
                if rows.num_rows:
                    yield self._stop_at_null(rows)
                if self.stop is not None:
                    return
                self.end_offset = min(next_offset, split.end)
        except FalseTransactionIndex as fault:
            # Rows that were yielded may be those of the transaction.
            self.end_offset = split.start
            self.stop = Stop(split.partition, split.start, True, str(fault))
        except TooLarge as fault:
            why = f"a record is too large to be loaded ({fault.why}); Kafka clients read it"
            self.stop = Stop(split.partition, self.end_offset, False, why)
        except Corrupt as fault:
            where = "" if fault.where else f" where={self._object_key(self.end_offset)}"
            self.stop = Stop(split.partition, self.end_offset, True, f"{fault}{where}")
        else:
            self.end_offset = split.end
        finally:
            pieces.close()

    def _pieces(self) -> Generator[tuple[memoryview, list[WalkedBatch]]]:
        with closing(self._reader.read(self._split)) as found:
            for piece in found:
                self._piece = piece
                yield piece

    def _stop_at_null(self, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """Returns the rows up to the first with a NULL timestamp, which stops the reading.

        With `null_timestamps` returns all rows, and lists those with NULL.
        """
        times = rows.column("timestamp")
        if not times.null_count:
            return rows
        offsets = rows.column("offset").filter(times.is_null()).to_pylist()
        if self._null_timestamps:
            self.out_of_range_timestamps += [
                (at, self._milliseconds(at))
                for at in offsets[: OUT_OF_RANGE_LISTED_MAX - len(self.out_of_range_timestamps)]
            ]
            return rows
        why = f"the timestamp of offset {offsets[0]} is {self._milliseconds(offsets[0])} ms, which Spark cannot hold"
        self.end_offset = offsets[0]
        self.stop = Stop(
            self._split.partition, self.end_offset, False, f"{why}; with `--timestamps null` it is loaded as NULL"
        )
        return rows.slice(0, rows.column("offset").to_pylist().index(offsets[0]))

    def _milliseconds(self, offset: int) -> int:
        """Returns the timestamp in the record itself."""
        data, found = self._piece
        at = (
            next(batch.position for batch in found if batch.base_offset <= offset <= batch.last_offset)
            - found[0].position
        )
        place = first_at_or_after(data, at, INT64_MIN, offset)
        assert place is not None
        return place[1]

    def _object_key(self, offset: int) -> str:
        return next((entry.key for entry in self._split.entries if offset < entry.next_offset), "")


def read_rows(path: Path, bytes_max: int) -> pyarrow.Table | None:
    """Returns the rows of a small file in the table's types.

    Returns None if they have more bytes, or if the file has another form than those of loads and of Spark. Raises
    `Corrupt` if it is no Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = with_field_ids(table_schema())
    try:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
            if not _has_table_form(file) or sum(group.total_byte_size for group in groups) > bytes_max:
                return None
            found, total = [], 0
            for batch in file.iter_batches(READ_ROWS, use_threads=False):
                found.append(batch)
                total += batch.nbytes
                if total > bytes_max:  # a dictionary holds once what many rows have
                    return None
            rows = pa.Table.from_batches(found, file.schema_arrow).cast(schema)
            return None if rows["partition"].null_count or rows["offset"].null_count else rows
    except pa.ArrowException as fault:
        raise Corrupt(f"the file is not readable Parquet: {fault}", where=str(path)) from fault


def _has_table_form(file: pyarrow.parquet.ParquetFile) -> bool:
    """True if a file has exactly the columns of the table. Times may be Spark's INT96, but not in its old calendar."""
    import pyarrow as pa

    wanted, found = table_schema(), file.schema_arrow
    if found.names != wanted.names:
        return False
    other = [name for name in wanted.names if found.field(name).type != wanted.field(name).type]
    if other != ["timestamp"]:
        return not other
    is_int96 = file.schema.column(wanted.names.index("timestamp")).physical_type == "INT96"
    is_legacy = b"org.apache.spark.legacyINT96" in (file.metadata.metadata or {})
    return bool(is_int96 and not is_legacy and found.field("timestamp").type == pa.timestamp("us"))


def join_rows(parts: list[pyarrow.Table], table_url: str, upload: Upload, recent: RecentRows) -> LoadedFile:
    """Writes the rows of some small files to one, by partition and offset, a run for each partition.

    They are in the table's types. The list is empty afterwards, so that memory has the rows twice at most.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(parts)
    schema = with_field_ids(table_schema())
    rows = pa.concat_tables([part.cast(schema) for part in parts]).combine_chunks()
    parts.clear()
    rows = rows.take(pc.sort_indices(rows, [("partition", "ascending"), ("offset", "ascending")])).combine_chunks()
    with FileWriter(table_url, f"joined-{count:05d}", RAW_FILES, upload) as writer:
        start = 0
        for each in pc.value_counts(rows["partition"].combine_chunks()):
            length = each["counts"].as_py()
            for batch in rows.slice(start, length).to_batches():
                writer.add(batch)
            writer.end_run()
            start += length
    (joined,) = writer.files
    if rows.nbytes <= FILE_BYTES_MAX:
        recent.add(joined.path, rows)
    return joined


def with_field_ids(schema: pyarrow.Schema) -> pyarrow.Schema:
    """Returns the schema of the table's columns with the ids that their Parquet columns get."""
    import pyarrow as pa

    def with_field_id(field: pyarrow.Field, name: str) -> pyarrow.Field:
        return field.with_metadata({"PARQUET:field_id": str(FIELD_IDS[name])})

    fields = [with_field_id(schema.field(name), name) for name in COLUMNS]
    element = schema.field("headers").type.value_field
    parts = [with_field_id(part, f"headers.{part.name}") for part in element.type]
    headers = pa.list_(with_field_id(element.with_type(pa.struct(parts)), "headers.element"))
    return pa.schema([*fields[:-1], fields[-1].with_type(headers)])
