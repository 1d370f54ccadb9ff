"""One version of a table, as loads, queries and proofs look at it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pyspark_tiered.delta import delta_state, history, table_form
from pyspark_tiered.delta.data_files import FileForm, TableFile, place_schema, read_form, read_places
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.history import FileExtent, TableCommit
from pyspark_tiered.delta.log_folder import LOG, TableFolder
from tiered.errors import Code, Refused

COMMITS_MAX = 1000
"""Commits that are read at most in a log without a mark. A table of today's loader has few since its last mark."""
UNACCOUNTED_MAX = 1000
"""Partitions with rows that no identifier covers: no more are listed."""


class UnaccountedRows(NamedTuple):
    """Rows of a partition that no transaction identifier covers. Partition None: rows without partition or offset."""

    partition: int | None
    first: int | None
    last: int | None


class Snapshot:
    """A table at the version that was read last, or at one that is kept (`TableState.copy`). Version -1: no table."""

    def __init__(
        self,
        folder: TableFolder,
        state: TableState,
        recent: Mapping[int, str],
        topic_id: str,
        form: FileForm | None = None,
    ) -> None:
        self.url = folder.url
        self.topic_id = topic_id
        self._form = form
        self.state = state
        self.version = state.version
        self._folder = folder
        self._recent = recent

    def loaded_offsets(self) -> dict[int, int]:
        """Returns the next offset per partition, from the transaction identifiers."""
        return table_form.loaded_offsets(self.state.versions(), self.topic_id)

    def properties(self) -> dict[str, str]:
        """Returns the table's properties."""
        return self.state.properties()

    def extents(self) -> list[FileExtent]:
        """Returns the bounds of the rows in the table's files."""
        return self.state.extents()

    def files(self) -> list[TableFile]:
        """Returns the table's files."""
        form = self._form or read_form(self.state.metadata)
        return [TableFile(add, form) for add in self.state.files.values()]

    def find_gone(self) -> list[TableFile]:
        """Returns the files of the table that are not in its folder any more."""
        found = self.files()
        stored = {each.name for each in self._folder.list_data_files()} if found else set()
        return [each for each in found if self._is_gone(unquote(str(each.add["path"])), stored)]

    def _is_gone(self, path: str, stored: Collection[str]) -> bool:
        """A list has no files of other writers' names or folders. A file of another table is never gone."""
        is_elsewhere = path.startswith("/") or bool(urlsplit(path).scheme)
        return path not in stored and not is_elsewhere and self._folder.modified_ms(path) is None

    def without(self, files: Sequence[TableFile]) -> Snapshot:
        """Returns this version as if it did not name some of its files."""
        state, paths = self.state.copy(), {str(each.add["path"]) for each in files}
        state.files = {key: add for key, add in state.files.items() if add["path"] not in paths}
        return Snapshot(self._folder, state, self._recent, self.topic_id, self._form)

    def has_file(self, path: str) -> bool:
        """True if the table has this file."""
        return any(add["path"] == path for add in self.state.files.values())

    def read_commit(self, version: int) -> str | None:
        """Returns the lines of a commit; None if its file was deleted."""
        if version in self._recent:
            return self._recent[version]
        data = self._folder.read(f"{LOG}/{delta_state.commit_name(version)}")
        return None if data is None else data.decode()

    def find_unaccounted_rows(self, loaded: Mapping[int, int]) -> list[UnaccountedRows]:
        """Returns rows of partitions without an identifier, or at or above its bound. Reads no other files."""
        import pyarrow as pa
        import pyarrow.compute as pc

        ends = pa.table({"partition": list(loaded), "end": list(loaded.values())}, schema=_ends_schema())
        parts = []
        for add, form in self.files():
            if not any(_may_hold_unaccounted(extent, loaded) for extent in delta_state.file_extents(add)):
                continue
            held = pa.Table.from_batches(read_places(self._folder, add, form), place_schema())
            joined = held.join(ends, "partition", join_type="left outer")
            beyond = pc.or_(pc.is_null(joined["end"]), pc.greater_equal(joined["offset"], joined["end"]))
            nowhere = pc.or_(pc.is_null(joined["partition"]), pc.is_null(joined["offset"]))
            wrong = joined.filter(pc.or_kleene(pc.fill_null(beyond, True), nowhere))
            parts.append(wrong.group_by("partition").aggregate([("offset", "min"), ("offset", "max")]))
        if not parts:
            return []
        spans = pa.concat_tables(parts).group_by("partition").aggregate([("offset_min", "min"), ("offset_max", "max")])
        found = [
            UnaccountedRows(row["partition"], row["offset_min_min"], row["offset_max_max"])
            for row in spans.sort_by("partition").slice(0, UNACCOUNTED_MAX).to_pylist()
        ]
        return sorted(found, key=lambda each: -1 if each.partition is None else each.partition)

    def commits(self, above: int | None = None, past_marks: bool = False) -> tuple[list[TableCommit], bool]:
        """Returns commits up to this version, in order, and whether the log reaches back far enough.

        The commits are those after `above`, or after the version that the newest mark found sound. With `past_marks`
        they are as many as the log still has.
        """
        found: list[TableCommit] = []
        floor = -1 if above is None else above
        version = self.version
        while version > floor and len(found) < COMMITS_MAX:
            text = self.read_commit(version)
            if text is None:
                break
            each = history.parse_commit(version, text, self.topic_id)
            found.append(each)
            if each.mark is not None and "checked" in each.mark and not past_marks:
                floor = max(floor, int(each.mark["checked"]))
                past_marks = True
            version -= 1
        return found[::-1], version <= floor


def _may_hold_unaccounted(extent: FileExtent, loaded: Mapping[int, int]) -> bool:
    first, last, offset, _ = extent
    if first is None or last is None or offset is None or last - first > UNACCOUNTED_MAX:
        return True
    return any(offset >= loaded.get(number, -1) for number in range(first, last + 1))


def _ends_schema() -> Any:
    import pyarrow as pa

    return pa.schema([("partition", pa.int32()), ("end", pa.int64())])


def check_table_topic(held: tuple[str, str], url: str, topic: str, topic_id: str) -> None:
    """Raises `Refused` unless the table holds this topic. `held` is the topic's id and name in the table's properties.

    Without an id the table is of another program.
    """
    identity, name = held
    if identity != topic_id:
        content = f"topic {name} with id {identity}" if identity else "something else"
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} holds {content}, not topic {topic} with id {topic_id}: "
            "load into another warehouse, or move the old table away",
        )


def check_columns(schema: str, url: str) -> None:
    """Raises `Refused` unless the table, whose schema is JSON, still has the columns of a load under their names."""
    there = {str(field["name"]) for field in json.loads(schema)["fields"]}
    lacking = [name for name in table_form.COLUMNS if name not in there]
    if lacking:
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} has no column {', '.join(lacking)}: ALTER TABLE renamed or dropped it. "
            "Rename it back, RESTORE the table to the version before, or load into another warehouse",
        )
