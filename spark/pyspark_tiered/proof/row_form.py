"""The rows that a record of the log becomes in a table, and the hash of each: raw rows, typed rows, dead letters. Pure.

A raw table has a row for each record. A typed table and its dead letters share the records of the log between them:
an offset that is a dead letter is no row. A typed row holds cells where a raw one holds the bytes of the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark_tiered.delta.table_form import Range
from pyspark_tiered.proof.row_hash import hash_records
from pyspark_tiered.schemas.framing import skip_frame
from pyspark_tiered.schemas.reparsing import reparse_records
from pyspark_tiered.schemas.sorting import RegisteredKinds
from pyspark_tiered.typed.cell_digest import count_blanks, digest_cells
from pyspark_tiered.typed.changes import FieldRule
from pyspark_tiered.typed.garbage import collection_paused
from pyspark_tiered.typed.kinds import StructOf
from pyspark_tiered.typed.reparse import ReparsedValues, reparse

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

EXACT, LEAVES, BLANKS = slice(0, 2), slice(2, 4), slice(4, 5)
"""Columns of a hash in full: the hash of all cells, the hash that takes blank fields for NULL, and how many are blank.
"""

Cells = Sequence["pyarrow.Array | None"]
"""The columns of values; None for a column that a file lacks."""
Letters = Mapping[int, "NDArray[np.int64]"]
"""The offsets of dead letters by partition, in order."""


class UnfitRow(NamedTuple):
    """A record that is no dead letter, and whose value does not fit the columns."""

    partition: int
    offset: int
    why: str


class LogRows(NamedTuple):
    """The rows that some records become in one table, with the columns of a raw one.

    `fitting` of them are dead letters that fit the columns of today.
    """

    records: pyarrow.RecordBatch
    cells: Cells = ()
    unfit: Sequence[UnfitRow] = ()
    fitting: int = 0


class RowForm(Protocol):
    """The form of the rows of a table."""

    @property
    def cell_names(self) -> Sequence[str]:
        """Returns the columns of values."""

    def narrow(self, bounds: Mapping[int, Range]) -> dict[int, Range]:
        """Returns the part of these offsets in which the log may have rows of the table."""

    def choose(self, records: pyarrow.RecordBatch) -> LogRows:
        """Returns the rows that records of one partition become."""

    def hash(self, records: pyarrow.RecordBatch, cells: Cells, secret: bytes, *, in_full: bool) -> NDArray[np.uint64]:
        """Returns the hash of each row. `in_full`: it says too if rows differ by blank fields alone.

        Raises `pyarrow.ArrowInvalid` for cells that are not of their types.
        """


class RawRows:
    """Each record is a row."""

    cell_names = ()

    def narrow(self, bounds: Mapping[int, Range]) -> dict[int, Range]:
        """Returns the bounds."""
        return dict(bounds)

    def choose(self, records: pyarrow.RecordBatch) -> LogRows:
        """Returns all records."""
        return LogRows(records)

    def hash(self, records: pyarrow.RecordBatch, cells: Cells, secret: bytes, *, in_full: bool) -> NDArray[np.uint64]:
        """Returns two numbers of 64 bits for each row."""
        return hash_records(records, records["value"], secret, has_timestamp_type=True)


class TypedRows(NamedTuple):
    """Each record that is no dead letter is a row. `has_key`: keys are typed, with a column or not yet."""

    schema: StructOf
    changes: tuple[FieldRule, ...]
    has_key: bool
    letters: Letters
    registered: RegisteredKinds | None = None

    @property
    def cell_names(self) -> Sequence[str]:
        """Returns the columns of the values."""
        return [field.column for field in self.schema.fields]

    def narrow(self, bounds: Mapping[int, Range]) -> dict[int, Range]:
        """Returns the bounds."""
        return dict(bounds)

    def choose(self, records: pyarrow.RecordBatch) -> LogRows:
        """Parses the values of the records again."""
        rows = _choose_letters(records, self.letters, are_wanted=False)
        if not rows.num_rows:
            return LogRows(rows, [None] * len(self.schema.fields))
        parsed = self.reparse(rows)
        places = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
        unfit = [UnfitRow(*places[at], parsed.unfit[at]) for at in sorted(parsed.unfit)]
        return LogRows(rows, parsed.columns, unfit)

    def reparse(self, records: pyarrow.RecordBatch) -> ReparsedValues:
        """Returns the cells of records."""
        if self.registered is not None:
            with collection_paused():
                return reparse_records(records, self.schema, self.changes, self.registered, has_key=self.has_key)
        keys = records["key"].to_pylist() if self.has_key else None
        with collection_paused():
            values = [skip_frame(each) for each in records["value"].to_pylist()]
            keys = None if keys is None else [skip_frame(each) for each in keys]
            return reparse(values, self.schema, self.changes, keys)

    def hash(self, records: pyarrow.RecordBatch, cells: Cells, secret: bytes, *, in_full: bool) -> NDArray[np.uint64]:
        """Returns two numbers of 64 bits for each row. In full: both hashes and the number of blank fields."""
        import numpy as np

        rows = records.num_rows
        exact, *leaves = (
            hash_records(records, digest_cells(cells, self.schema, rows, secret, by_leaves=each), secret)
            for each in ((False, True) if in_full else (False,))
        )
        if not in_full:
            return exact
        return np.hstack([exact, *leaves, count_blanks(cells, self.schema, rows).view(np.uint64)[:, None]])


class LetterRows(NamedTuple):
    """Each record that is a dead letter of this typed table is a row."""

    typed: TypedRows

    @property
    def cell_names(self) -> Sequence[str]:
        """Returns nothing: a dead letter has the bytes of its record."""
        return ()

    def narrow(self, bounds: Mapping[int, Range]) -> dict[int, Range]:
        """Returns the offsets between the first letter and the last of each partition."""
        found = {}
        for number, (low, high) in bounds.items():
            letters = self.typed.letters.get(number)
            if letters is not None and len(letters):
                found[number] = max(low, int(letters[0])), min(high, int(letters[-1]) + 1)
        return found

    def choose(self, records: pyarrow.RecordBatch) -> LogRows:
        """Returns the letters."""
        found = _choose_letters(records, self.typed.letters, are_wanted=True)
        fitting = found.num_rows - len(self.typed.reparse(found).unfit) if found.num_rows else 0
        return LogRows(found, fitting=fitting)

    def hash(self, records: pyarrow.RecordBatch, cells: Cells, secret: bytes, *, in_full: bool) -> NDArray[np.uint64]:
        """Returns two numbers of 64 bits for each letter."""
        return hash_records(records, records["value"], secret)


RAW_ROWS = RawRows()


def _choose_letters(records: pyarrow.RecordBatch, letters: Letters, *, are_wanted: bool) -> pyarrow.RecordBatch:
    """Returns the records of one partition that are dead letters, or those that are none."""
    import numpy as np
    import pyarrow as pa

    if not records.num_rows:
        return records
    mine = letters.get(records["partition"][0].as_py())
    if mine is None or not len(mine):
        return records.slice(0, 0) if are_wanted else records
    offsets = records["offset"].to_numpy()
    is_letter = mine[np.minimum(np.searchsorted(mine, offsets), len(mine) - 1)] == offsets
    return records.filter(pa.array(is_letter == are_wanted))
