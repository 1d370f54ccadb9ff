"""Tests of the metadata file of a version: columns that change, times that grow, and a bounded size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_tiered.delta import table_form
from pyspark_tiered.iceberg.metadata import (
    SNAPSHOTS_MAX,
    current_schema,
    decode_metadata,
    encode_metadata,
    locate,
    table_uuid,
)
from tests.unit.iceberg.commits import METADATA, Table, add, remove
from tiered.errors import Corrupt

DAY_MS = 24 * 3600 * 1000


def with_column(name: str, **properties: str) -> dict[str, Any]:
    fields = [*table_form.SCHEMA["fields"], {"name": name, "type": "string", "nullable": True, "metadata": {}}]
    schema = json.dumps({"type": "struct", "fields": fields})
    return {"metaData": {**METADATA, "schemaString": schema, "configuration": METADATA["configuration"] | properties}}


def test_column_that_came_is_in_the_versions_since() -> None:
    table = Table()
    first = table.commit({"metaData": METADATA}, add("a"))
    second = table.commit(with_column("city"), add("b"))
    assert [each["schema-id"] for each in second.metadata["snapshots"]] == [0, 1]
    assert [each["name"] for each in current_schema(second.metadata)["fields"]][-1] == "city"
    assert second.metadata["last-column-id"] == current_schema(second.metadata)["fields"][-1]["id"]
    assert "city" in second.metadata["properties"]["schema.name-mapping.default"]
    third = table.commit({"metaData": METADATA})
    assert third.metadata["current-schema-id"] == 0, "columns of before have their number again"
    assert first.metadata["table-uuid"] == third.metadata["table-uuid"] == table_uuid(METADATA)


def test_times_grow_whatever_the_clocks_of_writers() -> None:
    table = Table()
    times = [5_000, 4_000, 4_000, 9_000]
    for number, time_ms in enumerate(times):
        table.commit(*([{"metaData": METADATA}] if not number else []), add(f"f{number}"), time_ms=time_ms)
    newest = table.versions[-1].metadata
    assert [each["timestamp-ms"] for each in newest["snapshots"]] == [5_000, 5_001, 5_002, 9_000]
    assert newest["last-updated-ms"] == 9_000
    assert newest["snapshot-log"][-1] == {"snapshot-id": 4, "timestamp-ms": 9_000}


def test_metadata_name_the_last_versions_only() -> None:
    table = Table()
    table.commit({"metaData": METADATA})
    sizes = []
    for number in range(2 * SNAPSHOTS_MAX):
        gone = [remove(f"f{number - 1}")] if number else []
        made = table.commit(*gone, add(f"f{number}"))
        sizes.append(len(encode_metadata(made.metadata)))
    held = made.metadata["snapshots"]
    assert [each["snapshot-id"] for each in held] == list(range(made.version + 2 - SNAPSHOTS_MAX, made.version + 2))
    assert sizes[-1] < sizes[SNAPSHOTS_MAX] * 1.05


def test_retention_of_the_log_leaves_fewer_versions() -> None:
    table = Table()
    table.commit(with_column("c", **{"delta.logRetentionDuration": "interval 2 days"}), time_ms=DAY_MS)
    for day in range(2, 9):
        made = table.commit(add(f"f{day}"), time_ms=day * DAY_MS)
    assert [each["timestamp-ms"] // DAY_MS for each in made.metadata["snapshots"]] == [6, 7, 8]


def test_metadata_of_another_writer_are_refused() -> None:
    table = Table()
    made = table.commit({"metaData": METADATA}, add("a"))
    data = encode_metadata(made.metadata)
    assert decode_metadata(data, 0, "v1") == made.metadata
    other = encode_metadata({**made.metadata, "properties": {}})
    for found, version in ((data, 1), (other, 0), (b"{}", 0), (b"x", 0), (b"[]", 0)):
        with pytest.raises(Corrupt, match="not of tiered"):
            decode_metadata(found, version, "v1")


def test_place_of_a_table_is_a_url_that_all_engines_know() -> None:
    assert locate("file:/w/t") == "file:///w/t"
    assert locate("s3a://lake/p/t") == "s3://lake/p/t"
