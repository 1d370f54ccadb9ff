"""The file of a version's changes of rows, in the form of Delta's change data feed.

A version with such a file has all its changes in it, inserts too. A version without one only added rows.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_tiered.delta.table_form import table_schema
from pyspark_tiered.delta.vacuum_plan import CHANGES
from pyspark_tiered.latest.keys import KeySet
from pyspark_tiered.load.convert import with_field_ids
from pyspark_tiered.load.file_writer import ZSTD_LEVEL, Upload, new_file

if TYPE_CHECKING:
    import pyarrow

CHANGE_TYPE = "_change_type"


def list_changes(before: pyarrow.Table, after: pyarrow.Table, gone: pyarrow.Table) -> pyarrow.Table:
    """Returns the changes of a version.

    `before` are the rows that it deletes, `after` those that it adds, in the order of partition and key, and `gone` has
    the keys that have no row after it.
    """
    import numpy as np
    import pyarrow as pa

    old, dropped = _set_of(before), _set_of(gone)
    was_there = old.match(after["partition"].combine_chunks(), after["key"].combine_chunks())
    is_dropped = dropped.match(before["partition"].combine_chunks(), before["key"].combine_chunks())
    parts = [
        (before, np.where(is_dropped, "delete", "update_preimage")),
        (after, np.where(was_there, "update_postimage", "insert")),
    ]
    schema = with_field_ids(table_schema())
    tables = [
        rows.select(schema.names).cast(schema).append_column(CHANGE_TYPE, pa.array(kinds.tolist(), pa.string()))
        for rows, kinds in parts
    ]
    return pa.concat_tables(tables)


def _set_of(rows: pyarrow.Table) -> KeySet:
    return KeySet.of(rows.select(["partition", "key"]).sort_by([("partition", "ascending"), ("key", "ascending")]))


def write_changes(url: str, changes: pyarrow.Table, upload: Upload) -> str:
    """Writes the changes of a version to a file below the table. Returns the action that names it."""
    import pyarrow.parquet as pq

    name, size = f"cdc-{uuid.uuid4()}.zstd.parquet", 0
    with new_file(f"{url}/{CHANGES}", name, upload) as path:
        pq.write_table(changes, path, compression="zstd", compression_level=ZSTD_LEVEL)
        size = Path(path).stat().st_size
    action = {"path": f"{CHANGES}/{name}", "partitionValues": {}, "size": size, "dataChange": False}
    return json.dumps({"cdc": action})
