"""The metadata file of one version of an Iceberg table. Pure.

Version N of the Delta table is snapshot N + 1, with sequence number N + 1, in the file `v<N + 1>.metadata.json`. A file
names the snapshots of the last versions, so its size is bounded.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from pyspark_tiered.delta import log_cleanup, table_form
from pyspark_tiered.delta.folder_url import bucket_prefix
from pyspark_tiered.iceberg.schema import build_schema, ids, name_mapping
from tiered.errors import Corrupt

Json = dict[str, Any]

FOLDER = "_iceberg/metadata"
"""Files of Iceberg in the folder of a table. VACUUM of every engine leaves folders alone that begin with `_`."""
HINT = f"{FOLDER}/version-hint.text"
ENABLED = "tiered.iceberg"
"""Property of a Delta table: each version gets metadata of Iceberg, too."""
DELTA_VERSION = "tiered.delta.version"
"""Property of an Iceberg table, and of a snapshot: the version of the Delta table."""
SNAPSHOTS_MAX = 100
"""Versions that a metadata file names. The log's retention may leave fewer."""
COPIED = (table_form.TOPIC_ID, table_form.TOPIC_NAME, log_cleanup.RETENTION)
"""Properties of a Delta table that the Iceberg table has, too."""


class Change(NamedTuple):
    """The difference to the version before: files, rows and bytes that came and went, and Iceberg's word for it."""

    operation: str
    added: tuple[int, int, int]
    removed: tuple[int, int, int]
    added_deletes: tuple[int, int, int] = (0, 0, 0)
    removed_deletes: tuple[int, int, int] = (0, 0, 0)


def snapshot_of(version: int) -> int:
    """Returns the snapshot of a version of the Delta table. Iceberg's numbers begin at 1."""
    return version + 1


def metadata_name(version: int) -> str:
    """Returns the name of the metadata file of a version."""
    return f"v{snapshot_of(version)}.metadata.json"


def locate(url: str) -> str:
    """Returns the URL of a table's folder as all engines with Iceberg know it."""
    if url.startswith("file:"):
        return f"file://{url.removeprefix('file:')}"
    bucket, prefix = bucket_prefix(url)
    return f"s3://{bucket}/{prefix}".rstrip("/")


def table_uuid(delta: Mapping[str, Any]) -> str:
    """Returns the identity of the Iceberg table, from Delta's metadata: the same for all who write it."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"tiered:iceberg:{delta.get('id')}"))


def new_metadata(delta: Mapping[str, Any], location: str) -> Json:
    """Returns the metadata of a table without a snapshot yet. Raises `Refused` if Iceberg cannot have such a table."""
    schema = {"schema-id": 0, **build_schema(delta)}
    return {
        "format-version": 2,
        "table-uuid": table_uuid(delta),
        "location": f"{location}/_iceberg",
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": max(ids(schema), default=0),
        "schemas": [schema],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": _properties(delta, schema),
        "current-snapshot-id": -1,
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
    }


def _properties(delta: Mapping[str, Any], schema: Json) -> Json:
    """Without `gc.enabled` no engine deletes data files that the Delta table may still name."""
    held: Mapping[str, str] = delta.get("configuration") or {}
    return {
        **{name: held[name] for name in COPIED if name in held},
        "gc.enabled": "false",
        "schema.name-mapping.default": json.dumps(name_mapping(schema)),
    }


def with_columns(metadata: Json, delta: Mapping[str, Any]) -> Json:
    """Returns the metadata with the columns and properties that Delta's metadata have now."""
    found = build_schema(delta)
    held = next((each for each in metadata["schemas"] if each["fields"] == found["fields"]), None)
    number = held["schema-id"] if held else max(each["schema-id"] for each in metadata["schemas"]) + 1
    schema = held or {"schema-id": number, **found}
    return {
        **metadata,
        "last-column-id": max([metadata["last-column-id"], *ids(schema)]),
        "schemas": metadata["schemas"] if held else [*metadata["schemas"], schema],
        "current-schema-id": number,
        "properties": _properties(delta, schema),
    }


def current_schema(metadata: Mapping[str, Any]) -> Json:
    """Returns the schema of the newest version, with its number."""
    number = metadata["current-schema-id"]
    return next(each for each in metadata["schemas"] if each["schema-id"] == number)


def with_snapshot(metadata: Json, version: int, time_ms: int, change: Change, manifest_list: str) -> Json:
    """Returns the metadata of a version, whose manifests are in a list. Times grow, whatever the clocks of writers."""
    snapshots: list[Json] = metadata["snapshots"]
    last = snapshots[-1] if snapshots else None
    at_ms = max(time_ms, metadata["last-updated-ms"] + 1)
    number = snapshot_of(version)
    snapshot: Json = {
        "snapshot-id": number,
        **({} if last is None else {"parent-snapshot-id": last["snapshot-id"]}),
        "sequence-number": number,
        "timestamp-ms": at_ms,
        "manifest-list": manifest_list,
        "summary": _summary(version, change, {} if last is None else last["summary"]),
        "schema-id": metadata["current-schema-id"],
    }
    kept = _kept([*snapshots, snapshot], metadata["properties"])
    used = {each["schema-id"] for each in kept}
    return {
        **metadata,
        "last-sequence-number": number,
        "last-updated-ms": at_ms,
        "schemas": [each for each in metadata["schemas"] if each["schema-id"] in used],
        "properties": {**metadata["properties"], DELTA_VERSION: str(version)},
        "current-snapshot-id": number,
        "refs": {"main": {"snapshot-id": number, "type": "branch"}},
        "snapshots": kept,
        "snapshot-log": [{"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]} for each in kept],
    }


def _kept(snapshots: Sequence[Json], properties: Mapping[str, str]) -> list[Json]:
    """Returns the snapshots that the retention of Delta's log leaves, the last versions at most, and always the newest
    one."""
    cutoff_ms = log_cleanup.cutoff_ms(properties, snapshots[-1]["timestamp-ms"]) or 0
    return [each for each in snapshots[-SNAPSHOTS_MAX:-1] if each["timestamp-ms"] >= cutoff_ms] + [snapshots[-1]]


def _summary(version: int, change: Change, before: Mapping[str, str]) -> Json:
    def total(name: str, came: int, went: int) -> str:
        return str(int(before.get(name, 0)) + came - went)

    files, rows, sizes = zip(change.added, change.removed, strict=True)
    deletes, positions, _ = zip(change.added_deletes, change.removed_deletes, strict=True)

    figures = {
        "added-data-files": change.added[0],
        "added-records": change.added[1],
        "added-files-size": change.added[2],
        "deleted-data-files": change.removed[0],
        "deleted-records": change.removed[1],
        "removed-files-size": change.removed[2],
        "added-delete-files": change.added_deletes[0],
        "added-position-delete-files": change.added_deletes[0],
        "added-position-deletes": change.added_deletes[1],
        "removed-delete-files": change.removed_deletes[0],
        "removed-position-delete-files": change.removed_deletes[0],
        "removed-position-deletes": change.removed_deletes[1],
    }
    return {
        "operation": change.operation,
        DELTA_VERSION: str(version),
        **{name: str(figure) for name, figure in figures.items() if figure},
        "total-data-files": total("total-data-files", *files),
        "total-records": total("total-records", *rows),
        "total-files-size": total("total-files-size", *sizes),
        "total-delete-files": total("total-delete-files", *deletes),
        "total-position-deletes": total("total-position-deletes", *positions),
        "total-equality-deletes": "0",
    }


def encode_metadata(metadata: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a metadata file."""
    return orjson.dumps(metadata)


def decode_metadata(data: bytes, version: int, where: str) -> Json:
    """Returns the metadata of a version that this package wrote. Raises `Corrupt` for any other file."""
    try:
        found = orjson.loads(data)
        if found["properties"].get(DELTA_VERSION) == str(version) and found["format-version"] == 2:
            return dict(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise Corrupt(
        "this metadata file of Iceberg is not of tiered: another program wrote to the table, which only tiered may. "
        "Move the folder _iceberg away: the next load makes it anew",
        where=where,
    )
