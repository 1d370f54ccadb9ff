"""Reads parts of the log and files of a table, and sums their rows by range, or lists them. Tasks do this.

The log is decoded from the bucket, every CRC checked. A file is read as Arrow columns, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tiered.delta.data_files import TableFile, load_batch, read_stored_rows
from pyspark_tiered.delta.log_folder import TableFolder, open_folder
from pyspark_tiered.delta.table_form import COLUMNS, Range, table_schema
from pyspark_tiered.log.bucket import BatchReader
from pyspark_tiered.log.plan import Split
from pyspark_tiered.log.rows import arrow_batches, constant_int_column
from pyspark_tiered.proof.row_form import RAW_ROWS, Cells, RowForm, UnfitRow
from pyspark_tiered.proof.sums import PartSums, RowSummer, drop_erased, is_inside
from tiered.errors import Corrupt

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

DECODED = ("offset", "timestamp", "timestampType", "key", "value", "headers")
GROUP_BYTES = 2 << 20
UNFIT_MAX = 1000
"""Rows whose values do not fit that one task lists."""


class SumRules(NamedTuple):
    """The rules that both sides of one comparison share: the secret of the hashes, ranges, bounds, erased ranges.

    `listed`: rows in these ranges are listed, and not summed.
    """

    secret: bytes
    bits: int
    bounds: Mapping[int, Range]
    erased: Mapping[int, Sequence[Range]]
    listed: Mapping[int, Sequence[Range]] | None = None


class ListedRows(NamedTuple):
    """Rows of one partition: their offsets and hashes."""

    partition: int
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64]


class PartsFound(NamedTuple):
    """Result of a task: sums and listed rows of the log, and of the table.

    `unfit` and `fitting` are those of the records, as in `LogRows`.
    """

    log: PartSums
    table: PartSums
    log_rows: list[ListedRows]
    table_rows: list[ListedRows]
    unfit: list[UnfitRow]
    fitting: int


class _RowLister:
    """Lists rows in ranges, with the methods of a `RowSummer`."""

    def __init__(self, rules: SumRules) -> None:
        self.found = PartSums()
        self.listed: list[ListedRows] = []
        self._rules = rules

    def add(
        self, partitions: NDArray[np.int32], offsets: NDArray[np.int64], hashes: NDArray[np.uint64], unplaced: int = 0
    ) -> None:
        import numpy as np

        self.found.outside += unplaced
        for number in np.unique(partitions).tolist():
            mine = np.flatnonzero(partitions == number)
            mine = mine[is_inside(offsets[mine], (self._rules.listed or {}).get(number, ()))]
            if len(mine):
                self.listed.append(ListedRows(number, offsets[mine], hashes[mine]))


def read_parts(
    store: str, url: str, rules: SumRules, form: RowForm = RAW_ROWS
) -> Callable[[Sequence[Split | TableFile]], PartsFound]:
    """Returns a task that sums or lists parts of the log, and files of the table at `url`.

    Raises `Corrupt` and `Unavailable`.
    """
    in_full = rules.listed is not None

    def add(adder: RowSummer | _RowLister, records: pyarrow.RecordBatch, cells: Cells) -> None:
        if records.num_rows:
            _add(adder, records, form.hash(records, cells, rules.secret, in_full=in_full))

    def run(parts: Sequence[Split | TableFile]) -> PartsFound:
        log, table = _adder(rules), _adder(rules)
        unfit: list[UnfitRow] = []
        fitting = 0
        with BatchReader(store) as reader, closing(open_folder(url)) as folder:
            for part in parts:
                if isinstance(part, Split):
                    for records in read_log(reader, part, GROUP_BYTES):
                        found = form.choose(drop_erased(records, rules.erased.get(part.partition, ())))
                        add(log, found.records, found.cells)
                        unfit += found.unfit[: UNFIT_MAX - len(unfit)]
                        fitting += found.fitting
                else:
                    _read_file(folder, part, form, lambda records, cells: add(table, records, cells))
        return PartsFound(log.found, table.found, _listed(log), _listed(table), unfit, fitting)

    return run


def _adder(rules: SumRules) -> RowSummer | _RowLister:
    return RowSummer(rules.bounds, rules.bits, rules.erased) if rules.listed is None else _RowLister(rules)


def _listed(adder: RowSummer | _RowLister) -> list[ListedRows]:
    return adder.listed if isinstance(adder, _RowLister) else []


def read_log(reader: BatchReader, split: Split, group_bytes: int) -> Iterator[pyarrow.RecordBatch]:
    """Yields the records of a split with the columns of a raw table, in its order."""
    import pyarrow as pa

    with closing(reader.read(split)) as pieces:
        for batch in arrow_batches(pieces, (split.start, split.end), DECODED, group_bytes):
            offset, timestamp, kind, *others = batch.columns
            partition = constant_int_column(split.partition, batch.num_rows)
            yield pa.RecordBatch.from_arrays(
                [partition, offset, timestamp, kind.cast(pa.int8()), *others], list(COLUMNS)
            )


def _read_file(
    folder: TableFolder, part: TableFile, form: RowForm, add: Callable[[pyarrow.RecordBatch, Cells], None]
) -> None:
    """Adds the rows of a file. Raises `Corrupt` for a file that is gone, no Parquet, or has cells of other types."""
    import pyarrow as pa

    names = form.cell_names
    for stored, held in read_stored_rows(folder, part.add, [*part.form.names.values(), *names]):
        cells = [stored[name] if name in stored.schema.names else None for name in names]
        records = load_batch(stored, table_schema(), part, held)
        try:
            add(records, cells)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as fault:
            raise Corrupt(f"a column is not of its type: {fault}", where=f"{folder.url}/{part.add['path']}") from fault


def _add(adder: RowSummer | _RowLister, records: pyarrow.RecordBatch, hashes: NDArray[np.uint64]) -> None:
    import pyarrow.compute as pc

    partitions, offsets = records.columns[:2]
    unplaced = 0
    if partitions.null_count or offsets.null_count:
        placed = pc.and_(partitions.is_valid(), offsets.is_valid())
        partitions, offsets = partitions.filter(placed), offsets.filter(placed)
        hashes = hashes[placed.to_numpy(zero_copy_only=False)]
        unplaced = records.num_rows - len(offsets)
    adder.add(partitions.to_numpy(), offsets.to_numpy(), hashes, unplaced)
