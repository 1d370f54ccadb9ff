"""The form of a topic's Delta table, and the Delta actions that a load commits. Pure: values in, JSON lines out.

There is one table per topic, without a column for the topic and without Hive partitions. A file holds one contiguous
range of offsets of one topic partition, so min/max of partition, offset and timestamp prune it. Small partitions share
a file, a row group for each range. The table is its own checkpoint: each partition has one Delta transaction identifier
`<topic id>/<partition>`, and its version is the next offset to load.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow

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
FIELD_IDS = {
    name: number for number, name in enumerate((*COLUMNS, "headers.element", "headers.key", "headers.value"), 1)
}
"""Ids of the columns in the Parquet files, in Iceberg's order. Delta ignores them while column mapping is off."""
MEASURED = ("partition", "offset", "timestamp")
"""Columns with statistics."""
PROTOCOL: Json = {"minReaderVersion": 1, "minWriterVersion": 2}

EARLIEST_US, LATEST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999. A timestamp outside of them gets no statistics: calendars of Delta's readers lack it."""

TOPIC_ID = "tiered.topic.id"
TOPIC_NAME = "tiered.topic.name"
MODE = "tiered.mode"
"""Property of a table: how records become rows. Without it each record is a row."""
LATEST = "latest"
"""The mode of a table with one row for each key of a partition, that of its last record."""
RUNS_TAG = "tiered.runs"
"""Tag of a file of several partitions: a JSON list of [partition, first offset, last offset]."""

Range = tuple[int, int]
"""Offsets `[start, end)` of a partition."""


@cache
def table_schema() -> pyarrow.Schema:
    """Returns the columns of a table as Arrow has them."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return pa.schema(
        [
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestamp_type", pa.int8()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
        ]
    )


class FileRun(NamedTuple):
    """Rows of one partition in a file, in order of their offsets, which are between the first and the last.

    Timestamps are microseconds since 1970, None if all are NULL.
    """

    partition: int
    rows: int
    first_offset: int
    last_offset: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    null_timestamps: int = 0

    def merge(self, later: FileRun) -> FileRun:
        """Returns this run and a later one of the same partition as one."""
        least = [us for us in (self.min_timestamp_us, later.min_timestamp_us) if us is not None]
        most = [us for us in (self.max_timestamp_us, later.max_timestamp_us) if us is not None]
        return FileRun(
            self.partition,
            self.rows + later.rows,
            self.first_offset,
            later.last_offset,
            min(least, default=None),
            max(most, default=None),
            self.null_timestamps + later.null_timestamps,
        )


class LoadedFile(NamedTuple):
    """One finished Parquet file. Its runs are of different partitions, in their order."""

    path: str
    size: int
    modified_ms: int
    runs: tuple[FileRun, ...]

    @property
    def rows(self) -> int:
        """Returns the number of rows."""
        return sum(run.rows for run in self.runs)


class ReplacedFile(NamedTuple):
    """A file with rows that go, how many go, and the file with its other rows, if any stay, with its action."""

    old: Mapping[str, Any]
    rows: int
    new: LoadedFile | None
    action: str


class Stop(NamedTuple):
    """Place and reason at which a partition cannot be read on: `damaged` bytes, or a record that Spark cannot hold."""

    partition: int
    offset: int
    damaged: bool
    why: str


class SplitOutcome(NamedTuple):
    """Result of a split: its rows in `[start, end)` are in the file.

    `out_of_range_timestamps` are the records (offset, milliseconds) whose timestamps became NULL.
    """

    partition: int
    start: int
    end: int
    stop: Stop | None
    out_of_range_timestamps: tuple[tuple[int, int], ...] = ()


class Advance(NamedTuple):
    """Step of one partition, valid only while the table is still at `start`; -1 means that it was never loaded."""

    partition: int
    start: int
    end: int


def creation_actions(
    topic: str,
    topic_id: str,
    schema: Json,
    unique: str,
    now_ms: int,
    *,
    prefix: str = "",
    properties: Mapping[str, str] | None = None,
    protocol: Json = PROTOCOL,
) -> list[str]:
    """Returns the JSON lines that create a table, for its first commit. `unique` is a UUID.

    The topic's id in the properties keeps rows of a deleted and re-created topic out of the old table. The columns of
    the record have their names behind `prefix`.
    """
    metadata = {
        "id": unique,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": {
            TOPIC_ID: topic_id,
            TOPIC_NAME: topic,
            "delta.dataSkippingStatsColumns": ",".join(f"{prefix}{name}" for name in MEASURED),
            **(properties or {}),
        },
        "createdTime": now_ms,
    }
    return [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]


def app_id(topic_id: str, partition: int) -> str:
    """Returns Delta's transaction identifier of one partition."""
    return f"{topic_id}/{partition}"


def loaded_offsets(transactions: Mapping[str, int], topic_id: str) -> dict[int, int]:
    """Returns the next offset per partition, from all transaction identifiers of a table."""
    mine = f"{topic_id}/"
    return {int(app[len(mine) :]): version for app, version in transactions.items() if app.startswith(mine)}


def commit_actions(
    topic_id: str, files: Iterable[LoadedFile], advances: Sequence[Advance], now_ms: int, prefix: str = ""
) -> list[str]:
    """Returns the JSON lines of one commit: each file, then each partition's new version."""
    lines = [add_action(file, prefix) for file in files]
    for step in advances:
        txn = {"appId": app_id(topic_id, step.partition), "version": step.end, "lastUpdated": now_ms}
        lines.append(json.dumps({"txn": txn}))
    return lines


def remove_action(add: Mapping[str, Any], now_ms: int, changes_data: bool) -> str:
    """Returns the action that removes a file."""
    remove: Json = {
        "path": add["path"],
        "deletionTimestamp": now_ms,
        "dataChange": changes_data,
        "extendedFileMetadata": True,
        "partitionValues": add.get("partitionValues") or {},
        "size": add.get("size", 0),
    }
    if add.get("deletionVector"):
        remove["deletionVector"] = add["deletionVector"]
    return json.dumps({"remove": remove})


def add_action(file: LoadedFile, prefix: str = "") -> str:
    """Returns the action that adds a file. The columns of the record have their names here, behind `prefix`."""
    partition, offset, timestamp = (f"{prefix}{name}" for name in ("partition", "offset", "timestamp"))
    runs = file.runs
    least: Json = {
        partition: min(run.partition for run in runs),
        offset: min(run.first_offset for run in runs),
    }
    most: Json = {
        partition: max(run.partition for run in runs),
        offset: max(run.last_offset for run in runs),
    }
    lows = [run.min_timestamp_us for run in runs if run.min_timestamp_us is not None]
    highs = [run.max_timestamp_us for run in runs if run.max_timestamp_us is not None]
    if lows and highs and EARLIEST_US <= min(lows) <= max(highs) <= LATEST_US:
        least[timestamp], most[timestamp] = _timestamp(min(lows)), _timestamp(max(highs))
    nulls = {partition: 0, offset: 0, timestamp: sum(run.null_timestamps for run in runs)}
    stats = {"numRecords": file.rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    add: Json = {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": file.modified_ms,
        "dataChange": True,
        "stats": json.dumps(stats),
    }
    if len(runs) > 1:
        add["tags"] = {RUNS_TAG: json.dumps([[run.partition, run.first_offset, run.last_offset] for run in runs])}
    return json.dumps({"add": add})


def _timestamp(us: int) -> str:
    """Returns ISO 8601 with milliseconds, rounded down: readers of Delta allow for one more millisecond at the top."""
    seconds, rest = divmod(us, 1_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest // 1000:03d}Z"
