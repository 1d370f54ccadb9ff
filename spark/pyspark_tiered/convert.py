"""A split -> one finished Parquet file in the table's folder: what each task of a load does, without the JVM.

The file is whole and on stable storage before the driver hears of it. A task that runs twice leaves a file that no
commit names; VACUUM takes it away. Where the log cannot be read on, the file ends before that place, and the outcome
says where and why: what was proved up to there is good.
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

from pyspark_tiered.bucket import batches
from pyspark_tiered.plan import Split
from pyspark_tiered.rows import RefusedAt, decoded, same_int
from pyspark_tiered.table import Converted, LoadedFile, Range, Stop
from tiered.errors import Corrupt, Unavailable
from tiered.object_store.url import open_store
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
"""Offsets and times differ by little from row to row: faster to write than a dictionary, and much smaller."""


BEYOND_LISTED_MAX = 20
"""Of one file, records whose timestamps became NULL that are named with what the log says."""


class _Written(NamedTuple):
    """What the rows of a file were. Timestamps are microseconds; None where all are NULL."""

    rows: int
    first_offset: int
    last_offset: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    null_timestamps: int


def convert(
    store: str, split: Split, table_url: str, null_timestamps: bool = False, only: Sequence[Range] | None = None
) -> Converted:
    """Writes a split's rows below `table_url` (`file:` or `s3a:`), or of these only what lies in the ranges `only`.

    No file when there are no rows (control batches only). A record whose timestamp microseconds cannot hold stops the
    conversion, or with `null_timestamps` gets NULL and is named.
    """
    name = f"part-{split.partition:05d}-{split.start:020d}-{uuid.uuid4()}.zstd.parquet"
    parts = urlsplit(table_url)
    reading = _Reading(store, split, null_timestamps)
    rows = _table_rows(_among(reading.rows(), only), split.partition)
    if parts.scheme == "file":
        written, size = _to_directory(rows, Path(table_url.removeprefix("file:")), name)
    else:
        written, size = _to_bucket(rows, table_url, name)
    file = None
    if written is not None:
        file = LoadedFile(split.partition, name, size, *written[:5], time.time_ns() // 1_000_000, written[5])
    return Converted(split.partition, split.start, reading.reached, file, reading.stop, tuple(reading.beyond))


class _Reading:
    """The rows of a split, in order, up to where the log can be read. `reached`: all below was handed out."""

    def __init__(self, store: str, split: Split, null_timestamps: bool) -> None:
        self.reached = split.start
        self.stop: Stop | None = None
        self.beyond: list[tuple[int, int]] = []
        self._store = store
        self._split = split
        self._null_timestamps = null_timestamps
        self._piece: tuple[memoryview, list[WalkedBatch]] = (memoryview(b""), [])

    def rows(self) -> Iterator[pyarrow.RecordBatch]:
        """Record batches that have rows; after the last one `reached` and `stop` are known."""
        split, pieces = self._split, self._pieces()
        try:
            for next_offset, rows in decoded(pieces, (split.start, split.end), DECODED, GROUP_BYTES):
                if rows.num_rows:
                    yield self._held(rows)
                if self.stop is not None:
                    return
                self.reached = min(next_offset, split.end)
        except Corrupt as fault:
            where = "" if fault.where else f" where={self._key(self.reached)}"
            self.stop = Stop(split.partition, self.reached, True, f"{fault}{where}")
        except RefusedAt as refused:
            self.reached = max(self.reached, min(refused.offset, split.end))
            self.stop = Stop(split.partition, self.reached, False, refused.why)
        else:
            self.reached = split.end
        finally:
            pieces.close()

    def _pieces(self) -> Generator[tuple[memoryview, list[WalkedBatch]]]:
        with closing(batches(self._store, self._split)) as found:
            for piece in found:
                self._piece = piece
                yield piece

    def _held(self, rows: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """The rows up to the first whose timestamp is NULL, which stops the reading; all where NULL was asked for."""
        times = rows.column("timestamp")
        if not times.null_count:
            return rows
        offsets = rows.column("offset").filter(times.is_null()).to_pylist()
        if self._null_timestamps:
            self.beyond += [(at, self._milliseconds(at)) for at in offsets[: BEYOND_LISTED_MAX - len(self.beyond)]]
            return rows
        why = f"the timestamp of offset {offsets[0]} is {self._milliseconds(offsets[0])} ms, which Spark cannot hold"
        self.reached = offsets[0]
        self.stop = Stop(
            self._split.partition, self.reached, False, f"{why}; with `--timestamps null` it is loaded as NULL"
        )
        return rows.slice(0, rows.column("offset").to_pylist().index(offsets[0]))

    def _milliseconds(self, offset: int) -> int:
        """What the record itself says."""
        data, found = self._piece
        at = next(batch.position for batch in found if batch.base_offset <= offset <= batch.last_offset) - found[0].position
        return next(record.timestamp for record in decode_records(data, at) if record.offset == offset)

    def _key(self, offset: int) -> str:
        return next((entry.key for entry in self._split.entries if offset < entry.next_offset), "")


def _among(found: Iterable[pyarrow.RecordBatch], only: Sequence[Range] | None) -> Iterator[pyarrow.RecordBatch]:
    """The rows whose offsets lie in one of these ranges, which are in order."""
    import numpy as np
    import pyarrow as pa

    if only is None:
        yield from found
        return
    starts, ends = (np.array(side, dtype=np.int64) for side in zip(*only, strict=True))
    for rows in found:
        offsets = rows.column("offset").to_numpy()
        at = np.searchsorted(starts, offsets, side="right") - 1
        wanted = rows.filter(pa.array((at >= 0) & (offsets < ends[at])))
        if wanted.num_rows:
            yield wanted


def _table_rows(found: Iterable[pyarrow.RecordBatch], partition: int) -> Iterator[pyarrow.RecordBatch]:
    """The table's columns, in its order, of decoded batches."""
    import pyarrow as pa

    for batch in found:
        if not batch.num_rows:
            continue
        offset, timestamp, kind, key, value, headers = batch.columns
        numbers = same_int(partition, batch.num_rows)
        arrays = [numbers, offset, timestamp, kind.cast(pa.int8()), key, value, headers]
        yield pa.RecordBatch.from_arrays(
            arrays, ["partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers"]
        )


def _to_directory(rows: Iterator[pyarrow.RecordBatch], folder: Path, name: str) -> tuple[_Written | None, int]:
    """Under a hidden name first: Spark and Delta never see half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}.tmp"
    try:
        written = _write(rows, hidden)
        if written is None:
            return None, 0
        _sync(hidden)
        os.rename(hidden, folder / name)
        _sync(folder)
    finally:
        hidden.unlink(missing_ok=True)
    return written, (folder / name).stat().st_size


def _to_bucket(rows: Iterator[pyarrow.RecordBatch], table_url: str, name: str) -> tuple[_Written | None, int]:
    """Through a local file, so that memory does not grow with the split."""
    with TemporaryDirectory(prefix="tiered-load-") as scratch:
        written = _write(rows, Path(scratch) / name)
        if written is None:
            return None, 0
        asyncio.run(_upload(table_url, scratch, name))
        return written, (Path(scratch) / name).stat().st_size


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


def _write(rows: Iterator[pyarrow.RecordBatch], path: Path) -> _Written | None:
    """All rows into one file, in row groups of some 64 MiB; None, and no file, when there are none."""
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
            written = _joined(written, _measure(batch))
            waiting.append(batch)
            size += batch.nbytes
        writer.write_table(pa.Table.from_batches(waiting))
    return written


def _measure(batch: pyarrow.RecordBatch) -> _Written:
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets, timestamps = batch.column("offset"), batch.column("timestamp")
    times = pc.min_max(timestamps.cast(pa.int64()))
    return _Written(
        batch.num_rows,
        offsets[0].as_py(),
        offsets[-1].as_py(),
        times["min"].as_py(),
        times["max"].as_py(),
        timestamps.null_count,
    )


def _joined(a: _Written, b: _Written) -> _Written:
    least = [us for us in (a.min_timestamp_us, b.min_timestamp_us) if us is not None]
    most = [us for us in (a.max_timestamp_us, b.max_timestamp_us) if us is not None]
    return _Written(
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
