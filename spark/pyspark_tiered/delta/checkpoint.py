"""Checkpoints of Delta's log as Parquet: one row for each action, in the columns of Delta's protocol.

pyarrow is imported on first use: a load without anything new needs none if the log has no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any

from tiered.errors import Corrupt

if TYPE_CHECKING:
    import pyarrow

Json = dict[str, Any]

ROWS = 10_000
"""Actions that are decoded to Python at once."""
MAPS = ("partitionValues", "tags", "configuration", "options")
"""Fields of actions that are maps, and no structs."""


def decode_checkpoint(data: bytes, where: str) -> Iterator[Json]:
    """Yields the actions of one file of a checkpoint. Raises `Corrupt`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(BytesIO(data))
        known = [
            name
            for name in ("txn", "domainMetadata", "add", "remove", "metaData", "protocol")
            if name in file.schema_arrow.names
        ]
        for batch in file.iter_batches(ROWS, columns=known):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                for name in known:
                    if row[name] is not None:
                        yield {name: _without_nulls(row[name])}
    except (pa.ArrowException, OSError, ValueError) as fault:
        raise Corrupt(f"checkpoint of a table cannot be read: {fault}", where=where) from None


def encode_checkpoint(actions: Iterable[Json]) -> tuple[bytes, int]:
    """Returns a checkpoint of one file, and the number of its actions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    out = BytesIO()
    count = 0
    with pq.ParquetWriter(out, schema, compression="snappy") as writer:
        waiting: list[Json] = []
        for action in actions:
            waiting.append(_with_pairs(action))
            count += 1
            if len(waiting) >= ROWS:
                writer.write_table(pa.Table.from_pylist(waiting, schema=schema))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_pylist(waiting, schema=schema))
    return out.getvalue(), count


def _with_pairs(fields: Json) -> Json:
    """Returns an action with its maps as lists of pairs, the form that pyarrow takes."""
    found: Json = {}
    for name, value in fields.items():
        if name in MAPS and not isinstance(value, str):  # that of a domain is text
            found[name] = None if value is None else list(value.items())
        else:
            found[name] = _with_pairs(value) if isinstance(value, dict) else value
    return found


def _without_nulls(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _schema() -> pyarrow.Schema:
    """Returns the columns of a checkpoint of tables with reader version 1, and of deletion vectors in their files."""
    import pyarrow as pa

    texts = pa.map_(pa.string(), pa.string())
    vector = pa.struct(
        [
            ("storageType", pa.string()),
            ("pathOrInlineDv", pa.string()),
            ("offset", pa.int32()),
            ("sizeInBytes", pa.int32()),
            ("cardinality", pa.int64()),
        ]
    )
    file = [("path", pa.string()), ("partitionValues", texts), ("size", pa.int64())]
    features = [("readerFeatures", pa.list_(pa.string())), ("writerFeatures", pa.list_(pa.string()))]
    add = [
        *file,
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("tags", texts),
        ("deletionVector", vector),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
        ("clusteringProvider", pa.string()),
    ]
    remove = [
        *file,
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("tags", texts),
        ("deletionVector", vector),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
    ]
    metadata = [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", texts)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", texts),
        ("createdTime", pa.int64()),
    ]
    protocol = [("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()), *features]
    domain = [("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]
    transaction = [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
    return pa.schema(
        [
            ("txn", pa.struct(transaction)),
            ("domainMetadata", pa.struct(domain)),
            ("add", pa.struct(add)),
            ("remove", pa.struct(remove)),
            ("metaData", pa.struct(metadata)),
            ("protocol", pa.struct(protocol)),
        ]
    )
