"""What a topic's Delta table looks like and which Delta actions a load commits. Pure: values in, JSON lines out.

One table per topic, no column for the topic, no Hive partitions: a file holds one contiguous offset run of one topic
partition, so min/max of partition, offset and timestamp prune it. The table is its own checkpoint: per partition one
Delta transaction identifier `<topic id>/<partition>` whose version is the next offset to load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

Json = dict[str, Any]
"""A JSON object on its way out."""


def _struct(**fields: str | Json) -> Json:
    """A struct type as Spark writes its schemas."""
    columns = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": columns}


SCHEMA = _struct(
    partition="integer",
    offset="long",
    timestamp="timestamp",
    timestamp_type="byte",
    key="binary",
    value="binary",
    headers={"type": "array", "elementType": _struct(key="string", value="binary"), "containsNull": True},
)
COLUMNS = tuple(str(field["name"]) for field in SCHEMA["fields"])
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}

EARLIEST_US, LATEST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999: a timestamp beyond them has no statistics, because no calendar of Delta's readers has it."""

TOPIC_ID = "tiered.topic.id"
TOPIC_NAME = "tiered.topic.name"


class LoadedFile(NamedTuple):
    """One finished Parquet file. Timestamps are microseconds since 1970, offsets the first and last in the file."""

    partition: int
    path: str
    size: int
    rows: int
    first_offset: int
    last_offset: int
    min_timestamp_us: int
    max_timestamp_us: int
    modified_ms: int


class Advance(NamedTuple):
    """One partition's step: valid only while the table still stands at `start`; -1 is a partition never loaded."""

    partition: int
    start: int
    end: int


def creation(topic: str, topic_id: str, unique: str, now_ms: int) -> list[str]:
    """The JSON lines that make a table, for its first commit. `unique` is a UUID.

    The topic's id in the properties keeps rows of a deleted and re-created topic out of the old table.
    """
    metadata = {
        "id": unique,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": [],
        "configuration": {
            TOPIC_ID: topic_id,
            TOPIC_NAME: topic,
            "delta.dataSkippingStatsColumns": "partition,offset,timestamp",
        },
        "createdTime": now_ms,
    }
    return [json.dumps({"protocol": PROTOCOL}), json.dumps({"metaData": metadata})]


def app_id(topic_id: str, partition: int) -> str:
    """Delta's transaction identifier of one partition."""
    return f"{topic_id}/{partition}"


def loaded(transactions: Mapping[str, int], topic_id: str) -> dict[int, int]:
    """Next offset per partition, of all transaction identifiers that a table has."""
    mine = f"{topic_id}/"
    return {int(app[len(mine) :]): version for app, version in transactions.items() if app.startswith(mine)}


def actions(topic_id: str, files: Iterable[LoadedFile], advances: Sequence[Advance], now_ms: int) -> list[str]:
    """The JSON lines of one commit: each file, then each partition's new version."""
    lines = [_add(file) for file in files]
    for step in advances:
        txn = {"appId": app_id(topic_id, step.partition), "version": step.end, "lastUpdated": now_ms}
        lines.append(json.dumps({"txn": txn}))
    return lines


def _add(file: LoadedFile) -> str:
    least: Json = {"partition": file.partition, "offset": file.first_offset}
    most: Json = {"partition": file.partition, "offset": file.last_offset}
    if EARLIEST_US <= file.min_timestamp_us <= file.max_timestamp_us <= LATEST_US:
        least["timestamp"] = _timestamp(file.min_timestamp_us)
        most["timestamp"] = _timestamp(file.max_timestamp_us)
    stats = {
        "numRecords": file.rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": {"partition": 0, "offset": 0, "timestamp": 0},
    }
    add = {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": file.modified_ms,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    return json.dumps({"add": add})


def _timestamp(us: int) -> str:
    """ISO 8601 with milliseconds, rounded down: readers of Delta allow for one more millisecond at the top."""
    seconds, rest = divmod(us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:03d}Z"
