"""A typed table, and the table of its dead letters: their state, their columns, and their commits.

Both are written by the package's own writer of Delta's log, whichever engine converts. Each commit is valid only while
the columns are those of the plan and each partition is still where its step starts.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark_tiered import delta_state
from pyspark_tiered.delta_state import TableState
from pyspark_tiered.log_folder import BucketConnection, UnclearOutcome
from pyspark_tiered.native_table import ATTEMPTS, NativeSnapshot, NativeTable
from pyspark_tiered.table import Advance, LoadedFile, Range
from pyspark_tiered.typed import form
from pyspark_tiered.typed.form import DEAD_COLUMNS, ValueRules
from pyspark_tiered.typed.kinds import StructOf, select_columns
from pyspark_tiered.typed.names import RECORD_COLUMNS
from pyspark_tiered.typed.rewrite import rewrite_file
from tiered.errors import Code, Refused, Unavailable

log = logging.getLogger(__name__)

Json = dict[str, Any]


class RecordTable(NativeTable):
    """A table whose first columns are those of the record."""

    def __init__(
        self, url: str, topic: str, topic_id: str, columns: Sequence[str], shared: BucketConnection | None
    ) -> None:
        super().__init__(url, topic, topic_id, shared)
        self._columns = columns
        self._is_mine = False

    @property
    def exists(self) -> bool:
        """True if there was a table when it was read last."""
        return self._state.version >= 0

    def snapshot(self) -> NativeSnapshot:
        self._read_on()
        return NativeSnapshot(self.folder, self._state, self._log.recent, self.topic_id, ("_partition", "_offset"))

    @property
    def holds_topic(self) -> bool:
        """True if a table of this topic was read."""
        return self._is_mine

    def files(self) -> list[Json]:
        """Returns the add actions of the table's files."""
        return list(self._state.files.values())

    def properties(self) -> dict[str, str]:
        """Returns the table's properties."""
        return self._state.properties()

    def _check_form(self, state: TableState) -> None:
        self._is_mine = True

        def describe(metadata: Mapping[str, Any]) -> str:
            return form.describe_other_columns(metadata, self._columns)

        delta_state.check_plain(state, self.url, describe)

    def append(
        self,
        files: Sequence[LoadedFile],
        advances: Sequence[Advance],
        metadata: Json,
        lines: Sequence[str] = (),
        **mark_fields: Any,
    ) -> bool:
        """Commits files and advances, after `lines`. Returns false if another writer committed first: then plan again.

        `metadata` is that of the plan; `mark_fields` go into the mark. Raises `Unavailable` if the outcome is unclear
        and the table is unchanged.
        """
        mark = self.encode_mark(files, advances, checked=self.checked_version, **mark_fields)

        def is_valid(state: TableState) -> bool:
            return state.metadata == metadata and state.is_at_start(self.topic_id, advances)

        def actions(now_ms: int) -> list[str]:
            return [*lines, *form.commit_actions(self.topic_id, files, advances, now_ms)]

        try:
            return self.create(actions, is_valid, mark, delta_state.append_operation(files))
        except UnclearOutcome as failure:
            return self.judge_unclear_commit(files, advances, str(failure))

    def create(
        self,
        actions: Callable[[int], Sequence[str]],
        is_valid: Callable[[TableState], bool],
        mark: str,
        operation: Json,
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

    @property
    def metadata(self) -> Json:
        """Returns Delta's metadata of the table, as it was read last."""
        return self._state.metadata

    @property
    def version(self) -> int:
        """Returns the version that was read last; -1 if there is no table."""
        return self._state.version

    def metadata_mark(self) -> str:
        """Returns the `userMetadata` of a commit that brings no rows."""
        return self.encode_mark([], [], checked=self.checked_version)


class TypedTable(RecordTable):
    """The typed table of a topic."""

    def __init__(self, url: str, topic: str, topic_id: str, shared: BucketConnection | None = None) -> None:
        super().__init__(url, topic, topic_id, RECORD_COLUMNS, shared)

    def schema(self) -> StructOf:
        """Returns the columns of the values."""
        return form.read_schema(self._state.metadata) if self.exists else StructOf()

    def rules(self) -> ValueRules | None:
        """Returns how values become columns; None without a table. Raises `Refused` if it is no typed table."""
        if not self.exists:
            return None
        found = form.read_rules(self.properties())
        if found is None:
            raise Refused(Code.INVALID_REQUEST, f"the table at {self.url} is no typed table: move it away")
        return found

    def set_schema(self, schema: StructOf, rules: ValueRules) -> bool:
        """Commits other columns; the first time this creates the table. Returns false if another writer came first."""
        fields = form.typed_fields(select_columns(schema))
        before = self._state.metadata

        def actions(now_ms: int) -> list[str]:
            if self._state.version < 0:
                properties = form.typed_properties(rules)
                unique = str(uuid.uuid4())
                return form.creation_actions(self.topic, self.topic_id, fields, properties, unique, now_ms)
            return [form.metadata_action(before, fields)]

        def is_valid(state: TableState) -> bool:
            return state.metadata == before

        try:
            return self.create(actions, is_valid, self.metadata_mark(), _SET_COLUMNS)
        except UnclearOutcome as failure:
            raise Unavailable(f"the columns of {self.url} may have changed: {failure}") from failure

    def widen(self, schema: StructOf) -> bool:
        """Gives the table wider columns, and writes its files again. Returns false if another writer came first."""
        before, held = self._state.metadata, set(self._state.files)
        known, wanted = self.schema(), select_columns(schema)
        found = [rewrite_file(self.folder, add, known, wanted) for add in self.files()]
        written = [each for each in found if each is not None]

        def actions(now_ms: int) -> list[str]:
            lines = [form.metadata_action(before, form.typed_fields(wanted))]
            for each in written:
                lines.append(form.remove_action(each.add, now_ms, changes_data=False))
                lines.append(form.rewritten_action(each.add, each.path, each.size, now_ms))
            return lines

        def is_valid(state: TableState) -> bool:
            return state.metadata == before and set(state.files) == held

        try:
            return self.create(actions, is_valid, self.metadata_mark(), _SET_COLUMNS)
        except UnclearOutcome as failure:
            raise Unavailable(f"the columns of {self.url} may have changed: {failure}") from failure


class DeadLetters(RecordTable):
    """The dead letters of a topic. An offset below the identifier of its partition is decided: a dead letter, or a
    row."""

    def __init__(self, url: str, topic: str, topic_id: str, shared: BucketConnection | None = None) -> None:
        super().__init__(url, topic, topic_id, DEAD_COLUMNS, shared)

    def append_letters(
        self, files: Sequence[LoadedFile], advances: Sequence[Advance], unchanged_since: int | None = None
    ) -> bool:
        """Commits dead letters; the first time this creates the table. Returns false if another writer came first.

        `unchanged_since` is a version after which nobody else may have committed.
        """
        if unchanged_since is not None and self.snapshot().version != unchanged_since:
            return False
        lines: list[str] = []
        if not self.exists:
            now_ms = time.time_ns() // 1_000_000
            properties = {form.DEAD_OF: self.topic}
            lines = form.creation_actions(
                self.topic, self.topic_id, form.dead_fields(), properties, str(uuid.uuid4()), now_ms
            )
        return self.append(files, advances, self.metadata, lines)

    def offsets(self, ranges: Mapping[int, Range]) -> dict[int, tuple[int, ...]]:
        """Returns the offsets of the dead letters in a range of each partition."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        found: dict[int, list[int]] = {number: [] for number in ranges}
        for add in self.files():
            extents = delta_state.file_extents(add)
            wanted = [
                number for number, held in ranges.items() if any(_may_hold(each, number, held) for each in extents)
            ]
            if not wanted:
                continue
            if add.get("deletionVector"):
                raise Refused(
                    Code.INVALID_REQUEST,
                    f"the table at {self.url} has deletion vectors: run REORG TABLE ... APPLY (PURGE) on it",
                )
            with self.folder.local(delta_state.file_path(add, self.url)) as path:
                held_rows = pq.read_table(path, columns=["_partition", "_offset"])
            for number in wanted:
                offsets = held_rows.filter(pc.equal(held_rows["_partition"], number))["_offset"].to_pylist()
                low, high = ranges[number]
                found[number] += [offset for offset in offsets if low <= offset < high]
        return {number: tuple(sorted(offsets)) for number, offsets in found.items()}


def _may_hold(extent: Any, partition: int, offsets: Range) -> bool:
    first, last, high, low = extent
    if first is None or last is None or low is None or high is None:
        return True
    return bool(first <= partition <= last and low < offsets[1] and high >= offsets[0])


_SET_COLUMNS: Json = {"operation": "CHANGE COLUMNS", "operationParameters": {}, "isBlindAppend": False}
