"""Converts a split to one finished Parquet file in the table's folder. Each task of a load does this, without the JVM.

The file is complete and on stable storage before the driver learns of it. A task that runs twice leaves a file that no
commit names; VACUUM removes it. If the log cannot be read on, the file ends before that place, and the result names
place and reason. Everything below it was checked.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pyspark_tiered.bucket import read_batches
from pyspark_tiered.plan import Split
from pyspark_tiered.rows import constant_int_column, decode_rows
from pyspark_tiered.table import ConversionResult, LoadedFile, Range, Stop
from tiered.errors import Corrupt, Unavailable
from tiered.object_store.url import open_store
from tiered.offline.committed import FalseTransactionIndex
from tiered.ports import FileSlice, Ok
from tiered.records.batch import decode_records
from tiered.records.model import WalkedBatch
from tiered.system.clock import SystemClock, SystemRng
from tiered.system.local_disk import LocalDisk

if TYPE_CHECKING:
    import pyarrow

DECODED = ("offset", "timestamp", "timestampType", "key", "value", "headers")
GROUP_BYTES = 2 << 20
ROW_GROUP_BYTES = 64 << 20
ZSTD_LEVEL = 1
"""Level 3 makes files 5 % smaller and half of a load's work dearer by a half."""
DICTIONARY = ["partition", "timestamp_type", "key"]
DELTA = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
"""Encodings of columns. Offsets and times differ little from row to row: faster than a dictionary, and much smaller."""


OUT_OF_RANGE_LISTED_MAX = 20
"""Records of one file whose timestamps became NULL that are listed with their value in the log."""


class _FileStats(NamedTuple):
    """Statistics of a file's rows. Timestamps are microseconds, None if all are NULL."""

    rows: int
    first_offset: int
    last_offset: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    null_timestamps: int


def convert(
    store: str, split: Split, table_url: str, null_timestamps: bool = False, ranges: Sequence[Range] | None = None
) -> ConversionResult:
    """Writes a split's rows below `table_url` (`file:` or `s3a:`), or only those in `ranges`.

    Without rows there is no file (only control batches and aborted transactions). A record whose timestamp
    microseconds cannot hold stops the conversion. With `null_timestamps` it gets NULL and is listed instead.
    """
    name = f"part-{split.partition:05d}-{split.start:020d}-{uuid.uuid4()}.zstd.parquet"
    parts = urlsplit(table_url)
    reader = _SplitReader(store, split, null_timestamps)
    rows = _table_rows(_filter_ranges(reader.rows(), ranges), split.partition)
    if parts.scheme == "file":
        stats, size = _write_to_directory(rows, Path(table_url.removeprefix("file:")), name)
    else:
        stats, size = _write_to_bucket(rows, table_url, name)
    file = None
    if stats is not None and reader.end_offset > split.start:
        file = LoadedFile(split.partition, name, size, *stats[:5], time.time_ns() // 1_000_000, stats[5])
    return ConversionResult(
        split.partition, split.start, reader.end_offset, file, reader.stop, tuple(reader.out_of_range_timestamps)
    )


class _SplitReader:
    """The rows of a split, in order, as far as the log can be read. All rows below `end_offset` were yielded."""

    def __init__(self, store: str, split: Split, null_timestamps: bool) -> None:
        self.end_offset = split.start
        self.stop: Stop | None = None
        self.out_of_range_timestamps: list[tuple[int, int]] = []
        self._store = store
        self._split = split
        self._null_timestamps = null_timestamps
        self._piece: tuple[memoryview, list[WalkedBatch]] = (memoryview(b""), [])

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
        except Corrupt as fault:
            where = "" if fault.where else f" where={self._object_key(self.end_offset)}"
            self.stop = Stop(split.partition, self.end_offset, True, f"{fault}{where}")
        else:
            self.end_offset = split.end
        finally:
            pieces.close()

    def _pieces(self) -> Generator[tuple[memoryview, list[WalkedBatch]]]:
        with closing(read_batches(self._store, self._split)) as found:
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
        return next(record.timestamp for record in decode_records(data, at) if record.offset == offset)

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
        yield pa.RecordBatch.from_arrays(
            arrays, ["partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
        )


def _write_to_directory(rows: Iterator[pyarrow.RecordBatch], folder: Path, name: str) -> tuple[_FileStats | None, int]:
    """Writes under a hidden name and renames: Spark and Delta never see half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}.tmp"
    try:
        stats = _write(rows, hidden)
        if stats is None:
            return None, 0
        _sync(hidden)
        os.rename(hidden, folder / name)
        _sync(folder)
    finally:
        hidden.unlink(missing_ok=True)
    return stats, (folder / name).stat().st_size


def _write_to_bucket(rows: Iterator[pyarrow.RecordBatch], table_url: str, name: str) -> tuple[_FileStats | None, int]:
    """Writes a local file and uploads it, so that memory does not grow with the split."""
    with TemporaryDirectory(prefix="tiered-load-") as scratch:
        stats = _write(rows, Path(scratch) / name)
        if stats is None:
            return None, 0
        asyncio.run(_upload(table_url, scratch, name))
        return stats, (Path(scratch) / name).stat().st_size


async def _upload(table_url: str, scratch: str, name: str) -> None:
    store = open_store(table_url, SystemClock(), SystemRng())
    file = LocalDisk(scratch).open(name, write=False)
    try:
        result = await store.upload(name, [FileSlice(file, 0, file.size())])
    finally:
        file.close()
        await store.close()
    if not isinstance(result, Ok):
        raise Unavailable(f"{name} was not stored in {table_url}: {result!r}")


def _write(rows: Iterator[pyarrow.RecordBatch], path: Path) -> _FileStats | None:
    """Writes all rows to one file, in row groups of some 64 MiB. Without rows returns None and writes no file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = next(rows, None)
    if first is None:
        return None
    written = _measure(first)
    waiting, size = [first], first.nbytes
    with pq.ParquetWriter(
        path,
        first.schema,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=DICTIONARY,
        column_encoding=DELTA,
        write_statistics=["partition", "offset", "timestamp"],
    ) as writer:
        for batch in rows:
            if size >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting, size = [], 0
            written = _merge_stats(written, _measure(batch))
            waiting.append(batch)
            size += batch.nbytes
        writer.write_table(pa.Table.from_batches(waiting))
    return written


def _measure(batch: pyarrow.RecordBatch) -> _FileStats:
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets, timestamps = batch.column("offset"), batch.column("timestamp")
    times = pc.min_max(timestamps.cast(pa.int64()))
    return _FileStats(
        batch.num_rows,
        offsets[0].as_py(),
        offsets[-1].as_py(),
        times["min"].as_py(),
        times["max"].as_py(),
        timestamps.null_count,
    )


def _merge_stats(a: _FileStats, b: _FileStats) -> _FileStats:
    least = [us for us in (a.min_timestamp_us, b.min_timestamp_us) if us is not None]
    most = [us for us in (a.max_timestamp_us, b.max_timestamp_us) if us is not None]
    return _FileStats(
        a.rows + b.rows,
        a.first_offset,
        b.last_offset,
        min(least, default=None),
        max(most, default=None),
        a.null_timestamps + b.null_timestamps,
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
