"""Tests of manifests and their lists as Avro: what is written is read, and bytes of others are refused."""

from __future__ import annotations

import io

import fastavro
import pytest

from pyspark_tiered.iceberg.data_file import DataFile
from pyspark_tiered.iceberg.manifest import (
    ADDED,
    DELETED,
    EXISTING,
    Entry,
    decode_list,
    decode_manifest,
    encode_list,
    encode_manifest,
    summarize,
)
from pyspark_tiered.iceberg.schema import build_schema
from tests.unit.iceberg.commits import METADATA
from tiered.errors import Corrupt

SCHEMA = {"schema-id": 3, **build_schema(METADATA)}
FILE = DataFile("file:///w/t/a", 4, 99, {1: 4}, {1: 1}, {1: b"\0\0\0\0"}, {1: b"\1\0\0\0"})
ENTRIES = [
    Entry(ADDED, 7, 7, FILE),
    Entry(EXISTING, 2, 2, FILE._replace(path="file:///w/t/b", lower={}, upper={})),
    Entry(DELETED, 7, 5, FILE._replace(path="file:///w/t/c", values={}, nulls={})),
]


def test_manifest_is_read_as_it_was_written() -> None:
    data = encode_manifest(ENTRIES, SCHEMA)
    assert decode_manifest(data, "m") == ENTRIES
    assert encode_manifest(ENTRIES, SCHEMA) == data
    header = fastavro.reader(io.BytesIO(data)).metadata
    assert (header["format-version"], header["content"], header["schema-id"]) == ("2", "data", "3")


def test_fields_have_the_ids_of_the_specification() -> None:
    schema = fastavro.reader(io.BytesIO(encode_manifest(ENTRIES, SCHEMA))).writer_schema
    assert isinstance(schema, dict)
    found = {field["name"]: field["field-id"] for field in schema["fields"]}
    assert found == {
        "status": 0,
        "snapshot_id": 1,
        "sequence_number": 3,
        "file_sequence_number": 4,
        "data_file": 2,
    }
    file = {field["name"]: field["field-id"] for field in schema["fields"][-1]["type"]["fields"]}
    assert file == {
        "content": 134,
        "file_path": 100,
        "file_format": 101,
        "partition": 102,
        "record_count": 103,
        "file_size_in_bytes": 104,
        "value_counts": 109,
        "null_value_counts": 110,
        "lower_bounds": 125,
        "upper_bounds": 128,
        "referenced_data_file": 143,
    }


def test_list_is_read_as_it_was_written() -> None:
    made = summarize("file:///w/t/m", 12, ENTRIES, 7)
    assert (made.files, made.rows, made.min_sequence, made.live) == ((1, 1, 1), (4, 4, 4), 2, 2)
    data = encode_list([made], 7, None)
    assert decode_list(data, "l") == (made,)
    assert fastavro.reader(io.BytesIO(data)).metadata["sequence-number"] == "7"


def test_bytes_of_others_are_refused() -> None:
    manifest, listed = encode_manifest(ENTRIES, SCHEMA), encode_list([], 1, None)
    for data in (b"", b"Obj\x01", b"x" * 99, manifest[:-20], listed + b"x"):
        with pytest.raises(Corrupt):
            decode_manifest(data, "m")
    with pytest.raises(Corrupt):
        decode_list(manifest, "l")
