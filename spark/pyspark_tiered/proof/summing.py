"""Reads parts of the log and files of a table, and sums their rows by range, or lists them. Tasks do this.

The log is decoded from the bucket, every CRC checked. A file is read as Arrow columns, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark_tiered.delta.data_files import FileForm, read_rows
from pyspark_tiered.delta.log_folder import open_folder
from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.log.bucket import BatchReader
from pyspark_tiered.log.plan import Split
from pyspark_tiered.log.rows import arrow_batches, constant_int_column
from pyspark_tiered.proof.row_hash import hash_columns
from pyspark_tiered.proof.sums import PartSums, RowSummer, is_inside

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

DECODED = ("offset", "timestamp", "timestampType", "key", "value", "headers")
GROUP_BYTES = 2 << 20


class SumRules(NamedTuple):
    """The rules that both sides of one comparison share: the secret of the hashes, ranges, bounds, erased ranges.

    `listed`: rows in these ranges are listed, and not summed. `lists_strangers`: so are rows of partitions without
    bounds.
    """

    secret: bytes
    bits: int
    bounds: Mapping[int, Range]
    erased: Mapping[int, Sequence[Range]]
    listed: Mapping[int, Sequence[Range]] | None = None
    lists_strangers: bool = False


class TableFile(NamedTuple):
    """A file of a table: its add action, and the form of the table's files."""

    add: Mapping[str, Any]
    form: FileForm

    @property
    def size(self) -> int:
        """Returns the bytes of the file."""
        return int(self.add.get("size") or 0)


class ListedRows(NamedTuple):
    """Rows of one partition: their offsets and hashes."""

    partition: int
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64]


class PartsFound(NamedTuple):
    """Result of a task: sums and listed rows of the log, and of the table."""

    log: PartSums
    table: PartSums
    log_rows: list[ListedRows]
    table_rows: list[ListedRows]


class _Adder(Protocol):
    found: PartSums

    def add(
        self, partitions: NDArray[np.int32], offsets: NDArray[np.int64], hashes: NDArray[np.uint64], unplaced: int = 0
    ) -> None: ...


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
            if number in self._rules.bounds:
                mine = mine[is_inside(offsets[mine], (self._rules.listed or {}).get(number, ()))]
            elif not self._rules.lists_strangers:
                continue
            if len(mine):
                self.listed.append(ListedRows(number, offsets[mine], hashes[mine]))


def read_parts(store: str, url: str, rules: SumRules) -> Callable[[Sequence[Split | TableFile]], PartsFound]:
    """Returns a task that sums or lists parts of the log, and files of the table at `url`."""

    def run(parts: Sequence[Split | TableFile]) -> PartsFound:
        log, table = _adder(rules, leave_out_erased=True), _adder(rules)
        with BatchReader(store) as reader, closing(open_folder(url)) as folder:
            for part in parts:
                if isinstance(part, Split):
                    add_log(log, reader, part, rules)
                else:
                    add_batches(table, read_rows(folder, part.add, part.form), rules)
        return PartsFound(log.found, table.found, _listed(log), _listed(table))

    return run


def _adder(rules: SumRules, *, leave_out_erased: bool = False) -> RowSummer | _RowLister:
    if rules.listed is not None:
        return _RowLister(rules)
    return RowSummer(rules.bounds, rules.bits, rules.erased, leave_out_erased=leave_out_erased)


def _listed(adder: RowSummer | _RowLister) -> list[ListedRows]:
    return adder.listed if isinstance(adder, _RowLister) else []


def add_log(adder: _Adder, reader: BatchReader, split: Split, rules: SumRules) -> None:
    """Adds the rows that the log has in a split. Raises `Corrupt` and `Unavailable`."""
    for arrays, rows in read_log(reader, split, GROUP_BYTES):
        _add(adder, arrays, rows, rules.secret)


def read_log(reader: BatchReader, split: Split, group_bytes: int) -> Iterator[tuple[list[pyarrow.Array], int]]:
    """Yields the rows of a split as columns of a table, in its order, and how many they are."""
    import pyarrow as pa

    with closing(reader.read(split)) as pieces:
        for batch in arrow_batches(pieces, (split.start, split.end), DECODED, group_bytes):
            offset, timestamp, kind, *others = batch.columns
            partition = constant_int_column(split.partition, batch.num_rows)
            yield [partition, offset, timestamp, kind.cast(pa.int8()), *others], batch.num_rows


def add_batches(adder: _Adder, found: Iterable[pyarrow.RecordBatch], rules: SumRules) -> None:
    """Adds the rows of Arrow batches with a table's columns, in its order."""
    for batch in found:
        _add(adder, batch.columns, batch.num_rows, rules.secret)


def _add(adder: _Adder, arrays: Sequence[pyarrow.Array], rows: int, secret: bytes) -> None:
    import pyarrow.compute as pc

    partitions, offsets = arrays[:2]
    hashes, unplaced = hash_columns(arrays, rows, secret), 0
    if partitions.null_count or offsets.null_count:
        placed = pc.and_(partitions.is_valid(), offsets.is_valid())
        partitions, offsets = partitions.filter(placed), offsets.filter(placed)
        hashes = hashes[placed.to_numpy(zero_copy_only=False)]
        unplaced = rows - len(offsets)
    adder.add(partitions.to_numpy(), offsets.to_numpy(), hashes, unplaced)
