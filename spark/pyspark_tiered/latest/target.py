"""A table in mode latest as the target of a load.

A round writes the last record of each key to files. Its commit deletes the rows that these keys had, and the rows of
tombstones. The changes of rows go into a file of their own, unless the round only adds rows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta.data_files import FileForm, read_form
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.table_form import COLUMNS, LoadedFile, table_schema
from pyspark_tiered.latest.change_file import list_changes, write_changes
from pyspark_tiered.latest.convert import LatestForm
from pyspark_tiered.latest.fold import starts_of_keys
from pyspark_tiered.latest.keys import KeySet
from pyspark_tiered.latest.lookup import find_rows, read_live_rows
from pyspark_tiered.latest.table import LatestTable, NewFile, RowDeletion, may_hold
from pyspark_tiered.load.convert import ConversionTask
from pyspark_tiered.load.file_writer import upload
from pyspark_tiered.load.rounds import CommittableRound, ConversionResult, FilePlan, Round
from pyspark_tiered.load.table_loader import Convert

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

RAW_FORM = FileForm({name: name for name in COLUMNS})


class LatestTarget:
    """A table in mode latest: a row for each key."""

    def __init__(self, table: LatestTable, store: str, null_timestamps: bool, accept_deletes: bool) -> None:
        self.url, self.topic_id = table.url, table.topic_id
        self._table = table
        self._store = store
        self._null_timestamps = null_timestamps
        self._accept_deletes = accept_deletes
        self._at = TableState()

    @property
    def was_found(self) -> bool:
        """True if the table was there at the last check."""
        return self._table.was_found

    @property
    def newest_mark(self) -> Mapping[str, Any]:
        """Returns the mark of the newest commit at the last check."""
        return self._table.newest_mark

    def check_sound(self) -> dict[int, int]:
        """Checks the table. Returns the loaded offsets."""
        return self._table.check_sound(self._accept_deletes)

    def prepare(self) -> bool:
        """Does nothing: the first commit creates the table."""
        return True

    def plan(self, plan: Round, loaded: Mapping[int, int]) -> None:
        """Keeps the version that the round is made for."""
        self._at = self._table.read()

    def task(self, splits: FilePlan) -> ConversionTask:
        """Returns the task that converts splits of the round."""
        return ConversionTask(self._store, splits, LatestForm(self.url), self._null_timestamps)

    def agree(self, plan: Round, results: Sequence[ConversionResult], again: Convert) -> list[ConversionResult]:
        """Returns the results."""
        return list(results)

    def commit(self, plan: Round, found: CommittableRound, seen: str | None) -> bool:
        """Commits a round, if it moves a partition or creates the table."""
        if not found.advances and plan.files:
            return True
        new, deletions, changes = self._find_changes(found.files)
        out_of_range = {f"{number}": dict(records) for number, records in found.out_of_range_timestamps.items()}
        return self._table.commit_round(
            self._at, new, deletions, changes, found.advances, timestamps=out_of_range, seen=seen
        )

    def _find_changes(self, files: Sequence[LoadedFile]) -> tuple[list[NewFile], list[RowDeletion], list[str]]:
        """Returns the files of a round, the rows that they delete in others, and the action of the file of changes."""
        import numpy as np
        import pyarrow as pa

        if not files:
            return [], [], []
        rows = pa.concat_tables([_identify(self._read(file), at) for at, file in enumerate(files)])
        rows = rows.sort_by([("partition", "ascending"), ("key", "ascending"), ("offset", "descending")])
        is_last = starts_of_keys(rows)
        is_tombstone = rows["is_tombstone"].to_numpy()
        of_file, number = rows["file"].to_numpy(), rows["row"].to_numpy()
        new, stays = [], is_last & ~is_tombstone
        for at, file in enumerate(files):
            new.append(NewFile(file, np.sort(number[(of_file == at) & ~stays])))
        deletions, before = self._find_older(KeySet.of(rows.filter(pa.array(is_last))))
        if not deletions:
            return new, [], []
        kept = [pa.array(np.sort(number[(of_file == at) & stays])) for at in range(len(files))]
        after = pa.concat_tables([self._read(file).take(each) for file, each in zip(files, kept, strict=True)])
        changed = list_changes(before, after, rows.filter(pa.array(is_last & is_tombstone)))
        return new, deletions, [write_changes(self.url, changed, upload)]

    def _read(self, file: LoadedFile) -> pyarrow.Table:
        """Returns the rows of a file of the round, tombstones too."""
        return read_live_rows(self._table.folder, {"path": file.path}, RAW_FORM)

    def _find_older(self, keys: KeySet) -> tuple[list[RowDeletion], pyarrow.Table]:
        """Returns the rows of older files that have these keys."""
        import numpy as np
        import pyarrow as pa

        deletions, before = [], [table_schema().empty_table()]
        form = read_form(self._at.metadata) if self._at.version >= 0 else RAW_FORM
        for add in self._at.files.values():
            if not may_hold(add, keys.partitions):
                continue
            found = find_rows(self._table.folder, add, form, keys)
            if len(found.numbers):
                deletions.append(RowDeletion(add, np.sort(np.concatenate([found.deleted, found.numbers]))))
                before.append(found.rows)
        return deletions, pa.concat_tables(before)


def _identify(rows: pyarrow.Table, file: int) -> pyarrow.Table:
    """Returns identity and offset of the rows of a file, if they are tombstones, and where they are."""
    import numpy as np
    import pyarrow as pa

    found = rows.select(["partition", "key", "offset"])
    more = {
        "is_tombstone": rows["value"].is_null(),
        "file": pa.repeat(pa.scalar(file, pa.int32()), rows.num_rows),
        "row": pa.array(np.arange(rows.num_rows)),
    }
    for name, column in more.items():
        found = found.append_column(name, column)
    return found
