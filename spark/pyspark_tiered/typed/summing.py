"""Rows of the log and of the files of both tables, as sums by range or one by one. Tasks of a verify run this."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta.log_folder import TableFolder, open_folder
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.bucket import BatchReader
from pyspark_tiered.log.plan import Split
from pyspark_tiered.log.rows import arrow_batches, constant_int_column
from pyspark_tiered.proof.sums import PartSums, RowSummer, is_inside
from pyspark_tiered.typed.changes import FieldRule
from pyspark_tiered.typed.convert import drop_erased
from pyspark_tiered.typed.form import DEAD_COLUMNS
from pyspark_tiered.typed.garbage import collection_paused
from pyspark_tiered.typed.kinds import StructOf
from pyspark_tiered.typed.names import RECORD_COLUMNS
from pyspark_tiered.typed.reparse import ReparsedValues, reparse
from pyspark_tiered.typed.row_hash import BLANKS, LEAVES, hash_letters, hash_twice, hash_typed_rows
from tiered.errors import Corrupt

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

DECODED = ("offset", "timestamp", "key", "value", "headers")
LOG_BYTES = 2 << 20
BATCH_ROWS = 1 << 14
UNFIT_MAX = 1000
"""Rows whose values do not fit that one task lists."""
MISPLACED_MAX = 1000
"""Misplaced rows of one partition that one batch of a file lists."""

Ranges = Mapping[int, Sequence[Range]]
"""Ranges of offsets by partition, in order."""


class TableRules(NamedTuple):
    """The rules for one of the two tables: the log start and the end of what is compared, by partition.

    `wanted`: only rows in these ranges are listed. None: rows are summed.
    """

    bounds: Mapping[int, Range]
    wanted: Ranges | None = None


class ValueSumRules(NamedTuple):
    """The rules that all tasks share. `tables` are those for rows, and for dead letters.

    `finds_misplaced`: only rows of the tables that lie outside of their bounds, or were erased, are listed. `has_key`:
    keys are typed, with a column or not yet. `by_leaves`: blank fields of rows count as NULL in the sums, and are
    counted (`row_hash.py`).
    """

    schema: StructOf
    secret: bytes
    bits: int
    erased: Ranges
    tables: tuple[TableRules, TableRules]
    finds_misplaced: bool = False
    changes: tuple[FieldRule, ...] = ()
    has_key: bool = False
    by_leaves: bool = False


class LogTask(NamedTuple):
    """Splits of the log. `dead` are the offsets of dead letters by partition, in order."""

    store: str
    splits: tuple[Split, ...]
    dead: Mapping[int, NDArray[np.int64]]
    rules: ValueSumRules


class FilesTask(NamedTuple):
    """Files of one of the two tables, by paths below its URL. `at` is its place in the rules."""

    url: str
    paths: tuple[str, ...]
    at: int
    rules: ValueSumRules


class ListedRows(NamedTuple):
    """Rows of one partition: their offsets and hashes. Typed rows have those of `hash_twice`."""

    partition: int
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64]


class Part(NamedTuple):
    """Rows of a part of one table, or of what the log has for it: their sums, or the rows that are listed.

    `blanks`: `first` of each sum is the number of blank fields of these rows, if the rules ask for it.
    """

    sums: PartSums
    listed: list[ListedRows]
    blanks: PartSums


class UnfitRow(NamedTuple):
    """A record that is no dead letter, and whose value does not fit the columns."""

    partition: int
    offset: int
    why: str


class PartsFound(NamedTuple):
    """Result of a task: parts of both tables, unfit rows, and how many dead letters fit."""

    parts: tuple[Part, Part]
    unfit: list[UnfitRow]
    fitting: int


class _RowLister:
    """Lists rows, with the methods of a `RowSummer`."""

    def __init__(self, rules: ValueSumRules, at: int) -> None:
        self.found = PartSums()
        self.listed: list[ListedRows] = []
        self._rules = rules
        self._table = rules.tables[at]

    def add(
        self, partitions: NDArray[np.int32], offsets: NDArray[np.int64], hashes: NDArray[np.uint64], unplaced: int = 0
    ) -> None:
        import numpy as np

        self.found.outside += unplaced
        for number in np.unique(partitions).tolist():
            mine = np.flatnonzero(partitions == number)
            chosen = mine[self._is_listed(number, offsets[mine])]
            if self._rules.finds_misplaced:
                chosen = chosen[:MISPLACED_MAX]
            if len(chosen):
                self.listed.append(ListedRows(number, offsets[chosen], hashes[chosen]))

    def _is_listed(self, partition: int, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        import numpy as np

        if partition not in self._table.bounds:
            return np.full(len(offsets), self._rules.finds_misplaced)
        is_erased = is_inside(offsets, self._rules.erased.get(partition, ()))
        if self._rules.finds_misplaced:
            return is_erased | (offsets >= self._table.bounds[partition][1])
        return ~is_erased & is_inside(offsets, (self._table.wanted or {}).get(partition, ()))


class _LeafSummer:
    """Sums typed rows by their leaves, and counts their blank fields, with the methods of a `RowSummer`."""

    def __init__(self, rules: ValueSumRules, at: int) -> None:
        self._leaves, self._blanks = (_row_summer(rules, at) for _ in range(2))

    @property
    def found(self) -> PartSums:
        return self._leaves.found

    @property
    def blanks(self) -> PartSums:
        return self._blanks.found

    def add(
        self, partitions: NDArray[np.int32], offsets: NDArray[np.int64], hashes: NDArray[np.uint64], unplaced: int = 0
    ) -> None:
        import numpy as np

        self._leaves.add(partitions, offsets, hashes[:, LEAVES], unplaced)
        counts = hashes[:, BLANKS]
        self._blanks.add(partitions, offsets, np.hstack([counts, np.zeros_like(counts)]), unplaced)


_Adder = RowSummer | _RowLister | _LeafSummer


def _adder(rules: ValueSumRules, at: int) -> _Adder:
    if rules.by_leaves and at == 0:
        return _LeafSummer(rules, at)
    if rules.finds_misplaced or rules.tables[at].wanted is not None:
        return _RowLister(rules, at)
    return _row_summer(rules, at)


def _row_summer(rules: ValueSumRules, at: int) -> RowSummer:
    return RowSummer(rules.tables[at].bounds, rules.bits, rules.erased, leave_out_erased=True)


def _part(adder: _Adder) -> Part:
    listed = adder.listed if isinstance(adder, _RowLister) else []
    return Part(adder.found, listed, adder.blanks if isinstance(adder, _LeafSummer) else PartSums())


def _hash_rows(
    adder: _Adder,
    record: Sequence[pyarrow.Array],
    values: Sequence[pyarrow.Array | None],
    rows: int,
    rules: ValueSumRules,
) -> NDArray[np.uint64]:
    """Returns the hashes that `adder` takes for typed rows."""
    make = hash_typed_rows if isinstance(adder, RowSummer) else hash_twice
    return make(record, values, rules.schema, rows, rules.secret)


def sum_log(task: LogTask) -> PartsFound:
    """Parses the values of splits again. Raises `Corrupt` and `Unavailable`."""
    rules = task.rules
    adders = [_adder(rules, at) for at in (0, 1)]
    unfit: list[UnfitRow] = []
    fitting = 0
    with BatchReader(task.store) as reader:
        for split in task.splits:
            dead = task.dead.get(split.partition)
            end = rules.tables[0].bounds[split.partition][1]
            with closing(reader.read(split)) as pieces:
                for batch in arrow_batches(pieces, (split.start, split.end), DECODED, LOG_BYTES):
                    rows, letters = _split_dead(drop_erased(batch, rules.erased.get(split.partition, ())), dead, end)
                    if rows.num_rows:
                        unfit += _add_rows(adders[0], rows, split.partition, rules)[: UNFIT_MAX - len(unfit)]
                    if letters.num_rows:
                        fitting += letters.num_rows - len(_reparse(letters, rules).unfit)
                        _add_letters(adders[1], letters, split.partition, rules.secret)
    return PartsFound((_part(adders[0]), _part(adders[1])), unfit, fitting)


def _split_dead(
    batch: pyarrow.RecordBatch, dead: NDArray[np.int64] | None, end: int
) -> tuple[pyarrow.RecordBatch, pyarrow.RecordBatch]:
    """Returns the records below `end` that are no dead letters, and all dead letters."""
    import numpy as np
    import pyarrow as pa

    offsets = batch.column("offset").to_numpy()
    is_row = offsets < end
    if dead is None or not len(dead):
        return batch if is_row.all() else batch.filter(pa.array(is_row)), batch.slice(0, 0)
    at = np.minimum(np.searchsorted(dead, offsets), len(dead) - 1)
    is_dead = dead[at] == offsets
    return batch.filter(pa.array(is_row & ~is_dead)), batch.filter(pa.array(is_dead))


def _add_rows(adder: _Adder, rows: pyarrow.RecordBatch, partition: int, rules: ValueSumRules) -> list[UnfitRow]:
    count = rows.num_rows
    numbers = constant_int_column(partition, count)
    parsed = _reparse(rows, rules)
    record = [numbers, *(rows.column(name) for name in ("offset", "timestamp", "key", "headers"))]
    hashes = _hash_rows(adder, record, parsed.columns, count, rules)
    offsets = rows.column("offset").to_numpy()
    adder.add(numbers.to_numpy(), offsets, hashes)
    # A field without a leaf may have come before its column, which may have any type.
    unfit = sorted(parsed.unfit.keys() - parsed.leafless)
    return [UnfitRow(partition, int(offsets[row]), parsed.unfit[row]) for row in unfit]


def _reparse(rows: pyarrow.RecordBatch, rules: ValueSumRules) -> ReparsedValues:
    keys = rows.column("key").to_pylist() if rules.has_key else None
    with collection_paused():
        return reparse(rows.column("value").to_pylist(), rules.schema, rules.changes, keys)


def _add_letters(adder: _Adder, rows: pyarrow.RecordBatch, partition: int, secret: bytes) -> None:
    numbers = constant_int_column(partition, rows.num_rows)
    columns = [numbers, *(rows.column(name) for name in DECODED)]
    adder.add(numbers.to_numpy(), rows.column("offset").to_numpy(), hash_letters(columns, rows.num_rows, secret))


def sum_files(task: FilesTask) -> PartsFound:
    """Reads files of a table. Raises `Corrupt` for a file that is gone, no Parquet, or has columns of other types."""
    rules, at = task.rules, task.at
    adder = _adder(rules, at)
    with closing(open_folder(task.url)) as folder:
        for path in task.paths:
            for batch in _read_file(folder, path, rules.schema if at == 0 else None):
                _add_file_rows(adder, batch, rules, at, f"{task.url}/{path}")
    parts = (_part(adder), Part(PartSums(), [], PartSums()))
    return PartsFound(parts if at == 0 else parts[::-1], [], 0)


def _read_file(folder: TableFolder, path: str, schema: StructOf | None) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    where = f"{folder.url}/{path}"
    names = DEAD_COLUMNS if schema is None else (*RECORD_COLUMNS, *(field.column for field in schema.fields))
    try:
        with folder.local(path) as copy, pq.ParquetFile(copy, coerce_int96_timestamp_unit="us") as file:
            there = [name for name in names if name in file.schema_arrow.names]
            if lacking := set(DEAD_COLUMNS if schema is None else RECORD_COLUMNS).difference(there):
                raise Corrupt(f"the file has no column {', '.join(sorted(lacking))}", where=where)
            yield from file.iter_batches(BATCH_ROWS, columns=there, use_threads=False)
    except FileNotFoundError:
        raise Corrupt("the table names this file, and it is not there", where=where) from None
    except (pa.ArrowInvalid, OSError) as fault:
        raise Corrupt(f"the file is not readable Parquet: {fault}", where=where) from fault


def _add_file_rows(adder: _Adder, batch: pyarrow.RecordBatch, rules: ValueSumRules, at: int, where: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    placed = pc.and_(batch.column("_partition").is_valid(), batch.column("_offset").is_valid())
    unplaced = batch.num_rows - (pc.sum(placed).as_py() or 0)
    if unplaced:
        batch = batch.filter(placed)
    rows = batch.num_rows
    try:
        partitions = batch.column("_partition").cast(pa.int32())
        record = [partitions, *(batch.column(name) for name in ("_offset", "_timestamp", "_key"))]
        headers = batch.column("_headers")
        if at == 1:
            hashes = hash_letters([*record, batch.column("_value"), headers], rows, rules.secret)
        else:
            there = batch.schema.names
            values = [batch.column(field.column) if field.column in there else None for field in rules.schema.fields]
            hashes = _hash_rows(adder, [*record, headers], values, rows, rules)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as fault:
        raise Corrupt(f"a column is not of its type: {fault}", where=where) from fault
    adder.add(partitions.to_numpy(), batch.column("_offset").to_numpy(), hashes, unplaced)
