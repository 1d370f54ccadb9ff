"""A topic's table: the reader and writer of Delta's log for the subset that loads write, without a JVM.

A commit reads what is new in the log, checks that each partition is still where its plan starts, and creates the file
of the next version. If another writer was first, its commits are read, and the file of a later version is tried. Other
writers, Spark among them, may write the table at once. Keeps I27.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark_tiered.delta import delta_state, history, orphans, table_features, table_form, topic_table
from pyspark_tiered.delta.checkpoint import encode_checkpoint
from pyspark_tiered.delta.data_files import FileForm, local_file
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.log_folder import LOG, BucketConnection, UnclearOutcome, open_folder
from pyspark_tiered.delta.snapshot import Snapshot, check_columns, check_table_topic
from pyspark_tiered.delta.table_form import Advance, LoadedFile, ReplacedFile
from pyspark_tiered.delta.table_log import LAST_CHECKPOINT, TableLog
from pyspark_tiered.delta.vacuum import clean_log
from pyspark_tiered.iceberg.export import IcebergExport
from pyspark_tiered.iceberg.metadata import ENABLED
from pyspark_tiered.iceberg.schema import build_schema
from pyspark_tiered.load import joining
from pyspark_tiered.load.recent_rows import RecentRows
from tiered.errors import Refused, Unavailable

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)

WAY_OUT = "which no load keeps: take it off, or load into another warehouse"
ATTEMPTS = 100
"""Commits of other writers in a row that may come first, before a commit gives up."""


class NativeTable:
    """A topic's table in a folder (`file:` or `s3a:` URL)."""

    repaired_by = topic_table.REPAIRED_BY
    """The way out if the table has rows that no identifier covers."""
    restored_by = topic_table.RESTORED_BY
    """The way out if others removed rows."""
    prefix = ""
    """Stands before the names of the record's columns."""
    mode = ""
    """How records become rows: the property `tiered.mode` of the tables that are written here."""
    file_form: FileForm | None = None
    """Form of the table's files; None if the metadata of each version say it."""

    def __init__(
        self,
        url: str,
        topic: str,
        topic_id: str,
        shared: BucketConnection | None = None,
        recent: RecentRows | None = None,
    ) -> None:
        self.url = url
        self.topic = topic
        self.topic_id = topic_id
        # The version up to which this process found the table sound, and the identifiers that it then had.
        self.checked_version: int | None = None
        self._checked_offsets: dict[int, int] = {}
        self.newest_mark: Mapping[str, Any] = {}
        """Mark of the newest commit at the last check, if a loader made it."""
        self.orphans_looked_for_ms: int | None = None
        """Time of the last look for orphans here, or else of the newest commit at the first check."""
        self._recent = RecentRows() if recent is None else recent
        self.folder = open_folder(url, shared)
        self._log = TableLog(self.folder)
        self.iceberg = IcebergExport(self._log)
        self._times_forgotten = 0
        self._readable: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
        """Metadata and protocol that may be read, and those that may be written."""
        self._writable: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
        self._left_alone: set[str] = set()
        """Keys of small files that are not joined: they have too many rows, or another form."""

    @property
    def _state(self) -> TableState:
        return self._log.state

    def close(self) -> None:
        """Ends the use of the table."""
        self.folder.close()

    def count_requests(self) -> dict[str, int]:
        """Returns the number of requests for this table so far by verb."""
        return self.folder.count_requests()

    def check_writable(self, state: TableState) -> None:
        """Raises `Refused` if the table asks of its writers what a load does not keep."""
        if state.version >= 0:
            table_features.check_append(state.metadata, self.url)

    def snapshot(self) -> Snapshot:
        """Returns the table as it is now. Raises `Refused` if it holds another topic, or an older one of this name."""
        self._read_on()
        return Snapshot(self.folder, self._state, self._log.recent, self.topic_id, self.file_form)

    def commit(
        self,
        files: Sequence[LoadedFile],
        advances: Sequence[Advance],
        *,
        metadata: Mapping[str, Any] | None = None,
        unchanged_since: int | None = None,
        **mark_fields: Any,
    ) -> bool:
        """Commits files and advances. Returns false if another writer committed first: then plan again.

        The first commit creates a raw table. `metadata` is that of the plan; None: that of today. Nobody else may
        have committed after the version `unchanged_since`. `mark_fields` go into the mark. Raises `Unavailable` if
        the commit failed and the table, read again, is unchanged: the same call may be repeated.
        """
        mark = self.encode_mark(files, advances, **({"checked": self.checked_version} | mark_fields))

        def is_valid(state: TableState) -> bool:
            nonlocal metadata
            if files:
                self.check_writable(state)
            metadata = state.metadata if metadata is None else metadata
            is_unchanged = unchanged_since is None or state.version == unchanged_since
            return is_unchanged and state.metadata == metadata and state.is_at_start(self.topic_id, advances)

        def actions(now_ms: int) -> list[str]:
            lines = table_form.commit_actions(self.topic_id, files, advances, now_ms, self.prefix)
            if self._state.version < 0:
                lines = self.creation_actions(table_form.SCHEMA, now_ms) + lines
            return lines

        try:
            if not self.create(actions, is_valid, mark, delta_state.append_operation(files)):
                return False
        except UnclearOutcome as failure:
            return self.judge_unclear_commit(files, advances, str(failure))
        self.newest_mark = mark_fields
        return True

    def creation_actions(self, schema: Mapping[str, Any], now_ms: int, **more: Any) -> list[str]:
        """Returns the JSON lines that create the table. Raises `Refused` if it cannot have metadata of Iceberg, and was
        asked to."""
        if self.iceberg.is_asked:
            build_schema({"schemaString": json.dumps(schema)})
            more["properties"] = {**(more.get("properties") or {}), ENABLED: "true"}
        unique = str(uuid.uuid4())
        return table_form.creation_actions(
            self.topic, self.topic_id, dict(schema), unique, now_ms, prefix=self.prefix, **more
        )

    @property
    def was_found(self) -> bool:
        """True if there was a Delta table at the last check."""
        return self.checked_version is not None and self.checked_version >= 0

    def forget_checks(self) -> None:
        """Drops what this process found out about the table: the next check begins anew."""
        self.checked_version, self._checked_offsets, self.newest_mark = None, {}, {}

    def loaded_offsets(self) -> dict[int, int]:
        """Returns the next offset per partition. Partitions that were never loaded are absent, all without a table."""
        return self.snapshot().loaded_offsets()

    def check_sound(self, accept_deletes: bool = False) -> dict[int, int]:
        """Returns the loaded offsets after a check that the next load will neither duplicate nor lose rows.

        Each row has to lie below the bound of its partition, and nobody may have removed rows since the last load.
        Otherwise raises `Refused` with the way out. `accept_deletes`: rows that others removed stay removed, and the
        table records so.
        """
        now = self.snapshot()
        self.check_writable(now.state)
        loaded = now.loaded_offsets()
        topic_table.check_mode(now, self.mode)
        if now.version < 0:
            self.checked_version = now.version  # no commit yet, so there is nothing to check
        if now.version == self.checked_version:
            return loaded
        commits, is_complete = now.commits(self.checked_version)
        if not is_complete:
            oldest = commits[0].version if commits else now.version
            log.warning(
                "table history is gone, run `tiered verify` to check the rows before_version=%d table=%s",
                oldest,
                self.url,
            )
        checked = None if self.checked_version is None else self._checked_offsets
        topic_table.check_bounds(now, commits, loaded, checked, self.repaired_by)
        removals = history.find_row_removals(commits)
        if removals and accept_deletes:
            self.mark_sound(now, loaded, accepted=[removal.description for removal in removals])
        else:
            topic_table.check_removals(removals, now, loaded, self.restored_by)
        self.newest_mark = (commits[-1].mark if commits else None) or {}
        if self.orphans_looked_for_ms is None and commits:
            self.orphans_looked_for_ms = commits[-1].time_ms
        self.checked_version, self._checked_offsets = now.version, loaded
        return loaded

    def mark_sound(self, at: Snapshot, loaded: Mapping[int, int], **mark_fields: Any) -> bool:
        """Commits, without any row, that the table is sound up to this version, and sets missing identifiers.

        Returns false if another writer committed first.
        """
        known = at.loaded_offsets()
        moved = [
            Advance(number, known.get(number, -1), end)
            for number, end in loaded.items()
            if known.get(number, -1) != end
        ]
        kept = [Advance(number, end, end) for number, end in known.items() if loaded.get(number) == end]
        steps = moved or kept[:1]
        return not steps or self.commit(
            [], steps, checked=at.version, identifiers=len(known.keys() | loaded.keys()), **mark_fields
        )

    def encode_mark(self, files: Sequence[LoadedFile], advances: Sequence[Advance], **mark_fields: Any) -> str:
        """Returns the `userMetadata` of a commit."""
        known = {"identifiers": len(self._checked_offsets.keys() | {step.partition for step in advances})}
        return history.encode_mark(self.topic, files, advances, **(known | mark_fields))

    def judge_unclear_commit(self, files: Sequence[LoadedFile], advances: Sequence[Advance], why: str) -> bool:
        """Returns true if a commit of unknown outcome landed, false if another writer committed first.

        Reads the table again. Raises `Unavailable` if the table is unchanged.
        """
        now = self.snapshot()
        state = now.loaded_offsets()
        log.warning("commit has an unknown outcome, table read again table=%s why=%s", self.url, why)
        if all(state.get(step.partition, -1) == step.end for step in advances):
            # Either all files of the commit are in the table, or none: another loader committed the same step.
            return not files or now.has_file(files[0].path)
        if any(state.get(step.partition, -1) != step.start for step in advances):
            return False
        raise Unavailable(f"Delta could not commit to {self.url}: {why}")

    def join_small_files(self, is_idle: bool = False) -> int:
        """Joins small files if they are many. Returns how many were joined.

        `is_idle` says that the load found nothing new: then few are joined too.
        """
        keys, parts = self._read_small_files(is_idle)
        if not keys:
            return 0
        from pyspark_tiered.load.convert import join_rows

        removed = [self._state.files[key] for key in keys]
        joined = join_rows(parts, self.url, lambda _, *file: self.folder.upload(*file), self._recent)
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

        rows = self._recent.take(unquote(str(add["path"])))
        if rows is not None:
            return rows
        with local_file(self.folder, add) as local:
            return read_rows(local, joining.ROWS_BYTES_MAX // 2)

    def remove_orphans(self, now_ms: int | None = None) -> int:
        """Removes files that loads left behind, once a day. Returns their number."""
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

    def note_erasures(self, at: TableState, count: int) -> dict[str, Any] | None:
        """Returns Delta's metadata that say that the table heeds so many erasures; None if nothing has to say so."""
        return None

    def replace_files(
        self,
        at: TableState,
        replaced: Sequence[ReplacedFile],
        operation: Mapping[str, Any],
        *,
        files: Sequence[LoadedFile] = (),
        advances: Sequence[Advance] = (),
        renewed: Collection[int] = (),
        metadata: Mapping[str, Any] | None = None,
        may_come: Callable[[Mapping[str, Any]], bool] = lambda _: True,
        changes_data: bool = True,
        **mark_fields: Any,
    ) -> bool:
        """Commits files in the place of old ones, and `files` beside them. Returns false if another writer came first.

        The table has to have the columns and properties of the plan, `at`, and all old files. A file that came since
        has to be one that `may_come`. A partition that advances is where it was, and nobody has renewed its identifier.
        `renewed` are the partitions whose identifiers this commit writes again as they are: no other plan that began
        before it holds. `metadata` are those from now on; None: they stay.
        """
        old = [each.old for each in replaced]
        new = [*(each.new for each in replaced if each.new is not None), *files]
        wanted = at.metadata if metadata is None else metadata
        identifiers = [table_form.app_id(self.topic_id, step.partition) for step in advances]

        def is_valid(state: TableState) -> bool:
            came = (add for key, add in state.files.items() if key not in at.files)
            return (
                not orphans.is_too_old((file.modified_ms for file in new), time.time_ns() // 1_000_000)
                and (state.metadata, state.protocol) == (at.metadata, at.protocol)
                and state.has_files(old)
                and state.is_at_start(self.topic_id, advances)
                and all(state.transactions.get(each) == at.transactions.get(each) for each in identifiers)
                and all(map(may_come, came))
            )

        def actions(now_ms: int) -> list[str]:
            held = table_form.loaded_offsets(self._state.versions(), self.topic_id)
            steps = [*advances, *(Advance(number, held[number], held[number]) for number in renewed if number in held)]
            return [
                *([] if metadata is None else [json.dumps({"metaData": metadata})]),
                *(table_form.remove_action(each, now_ms, changes_data) for each in old),
                *(each.action for each in replaced if each.new is not None),
                *table_form.commit_actions(self.topic_id, files, steps, now_ms, self.prefix),
            ]

        mark = self.encode_mark(files, advances, checked=self.checked_version, **mark_fields)
        try:
            return self.create(actions, is_valid, mark, {**operation, "isBlindAppend": False})
        except UnclearOutcome as failure:
            log.warning("commit has an unknown outcome, table read again table=%s why=%s", self.url, failure)
            now = self.snapshot().state
            is_there = now.metadata == wanted and now.has_files([{"path": each.path} for each in new])
            changes = bool(old or new) or wanted != at.metadata
            return changes and is_there and not any(now.has_files([each]) for each in old)

    def create(
        self,
        actions: Callable[[int], Sequence[str]],
        is_valid: Callable[[TableState], bool],
        mark: str,
        operation: Mapping[str, Any],
    ) -> bool:
        """Creates the next commit while the table `is_valid`; returns false if it is not. Raises `UnclearOutcome`."""
        for _ in range(ATTEMPTS):
            self._read_on()
            if not is_valid(self._state):
                log.info("another loader committed first table=%s", self.url)
                return False
            now_ms = time.time_ns() // 1_000_000
            if self._create_commit(actions(now_ms), mark, operation, now_ms):
                return True
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
        self.iceberg.catch_up()
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
            if count := clean_log(self.folder, self._state.properties(), now_ms):
                log.info("old files of a table's log were deleted table=%s files=%d", self.url, count)
        except (Unavailable, OSError) as failure:
            log.warning(
                "checkpoint was not written, or the log not cleaned table=%s version=%d why=%s",
                self.url,
                version,
                failure,
            )

    def pin(self) -> Snapshot:
        """Returns the table as it is now, in a form that no later commit changes. It may need other writers.

        Raises `Refused` for another topic's table, or one without the columns of a load.
        """
        self._read_on(to_write=False)
        return Snapshot(self.folder, self._state.copy(), dict(self._log.recent), self.topic_id, self.file_form)

    def _read_on(self, *, to_write: bool = True) -> None:
        """Reads the commits that are new. Raises `Refused` for another topic's table, or for one that this package
        cannot write, and `Corrupt`."""
        state = self._log.read()
        if self._log.times_forgotten != self._times_forgotten:
            self._times_forgotten = self._log.times_forgotten
            self.forget_checks()  # it may be another table of that name
        if state.version < 0:
            return
        try:
            if not _is_same(self._readable, state):
                check_table_topic(state.held_topic(), self.url, self.topic, self.topic_id)
                self._check_columns(state)
                self._readable = state.metadata, state.protocol
            if to_write and not _is_same(self._writable, state):
                self._check_form(state)
                self._writable = state.metadata, state.protocol
        except Refused:
            self._readable, self._writable = None, None
            self._log.forget()  # so that the next look checks again
            raise

    def _check_columns(self, state: TableState) -> None:
        """Raises `Refused` if this package cannot read the table, or the table lacks a column."""
        delta_state.check_reader(state, self.url)
        check_columns(str(state.metadata["schemaString"]), self.url)

    def _check_form(self, state: TableState) -> None:
        """Raises `Refused` if this package cannot write the table."""
        delta_state.check_writer(state, self.url, table_features.KNOWN, WAY_OUT)


def _is_same(known: tuple[Mapping[str, Any], Mapping[str, Any]] | None, state: TableState) -> bool:
    return known is not None and known[0] is state.metadata and known[1] is state.protocol
