"""The commit of a repair or an erasure: removes wrong rows and adds right ones, all of a partition or nothing.

A file that holds a wrong row is written again without it, with all its other columns. The commit holds only while the
table has these files, the same columns and properties, and each partition is where it was. Keeps I27.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta import delta_state, orphans, table_features, table_form
from pyspark_tiered.delta.data_files import TableFile, load_column, read_stored_rows, utc_times
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.log_folder import UnclearOutcome
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import MEASURED, Advance, FileRun, LoadedFile, Range, ReplacedFile, table_schema
from pyspark_tiered.load.file_writer import new_file
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.comparison import FaultyRange, may_hold_any
from pyspark_tiered.proof.sums import OffsetRange, is_inside, join_runs
from tiered.errors import Code, Refused

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    import pyarrow.parquet
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

NOTHING: Mapping[int, Sequence[Range]] = {}
RUNS_MAX = 256
"""Partitions of a file whose ranges its tag names."""


def rewrite_table(
    table: NativeTable,
    at: Snapshot,
    to_remove: Sequence[FaultyRange],
    files: Sequence[LoadedFile],
    advances: Sequence[Advance],
    *,
    kept_once: Sequence[FaultyRange] = (),
    **mark_fields: Any,
) -> bool:
    """Removes the rows of ranges of one partition and adds `files`. Returns false if another writer committed first.

    Keeps one row of each offset in the `kept_once` ranges: the log has no other copy. `mark_fields` go into the mark.
    """
    if orphans.is_too_old((file.modified_ms for file in files), time.time_ns() // 1_000_000):
        return False
    if to_remove:
        table_features.check_removal(at.properties(), table.url)
    if files:
        table.check_writable(at.state)
    if not at.state.is_at_start(table.topic_id, advances):
        return False
    nowhere = any(each.partition < 0 or each.start < 0 for each in to_remove)
    chooser = RowChooser(join_faults(to_remove), join_faults(kept_once), removes_nowhere=nowhere)
    replaced = replace_files(table, at.files() if to_remove else (), chooser)

    def actions(now_ms: int) -> list[str]:
        removed = [table_form.remove_action(each.old, now_ms, changes_data=True) for each in replaced]
        added = [each.action for each in replaced if each.new is not None]
        return [*removed, *added, *table_form.commit_actions(table.topic_id, files, advances, now_ms)]

    def is_valid(state: TableState) -> bool:
        return (
            (state.metadata, state.protocol) == (at.state.metadata, at.state.protocol)
            and state.has_files([each.old for each in replaced])
            and state.is_at_start(table.topic_id, advances)
        )

    operation = {**delta_state.append_operation(files), "isBlindAppend": False}
    mark = table.encode_mark(files, advances, checked=None, **mark_fields)
    try:
        return table.create(actions, is_valid, mark, operation)
    except UnclearOutcome as failure:
        # The commit may have landed: the next comparison shows it.
        log.warning("commit has an unknown outcome, comparing again table=%s why=%s", table.url, failure)
        return False


def snapshot_after(table: NativeTable, at: Snapshot) -> Snapshot | None:
    """Returns the table after one's own commit to this version; None if another writer has committed too.

    After the own commit alone, the findings about other partitions at this version still hold.
    """
    now = table.pin()
    return now if now.version == at.version + 1 else None


def replace_files(table: NativeTable, files: Iterable[TableFile], chooser: RowChooser) -> list[ReplacedFile]:
    """Writes those files again that hold a row that goes, without it."""
    replaced = []
    for file in files:
        if not chooser.may_choose(file):
            continue
        names = [file.form.names[name] for name in ("partition", "offset")]
        found = read_stored_rows(table.folder, file.add, names)
        if rows := sum(int((~chooser.stays(*_places(batch, file, held))).sum()) for batch, held in found):
            replaced.append(_write_rest(table, file, chooser, rows))
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


def _write_rest(table: NativeTable, file: TableFile, chooser: RowChooser, rows: int) -> ReplacedFile:
    """Writes the rows of a file that stay. There is no file if there are none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = f"part-rewritten-{uuid.uuid4()}.zstd.parquet"
    bounds = _Bounds()
    with new_file(table.url, name, lambda _, scratch, each: table.folder.upload(scratch, each)) as path:
        writer: pq.ParquetWriter | None = None
        for stored, held in read_stored_rows(table.folder, file.add):
            batch = stored.filter(pa.array(chooser.stays(*_places(stored, file, held), keeps=True)))
            if not batch.num_rows:
                continue
            batch = _with_zones(batch, file, held)
            bounds.add([load_column(batch, table_schema().field(each), file.add, file.form, held) for each in MEASURED])
            if writer is None:
                writer = pq.ParquetWriter(path, batch.schema, compression="zstd", compression_level=1)
            writer.write_batch(batch)
        if writer is None:
            return ReplacedFile(file.add, rows, None, "")
        writer.close()
        size = path.stat().st_size
    new = LoadedFile(name, size, time.time_ns() // 1_000_000, bounds.runs())
    return ReplacedFile(file.add, rows, new, bounds.add_action(file, new))


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


class _Bounds:
    """The statistics of rows: a run for each partition, and the number of NULLs."""

    def __init__(self) -> None:
        self._runs: dict[int, FileRun] = {}
        self._rows = 0
        self._nulls = dict.fromkeys(MEASURED, 0)

    def add(self, columns: Sequence[pyarrow.Array]) -> None:
        """Adds rows: their partitions, offsets and timestamps."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for name, column in zip(MEASURED, columns, strict=True):
            self._nulls[name] += column.null_count
        partitions, offsets, times = columns
        self._rows += len(partitions)
        rows = pa.table([partitions, offsets, times.cast(pa.int64())], list(MEASURED))
        rows = rows.filter(pc.and_(partitions.is_valid(), offsets.is_valid()))
        found = rows.group_by("partition").aggregate(
            [("offset", "count"), ("offset", "min"), ("offset", "max"), ("timestamp", "min"), ("timestamp", "max"),
             ("timestamp", "count")]
        )  # fmt: skip
        for each in found.to_pylist():
            run = FileRun(
                each["partition"], each["offset_count"], each["offset_min"], each["offset_max"],
                each["timestamp_min"], each["timestamp_max"], each["offset_count"] - each["timestamp_count"],
            )  # fmt: skip
            known = self._runs.get(run.partition)
            self._runs[run.partition] = run if known is None else _joined(known, run)

    def runs(self) -> tuple[FileRun, ...]:
        """Returns the runs, in order of partitions."""
        return tuple(run for _, run in sorted(self._runs.items()))

    def add_action(self, file: TableFile, written: LoadedFile) -> str:
        """Returns the action that adds the rows of `file` that stay."""
        if not written.runs:
            stats: dict[str, Any] = {"numRecords": self._rows}
            add = {"path": written.path, "size": written.size, "modificationTime": written.modified_ms}
            add |= {"dataChange": True}
        else:
            add = json.loads(table_form.add_action(written))["add"]
            stats = json.loads(add["stats"]) | {"numRecords": self._rows, "nullCount": self._nulls}
            for each in ("minValues", "maxValues", "nullCount"):
                stats[each] = {file.form.names[name]: value for name, value in stats[each].items()}
            if len(written.runs) > RUNS_MAX or self._nulls["partition"] or self._nulls["offset"]:
                add.pop("tags", None)
        add |= {"partitionValues": file.add.get("partitionValues") or {}, "stats": json.dumps(stats)}
        return json.dumps({"add": add})


def _joined(one: FileRun, other: FileRun) -> FileRun:
    """Returns two runs of a partition, in any order, as one."""
    return one.merge(other)._replace(
        first_offset=min(one.first_offset, other.first_offset), last_offset=max(one.last_offset, other.last_offset)
    )
