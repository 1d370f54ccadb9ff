"""Reads parts of the log and files of a table, and sums their rows by range. Tasks do this, without the JVM per row.

The log is decoded from the bucket, every CRC checked. A file is read by its Parquet columns, if these are exactly the
loader's, or the same in Spark's form; other files (another writer's, or with a deletion vector) are left to Spark,
which hands rows as Arrow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from pyspark_tiered.delta.delta_log import TableFile
from pyspark_tiered.delta.log_folder import open_table_bucket
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.bucket import read_batches
from pyspark_tiered.log.plan import Split
from pyspark_tiered.log.rows import arrow_batches, constant_int_column
from pyspark_tiered.proof.row_hash import hash_columns, table_schema
from pyspark_tiered.proof.sums import PartSums, RowSummer
from tiered.errors import Corrupt
from tiered.ports import NotFound

if TYPE_CHECKING:
    import pyarrow

DECODED = ("offset", "timestamp", "timestampType", "key", "value", "headers")
GROUP_BYTES = 2 << 20
DOWNLOAD_BYTES = 16 << 20
"""Bytes of a file that are fetched at once."""


class SumRules(NamedTuple):
    """The rules that both sides of one comparison share: the secret of the hashes, ranges, bounds, erased ranges."""

    secret: bytes
    bits: int
    bounds: Mapping[int, Range]
    erased: Mapping[int, Sequence[Range]]


def sum_log(store: str, split: Split, rules: SumRules) -> PartSums:
    """Sums the rows that the log has in a split. Raises `Corrupt` and `Unavailable`."""
    import pyarrow as pa

    summer = RowSummer(rules.bounds, rules.bits, rules.erased, leave_out_erased=True)
    with closing(read_batches(store, split)) as pieces:
        for batch in arrow_batches(pieces, (split.start, split.end), DECODED, GROUP_BYTES):
            offset, timestamp, kind, *others = batch.columns
            partition = constant_int_column(split.partition, batch.num_rows)
            _add(summer, [partition, offset, timestamp, kind.cast(pa.int8()), *others], batch.num_rows, rules.secret)
    return summer.found


def sum_file(table_url: str, file: TableFile, rules: SumRules) -> PartSums | None:
    """Sums the rows of a file below `table_url` (`file:` or `s3a:`).

    Returns None if the file is in a form that neither the loader nor Spark writes. Raises `Corrupt` if it cannot be
    read.
    """
    if ":" in file.path or file.path.startswith("/"):
        return None  # another table's file, in a clone
    name = unquote(file.path)
    if table_url.startswith("file:"):
        return _sum_parquet(Path(table_url.removeprefix("file:"), name), rules)
    with TemporaryDirectory(prefix="tiered-verify-") as scratch:
        copy = Path(scratch, "file")
        asyncio.run(_download(table_url, name, file.size, copy))
        return _sum_parquet(copy, rules)


def sum_batches(found: Iterable[pyarrow.RecordBatch], rules: SumRules) -> PartSums:
    """Sums the rows of Arrow batches with a table's columns, in its order."""
    summer = RowSummer(rules.bounds, rules.bits, rules.erased)
    for batch in found:
        _add(summer, batch.columns, batch.num_rows, rules.secret)
    return summer.found


def _add(summer: RowSummer, arrays: Sequence[pyarrow.Array], rows: int, secret: bytes) -> None:
    import pyarrow.compute as pc

    partitions, offsets = arrays[:2]
    hashes, unplaced = hash_columns(arrays, rows, secret), 0
    if partitions.null_count or offsets.null_count:
        placed = pc.and_(partitions.is_valid(), offsets.is_valid())
        partitions, offsets = partitions.filter(placed), offsets.filter(placed)
        hashes = hashes[placed.to_numpy(zero_copy_only=False)]
        unplaced = rows - len(offsets)
    summer.add(partitions.to_numpy(), offsets.to_numpy(), hashes, unplaced)


def _sum_parquet(path: Path, rules: SumRules) -> PartSums | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = table_schema()
    try:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            found = file.schema_arrow
            if any(found.get_field_index(field.name) < 0 for field in wanted):
                return None
            other = [field.name for field in wanted if found.field(field.name).type != field.type]
            if other and not (other == ["timestamp"] and _has_spark_timestamps(file)):
                return None
            batches = (batch.select(wanted.names) for batch in _row_groups(file, wanted.names))
            return sum_batches(map(_with_utc, batches) if other else batches, rules)
    except FileNotFoundError:
        raise Corrupt("the table names this file, and it is not there", where=str(path)) from None
    except (pa.ArrowInvalid, OSError) as fault:
        raise Corrupt(f"the file is not readable Parquet: {fault}", where=str(path)) from fault


def _has_spark_timestamps(file: pyarrow.parquet.ParquetFile) -> bool:
    """True if the timestamps are Spark's INT96: microseconds in UTC. Spark's old calendar is left to Spark."""
    import pyarrow as pa

    marks = file.metadata.metadata or {}
    is_spark = b"org.apache.spark.version" in marks and b"org.apache.spark.legacyINT96" not in marks
    return is_spark and file.schema_arrow.field("timestamp").type == pa.timestamp("us")


def _with_utc(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    import pyarrow as pa

    at = batch.schema.get_field_index("timestamp")
    return batch.set_column(at, "timestamp", batch.column(at).view(pa.timestamp("us", "UTC")))


def _row_groups(file: pyarrow.parquet.ParquetFile, names: Sequence[str]) -> Iterator[pyarrow.RecordBatch]:
    """Yields the rows of one row group after the other, so that memory holds one."""
    for number in range(file.num_row_groups):
        yield from file.read_row_group(number, columns=list(names), use_threads=False).to_batches()


async def _download(table_url: str, name: str, size: int, copy: Path) -> None:
    store, prefix = open_table_bucket(table_url)
    try:
        with copy.open("wb") as out:
            at = 0
            while at < size:
                found = await store.get(prefix + name, at, min(DOWNLOAD_BYTES, size - at))
                if isinstance(found, NotFound) or not found.data:
                    raise Corrupt("the table names this file, and it is not there", where=f"{table_url}/{name}")
                out.write(found.data)
                at += len(found.data)
    finally:
        await store.close()
