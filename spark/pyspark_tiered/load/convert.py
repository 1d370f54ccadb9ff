"""Converts splits to one finished Parquet file in the table's folder. Each task of a load does this, without the JVM.

The file is complete and on stable storage before the driver learns of it. A task that runs twice leaves a file that no
commit names; VACUUM removes it. If the log cannot be read on, the file ends before that place, and the result names
place and reason. Everything below it was checked. A file of several partitions has row groups of one partition each.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark_tiered.delta.log_folder import make_folder, open_table_bucket, refuse_unwritable, upload_file
from pyspark_tiered.delta.table_form import (
    COLUMNS,
    FIELD_IDS,
    ConversionResult,
    FileRun,
    LoadedFile,
    Range,
    SplitOutcome,
    Stop,
    table_schema,
)
from pyspark_tiered.load.recent_rows import FILE_BYTES_MAX, RecentRows
from pyspark_tiered.log.bucket import BatchReader
from pyspark_tiered.log.plan import Split
from pyspark_tiered.log.rows import constant_int_column, decode_rows
from tiered.errors import Corrupt, TooLarge
from tiered.offline.committed import FalseTransactionIndex
from tiered.records.batch import first_at_or_after
from tiered.records.model import WalkedBatch
from tiered.records.pieces import INT64_MIN

if TYPE_CHECKING:
    import pyarrow

DECODED = ("offset", "timestamp", "timestampType", "key", "value", "headers")
GROUP_BYTES = 2 << 20
ROW_GROUP_BYTES = 64 << 20
READ_ROWS = 1024
"""Rows of a small file that are read at once."""
ZSTD_LEVEL = 1
"""Level 3 makes files 5 % smaller and half of a load's work dearer by a half."""
DICTIONARY = ["partition", "timestamp_type", "key"]
DELTA = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
"""Encodings of columns. Offsets and times differ little from row to row: faster than a dictionary, and much smaller."""


Upload = Callable[[str, str, str], None]
"""Uploads a file: the table's URL, the local folder, the name."""

OUT_OF_RANGE_LISTED_MAX = 20
"""Records of one file whose timestamps became NULL that are listed with their value in the log."""


def convert(
    store: str,
    splits: Sequence[Split],
    table_url: str,
    null_timestamps: bool = False,
    ranges: Sequence[Range] | None = None,
) -> ConversionResult:
    """Writes the rows of splits below `table_url` (`file:` or `s3a:`), or only those in `ranges`, to one file.

    The splits are of different partitions, or it is one. Without rows there is no file (only control batches and
    aborted transactions). A record whose timestamp microseconds cannot hold stops its split. With `null_timestamps` it
    gets NULL and is listed instead.
    """
    with BatchReader(store) as reader:
        return convert_with(reader, splits, table_url, null_timestamps, ranges, upload)


def convert_task(
    store: str, table_url: str, null_timestamps: bool
) -> Callable[[tuple[Sequence[Split], Sequence[Range] | None]], ConversionResult]:
    """Returns a task that converts the splits of a file, or some ranges in them."""

    def run(file: tuple[Sequence[Split], Sequence[Range] | None]) -> ConversionResult:
        return convert(store, file[0], table_url, null_timestamps, file[1])

    return run


def convert_with(
    reader: BatchReader,
    splits: Sequence[Split],
    table_url: str,
    null_timestamps: bool,
    ranges: Sequence[Range] | None,
    upload: Upload,
    recent: RecentRows | None = None,
) -> ConversionResult:
    """Does what `convert` does, by an open reader and a function that uploads. Rows of a small file go to `recent`."""
    first = splits[0]
    kind = f"{first.partition:05d}-{first.start:020d}" if len(splits) == 1 else f"shared-{len(splits):05d}"
    name = f"part-{kind}-{uuid.uuid4()}.zstd.parquet"
    before = Counter(reader.count_requests())
    with new_file(table_url, name, upload) as path:
        runs, outcomes, rows = _write_splits(reader, splits, path, null_timestamps, ranges)
        size = path.stat().st_size if runs else 0
        requests = Counter(reader.count_requests()) - before
    if runs and urlsplit(table_url).scheme != "file":
        requests["upload"] += 1
    file = LoadedFile(name, size, time.time_ns() // 1_000_000, tuple(runs)) if runs else None
    if recent is not None and rows is not None:
        recent.add(name, rows)
    return ConversionResult(file, tuple(outcomes), dict(requests))


def _write_splits(
    reader: BatchReader,
    splits: Sequence[Split],
    path: Path,
    null_timestamps: bool,
    ranges: Sequence[Range] | None,
) -> tuple[list[FileRun], list[SplitOutcome], pyarrow.Table | None]:
    """Writes a run for each split that has rows. Without any run there is no file. Returns few rows too.

    A false transaction index shows after rows of its split were written. Then the file is written again without them.
    """
    unusable: dict[int, SplitOutcome] = {}
    while True:
        runs: list[FileRun] = []
        outcomes: list[SplitOutcome] = []
        with _RunWriter(path) as writer:
            for split in splits:
                if split.partition in unusable:
                    outcomes.append(unusable[split.partition])
                    continue
                rows = SplitReader(reader, split, null_timestamps)
                for batch in _table_rows(_filter_ranges(rows.rows(), ranges), split.partition):
                    writer.add(batch)
                run, outcome = writer.end_run(), rows.outcome()
                outcomes.append(outcome)
                if run is None:
                    continue
                if outcome.end == split.start:
                    unusable[split.partition] = outcome
                    break
                runs.append(run)
            else:
                return runs, outcomes, writer.small_rows()
        path.unlink(missing_ok=True)


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

    def rows(self) -> Iterator[pyarrow.RecordBatch]:
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


def _filter_ranges(
    found: Iterable[pyarrow.RecordBatch], ranges: Sequence[Range] | None
) -> Iterator[pyarrow.RecordBatch]:
    """Yields the rows whose offsets lie in one of these ranges, which are in order."""
    import numpy as np
    import pyarrow as pa

    if ranges is None:
        yield from found
        return
    starts, ends = (np.array(side, dtype=np.int64) for side in zip(*ranges, strict=True))
    for rows in found:
        offsets = rows.column("offset").to_numpy()
        at = np.searchsorted(starts, offsets, side="right") - 1
        wanted = rows.filter(pa.array((at >= 0) & (offsets < ends[at])))
        if wanted.num_rows:
            yield wanted


def _table_rows(found: Iterable[pyarrow.RecordBatch], partition: int) -> Iterator[pyarrow.RecordBatch]:
    """Yields decoded batches with the table's columns, in its order."""
    import pyarrow as pa

    for batch in found:
        if not batch.num_rows:
            continue
        offset, timestamp, kind, key, value, headers = batch.columns
        numbers = constant_int_column(partition, batch.num_rows)
        arrays = [numbers, offset, timestamp, kind.cast(pa.int8()), key, value, headers]
        yield pa.RecordBatch.from_arrays(arrays, list(COLUMNS))


@contextmanager
def new_file(table_url: str, name: str, upload: Upload) -> Iterator[Path]:
    """Yields the path of a local file to write. At the end it is in the table's folder, if it was written.

    In a directory it is renamed, so that Spark and Delta never see half a file. For a bucket it is uploaded from here,
    so that memory does not grow with the file.
    """
    if urlsplit(table_url).scheme != "file":
        with TemporaryDirectory(prefix="tiered-load-") as scratch:
            yield Path(scratch) / name
            if (Path(scratch) / name).exists():
                upload(table_url, scratch, name)
        return
    folder = Path(table_url.removeprefix("file:"))
    make_folder(folder)
    hidden = folder / f".{name}.tmp"
    with refuse_unwritable(folder):
        hidden.touch()
        hidden.unlink()
    try:
        yield hidden
        if hidden.exists():
            _sync(hidden)
            os.rename(hidden, folder / name)
            _sync(folder)
    finally:
        hidden.unlink(missing_ok=True)


def upload(table_url: str, scratch: str, name: str) -> None:
    """Uploads a file of the folder `scratch` into the table's folder, by a store that is open meanwhile."""

    async def run() -> None:
        store, prefix = open_table_bucket(table_url)
        try:
            await upload_file(store, prefix, scratch, name)
        finally:
            await store.close()

    asyncio.run(run())


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
    name = f"part-joined-{count:05d}-{uuid.uuid4()}.zstd.parquet"
    runs: list[FileRun] = []
    with new_file(table_url, name, upload) as path:
        with _RunWriter(path) as writer:
            counted = pc.value_counts(rows["partition"].combine_chunks())
            start = 0
            for each in counted:
                length = each["counts"].as_py()
                for batch in rows.slice(start, length).to_batches():
                    writer.add(batch)
                run = writer.end_run()
                assert run is not None
                runs.append(run)
                start += length
        size = path.stat().st_size
    if rows.nbytes <= FILE_BYTES_MAX:
        recent.add(name, rows)
    return LoadedFile(name, size, time.time_ns() // 1_000_000, tuple(runs))


class _RunWriter:
    """Writes runs of rows to one file, in row groups of some 64 MiB. Each run begins a row group."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pyarrow.parquet.ParquetWriter | None = None
        self._waiting: list[pyarrow.RecordBatch] = []
        self._bytes = 0
        self._run: FileRun | None = None
        self._small: list[pyarrow.Table] | None = []
        self._small_bytes = 0

    def __enter__(self) -> _RunWriter:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, batch: pyarrow.RecordBatch) -> None:
        """Adds rows to the run. They have to be of its partition, behind the others."""
        if self._bytes >= ROW_GROUP_BYTES:
            self._write_row_group()
        measured = _measure(batch)
        self._run = measured if self._run is None else self._run.merge(measured)
        self._waiting.append(batch)
        self._bytes += batch.nbytes

    def end_run(self) -> FileRun | None:
        """Ends the run, and returns its bounds. Returns None if it has no rows."""
        self._write_row_group()
        ended, self._run = self._run, None
        return ended

    def small_rows(self) -> pyarrow.Table | None:
        """Returns the rows of all ended runs, None if there are none or too many to keep."""
        import pyarrow as pa

        return pa.concat_tables(self._small) if self._small else None

    def _write_row_group(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not self._waiting:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path,
                with_field_ids(self._waiting[0].schema),
                compression="zstd",
                compression_level=ZSTD_LEVEL,
                use_dictionary=DICTIONARY,
                column_encoding=DELTA,
                write_statistics=["partition", "offset", "timestamp"],
            )
        rows = pa.Table.from_batches(self._waiting)
        self._writer.write_table(rows)
        self._small_bytes += self._bytes
        if self._small_bytes > FILE_BYTES_MAX:
            self._small = None
        elif self._small is not None:
            self._small.append(rows)
        self._waiting, self._bytes = [], 0


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


def _measure(batch: pyarrow.RecordBatch) -> FileRun:
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets, timestamps = batch.column("offset"), batch.column("timestamp")
    times = pc.min_max(timestamps.cast(pa.int64()))
    return FileRun(
        batch.column("partition")[0].as_py(),
        batch.num_rows,
        offsets[0].as_py(),
        offsets[-1].as_py(),
        times["min"].as_py(),
        times["max"].as_py(),
        timestamps.null_count,
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
