"""What others did to a table between two loads, read from Delta's commit files, and whether it took loaded rows. Pure.

Each commit of the loader carries a mark in `userMetadata`: what it brought, and up to which version the table was
found sound before it. A load looks at the commits since then. Layout changes take no rows. DELETE with a condition,
UPDATE and MERGE are a user's choice of rows and are told. All else that takes rows away stops the load, because it also
takes what nobody chose: RESTORE, TRUNCATE, DELETE of all rows, OVERWRITE.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark_tiered.table import Advance, LoadedFile, app_id

MARK = "tiered"
"""The key of the loader's own JSON in a commit's `userMetadata`."""
CHOICES = ("DELETE", "UPDATE", "MERGE")
"""Operations of Delta by which a user picks rows, where they have a condition."""
NO_CONDITION = ("", "[]", '["true"]')

Json = dict[str, Any]


class Extent(NamedTuple):
    """What the rows of files span at most. None: the files have no statistics on it."""

    first_partition: int | None
    last_partition: int | None
    last_offset: int | None
    first_offset: int | None = None

    def may_hold(self, partition: int, offset: int) -> bool:
        """Whether a row can be there; without statistics it can."""
        if self.first_partition is None or self.last_partition is None:
            return True
        low, high = self.first_offset, self.last_offset
        inside = (low is None or low <= offset) and (high is None or offset <= high)
        return self.first_partition <= partition <= self.last_partition and inside


class FileChange(NamedTuple):
    """A file that a commit added or removed. `key` is its path, with its deletion vector where it has one."""

    key: str
    changes_data: bool
    extent: Extent


class Commit(NamedTuple):
    """One commit of the table. `mark`: it is a loader's, and what this said. `ours` also without a mark."""

    version: int
    operation: str
    parameters: Mapping[str, str]
    time_ms: int
    ours: bool
    mark: Json | None
    added: tuple[FileChange, ...]
    removed: tuple[FileChange, ...]


class Taker(NamedTuple):
    """A commit by which others took rows out of the table. `chosen`: by a condition on rows."""

    version: int
    what: str
    chosen: bool
    extents: tuple[Extent, ...]

    def may_have_taken(self, partition: int, offset: int) -> bool:
        """Whether the row was in a file that the commit removed."""
        return any(extent.may_hold(partition, offset) for extent in self.extents)


def mark(
    topic: str,
    files: Iterable[LoadedFile],
    advances: Sequence[Advance],
    checked: int | None,
    identifiers: int,
    **more: Any,
) -> str:
    """The `userMetadata` of a loader's commit. `checked` is the version up to which nothing was amiss, `identifiers`
    how many partitions then have one."""
    said: Json = {
        "topic": topic,
        "offsets": {str(step.partition): [max(step.start, 0), step.end] for step in advances},
        "rows": sum(file.rows for file in files),
        "identifiers": identifiers,
    }
    if checked is not None:
        said["checked"] = checked
    return json.dumps({MARK: said | {key: value for key, value in more.items() if value}})


def commit(version: int, text: str, topic_id: str) -> Commit:
    """A commit file's lines as they matter here."""
    actions = [json.loads(line) for line in text.splitlines() if line.strip()]
    info: Json = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    found = _mark(info.get("userMetadata"))
    ours = found is not None or any(
        str(action["txn"]["appId"]).startswith(app_id(topic_id, 0)[:-1]) for action in actions if "txn" in action
    )
    return Commit(
        version,
        str(info.get("operation", "an unnamed operation")),
        {key: str(value) for key, value in (info.get("operationParameters") or {}).items()},
        int(info.get("timestamp", 0)),
        ours,
        found,
        tuple(_change(action["add"]) for action in actions if "add" in action),
        tuple(_change(action["remove"]) for action in actions if "remove" in action),
    )


def takers(commits: Sequence[Commit]) -> list[Taker]:
    """The commits, in order of version, that took loaded rows which did not come back. The table before the first
    commit is taken as sound."""
    found: list[Taker] = []
    there: dict[str, bool] = {}
    theirs: set[str] = set()
    extents: dict[str, Extent] = {}
    base = commits[0].version - 1 if commits else 0
    newest = base
    for each in commits:
        for change in each.removed:
            if change.key not in theirs:  # files of others, made meanwhile, are no loss
                there[change.key] = False
        for change in each.added:
            extents[change.key] = change.extent
            if each.ours or change.key in there:
                there[change.key] = True
            else:
                theirs.add(change.key)
        if each.ours:
            newest = each.version
        elif (back := _restored(each)) is not None and back >= newest:
            found = [taker for taker in found if taker.version <= back]
        elif any(change.changes_data for change in each.removed):
            found.append(_taker(each, extents))
    return found if not all(there.values()) else []


def _restored(each: Commit) -> int | None:
    """The version that a RESTORE names; None for a RESTORE to a time, and for anything else."""
    version = each.parameters.get("version", "") if each.operation == "RESTORE" else ""
    return int(version) if version.isdecimal() else None


def _taker(each: Commit, extents: Mapping[str, Extent]) -> Taker:
    at = datetime.fromtimestamp(each.time_ms / 1000, UTC)
    chosen = each.operation in CHOICES and not (
        each.operation == "DELETE" and each.parameters.get("predicate", "").replace(" ", "") in NO_CONDITION
    )
    what = each.operation
    if what == "WRITE":
        what = "OVERWRITE"
    elif what == "DELETE" and not chosen:
        what = "DELETE of all rows"
    elif what == "RESTORE":
        back = each.parameters.get("version")
        what = f"RESTORE to version {back}" if back and back != "None" else "RESTORE"
    elif chosen and each.parameters.get("predicate"):
        what = f"{what} {each.parameters['predicate']}"
    held = tuple(extents.get(change.key, change.extent) for change in each.removed if change.changes_data)
    return Taker(each.version, f"{what} (version {each.version}, {at:%Y-%m-%d %H:%M:%S} UTC)", chosen, held)


def _mark(said: object) -> Json | None:
    if not isinstance(said, str):
        return None
    try:
        found = json.loads(said)
    except ValueError:
        return None
    inner = found.get(MARK) if isinstance(found, dict) else None
    return inner if isinstance(inner, dict) else None


def _change(file: Json) -> FileChange:
    vector = file.get("deletionVector") or {}
    key = f"{file['path']} {vector.get('pathOrInlineDv', '')} {vector.get('offset', '')}".rstrip()
    return FileChange(key, bool(file.get("dataChange", True)), extent(file.get("stats")))


def extent(stats: str | None) -> Extent:
    """The span that an add action's statistics give."""
    try:
        said = json.loads(stats or "{}")
        least, most = said.get("minValues") or {}, said.get("maxValues") or {}
    except ValueError:
        least, most = {}, {}
    return Extent(least.get("partition"), most.get("partition"), most.get("offset"), least.get("offset"))


def suspects(extents: Iterable[Extent], loaded: Mapping[int, int], trusted: int | None) -> bool:
    """Whether files may hold rows that no identifier accounts for: of a partition without one, or at or above its
    bound. Then the rows themselves are asked.

    Files that mix partitions (OPTIMIZE makes them) tell only a common last offset. `trusted` is the number of
    identifiers that the last mark knew: where none is lacking since, what a mark vouches for needs no second look.
    """
    whole = trusted is not None and len(loaded) >= trusted
    for first, last, offset, _ in extents:
        if first is None or last is None or offset is None:
            return True
        if first == last:
            if offset >= loaded.get(first, -1):
                return True
        elif not whole and any(offset >= loaded.get(number, -1) for number in range(first, last + 1)):
            return True
    return False
