"""Takes erased rows out of the typed table and out of the dead letters.

The record of the erasure is there first (`erasures.py`). Each table gets one commit that replaces the files with erased
rows and counts the erasures in a property, even if no row is erased. So loads and replays that were planned before the
record fail, and their next plan reads it. A kill leaves rows that are recorded and not yet removed: the same command,
any other erasure and a repair remove them, and `verify` lists them until then.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.history import FileExtent
from pyspark_tiered.delta.table_form import LoadedFile, Range
from pyspark_tiered.proof.erasures import Erasure, join_ranges, overlaps
from pyspark_tiered.proof.sums import is_inside
from pyspark_tiered.typed import form
from pyspark_tiered.typed.convert import FileWriter, dead_arrow_schema, keep_rows, typed_arrow_schema
from pyspark_tiered.typed.form import DEAD_COLUMNS
from pyspark_tiered.typed.kinds import StructOf
from pyspark_tiered.typed.names import RECORD_COLUMNS
from pyspark_tiered.typed.rewrite import held_columns
from pyspark_tiered.typed.tables import DeadLetters, Json, RecordTable, TypedTable
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    import pyarrow.parquet
    from numpy.typing import NDArray

ATTEMPTS = 10
"""Commits of other writers in a row that may come first."""
BATCH_ROWS = 1 << 14

Ranges = Mapping[int, Sequence[Range]]


class _Replaced(NamedTuple):
    """A file with erased rows, the files with its other rows, and how many rows were erased."""

    old: Json
    new: list[LoadedFile]
    rows: int


def read_value_bounds(url: str, topic: str, topic_id: str) -> dict[int, int]:
    """Returns up to which offset both tables beside the raw one at `url` are loaded; empty without a typed table.

    Raises `Refused` if no row of one of them may be removed.
    """
    bounds: dict[int, int] = {}
    for table in _open_tables(url, topic, topic_id):
        with closing(table):
            if table.is_there():
                table.check_removal()
                for number, end in table.loaded_offsets().items():
                    bounds[number] = max(end, bounds.get(number, end))
    return bounds


def remove_erased_values(url: str, topic: str, topic_id: str, erasures: Sequence[Erasure]) -> int:
    """Takes erased rows out of both tables beside the raw one at `url`. Returns how many.

    Raises `Unavailable` if other writers always come first, and `Refused` for a file with deletion vectors.
    """
    erased = join_ranges(erasures)
    removed = 0
    for table in _open_tables(url, topic, topic_id) if erased else ():
        with closing(table):
            if table.is_there():
                removed += _remove(table, erased, len(erasures))
    return removed


def _open_tables(url: str, topic: str, topic_id: str) -> list[RecordTable]:
    if urlsplit(url).scheme not in form.TABLE_SCHEMES:
        return []
    return [
        DeadLetters(f"{url}{form.DEAD_SUFFIX}", topic, topic_id),
        TypedTable(f"{url}{form.TYPED_SUFFIX}", topic, topic_id),
    ]


def _remove(table: RecordTable, erased: Ranges, count: int) -> int:
    def may_hold(add: Json) -> bool:
        return any(_may_hold(each, erased) for each in delta_state.file_extents(add))

    for _ in range(ATTEMPTS):
        files = [add for add in table.files() if may_hold(add)]
        found = [each for add in files if (each := _replace_file(table, add, erased)) is not None]
        if not found and table.heeded_erasures() >= count:
            return 0
        rows = sum(each.rows for each in found)
        new = [file for each in found for file in each.new]
        if table.take_out([each.old for each in found], new, count, rows, may_hold):
            return rows
        table.snapshot()
    raise Unavailable(
        f"{ATTEMPTS} other commits to {table.url} came first: the erasure is recorded, run the same command again"
    )


def _may_hold(extent: FileExtent, erased: Ranges) -> bool:
    first, last, high, low = extent
    if first is None or last is None or low is None or high is None:
        return True
    return any(first <= number <= last and overlaps(ranges, low, high + 1) for number, ranges in erased.items())


def _replace_file(table: RecordTable, add: Json, erased: Ranges) -> _Replaced | None:
    """Writes the rows of a file that are not erased to new files. Returns None if no row is erased."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if add.get("deletionVector"):
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {table.url} has deletion vectors: run REORG TABLE ... APPLY (PURGE) on it, and erase again",
        )
    rows = 0
    with (
        table.folder.local(delta_state.file_path(add, table.url)) as path,
        pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as held,
    ):
        places = held.read(columns=["_partition", "_offset"])
        if places["_partition"].null_count or places["_offset"].null_count:
            raise Refused(
                Code.INVALID_REQUEST, f"the table at {table.url} has rows without partition or offset: delete these"
            )
        found = _find_erased(places["_partition"].to_numpy(), places["_offset"].to_numpy(), erased)
        rows = int(found.sum())
        if not rows:
            return None
        columns, schema, names = _held_form(table, held)
        with FileWriter(table.url, f"erased-{uuid.uuid4()}") as out:
            start, last = 0, None
            for batch in held.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                stays = ~found[start : start + batch.num_rows]
                start += batch.num_rows
                kept = keep_rows(batch.select(names), pa.array(stays), schema)
                for number in pc.unique(kept.column("_partition")).to_pylist():
                    if number != last:
                        out.end_run()
                    last = number
                    out.add(kept.filter(pc.equal(kept.column("_partition"), number)), columns)
    return _Replaced(add, [each.file for each in out.files], rows)


def _find_erased(partitions: NDArray[np.int32], offsets: NDArray[np.int64], erased: Ranges) -> NDArray[np.bool_]:
    import numpy as np

    found = np.zeros(len(offsets), dtype=bool)
    for number, ranges in erased.items():
        mine = np.flatnonzero(partitions == number)
        found[mine[is_inside(offsets[mine], ranges)]] = True
    return found


def _held_form(table: RecordTable, held: pyarrow.parquet.ParquetFile) -> tuple[StructOf, pyarrow.Schema, list[str]]:
    """Returns the columns of values that a file has, the schema in which it is written again, and its columns."""
    if not isinstance(table, TypedTable):
        return StructOf(), dead_arrow_schema(), list(DEAD_COLUMNS)
    columns = held_columns(held.schema_arrow, table.schema())
    names = [*RECORD_COLUMNS, *(field.column for field in columns.fields)]
    return columns, typed_arrow_schema(columns), names
