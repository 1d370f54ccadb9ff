"""The commit that puts a rebuilt table in the place of the old one. Pure.

A rebuild fills a table of its own in a hidden folder of the old one. Delta's VACUUM leaves such folders alone. The
exchange is one commit of the old table: it removes all old files, and adds the new ones by their paths from the old
table's folder. Each folder serves one rebuild, so no commit names a file as removed and as added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark_tiered.delta import table_features, table_form, topic_table
from pyspark_tiered.delta.delta_state import TableState
from pyspark_tiered.delta.rebuild_folder import APP_ID, folder_of
from pyspark_tiered.delta.table_form import Advance
from pyspark_tiered.log.plan import ColdTopic, cleaned_ranges
from tiered.errors import Code, Refused


def check_rebuildable(state: TableState, url: str, cold: ColdTopic, erased: int) -> None:
    """Raises `Refused` if a rebuild would change more of a raw table than its rows, or could not keep what it holds.

    `erased` counts the rows that were erased: the bucket may still hold them.
    """
    topic_table.refuse_latest(state.properties(), url, "which no rebuild makes yet")
    table_features.check_removal(state.properties(), url)
    table_features.check_append(state.metadata, url)
    why = ""
    if erased:
        why = f"{erased:,} rows of it were erased, and a rebuild would bring them back"
    elif any(cleaned_ranges(cold).values()):
        why = f"{cold.name} was compacted, and the table may hold rows that the log no longer has"
    elif state.metadata.get("partitionColumns"):
        why = "it has partition columns"
    elif state.properties().get(table_features.MAPPING, "none") != "none":
        why = "its columns have other names in its files"
    elif _columns(json.loads(str(state.metadata["schemaString"]))) != _columns(table_form.SCHEMA):
        why = "its columns are not those of a load"
    if why:
        raise Refused(Code.INVALID_REQUEST, f"the table at {url} cannot be rebuilt: {why}")


def _columns(schema: Mapping[str, Any]) -> list[str]:
    return [str(field["name"]) for field in schema["fields"]]


def plan_advances(old: Mapping[int, int], new: Mapping[int, int]) -> list[Advance] | None:
    """Returns the steps from the loaded offsets of the old table to those of the new one; None if the new one lacks
    records that the old one has."""
    if any(new.get(number, 0) < end for number, end in old.items()):
        return None
    return [Advance(number, old.get(number, -1), end) for number, end in sorted(new.items())]


def exchange_actions(
    old: Iterable[Mapping[str, Any]],
    new: Iterable[Mapping[str, Any]],
    number: int,
    topic: str,
    topic_id: str,
    advances: Sequence[Advance],
    now_ms: int,
) -> list[str]:
    """Returns the JSON lines of the exchange. `old` and `new` are the add actions of both tables."""
    place = folder_of(number, topic)
    added = [{**each, "path": f"{place}/{each['path']}", "dataChange": True} for each in new]
    txn = {"appId": APP_ID, "version": number, "lastUpdated": now_ms}
    return [
        *(table_form.remove_action(each, now_ms, changes_data=True) for each in old),
        *(json.dumps({"add": each}) for each in added),
        *table_form.commit_actions(topic_id, [], advances, now_ms),
        json.dumps({"txn": txn}),
    ]


def exchange_operation(removed: int, added: int) -> dict[str, Any]:
    """Returns the history entry: Delta's word for a table that is written anew."""
    return {
        "operation": "WRITE",
        "operationParameters": {"mode": "Overwrite", "partitionBy": "[]"},
        "isBlindAppend": False,
        "operationMetrics": {"numFiles": str(added), "numRemovedFiles": str(removed)},
    }
