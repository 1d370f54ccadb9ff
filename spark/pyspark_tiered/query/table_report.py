"""Reports on tables from Delta's log: a summary, an entry of the history, the difference of two versions. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pyspark_tiered.delta import history, table_form
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.typed import form

Json = dict[str, Any]


class TableSummary(NamedTuple):
    """A table at one version. `rows` is None if a file has no statistics.

    `kind` is raw, latest, typed, dead letters, or foreign: a table of another program. `offsets` are the next ones to
    load.
    `loaded_ms` is the time of the last load, `newest_ms` the greatest timestamp of a record.
    """

    name: str
    kind: str
    topic: str
    topic_id: str
    version: int
    rows: int | None
    files: int
    bytes: int
    loaded_ms: int | None
    newest_ms: int | None
    offsets: Mapping[int, int]


class HistoryEntry(NamedTuple):
    """One commit. `offsets` are `[start, end)` of each partition that it loaded."""

    version: int
    time_ms: int
    operation: str
    files_added: int
    files_removed: int
    offsets: Mapping[int, tuple[int, int]]
    parameters: Mapping[str, Any]
    metrics: Mapping[str, Any]
    mark: Mapping[str, Any] | None


class TableDifference(NamedTuple):
    """The change from one version of a table to another one. `offsets` are the bounds before and after.

    `columns` and `properties` have the value before and after of each that changed, None where it is absent.
    """

    rows: int | None
    files_added: int
    files_removed: int
    bytes: int
    offsets: Mapping[int, tuple[int, int]]
    columns: Mapping[str, tuple[str | None, str | None]]
    properties: Mapping[str, tuple[str | None, str | None]]


def summarize(name: str, state: TableState) -> TableSummary:
    """Returns the summary of a table."""
    topic_id, topic = state.held_topic()
    stats = [_stats(add) for add in state.files.values()]
    times = [found for each in stats if (found := _newest_ms(each)) is not None]
    loads = [int(each.get("lastUpdated") or 0) for app, each in state.transactions.items() if _is_of(app, topic_id)]
    return TableSummary(
        name,
        table_kind(state),
        topic,
        topic_id,
        state.version,
        _count_rows(state, stats),
        len(state.files),
        sum(int(add.get("size", 0)) for add in state.files.values()),
        max(loads, default=0) or None,
        max(times, default=None),
        table_form.loaded_offsets(state.versions(), topic_id) if topic_id else {},
    )


def table_kind(state: TableState) -> str:
    """Returns raw, latest, typed, dead letters or foreign."""
    properties = state.properties()
    if form.DEAD_OF in properties:
        return "dead letters"
    if form.VALUES in properties:
        return "typed"
    if properties.get(table_form.MODE, "") == table_form.LATEST:
        return "latest"
    return "raw" if table_form.TOPIC_ID in properties else "foreign"


def count_rows(state: TableState) -> int | None:
    """Returns the number of rows; None if a file has no statistics."""
    return _count_rows(state, map(_stats, state.files.values()))


def _count_rows(state: TableState, stats: Iterable[Json]) -> int | None:
    total = 0
    for add, each in zip(state.files.values(), stats, strict=True):
        found = each.get("numRecords")
        if not isinstance(found, int):
            return None
        total += found - int((add.get("deletionVector") or {}).get("cardinality") or 0)
    return total


def columns_of(state: TableState) -> dict[str, str]:
    """Returns the type of each column, in Spark's words."""
    fields = json.loads(str(state.metadata.get("schemaString", "{}"))).get("fields", ())
    return {str(field["name"]): type_text(field["type"]) for field in fields}


def type_text(kind: Any) -> str:
    """Returns a type in Spark's words: `array<struct<key:string,value:binary>>`."""
    if not isinstance(kind, dict):
        return {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}.get(str(kind), str(kind))
    if kind.get("type") == "array":
        return f"array<{type_text(kind['elementType'])}>"
    if kind.get("type") == "map":
        return f"map<{type_text(kind['keyType'])},{type_text(kind['valueType'])}>"
    inner = ",".join(f"{field['name']}:{type_text(field['type'])}" for field in kind.get("fields", ()))
    return f"struct<{inner}>"


def history_entry(version: int, actions: Iterable[Json]) -> HistoryEntry:
    """Returns the entry of a commit in the history."""
    info: Json = {}
    added = removed = 0
    ends: dict[int, tuple[int, int]] = {}
    for action in actions:
        info = action.get("commitInfo") or info
        added += "add" in action
        removed += "remove" in action
    mark = history.parse_mark(info.get("userMetadata"))
    for number, (start, end) in ((mark or {}).get("offsets") or {}).items():
        ends[int(number)] = int(start), int(end)
    return HistoryEntry(
        version,
        int(info.get("timestamp") or 0),
        _operation(info, mark),
        added,
        removed,
        dict(sorted(ends.items())),
        info.get("operationParameters") or {},
        info.get("operationMetrics") or {},
        mark,
    )


def _operation(info: Json, mark: Mapping[str, Any] | None) -> str:
    """Returns the operation in the words of this package if it made the commit, else in Delta's words."""
    if mark is not None:
        for key in ("erased", "repaired", "joined", "accepted"):
            if key in mark:
                return key
        if info.get("operation") == "WRITE":
            return "load"
    return str(info.get("operation", "unnamed"))


def rows_of_entry(entry: HistoryEntry) -> int | None:
    """Returns the rows that a commit brought, less those that it deleted; None if nothing says so."""
    if entry.mark is not None and "rows" in entry.mark:
        return int(entry.mark["rows"])
    metrics = entry.metrics
    came, gone = metrics.get("numOutputRows"), metrics.get("numDeletedRows")
    if entry.operation == "DELETE" and gone is not None:
        return -int(gone)
    return None if came is None else int(came)


def compare_states(before: TableState, after: TableState) -> TableDifference:
    """Returns what changed between two versions of a table."""
    rows = count_rows(before), count_rows(after)
    sizes = [sum(int(add.get("size", 0)) for add in state.files.values()) for state in (before, after)]
    old, new = (table_form.loaded_offsets(state.versions(), state.held_topic()[0]) for state in (before, after))
    moved = {number: (old.get(number, 0), new.get(number, 0)) for number in sorted(old.keys() | new.keys())}
    return TableDifference(
        None if rows[0] is None or rows[1] is None else rows[1] - rows[0],
        len(after.files.keys() - before.files.keys()),
        len(before.files.keys() - after.files.keys()),
        sizes[1] - sizes[0],
        {number: ends for number, ends in moved.items() if ends[0] != ends[1]},
        _changes(before, after, columns_of),
        _changes(before, after, TableState.properties),
    )


def _changes(
    before: TableState, after: TableState, read: Callable[[TableState], Mapping[str, str]]
) -> dict[str, tuple[str | None, str | None]]:
    old, new = read(before), read(after)
    names = [*old, *(name for name in new if name not in old)]
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _is_of(app: str, topic_id: str) -> bool:
    return bool(topic_id) and app.startswith(f"{topic_id}/")


def _stats(add: Mapping[str, Any]) -> Json:
    try:
        found = json.loads(add.get("stats") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _newest_ms(stats: Json) -> int | None:
    most = stats.get("maxValues") or {}
    text = most.get("timestamp") or most.get("_timestamp")
    try:
        return None if text is None else int(datetime.fromisoformat(str(text)).timestamp() * 1000)
    except ValueError:
        return None
