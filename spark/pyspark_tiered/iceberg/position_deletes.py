"""Rows that a deletion vector of Delta removes, as a file of position deletes of Iceberg. Pure.

There is one such file for each data file with a vector. A data file whose vector changed is added anew with its new
file of deletes: by Iceberg's rules the older files, which have lower sequence numbers, are not for it.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from pyspark_tiered.iceberg.data_file import DataFile

PATH_ID, POSITION_ID = 2_147_483_546, 2_147_483_545
"""Iceberg's ids of the two columns."""


def encode_deletes(path: str, positions: Sequence[int]) -> bytes:
    """Returns a Parquet file with the numbers of deleted rows of a data file, in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, nullable=False, metadata={b"PARQUET:field_id": str(number).encode()})

    schema = pa.schema([field("file_path", pa.string(), PATH_ID), field("pos", pa.int64(), POSITION_ID)])
    paths = pa.DictionaryArray.from_arrays(pa.array([0] * len(positions), pa.int32()), [path]).cast(pa.string())
    rows = pa.Table.from_arrays([paths, pa.array(positions, pa.int64())], schema=schema)
    out = io.BytesIO()
    pq.write_table(
        rows, out, compression="zstd", column_encoding={"pos": "DELTA_BINARY_PACKED"}, use_dictionary=["file_path"]
    )
    return out.getvalue()


def describe_deletes(path: str, size: int, of: str, count: int) -> DataFile:
    """Returns a file of position deletes as manifests describe it."""
    bound = {PATH_ID: of.encode()}
    return DataFile(path, count, size, {}, {}, bound, bound, of)
