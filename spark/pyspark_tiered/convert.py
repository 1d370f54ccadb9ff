"""A split -> one finished Parquet file in the table's folder: what each task of a load does, without the JVM.

The file is whole and on stable storage before the driver hears of it. A task that runs twice leaves a file that no
commit names; VACUUM takes it away.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pyspark_tiered.bucket import batches
from pyspark_tiered.plan import Split
from pyspark_tiered.rows import arrow_batches, same_int
from pyspark_tiered.table import LoadedFile
from tiered.cold.store_url import open_store
from tiered.errors import Unavailable
from tiered.hot.local_disk import LocalDisk
from tiered.ports import FileSlice, Ok
from tiered.world import SystemClock, SystemRng

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


class _Written(NamedTuple):
    """What the rows of a file were. Timestamps are microseconds."""

    rows: int
    first_offset: int
    last_offset: int
    min_timestamp_us: int
    max_timestamp_us: int


def convert(store: str, split: Split, table_url: str) -> LoadedFile | None:
    """Writes a split's rows below `table_url` (`file:` or `s3a:`); None when it has none (control batches only)."""
    name = f"part-{split.partition:05d}-{split.start:020d}-{uuid.uuid4()}.zstd.parquet"
    parts = urlsplit(table_url)
    decoded = arrow_batches(batches(store, split), (split.start, split.end), DECODED, GROUP_BYTES)
    rows = _table_rows(decoded, split.partition)
    if parts.scheme == "file":
        written, size = _to_directory(rows, Path(table_url.removeprefix("file:")), name)
    else:
        written, size = _to_bucket(rows, table_url, name)
    if written is None:
        return None
    return LoadedFile(split.partition, name, size, *written, modified_ms=time.time_ns() // 1_000_000)


def _table_rows(decoded: Iterable[pyarrow.RecordBatch], partition: int) -> Iterator[pyarrow.RecordBatch]:
    """The table's columns, in its order, of decoded batches."""
    import pyarrow as pa

    for batch in decoded:
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

    offsets = batch.column("offset")
    times = pc.min_max(batch.column("timestamp").cast(pa.int64()))
    return _Written(batch.num_rows, offsets[0].as_py(), offsets[-1].as_py(), times["min"].as_py(), times["max"].as_py())


def _joined(a: _Written, b: _Written) -> _Written:
    return _Written(
        a.rows + b.rows,
        a.first_offset,
        b.last_offset,
        min(a.min_timestamp_us, b.min_timestamp_us),
        max(a.max_timestamp_us, b.max_timestamp_us),
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
