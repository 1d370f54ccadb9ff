"""Changes that others made to a table between two loads, from Delta's commit files, and rows that they removed. Pure.

Each commit of the loader carries a mark in `userMetadata`: the content of the commit, and up to which version the table
was found sound before it. A load looks at the commits since then. Changes of layout remove no rows. DELETE with a
condition, UPDATE and MERGE remove rows that a user selected: the load warns and goes on. All other removals stop the
load, because they also remove rows that nobody selected: RESTORE, TRUNCATE, DELETE of all rows, OVERWRITE.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark_tiered.delta.table_form import Advance, LoadedFile, app_id

MARK = "tiered"
"""Key of the loader's own JSON in a commit's `userMetadata`."""
SELECTIVE_OPERATIONS = ("DELETE", "UPDATE", "MERGE")
"""Operations of Delta by which a user selects rows, if they have a condition."""
NO_CONDITION = ("", "[]", '["true"]')

Json = dict[str, Any]


class FileExtent(NamedTuple):
    """Bounds of the rows in files. None: the files have no statistics on it."""

    first_partition: int | None
    last_partition: int | None
    last_offset: int | None
    first_offset: int | None = None

    def may_hold(self, partition: int, offset: int) -> bool:
        """True if a row can be in these files. Always true without statistics."""
        if self.first_partition is None or self.last_partition is None:
            return True
        low, high = self.first_offset, self.last_offset
        inside = (low is None or low <= offset) and (high is None or offset <= high)
        return self.first_partition <= partition <= self.last_partition and inside


class FileChange(NamedTuple):
    """A file that a commit added or removed. `key` is its path, and its deletion vector if it has one."""

    key: str
    changes_data: bool
    extent: FileExtent


class TableCommit(NamedTuple):
    """One commit of the table.

    `mark` is the loader's mark, None if the commit has none. `by_loader` is true for a loader's commit, also without a
    mark.
    """

    version: int
    operation: str
    parameters: Mapping[str, str]
    time_ms: int
    by_loader: bool
    mark: Json | None
    added: tuple[FileChange, ...]
    removed: tuple[FileChange, ...]


class RowRemoval(NamedTuple):
    """A commit by which others removed rows from the table. `is_selective`: by a condition on rows."""

    version: int
    description: str
    is_selective: bool
    extents: tuple[FileExtent, ...]

    def may_have_removed(self, partition: int, offset: int) -> bool:
        """True if the row was in a file that the commit removed."""
        return any(extent.may_hold(partition, offset) for extent in self.extents)


def encode_mark(
    topic: str,
    files: Iterable[LoadedFile],
    advances: Sequence[Advance],
    checked: int | None,
    identifiers: int,
    **more: Any,
) -> str:
    """Returns the `userMetadata` of a loader's commit.

    `checked` is the version up to which the table was found sound, `identifiers` the number of partitions that have a
    transaction identifier after the commit.
    """
    fields: Json = {
        "topic": topic,
        "offsets": {str(step.partition): [max(step.start, 0), step.end] for step in advances},
        "rows": sum(file.rows for file in files),
        "identifiers": identifiers,
    }
    if checked is not None:
        fields["checked"] = checked
    return json.dumps({MARK: fields | {key: value for key, value in more.items() if value}})


def parse_commit(version: int, text: str, topic_id: str) -> TableCommit:
    """Parses the lines of a commit file."""
    actions = [json.loads(line) for line in text.splitlines() if line.strip()]
    info: Json = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    found = parse_mark(info.get("userMetadata"))
    by_loader = found is not None or any(
        str(action["txn"]["appId"]).startswith(app_id(topic_id, 0)[:-1]) for action in actions if "txn" in action
    )
    return TableCommit(
        version,
        str(info.get("operation", "an unnamed operation")),
        {key: str(value) for key, value in (info.get("operationParameters") or {}).items()},
        int(info.get("timestamp", 0)),
        by_loader,
        found,
        tuple(_parse_file_change(action["add"]) for action in actions if "add" in action),
        tuple(_parse_file_change(action["remove"]) for action in actions if "remove" in action),
    )


def find_row_removals(commits: Sequence[TableCommit]) -> list[RowRemoval]:
    """Returns the commits, in order of version, that removed loaded rows which did not come back.

    The table before the first commit counts as sound.
    """
    found: list[RowRemoval] = []
    present: dict[str, bool] = {}
    foreign_files: set[str] = set()
    extents: dict[str, FileExtent] = {}
    base = commits[0].version - 1 if commits else 0
    newest = base
    for each in commits:
        for change in each.removed:
            if change.key not in foreign_files:  # files that others added meanwhile held no loaded rows
                present[change.key] = False
        for change in each.added:
            extents[change.key] = change.extent
            if each.by_loader or change.key in present:
                present[change.key] = True
            else:
                foreign_files.add(change.key)
        if each.by_loader:
            newest = each.version
        elif (restored := _restored_version(each)) is not None and restored >= newest:
            found = [removal for removal in found if removal.version <= restored]
        elif any(change.changes_data for change in each.removed):
            found.append(_row_removal(each, extents))
    return found if not all(present.values()) else []


def _restored_version(each: TableCommit) -> int | None:
    """Returns the version that a RESTORE names. Returns None for a RESTORE to a time, and for any other commit."""
    version = each.parameters.get("version", "") if each.operation == "RESTORE" else ""
    return int(version) if version.isdecimal() else None


def _row_removal(each: TableCommit, extents: Mapping[str, FileExtent]) -> RowRemoval:
    at = datetime.fromtimestamp(each.time_ms / 1000, UTC)
    is_selective = each.operation in SELECTIVE_OPERATIONS and not (
        each.operation == "DELETE" and each.parameters.get("predicate", "").replace(" ", "") in NO_CONDITION
    )
    operation = each.operation
    if operation == "WRITE":
        operation = "OVERWRITE"
    elif operation == "DELETE" and not is_selective:
        operation = "DELETE of all rows"
    elif operation == "RESTORE":
        restored = each.parameters.get("version")
        operation = f"RESTORE to version {restored}" if restored and restored != "None" else "RESTORE"
    elif is_selective and each.parameters.get("predicate"):
        operation = f"{operation} {each.parameters['predicate']}"
    row_extents = tuple(extents.get(change.key, change.extent) for change in each.removed if change.changes_data)
    return RowRemoval(
        each.version, f"{operation} (version {each.version}, {at:%Y-%m-%d %H:%M:%S} UTC)", is_selective, row_extents
    )


def parse_mark(user_metadata: object) -> Json | None:
    """Returns the loader's mark in the `userMetadata` of a commit; None if it has none."""
    if not isinstance(user_metadata, str):
        return None
    try:
        found = json.loads(user_metadata)
    except ValueError:
        return None
    inner = found.get(MARK) if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else None


def _parse_file_change(file: Json) -> FileChange:
    vector = file.get("deletionVector") or {}
    key = f"{file['path']} {vector.get('pathOrInlineDv', '')} {vector.get('offset', '')}".rstrip()
    return FileChange(key, bool(file.get("dataChange", True)), parse_extent(file.get("stats")))


def parse_extent(stats: str | None) -> FileExtent:
    """Returns the bounds in the statistics of an add action."""
    try:
        parsed = json.loads(stats or "{}")
        least, most = parsed.get("minValues") or {}, parsed.get("maxValues") or {}
    except ValueError:
        least, most = {}, {}
    prefix = "_" if "_partition" in least else ""  # of the record's columns in a typed table
    partition, offset = f"{prefix}partition", f"{prefix}offset"
    return FileExtent(least.get(partition), most.get(partition), most.get(offset), least.get(offset))


def may_hold_unaccounted(extents: Iterable[FileExtent], loaded: Mapping[int, int], trusted_count: int | None) -> bool:
    """True if files may hold rows that no transaction identifier covers: rows of a partition without one, or at or
    above its bound. Then the rows themselves have to be read.

    Files that mix partitions (OPTIMIZE makes them) have only a common last offset. `trusted_count` is the number of
    identifiers at the last mark. If none has disappeared since, rows that the mark covers need no second check.
    """
    is_complete = trusted_count is not None and len(loaded) >= trusted_count
    for first, last, offset, _ in extents:
        if first is None or last is None or offset is None:
            return True
        if first == last:
            if offset >= loaded.get(first, -1):
                return True
        elif not is_complete and any(offset >= loaded.get(number, -1) for number in range(first, last + 1)):
            return True
    return False
