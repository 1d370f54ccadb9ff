"""The rows of a table that a repair or an erasure removes: their files are written again without them. Keeps I27."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark_tiered.delta.data_files import TableFile, load_column, read_stored_rows, utc_times
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import Range, ReplacedFile, table_schema
from pyspark_tiered.load.file_rewrite import rewrite_file
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.comparison import FaultyRange, may_hold_any
from pyspark_tiered.proof.sums import OffsetRange, is_inside, join_runs
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    import pyarrow.parquet
    from numpy.typing import NDArray

NOTHING: Mapping[int, Sequence[Range]] = {}


def snapshot_after(table: NativeTable, at: Snapshot) -> Snapshot | None:
    """Returns the table after one's own commit to this version; None if another writer has committed too.

    After the own commit alone, the findings about other partitions at this version still hold.
    """
    now = table.pin()
    return now if now.version == at.version + 1 else None


def remove_rows(table: NativeTable, files: Iterable[TableFile], chooser: RowChooser) -> list[ReplacedFile]:
    """Writes those files again that hold a row that goes, without it, and with all their other columns."""
    replaced = []
    for file in files:
        if not chooser.may_choose(file):
            continue
        names = [file.form.names[name] for name in ("partition", "offset")]
        found = read_stored_rows(table.folder, file.add, names)
        if not any((~chooser.stays(*_places(batch, file, held))).any() for batch, held in found):
            continue

        def leave_out(
            stored: pyarrow.RecordBatch, held: pyarrow.parquet.ParquetFile, file: TableFile = file
        ) -> pyarrow.RecordBatch:
            import pyarrow as pa

            stays = chooser.stays(*_places(stored, file, held), keeps=True)
            return _with_zones(stored.filter(pa.array(stays)), file, held)

        if (each := rewrite_file(table, file, leave_out)) is not None:
            replaced.append(each)
    return replaced


class RowChooser:
    """Says of each row if it stays: rows in the `removed` ranges go, and with `removes_nowhere` those without a place.

    One row stays of each offset in the `kept_once` ranges.
    """

    def __init__(
        self,
        removed: Mapping[int, Sequence[Range]],
        kept_once: Mapping[int, Sequence[Range]] = NOTHING,
        *,
        removes_nowhere: bool = False,
    ) -> None:
        self._removed = removed
        self._kept_once = kept_once
        self._removes_nowhere = removes_nowhere
        self._kept = set[tuple[int, int]]()

    def may_choose(self, file: TableFile) -> bool:
        """True if the file may have a row that goes."""
        if self._removes_nowhere:
            nulls = (json.loads(file.add.get("stats") or "{}").get("nullCount")) or {}
            if any(nulls.get(file.form.names[name], 1) for name in ("partition", "offset")):
                return True
        return may_hold_any(file.add, self._removed)

    def stays(self, partitions: pyarrow.Array, offsets: pyarrow.Array, *, keeps: bool = False) -> NDArray[np.bool_]:
        """Returns which rows stay. With `keeps`, the first row of an offset that is kept once stays, and no other."""
        import numpy as np

        placed = np.asarray(partitions.is_valid()) & np.asarray(offsets.is_valid())
        numbers, places = partitions.fill_null(-1).to_numpy(), offsets.fill_null(-1).to_numpy()
        stays: NDArray[np.bool_] = placed | (not self._removes_nowhere)
        for number in np.unique(numbers).tolist():
            mine = np.flatnonzero(placed & (numbers == number))
            stays[mine[is_inside(places[mine], self._removed.get(number, ()))]] = False
            if keeps and number in self._kept_once:
                for row in mine[is_inside(places[mine], self._kept_once[number])].tolist():
                    place = number, int(places[row])
                    stays[row] = place not in self._kept
                    self._kept.add(place)
        return stays


def join_faults(found: Iterable[FaultyRange]) -> dict[int, list[Range]]:
    """Returns the offsets of ranges by partition, in order, joined."""
    runs, _ = join_runs(OffsetRange(each.partition, each.start, each.end) for each in found if each.start >= 0)
    joined: dict[int, list[Range]] = {}
    for run in runs:
        joined.setdefault(run.partition, []).append((run.start, run.end))
    return joined


def _places(
    batch: pyarrow.RecordBatch, file: TableFile, held: pyarrow.parquet.ParquetFile
) -> tuple[pyarrow.Array, pyarrow.Array]:
    schema = table_schema()
    found = [load_column(batch, schema.field(name), file.add, file.form, held) for name in ("partition", "offset")]
    return found[0], found[1]


def _with_zones(batch: pyarrow.RecordBatch, file: TableFile, held: pyarrow.parquet.ParquetFile) -> pyarrow.RecordBatch:
    """Returns the rows with the times that Spark wrote as INT96 in UTC, as Delta means them."""
    import pyarrow as pa

    for at in range(len(held.schema)):
        column = held.schema.column(at)
        if column.physical_type != "INT96":
            continue
        place = batch.schema.get_field_index(column.path)
        if place < 0:
            raise Refused(
                Code.INVALID_REQUEST,
                f"the file {file.add['path']} has times in the Parquet type INT96 inside of the column {column.path}, "
                "which this package does not write again: change the type of that column, or delete it",
            )
        field = batch.schema.field(place).with_type(pa.timestamp("us", "UTC"))
        batch = batch.set_column(place, field, utc_times(batch.column(place), file.add, held))
    return batch
