"""The form of a topic's Delta table, and the Delta actions that a load commits. Pure: values in, JSON lines out.

There is one table per topic, without a column for the topic and without Hive partitions. A file holds one contiguous
range of offsets of one topic partition, so min/max of partition, offset and timestamp prune it. The table is its own
checkpoint: each partition has one Delta transaction identifier `<topic id>/<partition>`, and its version is the next
offset to load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

Json = dict[str, Any]
"""A JSON object to be written."""


def _struct(**fields: str | Json) -> Json:
    """Returns a struct type as Spark writes it in schemas."""
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
"""The years 1 to 9999. A timestamp outside of them gets no statistics: calendars of Delta's readers lack it."""

TOPIC_ID = "tiered.topic.id"
TOPIC_NAME = "tiered.topic.name"


Range = tuple[int, int]
"""Offsets `[start, end)` of a partition."""


class LoadedFile(NamedTuple):
    """One finished Parquet file.

    Timestamps are microseconds since 1970, None if all are NULL. Offsets are the first and the last in the file.
    """

    partition: int
    path: str
    size: int
    rows: int
    first_offset: int
    last_offset: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    modified_ms: int
    null_timestamps: int = 0


class Stop(NamedTuple):
    """Place and reason at which a partition cannot be read on: `damaged` bytes, or a record that Spark cannot hold."""

    partition: int
    offset: int
    damaged: bool
    why: str


class ConversionResult(NamedTuple):
    """Result of converting a split: its rows in `[start, end)` are in `file`.

    `out_of_range_timestamps` are the records (offset, milliseconds) whose timestamps became NULL.
    """

    partition: int
    start: int
    end: int
    file: LoadedFile | None
    stop: Stop | None
    out_of_range_timestamps: tuple[tuple[int, int], ...] = ()


class Advance(NamedTuple):
    """Step of one partition, valid only while the table is still at `start`; -1 means that it was never loaded."""

    partition: int
    start: int
    end: int


def creation_actions(topic: str, topic_id: str, unique: str, now_ms: int) -> list[str]:
    """Returns the JSON lines that create a table, for its first commit. `unique` is a UUID.

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
    """Returns Delta's transaction identifier of one partition."""
    return f"{topic_id}/{partition}"


def loaded_offsets(transactions: Mapping[str, int], topic_id: str) -> dict[int, int]:
    """Returns the next offset per partition, from all transaction identifiers of a table."""
    mine = f"{topic_id}/"
    return {int(app[len(mine) :]): version for app, version in transactions.items() if app.startswith(mine)}


def commit_actions(topic_id: str, files: Iterable[LoadedFile], advances: Sequence[Advance], now_ms: int) -> list[str]:
    """Returns the JSON lines of one commit: each file, then each partition's new version."""
    lines = [_add_action(file) for file in files]
    for step in advances:
        txn = {"appId": app_id(topic_id, step.partition), "version": step.end, "lastUpdated": now_ms}
        lines.append(json.dumps({"txn": txn}))
    return lines


def _add_action(file: LoadedFile) -> str:
    least: Json = {"partition": file.partition, "offset": file.first_offset}
    most: Json = {"partition": file.partition, "offset": file.last_offset}
    low, high = file.min_timestamp_us, file.max_timestamp_us
    if low is not None and high is not None and EARLIEST_US <= low <= high <= LATEST_US:
        least["timestamp"], most["timestamp"] = _timestamp(low), _timestamp(high)
    stats = {
        "numRecords": file.rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": {"partition": 0, "offset": 0, "timestamp": file.null_timestamps},
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
    """Returns ISO 8601 with milliseconds, rounded down: readers of Delta allow for one more millisecond at the top."""
    seconds, rest = divmod(us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:03d}Z"
