"""Manifests and manifest lists of Iceberg's version 2, as Avro files. Pure: values in, bytes out, and back.

A file is named after the hash of its bytes, and its sync marker is a hash of its header. So two writers of the same
version write the same files.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import Any, NamedTuple

from pyspark_tiered.iceberg.data_file import DataFile
from tiered.errors import Corrupt

Json = dict[str, Any]

EXISTING, ADDED, DELETED = 0, 1, 2
"""The states of a file in a manifest."""

_COUNTS = (
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
)


class Entry(NamedTuple):
    """A file in a manifest. `snapshot` added the file, or deleted it; `sequence` is that of the file."""

    status: int
    snapshot: int
    sequence: int
    file: DataFile


class ManifestFile(NamedTuple):
    """A manifest, as a list of manifests names it. Counts are of files, then of rows: added, existing, deleted.

    A manifest has data files, or files of deletes if `has_deletes`.
    """

    path: str
    length: int
    sequence: int
    min_sequence: int
    snapshot: int
    files: tuple[int, int, int]
    rows: tuple[int, int, int]
    has_deletes: bool = False

    @property
    def live(self) -> int:
        """Returns the files of the manifest that are in the table."""
        return self.files[0] + self.files[1]


def _field(name: str, kind: Any, number: int, optional: bool = False) -> Json:
    if optional:
        return {"name": name, "type": ["null", kind], "default": None, "field-id": number}
    return {"name": name, "type": kind, "field-id": number}


def _map(key: int, value: int, kind: str) -> Json:
    """Returns a map with numbers as keys, which Avro lacks: an array of pairs."""
    pair = [_field("key", "int", key), _field("value", kind, value)]
    items = {"type": "record", "name": f"k{key}_v{value}", "fields": pair}
    return {"type": "array", "logicalType": "map", "items": items}


DATA_FILE = {
    "type": "record",
    "name": "r2",
    "fields": [
        _field("content", "int", 134),
        _field("file_path", "string", 100),
        _field("file_format", "string", 101),
        _field("partition", {"type": "record", "name": "r102", "fields": []}, 102),
        _field("record_count", "long", 103),
        _field("file_size_in_bytes", "long", 104),
        _field("value_counts", _map(119, 120, "long"), 109, optional=True),
        _field("null_value_counts", _map(121, 122, "long"), 110, optional=True),
        _field("lower_bounds", _map(126, 127, "bytes"), 125, optional=True),
        _field("upper_bounds", _map(129, 130, "bytes"), 128, optional=True),
        _field("referenced_data_file", "string", 143, optional=True),
    ],
}
ENTRY = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        _field("status", "int", 0),
        _field("snapshot_id", "long", 1, optional=True),
        _field("sequence_number", "long", 3, optional=True),
        _field("file_sequence_number", "long", 4, optional=True),
        _field("data_file", DATA_FILE, 2),
    ],
}
MANIFEST_FILE = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", "string", 500),
        _field("manifest_length", "long", 501),
        _field("partition_spec_id", "int", 502),
        _field("content", "int", 517),
        _field("sequence_number", "long", 515),
        _field("min_sequence_number", "long", 516),
        _field("added_snapshot_id", "long", 503),
        _field("added_files_count", "int", 504),
        _field("existing_files_count", "int", 505),
        _field("deleted_files_count", "int", 506),
        _field("added_rows_count", "long", 512),
        _field("existing_rows_count", "long", 513),
        _field("deleted_rows_count", "long", 514),
    ],
}


@cache
def _parsed(name: str) -> Any:
    import fastavro

    return fastavro.parse_schema({"entry": ENTRY, "manifest": MANIFEST_FILE}[name])


def _write(name: str, rows: Sequence[Json], header: Mapping[str, str]) -> bytes:
    import fastavro

    marker = sha256(repr((name, sorted(header.items()))).encode()).digest()[:16]
    out = io.BytesIO()
    fastavro.writer(out, _parsed(name), rows, codec="deflate", metadata=dict(header), sync_marker=marker)
    return out.getvalue()


def _read(data: bytes, where: str) -> list[Any]:
    import fastavro

    try:
        return list(fastavro.reader(io.BytesIO(data)))
    except (ValueError, EOFError, KeyError, TypeError, IndexError) as fault:
        raise Corrupt(f"a file of Iceberg's metadata is no Avro file: {fault}", where=where) from None


def hash_name(data: bytes) -> str:
    """Returns the part of a file's name that says its content."""
    return sha256(data).hexdigest()[:32]


def encode_manifest(entries: Sequence[Entry], schema: Mapping[str, Any]) -> bytes:
    """Returns a manifest of data files, or of files of deletes. `schema` is that of its version, with its number."""
    header = {
        "schema": json.dumps(schema),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "2",
        "content": "deletes" if any(each.file.of for each in entries) else "data",
    }
    return _write("entry", [_entry_row(each) for each in entries], header)


def _entry_row(entry: Entry) -> Json:
    file = entry.file
    return {
        "status": entry.status,
        "snapshot_id": entry.snapshot,
        "sequence_number": entry.sequence,
        "file_sequence_number": entry.sequence,
        "data_file": {
            "content": 1 if file.of else 0,
            "file_path": file.path,
            "file_format": "PARQUET",
            "partition": {},
            "record_count": file.rows,
            "file_size_in_bytes": file.size,
            "value_counts": _pairs(file.values),
            "null_value_counts": _pairs(file.nulls),
            "lower_bounds": _pairs(file.lower),
            "upper_bounds": _pairs(file.upper),
            "referenced_data_file": file.of or None,
        },
    }


def _pairs(found: Mapping[int, Any]) -> list[Json] | None:
    return [{"key": key, "value": value} for key, value in sorted(found.items())] or None


def decode_manifest(data: bytes, where: str) -> list[Entry]:
    """Returns the entries of a manifest of ours. Raises `Corrupt`."""
    found = []
    try:
        for row in _read(data, where):
            held = row["data_file"]
            values, nulls, lower, upper = (
                {pair["key"]: pair["value"] for pair in held[name] or ()}
                for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
            )
            path, of = held["file_path"], held["referenced_data_file"] or ""
            size = held["file_size_in_bytes"]
            file = DataFile(path, held["record_count"], size, values, nulls, lower, upper, of)
            found.append(Entry(row["status"], row["snapshot_id"], row["sequence_number"], file))
    except (KeyError, TypeError) as fault:
        raise Corrupt(f"a manifest of Iceberg lacks {fault}", where=where) from None
    return found


def summarize(path: str, length: int, entries: Iterable[Entry], snapshot: int) -> ManifestFile:
    """Returns what a list of manifests says of a manifest that the snapshot made."""
    files, rows, sequences = [0, 0, 0], [0, 0, 0], []
    has_deletes = False
    for entry in entries:
        has_deletes = has_deletes or bool(entry.file.of)
        at = (1, 0, 2)[entry.status]
        files[at] += 1
        rows[at] += entry.file.rows
        sequences.append(entry.sequence)
    return ManifestFile(
        path,
        length,
        snapshot,
        min(sequences, default=snapshot),
        snapshot,
        (files[0], files[1], files[2]),
        (rows[0], rows[1], rows[2]),
        has_deletes,
    )


def encode_list(manifests: Sequence[ManifestFile], snapshot: int, parent: int | None) -> bytes:
    """Returns the list of the manifests of a snapshot."""
    header = {
        "snapshot-id": str(snapshot),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(snapshot),
        "format-version": "2",
    }
    rows = [
        {
            "manifest_path": each.path,
            "manifest_length": each.length,
            "partition_spec_id": 0,
            "content": int(each.has_deletes),
            "sequence_number": each.sequence,
            "min_sequence_number": each.min_sequence,
            "added_snapshot_id": each.snapshot,
            **dict(zip(_COUNTS, (*each.files, *each.rows), strict=True)),
        }
        for each in manifests
    ]
    return _write("manifest", rows, header)


def decode_list(data: bytes, where: str) -> tuple[ManifestFile, ...]:
    """Returns the manifests of a list of ours. Raises `Corrupt`."""
    try:
        return tuple(
            ManifestFile(
                row["manifest_path"],
                row["manifest_length"],
                row["sequence_number"],
                row["min_sequence_number"],
                row["added_snapshot_id"],
                (row[_COUNTS[0]], row[_COUNTS[1]], row[_COUNTS[2]]),
                (row[_COUNTS[3]], row[_COUNTS[4]], row[_COUNTS[5]]),
                row["content"] == 1,
            )
            for row in _read(data, where)
        )
    except (KeyError, TypeError) as fault:
        raise Corrupt(f"a list of manifests of Iceberg lacks {fault}", where=where) from None
