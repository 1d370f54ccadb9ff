"""Writes rows to finished Parquet files in a table's folder, whatever the form of the table.

A file is complete and on stable storage before anybody learns of it. A task that runs twice leaves a file that no
commit names; VACUUM removes it.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pyspark_tiered.delta.log_folder import make_folder, open_table_bucket, refuse_unwritable, upload_file
from pyspark_tiered.delta.table_form import FileRun, LoadedFile
from pyspark_tiered.load.recent_rows import FILE_BYTES_MAX, RecentRows
from pyspark_tiered.typed.kinds import StructOf

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

ROW_GROUP_BYTES = 64 << 20
ZSTD_LEVEL = 1
"""Level 3 makes files 5 % smaller and half of a load's work dearer by a half."""
DELTA = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
"""Encodings of columns. Offsets and times differ little from row to row: faster than a dictionary, and much smaller."""

Upload = Callable[[str, str, str], None]
"""Uploads a file: the table's URL, the local folder, the name."""


class FileLayout(NamedTuple):
    """The layout of a table's files. The columns of the record have their names behind `prefix`.

    `dictionary` and `statistics` name the columns that have them; None: all that have no other encoding. With
    `groups_by_partition` each run of a partition begins a row group. `group_rows` are the rows of a row group at most.
    """

    prefix: str
    dictionary: tuple[str, ...] | None = None
    statistics: tuple[str, ...] | None = None
    groups_by_partition: bool = False
    group_rows: int | None = None


Widen = Callable[["pyarrow.RecordBatch", StructOf, StructOf], "pyarrow.RecordBatch"]
"""Gives rows with the first columns of values the second ones."""
_NO_COLUMNS = StructOf()
RAW_FILES = FileLayout("", ("partition", "timestamp_type", "key"), ("partition", "offset", "timestamp"), True)
VALUE_FILES = FileLayout("_")


class FileWriter:
    """Writes batches to files of one table: one file as long as the columns stay the same.

    `columns` are those of the values in each file. `widen` gives rows that wait the columns of later ones. Rows of a
    small file go to `recent`, by its name.
    """

    def __init__(
        self,
        url: str,
        name: str,
        layout: FileLayout,
        upload: Upload,
        *,
        widen: Widen | None = None,
        recent: RecentRows | None = None,
    ) -> None:
        self.files: list[LoadedFile] = []
        self.columns: list[StructOf] = []
        self._url = url
        self._name = name
        self._layout = layout
        self._upload = upload
        self._widen = widen
        self._recent = recent
        self._columns = StructOf()
        self._waiting: list[pyarrow.RecordBatch] = []
        self._bytes = 0
        self._open: OpenFile | None = None
        self._runs: list[FileRun] = []
        self._run: FileRun | None = None
        self._small: list[pyarrow.Table] | None = []
        self._small_bytes = 0

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: object, *failure: object) -> None:
        if kind is None:
            self._end_file()
        elif self._open is not None:
            self._open.abandon()

    def add(self, batch: pyarrow.RecordBatch, columns: StructOf = _NO_COLUMNS) -> None:
        """Adds rows behind those of the same partition. `columns` are those of their values."""
        if not batch.num_rows:
            return
        if columns != self._columns:
            if self._open is not None:
                self._end_file()
            if self._waiting:
                assert self._widen is not None
                self._waiting = [self._widen(each, self._columns, columns) for each in self._waiting]
            self._columns = columns
        if self._bytes >= ROW_GROUP_BYTES:
            self._write_row_group()
        measured = measure(batch, self._layout.prefix)
        self._run = measured if self._run is None else self._run.merge(measured)
        self._waiting.append(batch)
        self._bytes += batch.nbytes

    def end_run(self) -> bool:
        """Ends the rows of a partition. Returns true if there are any."""
        if self._layout.groups_by_partition:
            self._write_row_group()
        if self._run is None:
            return False
        self._runs.append(self._run)
        self._run = None
        return True

    def _write_row_group(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        if self._open is None:
            name = f"part-{self._name}-{uuid.uuid4()}.zstd.parquet"
            self._open = OpenFile(self._url, name, self._waiting[0].schema, self._layout, self._upload)
        rows = pa.Table.from_batches(self._waiting)
        self._open.write(rows)
        self._small_bytes += self._bytes
        if self._recent is None or self._small_bytes > FILE_BYTES_MAX:
            self._small = None
        elif self._small is not None:
            self._small.append(rows)
        self._waiting, self._bytes = [], 0

    def _end_file(self) -> None:
        import pyarrow as pa

        self._write_row_group()
        self.end_run()
        if self._open is not None:
            name, size = self._open.close()
            self.files.append(LoadedFile(name, size, time.time_ns() // 1_000_000, tuple(self._runs)))
            self.columns.append(self._columns)
            if self._recent is not None and self._small:
                self._recent.add(name, pa.concat_tables(self._small))
        self._open, self._runs, self._small, self._small_bytes = None, [], [], 0


class OpenFile:
    """A Parquet file that is written. It is in the table's folder once it is closed."""

    def __init__(self, url: str, name: str, schema: pyarrow.Schema, layout: FileLayout, upload: Upload) -> None:
        import pyarrow.parquet as pq

        self._name = name
        self._group_rows = layout.group_rows
        self._stack = ExitStack()
        self._path = self._stack.enter_context(new_file(url, name, upload))
        encoded = {f"{layout.prefix}{each}": encoding for each, encoding in DELTA.items()}
        encoded = {each: encoding for each, encoding in encoded.items() if each in schema.names}
        every = [path for field in schema for path in _leaves(field) if path not in encoded]
        self._writer = pq.ParquetWriter(
            self._path,
            schema,
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=every if layout.dictionary is None else list(layout.dictionary),
            column_encoding=encoded,
            write_statistics=True if layout.statistics is None else list(layout.statistics),
        )

    def write(self, rows: pyarrow.Table) -> None:
        """Writes a row group, or some of them."""
        self._writer.write_table(rows, row_group_size=self._group_rows)

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


def measure(batch: pyarrow.RecordBatch, prefix: str) -> FileRun:
    """Returns the bounds of rows of one partition."""
    import pyarrow as pa
    import pyarrow.compute as pc

    partition, offsets, timestamps = (batch.column(f"{prefix}{name}") for name in ("partition", "offset", "timestamp"))
    times, ends = pc.min_max(timestamps.cast(pa.int64())), pc.min_max(offsets)
    return FileRun(
        partition[0].as_py(),
        batch.num_rows,
        ends["min"].as_py(),
        ends["max"].as_py(),
        times["min"].as_py(),
        times["max"].as_py(),
        timestamps.null_count,
    )


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


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
