"""A topic's table without a JVM: this package's own reader and writer of Delta's log, for the subset that loads write.

A commit reads what is new in the log, checks that each partition is still where its plan starts, and creates the file
of the next version. If another writer was first, its commits are read, and the file of a later version is tried. Spark
and this engine may write one table at once. Keeps I27.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta import delta_state, history, log_cleanup, orphans, table_form
from pyspark_tiered.delta.checkpoint import encode_checkpoint
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.history import FileExtent
from pyspark_tiered.delta.log_folder import LOG, BucketConnection, TableFolder, UnclearOutcome, open_folder
from pyspark_tiered.delta.snapshot import UNACCOUNTED_MAX, Snapshot, UnaccountedRows, check_table_topic
from pyspark_tiered.delta.table_form import Advance, LoadedFile
from pyspark_tiered.delta.table_log import LAST_CHECKPOINT, TableLog
from pyspark_tiered.delta.topic_table import TopicTable
from pyspark_tiered.load import joining
from pyspark_tiered.load.recent_rows import RecentRows
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

ATTEMPTS = 100
"""Commits of other writers in a row that may come first, before a commit gives up."""


class NativeSnapshot(Snapshot):
    """The newest version that a table has read. It changes when the table reads on."""

    def __init__(
        self,
        folder: TableFolder,
        state: TableState,
        recent: Mapping[int, str],
        topic_id: str,
        places: tuple[str, str] = ("partition", "offset"),
    ) -> None:
        super().__init__(folder.url, topic_id)
        self._places = places
        self.state = state
        self.version = state.version
        self._folder = folder
        self._recent = recent

    def loaded_offsets(self) -> dict[int, int]:
        return table_form.loaded_offsets(self.state.versions(), self.topic_id)

    def extents(self) -> list[FileExtent]:
        return self.state.extents()

    def has_file(self, path: str) -> bool:
        return any(add["path"] == path for add in self.state.files.values())

    def read_commit(self, version: int) -> str | None:
        if version in self._recent:
            return self._recent[version]
        data = self._folder.read(f"{LOG}/{delta_state.commit_name(version)}")
        return None if data is None else data.decode()

    def find_unaccounted_rows(self, loaded: Mapping[int, int]) -> list[UnaccountedRows]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        parts = []
        for add in self.state.files.values():
            if not any(_may_hold_unaccounted(extent, loaded) for extent in delta_state.file_extents(add)):
                continue
            with self._folder.local(delta_state.file_path(add, self.url)) as path:
                held = pq.read_table(path, columns=list(self._places)).rename_columns(["partition", "offset"])
            ends = pa.table({"partition": list(loaded), "end": list(loaded.values())}, schema=_ends_schema())
            joined = held.cast(_place_schema()).join(ends, "partition", join_type="left outer")
            beyond = pc.or_(pc.is_null(joined["end"]), pc.greater_equal(joined["offset"], joined["end"]))
            nowhere = pc.or_(pc.is_null(joined["partition"]), pc.is_null(joined["offset"]))
            wrong = joined.filter(pc.or_kleene(pc.fill_null(beyond, True), nowhere))
            if wrong.num_rows and add.get("deletionVector"):  # they may be deleted ones
                raise Refused(
                    Code.INVALID_REQUEST,
                    f"the table at {self.url} has deletion vectors: use `--engine spark` to check its rows",
                )
            parts.append(wrong.group_by("partition").aggregate([("offset", "min"), ("offset", "max")]))
        if not parts:
            return []
        spans = pa.concat_tables(parts).group_by("partition").aggregate([("offset_min", "min"), ("offset_max", "max")])
        found = [
            UnaccountedRows(row["partition"], row["offset_min_min"], row["offset_max_max"])
            for row in spans.sort_by("partition").slice(0, UNACCOUNTED_MAX).to_pylist()
        ]
        return sorted(found, key=lambda each: -1 if each.partition is None else each.partition)


def _may_hold_unaccounted(extent: FileExtent, loaded: Mapping[int, int]) -> bool:
    first, last, offset, _ = extent
    if first is None or last is None or offset is None or last - first > UNACCOUNTED_MAX:
        return True
    return any(offset >= loaded.get(number, -1) for number in range(first, last + 1))


def _ends_schema() -> Any:
    import pyarrow as pa

    return pa.schema([("partition", pa.int32()), ("end", pa.int64())])


def _place_schema() -> Any:
    import pyarrow as pa

    return pa.schema([("partition", pa.int32()), ("offset", pa.int64())])


class NativeTable(TopicTable):
    """A topic's table in a folder (`file:` or `s3a:` URL)."""

    def __init__(
        self,
        url: str,
        topic: str,
        topic_id: str,
        shared: BucketConnection | None = None,
        recent: RecentRows | None = None,
    ) -> None:
        super().__init__(url, topic, topic_id)
        self._recent = RecentRows() if recent is None else recent
        self.folder = open_folder(url, shared)
        self._log = TableLog(self.folder)
        self._times_forgotten = 0
        self._left_alone: set[str] = set()
        """Keys of small files that are not joined: they have too many rows, or another form."""

    @property
    def _state(self) -> TableState:
        return self._log.state

    def close(self) -> None:
        self.folder.close()

    def count_requests(self) -> dict[str, int]:
        return self.folder.count_requests()

    def snapshot(self) -> NativeSnapshot:
        self._read_on()
        return NativeSnapshot(self.folder, self._state, self._log.recent, self.topic_id)

    def commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], **mark_fields: Any) -> bool:
        self._read_on()
        mark = self.encode_mark(files, advances, **({"checked": self.checked_version} | mark_fields))
        if not self._commit(files, advances, mark, delta_state.append_operation(files)):
            return False
        self.newest_mark = mark_fields
        return True

    def join_small_files(self, is_idle: bool = False) -> int:
        keys, parts = self._read_small_files(is_idle)
        if not keys:
            return 0
        from pyspark_tiered.load.convert import join_rows

        removed = [self._state.files[key] for key in keys]
        joined = join_rows(parts, self.url, self._upload, self._recent)
        self._read_on()
        identifiers = len(table_form.loaded_offsets(self._state.versions(), self.topic_id))
        checked, seen = self.checked_version, self.newest_mark.get("seen")
        for _ in range(ATTEMPTS):
            if any(key not in self._state.files for key in keys) or orphans.is_too_old(
                [joined.modified_ms], time.time_ns() // 1_000_000
            ):
                return 0  # another writer has removed or joined one of them: the new file stays an orphan
            now_ms = time.time_ns() // 1_000_000
            mark = history.encode_mark(self.topic, [], [], checked, identifiers, joined=len(keys), seen=seen)
            lines = joining.join_actions(removed, joined, now_ms)
            try:
                if self._create_commit(lines, mark, joining.join_operation(removed, joined), now_ms):
                    return len(keys)
            except UnclearOutcome as failure:
                log.warning("joining of files has an unknown outcome table=%s why=%s", self.url, failure)
                return 0
            self._read_on()
            seen = None  # another writer's commit is between: what it loaded is not known here
        return 0

    def _read_small_files(self, is_idle: bool) -> tuple[list[str], list[pyarrow.Table]]:
        """Returns the keys of files to join, and the rows of each; none if it is not worth it."""
        self._left_alone &= self._state.files.keys()
        known: dict[str, pyarrow.Table] = {}
        while keys := joining.choose_files(self._state.files, self._left_alone, is_idle):
            known = {key: known[key] for key in keys if key in known}
            chosen: list[str] = []
            others, total = set(), 0
            for key in keys:
                rows = known.get(key)
                if rows is None and (rows := self._read_rows(self._state.files[key])) is None:
                    others.add(key)
                    continue
                known[key] = rows
                total += rows.nbytes
                if total > joining.ROWS_BYTES_MAX:
                    break
                chosen.append(key)
            if not others:
                return chosen, [known[key] for key in chosen]
            self._left_alone |= others
        return [], []

    def _read_rows(self, add: Mapping[str, Any]) -> pyarrow.Table | None:
        """Returns the rows of a file; None if it is not joined."""
        from pyspark_tiered.load.convert import read_rows

        path = delta_state.file_path(add, self.url)
        rows = self._recent.take(path)
        if rows is not None:
            return rows
        with self.folder.local(path) as local:
            return read_rows(local, joining.ROWS_BYTES_MAX // 2)

    def remove_orphans(self, now_ms: int | None = None) -> int:
        now_ms = self._stored_ms() if now_ms is None else now_ms
        if not orphans.is_due(self.orphans_looked_for_ms, now_ms) or not self._state.keeps_removed_files():
            return 0
        self.orphans_looked_for_ms = now_ms
        stored = list(self.folder.list_data_files())
        self._read_on()
        found = orphans.choose_orphans(stored, self._state.named_paths(), now_ms)
        if found:
            self.folder.delete(found)
        return len(found)

    def _upload(self, table_url: str, scratch: str, name: str) -> None:
        self.folder.upload(scratch, name)

    def _commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], mark: str, operation: Any) -> bool:
        metadata = self._state.metadata
        for _ in range(ATTEMPTS):
            state = self._state
            if state.metadata is not metadata or not state.is_at_start(self.topic_id, advances):
                log.info("another loader committed first table=%s", self.url)
                return False
            now_ms = time.time_ns() // 1_000_000
            lines = table_form.commit_actions(self.topic_id, files, advances, now_ms)
            if state.version < 0:
                lines = table_form.creation_actions(self.topic, self.topic_id, str(uuid.uuid4()), now_ms) + lines
            try:
                if self._create_commit(lines, mark, operation, now_ms):
                    return True
            except UnclearOutcome as failure:
                return self.judge_unclear_commit(files, advances, str(failure))
            self._read_on()
        raise Unavailable(f"{ATTEMPTS} other commits to {self.url} came first: try again")

    def _create_commit(self, lines: Sequence[str], mark: str, operation: Any, now_ms: int) -> bool:
        """Creates the file of the next version. Returns false if another writer has created it."""
        version = self._state.version + 1
        path = f"{LOG}/{delta_state.commit_name(version)}"
        data = delta_state.commit_lines(
            lines,
            unique=str(uuid.uuid4()),
            now_ms=now_ms,
            read_version=self._state.version,
            operation=operation,
            user_metadata=mark,
        )
        created = self.folder.create(path, data)
        if created is None:
            return False
        self._log.apply(version, data.decode(), created)
        if version and version % self._state.checkpoint_interval() == 0:
            self._write_checkpoint()
        return True

    def _stored_ms(self) -> int:
        """Returns the time of the newest commit by the clock of the store; 0 if its file is gone.

        The clock that gave the files their times says how old they are: that of this process may be days ahead.
        """
        return self.folder.modified_ms(f"{LOG}/{delta_state.commit_name(self._state.version)}") or 0

    def _write_checkpoint(self) -> None:
        """Writes a checkpoint, and cleans the log. The table is whole without it, so a failure is a warning."""
        version = self._state.version
        try:
            now_ms = self._stored_ms()
            self._state.drop_old_tombstones(now_ms)
            data, count = encode_checkpoint(self._state.actions(now_ms))
            self.folder.replace(f"{LOG}/{delta_state.checkpoint_name(version)}", data)
            self.folder.replace(LAST_CHECKPOINT, json.dumps({"version": version, "size": count}).encode())
            self._clean_log(now_ms)
        except (Unavailable, OSError) as failure:
            log.warning(
                "checkpoint was not written, or the log not cleaned table=%s version=%d why=%s",
                self.url,
                version,
                failure,
            )

    def _clean_log(self, now_ms: int) -> None:
        """Deletes the files of the log that its retention no longer needs. One page of a list shows if there is one."""
        before_ms = log_cleanup.cutoff_ms(self._state.properties(), now_ms)
        if before_ms is None:
            return
        listed = islice(self.folder.list_files(LOG), log_cleanup.LISTED_MAX)
        if expired := log_cleanup.choose_expired(listed, before_ms):
            self.folder.delete([f"{LOG}/{name}" for name in expired])
            log.info("old files of a table's log were deleted table=%s files=%d", self.url, len(expired))

    def _read_on(self) -> None:
        """Reads the commits that are new. Raises `Refused` for another topic's table, or one that this engine cannot
        write, and `Corrupt`."""
        held, before = self._state, self._state.version
        state = self._log.read()
        if self._log.times_forgotten != self._times_forgotten:
            self._times_forgotten = self._log.times_forgotten
            self.forget_checks()  # it may be another table of that name
        if state.version >= 0 and (state is not held or state.version != before):
            try:
                check_table_topic(self._state.held_topic(), self.url, self.topic, self.topic_id)
                self._check_form(self._state)
            except Refused:
                self._log.forget()  # so that the next look checks again
                raise

    def _check_form(self, state: TableState) -> None:
        """Raises `Refused` if this engine cannot write the table."""
        delta_state.check_plain(state, self.url)
