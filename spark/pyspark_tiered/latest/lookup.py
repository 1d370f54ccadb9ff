"""The rows of a file of the table that have keys of a round, and the rows that a file still has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered.delta.data_files import FileForm, TableFile, load_batch, local_file, read_rows, read_vector
from pyspark_tiered.delta.log_folder import TableFolder
from pyspark_tiered.delta.table_form import table_schema
from pyspark_tiered.latest.keys import KeySet
from tiered.errors import Corrupt

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    import pyarrow.parquet
    from numpy.typing import NDArray


class FoundRows(NamedTuple):
    """Rows of a file: their numbers in it, and what they hold. `deleted` are the numbers that were deleted before."""

    numbers: NDArray[np.int64]
    rows: pyarrow.Table
    deleted: NDArray[np.int64]


def find_rows(folder: TableFolder, add: Mapping[str, Any], form: FileForm, keys: KeySet) -> FoundRows:
    """Returns the rows of a file that are rows of the table and have a key of this set. Raises `Corrupt`."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    deleted = read_deleted(folder, add)
    numbers: list[NDArray[np.int64]] = []
    parts: list[pyarrow.Table] = []
    names = form.names["partition"], form.names["key"]
    try:
        with local_file(folder, add) as path, pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            first = 0
            for at in range(file.num_row_groups):
                group = file.metadata.row_group(at)
                if keys.may_be_in(group, *names):
                    places = _match(file, at, names, keys)
                    places = places[~np.isin(places + first, deleted, assume_unique=True)]
                    if len(places):
                        numbers.append(places + first)
                        parts.append(_take(file, at, places, TableFile(add, form)))
                first += group.num_rows
    except (pa.ArrowInvalid, OSError) as fault:
        raise Corrupt(f"the file is not readable Parquet: {fault}", where=f"{folder.url}/{add['path']}") from fault
    found = np.concatenate(numbers) if numbers else np.zeros(0, np.int64)
    return FoundRows(found, pa.concat_tables(parts) if parts else table_schema().empty_table(), deleted)


def _match(file: pyarrow.parquet.ParquetFile, at: int, names: tuple[str, str], keys: KeySet) -> NDArray[np.int64]:
    """Returns the places in a row group of the rows with a key of this set."""
    import numpy as np

    held = file.read_row_group(at, columns=list(names), use_threads=False).combine_chunks()
    partitions, found = (held[name].combine_chunks() for name in names)
    return np.flatnonzero(keys.match(partitions, found)).astype(np.int64)


def _take(file: pyarrow.parquet.ParquetFile, at: int, places: NDArray[np.int64], part: TableFile) -> pyarrow.Table:
    """Returns some rows of a row group, in the types of a load."""
    import pyarrow as pa

    stored = file.read_row_group(at, use_threads=False).take(pa.array(places)).combine_chunks()
    wanted = table_schema()
    batches = [load_batch(batch, wanted, part, file) for batch in stored.to_batches()]
    return pa.Table.from_batches(batches, wanted)


def read_deleted(folder: TableFolder, add: Mapping[str, Any]) -> NDArray[np.int64]:
    """Returns the numbers of the deleted rows of a file, in order."""
    import numpy as np

    vector = read_vector(folder, add)
    return np.frombuffer(vector, dtype=np.int64) if vector else np.zeros(0, np.int64)


def read_live_rows(folder: TableFolder, add: Mapping[str, Any], form: FileForm) -> pyarrow.Table:
    """Returns the rows of a file that are rows of the table. Raises `Corrupt`."""
    import pyarrow as pa

    return pa.Table.from_batches(read_rows(folder, add, form), table_schema())
