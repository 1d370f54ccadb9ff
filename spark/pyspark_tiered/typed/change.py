"""Changes how the fields of a typed table become columns (`changes.py`). Loads and replays heed it from its commit on.

A field that is renamed, retyped or dropped changes rows that are there, so their files are written again in the same
commit. The log is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from pyspark_tiered.delta.folder_url import spark_url
from pyspark_tiered.log.bucket import ColdTopicReader, never_loaded
from pyspark_tiered.typed import form
from pyspark_tiered.typed.changes import (
    Change,
    FieldRule,
    add_change,
    drop_field,
    format_path,
    parse_path,
    rename_field,
    retype_field,
)
from pyspark_tiered.typed.ddl import parse_scalar
from pyspark_tiered.typed.evolve import Unfit
from pyspark_tiered.typed.field_count import FieldCount, count_field
from pyspark_tiered.typed.names import KEY
from pyspark_tiered.typed.tables import OnFile, TypedTable
from tiered.errors import Code, Refused, Unavailable

ATTEMPTS = 10
"""Commits of other writers in a row that may come first."""


class FieldChanger:
    """Changes of one field of the typed table of a topic.

    Each raises `Refused` if there is no such table or field, or if the field cannot be changed so.
    """

    def __init__(self, store: str, topic: str, warehouse: str, field: str, on_file: OnFile = lambda *_: None) -> None:
        """`on_file` is called after each file that was looked at, with the number of all."""
        self._on_file = on_file
        self._store = store
        self._topic = topic
        self._url = f"{spark_url(warehouse)}/{topic}{form.TYPED_SUFFIX}"
        self._path = parse_path(field)

    def move_values(self, to: str) -> Change:
        """Adds a rule: values of another type than the column move to the field `to` of the same object.

        An empty `to` drops them.
        """

        made: list[FieldRule] = []

        def change(typed: TypedTable) -> bool:
            self._check_own_types(typed)
            made[:] = add_change(typed.changes(), typed.schema(), self._path, to)
            return typed.set_changes(made)

        self._commit(change)
        assert isinstance(made[-1], Change)
        return made[-1]

    def rename(self, name: str) -> None:
        """Gives the column of the field another name."""
        self._commit(
            lambda typed: typed.rewrite(rename_field(typed.schema(), self._path, name), typed.changes(), self._on_file)
        )

    def retype(self, ddl: str) -> None:
        """Gives the column of the field another type. Raises `Refused` for a row whose cell is no such value."""
        to = parse_scalar(ddl)

        def change(typed: TypedTable) -> bool:
            self._check_own_types(typed)
            typed.check_removal()
            changes, schema = retype_field(typed.changes(), typed.schema(), self._path, to)
            try:
                return typed.rewrite(schema, changes, self._on_file)
            except Unfit as fault:
                raise Refused(
                    Code.INVALID_REQUEST,
                    f"{format_path(self._path)!a} keeps its type, because a row of {typed.url} does not fit: {fault}",
                ) from fault

        self._commit(change)

    def drop(self) -> None:
        """Takes the column of the field out of the table, and its values out of the rows."""

        def change(typed: TypedTable) -> bool:
            self._check_own_types(typed)
            typed.check_removal()
            changes, schema = drop_field(typed.changes(), typed.schema(), self._path)
            return typed.rewrite(schema, changes, self._on_file)

        self._commit(change)

    def count(self) -> FieldCount:
        """Returns how many rows have a value that `drop` would take out. Changes nothing, and raises as `drop` does."""
        with self._open() as typed:
            self._check_own_types(typed)
            typed.check_removal()
            drop_field(typed.changes(), typed.schema(), self._path)
            return count_field(typed, self._path, self._on_file)

    def _check_own_types(self, typed: TypedTable) -> None:
        """Raises `Refused` for a field whose column the schemas of a registry bring."""
        rules = typed.rules()
        kind = "" if rules is None else rules.keys if self._path[0] == KEY else rules.kind
        if kind in form.REGISTERED:
            raise Refused(
                Code.INVALID_REQUEST,
                f"{format_path(self._path)!a} is a field of {kind}: its type is that of its schemas. Only --rename-to "
                "changes its column",
            )

    def _commit(self, change: Callable[[TypedTable], bool]) -> None:
        """Runs a change until no other writer comes first."""
        with self._open() as typed:
            for _ in range(ATTEMPTS):
                if change(typed):
                    return
                typed.snapshot()
            raise Unavailable(f"{ATTEMPTS} other commits to {typed.url} came first: try again")

    @contextmanager
    def _open(self) -> Iterator[TypedTable]:
        """Reads the newest version of the table. Raises `Refused` if there is none."""
        with closing(ColdTopicReader(self._store)) as reader:
            topic_id = reader.topic_id(self._topic)
        with closing(TypedTable(self._url, self._topic, topic_id)) as typed:
            typed.snapshot()
            if typed.rules() is None:
                raise never_loaded(self._topic, typed.url)
            yield typed
