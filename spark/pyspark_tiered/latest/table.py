"""A table in mode latest: its form in Delta, the commit of a round, and its upkeep. Keeps I27.

A round deletes the rows of its keys in older files by deletion vectors. Its commit holds while each file that may have
rows of its partitions is as it was when the round looked. So two loads at once, or a load beside an upkeep, leave one
row of each key.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark_tiered.delta import delta_state, table_form
from pyspark_tiered.delta.data_files import read_form
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.log_folder import UnclearOutcome
from pyspark_tiered.delta.table_form import LATEST, MODE, Advance, LoadedFile, ReplacedFile
from pyspark_tiered.delta.vector_file import encode_vector_file
from pyspark_tiered.latest.convert import LATEST_FILES
from pyspark_tiered.latest.fold import keep_last
from pyspark_tiered.latest.keys import KeySet
from pyspark_tiered.latest.lookup import read_live_rows
from pyspark_tiered.load.convert import with_field_ids
from pyspark_tiered.load.file_writer import FileWriter, Upload, upload
from pyspark_tiered.load.native_table import NativeTable

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

Json = dict[str, Any]

PROTOCOL: Json = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["appendOnly", "changeDataFeed", "deletionVectors", "invariants"],
}
PROPERTIES = {MODE: LATEST, "delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
DEAD_SHARE = 4
"""A file is written again once one in so many of its rows is deleted."""
SMALL_BYTES = 4 << 20
FILES_MIN, IDLE_FILES_MIN = 8, 2
"""Small files from which on they are joined, and the same after a load that found nothing new."""
JOINED_BYTES_MAX = 32 << 20
"""Bytes of files that are written again at once. A file of more bytes is written again by itself."""


class RowDeletion(NamedTuple):
    """Rows of a file that go: `deleted` are the numbers of all rows that are deleted then."""

    add: Mapping[str, Any]
    deleted: NDArray[np.int64]


class NewFile(NamedTuple):
    """A file of a round, and the numbers of its rows that are no rows of the table: tombstones, and older records."""

    file: LoadedFile
    deleted: NDArray[np.int64]


class LatestTable(NativeTable):
    """A topic's table with one row for each key of a partition."""

    mode = LATEST
    repaired_by = restored_by = "Drop the table, and load it again: no repair mends a table in mode latest yet"

    def read(self) -> TableState:
        """Returns the table as it is now, in a form that no later commit changes."""
        return self.snapshot().state.copy()

    def commit_round(
        self,
        at: TableState,
        new: Sequence[NewFile],
        deletions: Sequence[RowDeletion],
        changes: Sequence[str],
        advances: Sequence[Advance],
        **mark_fields: Any,
    ) -> bool:
        """Commits a round that was made for the version `at`. Returns false if another writer came first.

        The first commit creates the table. `changes` are the actions of files of changes. Raises `Unavailable` if the
        commit failed and the table, read again, is unchanged.
        """
        files = [each.file for each in new if len(each.deleted) < each.file.rows]
        actions = self._round_actions(new, deletions)
        partitions = {step.partition for step in advances}
        known = at.files.keys()

        def is_valid(state: TableState) -> bool:
            changed = [state.files[key] for key in state.files.keys() - known]
            changed += [at.files[key] for key in known - state.files.keys()]
            return (
                (state.metadata, state.protocol) == (at.metadata, at.protocol)
                and state.is_at_start(self.topic_id, advances)
                and not any(may_hold(add, partitions) for add in changed)
            )

        def lines(now_ms: int) -> list[str]:
            steps = table_form.commit_actions(self.topic_id, [], advances, now_ms)
            removed = [table_form.remove_action(each.add, now_ms, True) for each in deletions]
            found = [*removed, *actions, *changes, *steps]
            if self._state.version < 0:
                made = self.creation_actions(table_form.SCHEMA, now_ms, properties=PROPERTIES, protocol=PROTOCOL)
                return [*made, *found]
            return found

        mark = self.encode_mark(files, advances, **({"checked": self.checked_version} | mark_fields))
        operation = {
            "operation": "MERGE",
            "operationParameters": {"predicate": '["key = key"]'},
            "isBlindAppend": False,
        }
        try:
            if not self.create(lines, is_valid, mark, operation):
                return False
        except UnclearOutcome as failure:
            return self.judge_unclear_commit(files, advances, str(failure))
        self.newest_mark = mark_fields
        return True

    def _round_actions(self, new: Sequence[NewFile], deletions: Sequence[RowDeletion]) -> list[str]:
        """Writes the deletion vectors of a round to one file. Returns the actions that add files."""
        adds = [(json.loads(table_form.add_action(each.file))["add"], each.deleted) for each in new]
        adds += [({**each.add, "dataChange": True}, each.deleted) for each in deletions]
        alive = [(add, deleted) for add, deleted in adds if len(deleted) < count_rows(add)]
        vectors = [deleted for _, deleted in alive if len(deleted)]
        if not vectors:
            return [json.dumps({"add": add}) for add, _ in alive]
        name, data, named = encode_vector_file(vectors)
        self.folder.replace(name, data)
        held = iter(named)
        return [json.dumps({"add": with_vector(add, next(held)) if len(deleted) else add}) for add, deleted in alive]

    def join_small_files(self, is_idle: bool = False) -> int:
        """Writes files again that have many deleted rows, or are small and many. Returns how many it replaced."""
        at = self.read()
        keys = choose_for_upkeep(at.files, is_idle)
        if not keys:
            return 0
        import pyarrow as pa

        form = read_form(at.metadata)
        rows = pa.concat_tables([read_live_rows(self.folder, at.files[key], form) for key in keys])
        joined = write_rows(self.url, keep_last(rows), self._upload_file)
        replaced = [ReplacedFile(at.files[key], 0, None, "") for key in keys]
        if joined:
            add = json.loads(table_form.add_action(joined[0]))["add"]
            replaced[0] = ReplacedFile(
                at.files[keys[0]], 0, joined[0], json.dumps({"add": {**add, "dataChange": False}})
            )
        operation = {"operation": "OPTIMIZE", "operationParameters": {"predicate": "[]", "auto": "true"}}
        is_done = self.replace_files(at, replaced, operation, changes_data=False, joined=len(keys))
        return len(keys) if is_done else 0

    def _upload_file(self, table_url: str, scratch: str, name: str) -> None:
        self.folder.upload(scratch, name)


def count_rows(add: Mapping[str, Any]) -> int:
    """Returns the rows of a file, with those that are deleted. Without statistics there may be any number."""
    found = json.loads(str(add.get("stats") or "{}")).get("numRecords")
    return 1 << 62 if found is None else int(found)


def with_vector(add: Json, vector: Json) -> Json:
    """Returns an add action with a deletion vector. Its bounds are those of the rows that were there before."""
    stats = json.loads(str(add.get("stats") or "{}"))
    return {**add, "stats": json.dumps({**stats, "tightBounds": False}), "deletionVector": vector}


def may_hold(add: Mapping[str, Any], partitions: Collection[int]) -> bool:
    """True if a file may have rows of one of these partitions."""
    for extent in delta_state.file_extents(add):
        first, last = extent.first_partition, extent.last_partition
        if first is None or last is None or any(first <= number <= last for number in partitions):
            return True
    return False


def choose_for_upkeep(files: Mapping[str, Json], is_idle: bool = False) -> list[str]:
    """Returns the keys of files to write again: some with many deleted rows, or else small ones if they are many.

    Files beyond the bytes of one upkeep wait for the next one.
    """
    dead = [key for key, add in files.items() if DEAD_SHARE * count_deleted(add) >= count_rows(add)]
    small = [key for key, add in files.items() if int(add["size"]) < SMALL_BYTES]
    if len(small) < (IDLE_FILES_MIN if is_idle else FILES_MIN):
        small = []
    chosen: list[str] = []
    total = 0
    for key in sorted(dict.fromkeys([*small, *dead]), key=lambda each: int(files[each]["size"])):
        total += int(files[key]["size"])
        if chosen and total > JOINED_BYTES_MAX:
            break
        chosen.append(key)
    return chosen


def count_deleted(add: Mapping[str, Any]) -> int:
    """Returns how many rows of a file are deleted."""
    return int((add.get("deletionVector") or {}).get("cardinality") or 0)


def write_rows(url: str, rows: pyarrow.Table, to_bucket: Upload = upload) -> list[LoadedFile]:
    """Writes rows, in the order of partition and key, to one file. Without rows there is none."""
    schema = with_field_ids(table_form.table_schema())
    with FileWriter(url, "latest", LATEST_FILES, to_bucket) as writer:
        first = 0
        for count in KeySet.of(rows).counts():
            for batch in rows.slice(first, count).cast(schema).combine_chunks().to_batches():
                writer.add(batch)
            writer.end_run()
            first += count
    return writer.files
