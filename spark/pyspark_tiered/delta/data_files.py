"""Rows in the data files of one version of a raw table, as Arrow, whoever wrote the files.

A file may have a deletion vector, lie in the folder of another table (in a clone), hold its times in Spark's INT96, or
lack columns that are partition columns. A file that cannot be read as the table means it is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark_tiered.delta import table_features
from pyspark_tiered.delta.deletion_vectors import VectorFile, cut_vector, decode_vector, locate_vector
from pyspark_tiered.delta.log_folder import DirectoryFolder, TableFolder, open_folder
from pyspark_tiered.delta.table_form import table_schema
from tiered.errors import Code, Corrupt, Refused, Unavailable

if TYPE_CHECKING:
    from array import array

    import pyarrow
    import pyarrow.parquet

Json = Mapping[str, Any]

OLD_CALENDAR_US = -2_208_988_800_000_000
"""The year 1900. Times before it have another meaning in a file that Spark wrote in its old calendar."""


class FileForm(NamedTuple):
    """The names that the columns of a raw table have in a table's files, and those that no file has.

    The files of a typed table have some of the columns only, behind an underscore.
    """

    names: Mapping[str, str]
    partition_columns: tuple[str, ...] = ()


class TableFile(NamedTuple):
    """A file of a table: its add action, and the form of the table's files."""

    add: Json
    form: FileForm

    @property
    def size(self) -> int:
        """Returns the bytes of the file."""
        return int(self.add.get("size") or 0)


def read_form(metadata: Json) -> FileForm:
    """Returns the form of a raw table's files, from Delta's metadata."""
    fields = {str(each["name"]): each for each in json.loads(str(metadata["schemaString"]))["fields"]}
    is_mapped = (metadata.get("configuration") or {}).get(table_features.MAPPING, "none") != "none"
    names = {}
    for name in table_schema().names:
        stored = (fields[name].get("metadata") or {}).get(table_features.PHYSICAL_NAME) if is_mapped else None
        names[name] = str(stored or name)
    return FileForm(names, tuple(metadata.get("partitionColumns") or ()))


@contextmanager
def local_file(folder: TableFolder, add: Json) -> Iterator[Path]:
    """Yields a local path to the content of a file of the table. Raises `Corrupt` if it is not there."""
    path = unquote(str(add["path"]))
    where = path
    if urlsplit(path).scheme in ("file", "s3", "s3a") or path.startswith("/"):  # in a clone: another table's file
        place, _, name = (path if ":" in path else f"file:{path}").rpartition("/")
        other = open_folder(place)
    else:
        other, name, where = folder, path, f"{folder.url}/{path}"
    try:
        with other.local(name) as found:
            if isinstance(other, DirectoryFolder) and not found.exists():
                raise Corrupt("the table names this file, and it is not there", where=where)
            yield found
    except Unavailable as failure:
        if failure.final:
            raise Corrupt("the table names this file, and it is not there", where=where) from failure
        raise
    finally:
        if other is not folder:
            other.close()


def read_vector(folder: TableFolder, add: Json) -> array[int] | None:
    """Returns the numbers of the deleted rows of a file, in order; None without a deletion vector."""
    vector = add.get("deletionVector")
    if not vector:
        return None
    place = locate_vector(vector, folder.url)
    if isinstance(place, VectorFile):
        data = folder.read(place.path)
        if data is None:
            raise Unavailable(f"{place.path} is not in {folder.url}: a VACUUM may have removed it", final=True)
        place = cut_vector(data, place)
    return decode_vector(place, int(vector.get("cardinality") or 0))


def read_rows(
    folder: TableFolder, add: Json, form: FileForm, columns: Sequence[str] | None = None
) -> Iterator[pyarrow.RecordBatch]:
    """Yields the rows of a file that are rows of the table, in the types of a load, one row group after the other.

    Raises `Corrupt` for a file that is gone or unreadable, and `Refused` for one with another form.
    """
    import pyarrow as pa

    wanted = table_schema()
    if columns is not None:
        wanted = pa.schema([wanted.field(name) for name in columns])
    for batch, file in read_stored_rows(folder, add, [form.names[name] for name in wanted.names]):
        yield load_batch(batch, wanted, TableFile(add, form), file)


def load_batch(
    stored: pyarrow.RecordBatch, wanted: pyarrow.Schema, part: TableFile, file: pyarrow.parquet.ParquetFile
) -> pyarrow.RecordBatch:
    """Returns stored rows with these columns, in the types of a load. A column that the file lacks is NULL."""
    import pyarrow as pa

    arrays = [load_column(stored, field, part.add, part.form, file) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def read_stored_rows(
    folder: TableFolder, add: Json, names: Sequence[str] | None = None
) -> Generator[tuple[pyarrow.RecordBatch, pyarrow.parquet.ParquetFile]]:
    """Yields the rows of a file that are rows of the table, as they are stored. `names` are the columns, None: all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    deleted = read_vector(folder, add)
    try:
        with (
            local_file(folder, add) as path,
            pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file,
        ):
            there = None if names is None else [name for name in names if name in file.schema_arrow.names]
            at = 0
            for number in range(file.num_row_groups):
                for batch in file.read_row_group(number, columns=there, use_threads=False).to_batches():
                    yield _without_deleted(batch, deleted, at), file
                    at += batch.num_rows
    except (pa.ArrowInvalid, OSError) as fault:
        raise Corrupt(f"the file is not readable Parquet: {fault}", where=f"{folder.url}/{add['path']}") from fault


def _without_deleted(batch: pyarrow.RecordBatch, deleted: array[int] | None, first: int) -> pyarrow.RecordBatch:
    import numpy as np
    import pyarrow as pa

    if not deleted:
        return batch
    numbers = np.frombuffer(deleted, dtype=np.int64)
    low, high = np.searchsorted(numbers, (first, first + batch.num_rows))
    if low == high:
        return batch
    stays = np.ones(batch.num_rows, dtype=np.bool_)
    stays[numbers[low:high] - first] = False
    return batch.filter(pa.array(stays))


def load_column(
    batch: pyarrow.RecordBatch, field: pyarrow.Field, add: Json, form: FileForm, file: pyarrow.parquet.ParquetFile
) -> pyarrow.Array:
    """Returns a column of the table in the type of a load."""
    import pyarrow as pa

    name = form.names.get(field.name, "")
    if field.name in form.partition_columns:
        text = (add.get("partitionValues") or {}).get(name)
        if text is not None and not pa.types.is_integer(field.type):
            raise _refuse(add, f"a partition column {field.name}")
        return pa.repeat(pa.scalar(None if text is None else int(text), field.type), batch.num_rows)
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    found = batch.column(name)
    if found.type == field.type:
        return found
    try:
        if pa.types.is_timestamp(field.type) and found.type == pa.timestamp("us"):
            return utc_times(found, add, file)
        if pa.types.is_integer(field.type) and pa.types.is_integer(found.type):
            return _narrowed(found, field.type)
        return found.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as fault:
        raise _refuse(add, f"another type of column {field.name} ({fault})") from fault


def utc_times(found: pyarrow.Array, add: Json, file: pyarrow.parquet.ParquetFile) -> pyarrow.Array:
    """Returns the times of a column that has no zone in the file, which are in UTC. Raises `Refused` for times before
    1900 in Spark's old calendar."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_old = any(
        mark in (file.metadata.metadata or {})
        for mark in (b"org.apache.spark.legacyINT96", b"org.apache.spark.legacyDateTime")
    )
    first = pc.min(found.cast(pa.int64())).as_py() if is_old else None
    if first is not None and first < OLD_CALENDAR_US:
        raise _refuse(add, "times before 1900 in Spark's old calendar")
    return found.view(pa.timestamp("us", "UTC"))


def _narrowed(found: pyarrow.Array, kind: pyarrow.DataType) -> pyarrow.Array:
    """Returns numbers in a narrower type. A number that it cannot hold is NULL: no load wrote it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return found.cast(kind)
    except pa.ArrowInvalid:
        fits = pc.equal(found.cast(kind, safe=False).cast(found.type), found)
        return pc.if_else(fits, found, None).cast(kind)


def _refuse(add: Json, what: str) -> Refused:
    return Refused(
        Code.INVALID_REQUEST,
        f"the file {add['path']} of the table has {what}, which this package does not read: "
        "write the files again with REORG TABLE ... APPLY (PURGE), or an UPDATE",
    )


def place_schema() -> pyarrow.Schema:
    """Returns the columns of `read_places`."""
    import pyarrow as pa

    return pa.schema([table_schema().field(name) for name in ("partition", "offset")])


def read_places(folder: TableFolder, add: Json, form: FileForm) -> Iterator[pyarrow.RecordBatch]:
    """Yields partition and offset of the rows of a file."""
    return read_rows(folder, add, form, ("partition", "offset"))


def open_table_folder(url: str) -> closing[TableFolder]:
    """Returns a context with the folder of a table."""
    return closing(open_folder(url))
