"""A typed table, and the table of its dead letters: their state, their columns, and their commits.

Both are written by the package's own writer of Delta's log, whichever engine converts. Each commit is valid only while
the columns are those of the plan and each partition is still where its step starts. Keeps I27.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_tiered.delta import delta_state, table_features
from pyspark_tiered.delta.data_files import FileForm, TableFile, read_places, read_stored_rows
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.log_folder import BucketConnection, UnclearOutcome
from pyspark_tiered.delta.snapshot import Snapshot
from pyspark_tiered.delta.table_form import LoadedFile, Range, commit_actions
from pyspark_tiered.load.native_table import NativeTable
from pyspark_tiered.proof.comparison import may_hold_any
from pyspark_tiered.schemas.registry import RegistryChoice
from pyspark_tiered.schemas.sorting import RegisteredKinds
from pyspark_tiered.typed import form
from pyspark_tiered.typed.changes import FieldRule, decode_changes, encode_changes, envelope_rules
from pyspark_tiered.typed.evolve import is_stored_as
from pyspark_tiered.typed.form import DEAD_COLUMNS, ValueRules
from pyspark_tiered.typed.kinds import StructOf, select_columns
from pyspark_tiered.typed.names import RECORD_COLUMNS
from pyspark_tiered.typed.rewrite import change_columns
from tiered.errors import Code, Refused, Unavailable

if TYPE_CHECKING:
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

Json = dict[str, Any]
Places = dict[int, "NDArray[np.int64]"]
"""Offsets by partition."""
OnFile = Callable[[int, int], None]
"""Takes how many files are done, of how many."""


MADE_AGAIN = (
    "drop it and the other table of the values, <topic>_typed or <topic>__dead: a load with --values makes both"
)


class RecordTable(NativeTable):
    """A table whose first columns are those of the record."""

    prefix = "_"
    repaired_by = restored_by = f"To make it again, {MADE_AGAIN}"

    def __init__(
        self, url: str, topic: str, topic_id: str, columns: Sequence[str], shared: BucketConnection | None
    ) -> None:
        super().__init__(url, topic, topic_id, shared)
        self._columns = columns
        self.file_form = FileForm({name[1:]: name for name in columns if name in form.RAW_COLUMNS})
        self._is_mine = False

    @property
    def exists(self) -> bool:
        """True if there was a table when it was read last."""
        return self._state.version >= 0

    def pin(self) -> Snapshot:
        self.snapshot()  # checks the form of the table, which all that read it need
        return super().pin()

    @property
    def holds_topic(self) -> bool:
        """True if a table of this topic was read."""
        return self._is_mine

    def is_there(self) -> bool:
        """True if there is a table of this topic. Another topic, or another program, may have a table of that name.

        Raises `Refused` for a log that this package does not read: it may be that of this topic.
        """
        try:
            self.snapshot()
        except Refused:
            if self.holds_topic or not self._log.was_read:
                raise
            return False
        return self.exists

    def files(self) -> list[Json]:
        """Returns the add actions of the table's files."""
        return list(self._state.files.values())

    def properties(self) -> dict[str, str]:
        """Returns the table's properties."""
        return self._state.properties()

    def check_writable(self, state: TableState) -> None:
        """Does nothing: a snapshot of a typed table is checked."""

    def change(
        self,
        actions: Callable[[int], Sequence[str]],
        is_valid: Callable[[TableState], bool],
        operation: str,
        files: Sequence[LoadedFile] = (),
        **mark_fields: Any,
    ) -> bool:
        """Creates a commit that moves no partition. Returns false if another writer came first.

        Raises `Unavailable` if the outcome is not known.
        """
        mark = self.encode_mark(files, [], checked=self.checked_version, **mark_fields)
        entry = {"operation": operation, "operationParameters": {}, "isBlindAppend": False}
        try:
            return self.create(actions, is_valid, mark, entry)
        except UnclearOutcome as failure:
            raise Unavailable(f"{self.url} may have changed ({operation}): {failure}") from failure

    def _check_columns(self, state: TableState) -> None:
        """Does nothing: the columns of values may be any."""

    def _check_form(self, state: TableState) -> None:
        self._is_mine = True

        def describe(metadata: Mapping[str, Any]) -> str:
            return form.describe_other_columns(metadata, self._columns)

        delta_state.check_plain(
            state, self.url, describe, (form.VARIANT_FEATURE,), f"which no load of values writes: {MADE_AGAIN}"
        )

    def check_removal(self) -> None:
        """Raises `Refused` if no row of the table may be removed."""
        if self.exists:
            table_features.check_removal(self.properties(), self.url)

    def note_erasures(self, at: TableState, count: int) -> Json | None:
        """A commit that was planned before this one fails after it, because the metadata changed."""
        if form.heeded_erasures(at.properties()) >= count:
            return None
        return form.with_property(at.metadata, form.ERASURES, str(count))

    def places(self, files: Sequence[Json] | None = None) -> Places:
        """Returns the offsets of all rows, or of those in some files, in any order."""
        return self._read_places(self.files() if files is None else files)

    def _files_with(self, ranges: Mapping[int, Range]) -> list[Json]:
        """Returns the files that may hold rows in a range of each partition."""
        return [add for add in self.files() if may_hold_any(add, {number: [each] for number, each in ranges.items()})]

    def _read_places(self, files: Sequence[Json]) -> Places:
        """Returns the offsets of rows by partition."""
        import numpy as np

        assert self.file_form is not None
        parts: dict[int, list[NDArray[np.int64]]] = {}
        for add in files:
            for held in read_places(self.folder, add, self.file_form):
                placed = held.drop_null()
                partitions, offsets = placed["partition"].to_numpy(), placed["offset"].to_numpy()
                for number in np.unique(partitions).tolist():
                    parts.setdefault(number, []).append(offsets[partitions == number])
        return {number: np.concatenate(each) for number, each in parts.items()}

    @property
    def metadata(self) -> Json:
        """Returns Delta's metadata of the table, as it was read last."""
        return self._state.metadata

    @property
    def version(self) -> int:
        """Returns the version that was read last; -1 if there is no table."""
        return self._state.version


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

    def registered_kinds(
        self, choice: RegistryChoice, brokers: Callable[[], tuple[str, ...]]
    ) -> RegisteredKinds | None:
        """Returns the kinds that have schemas, and where these are; None if values and keys have none."""
        rules = self.rules()
        if rules is None or not rules.are_registered:
            return None
        source = choice.source(self.properties().get(form.REGISTRY, ""), brokers)
        return RegisteredKinds(rules.kind, rules.keys, source)

    def changes(self) -> tuple[FieldRule, ...]:
        """Returns the rules for the values of fields."""
        return decode_changes(self.properties().get(form.CHANGES, "")) if self.exists else ()

    def applied_rules(self) -> tuple[FieldRule, ...]:
        """Returns all rules that change a parsed value: those of its kind, then those that a user named."""
        rules = self.rules()
        return () if rules is None else (*envelope_rules(rules.kind, rules.keys), *self.changes())

    def set_changes(self, changes: Sequence[FieldRule]) -> bool:
        """Commits other rules. Returns false if another writer came first."""
        before = self._state.metadata

        def actions(now_ms: int) -> list[str]:
            return [form.property_action(before, form.CHANGES, encode_changes(changes))]

        return self.change(actions, lambda state: state.metadata == before, "SET TBLPROPERTIES")

    def set_schema(self, schema: StructOf, rules: ValueRules, registry: str = "") -> bool:
        """Commits other columns; the first time this creates the table, which then remembers the URL of a `registry`.
        Returns false if another writer came first."""
        fields = form.typed_fields(select_columns(schema))
        before = self._state.metadata

        def actions(now_ms: int) -> list[str]:
            if self._state.version < 0:
                properties, protocol = form.typed_properties(rules, registry), form.protocol_of(fields)
                return self.creation_actions(form.schema_of(fields), now_ms, properties=properties, protocol=protocol)
            return [form.metadata_action(before, fields)]

        return self.change(actions, lambda state: state.metadata == before, "CHANGE COLUMNS")

    def rewrite(
        self, schema: StructOf, changes: Sequence[FieldRule] | None = None, on_file: OnFile = lambda *_: None
    ) -> bool:
        """Gives the table other columns, and writes its files again; `changes` are new rules, if there are any.
        `on_file` takes how many files are done, of how many.

        Returns false if another writer came first. Raises `Unfit` for a cell that its new type cannot hold.
        """
        at, known, wanted = self._state.copy(), self.schema(), select_columns(schema)
        before = (
            at.metadata if changes is None else form.with_property(at.metadata, form.CHANGES, encode_changes(changes))
        )
        assert self.file_form is not None
        found = []
        for number, add in enumerate(at.files.values()):
            on_file(number, len(at.files))
            found.append(change_columns(self, TableFile(add, self.file_form), known, wanted))
        return self.replace_files(
            at,
            [each for each in found if each is not None],
            {"operation": "CHANGE COLUMNS", "operationParameters": {}},
            metadata=form.with_fields(before, form.typed_fields(wanted)),
            may_come=lambda _: False,
            changes_data=False,
        )

    def grow(self, schema: StructOf) -> bool:
        """Gives the table the columns that values need. Returns false if another writer came first."""
        rules = self.rules()
        assert rules is not None
        if is_stored_as(self.schema(), select_columns(schema)):
            return self.set_schema(schema, rules)
        return self.rewrite(schema)

    def replays(self) -> int:
        """Returns how many replays of dead letters have committed rows."""
        return self._state.versions().get(form.replay_id(self.topic_id), 0)

    def find_places(self, places: Places) -> Places:
        """Returns those of these offsets that are rows."""
        import numpy as np

        ranges = {number: (int(each.min()), int(each.max()) + 1) for number, each in places.items() if len(each)}
        held = self._read_places(self._files_with(ranges))
        return {number: np.intersect1d(held[number], each) for number, each in places.items() if number in held}

    def append_replayed(self, files: Sequence[LoadedFile], replays: int, metadata: Json) -> bool:
        """Commits rows that were dead letters, while the table has the columns of the plan and so many replays.

        Returns false if another writer came first.
        """
        mark = self.encode_mark(files, [], checked=self.checked_version, replayed=True)

        def actions(now_ms: int) -> list[str]:
            counted = form.replay_action(self.topic_id, replays + 1, now_ms)
            return [*commit_actions(self.topic_id, files, [], now_ms, self.prefix), counted]

        def is_valid(state: TableState) -> bool:
            return state.metadata == metadata and state.versions().get(form.replay_id(self.topic_id), 0) == replays

        try:
            return self.create(actions, is_valid, mark, delta_state.append_operation(files))
        except UnclearOutcome as failure:
            return self.judge_unclear_commit(files, [], str(failure))


class DeadLetters(RecordTable):
    """The dead letters of a topic. An offset below the identifier of its partition is decided: a dead letter, or a
    row."""

    def __init__(self, url: str, topic: str, topic_id: str, shared: BucketConnection | None = None) -> None:
        super().__init__(url, topic, topic_id, DEAD_COLUMNS, shared)

    def create_table(self) -> bool:
        """Creates the table. Returns false if another writer came first."""

        def actions(now_ms: int) -> list[str]:
            schema = form.schema_of(form.dead_fields())
            return self.creation_actions(schema, now_ms, properties={form.DEAD_OF: self.topic})

        return self.change(actions, lambda state: state.version < 0, "CHANGE COLUMNS")

    def offsets(self, ranges: Mapping[int, Range]) -> dict[int, tuple[int, ...]]:
        """Returns the offsets of the dead letters in a range of each partition."""
        found = self._read_places(self._files_with(ranges))
        chosen: dict[int, tuple[int, ...]] = {}
        for number, (low, high) in ranges.items():
            offsets = sorted(set(found[number].tolist())) if number in found else []
            chosen[number] = tuple(offset for offset in offsets if low <= offset < high)
        return chosen

    def read(self, files: Sequence[Json]) -> Iterator[tuple[int, pyarrow.RecordBatch]]:
        """Yields the letters in files, some of one partition at a time."""
        import pyarrow.compute as pc

        for add in files:
            for batch, _ in read_stored_rows(self.folder, add, DEAD_COLUMNS):
                partitions = batch.column("_partition")
                for number in pc.unique(partitions).to_pylist():
                    yield number, batch.filter(pc.equal(partitions, number)).select(list(DEAD_COLUMNS))
