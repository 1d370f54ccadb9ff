"""Tests of Iceberg's schema of a Delta table: types, and the ids that the Parquet files have."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from pyspark_tiered.delta.table_form import FIELD_IDS, SCHEMA, table_schema
from pyspark_tiered.iceberg.schema import ID_MAX, build_schema, ids, name_mapping
from pyspark_tiered.load.convert import with_field_ids
from pyspark_tiered.typed import form
from pyspark_tiered.typed.convert import typed_arrow_schema
from pyspark_tiered.typed.ddl import parse_ddl
from tiered.errors import Refused

TYPED = {form.VALUES: "json"}


def metadata_of(*fields: dict[str, Any], **properties: str) -> dict[str, Any]:
    return {"schemaString": json.dumps({"type": "struct", "fields": list(fields)}), "configuration": properties}


def column(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": more}


def ids_in_file(schema: pa.Schema) -> dict[str, int]:
    """The ids of a file's columns, by their paths in Iceberg's words."""

    def walk(field: pa.Field, above: str) -> dict[str, int]:
        path = f"{above}{field.name}"
        found = {path: int(field.metadata[b"PARQUET:field_id"])}
        kind = field.type
        if pa.types.is_map(kind):
            parts = [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
        elif pa.types.is_list(kind):
            parts = [kind.value_field.with_name("element")]
        else:
            parts = list(kind) if pa.types.is_struct(kind) else []
        for part in parts:
            found |= walk(part, f"{path}.")
        return found

    return {path: number for field in schema for path, number in walk(field, "").items()}


def ids_in_mapping(mapped: list[dict[str, Any]], above: str = "") -> dict[str, int]:
    found = {}
    for each in mapped:
        path = f"{above}{each['names'][0]}"
        found[path] = each["field-id"]
        found |= ids_in_mapping(each.get("fields", []), f"{path}.")
    return found


def test_raw_table_has_the_ids_of_its_files() -> None:
    schema = build_schema({"schemaString": json.dumps(SCHEMA), "configuration": {}})
    assert ids_in_mapping(name_mapping(schema)) == ids_in_file(with_field_ids(table_schema()))
    assert sorted(ids(schema)) == sorted(FIELD_IDS.values())
    assert [each["type"] for each in schema["fields"][:6]] == ["int", "long", "timestamptz", "int", "binary", "binary"]


def test_typed_table_has_the_ids_of_its_files() -> None:
    declared = "id BIGINT, tags MAP<STRING, STRUCT<n: INT>>, list ARRAY<STRUCT<a: DOUBLE, `b.c`: DATE>>, d DECIMAL(9,2)"
    columns = parse_ddl(declared)
    schema = build_schema(metadata_of(*form.typed_fields(columns), **TYPED))
    assert ids_in_mapping(name_mapping(schema)) == ids_in_file(typed_arrow_schema(columns))
    assert schema["fields"][-1]["type"] == "decimal(9, 2)"


def test_column_that_has_another_name_in_json_keeps_its_id() -> None:
    (renamed,) = build_schema(metadata_of(column("_key_2", "long", **{"tiered.name": "_key"}), **TYPED))["fields"]
    (plain,) = build_schema(metadata_of(column("_key", "binary"), **TYPED))["fields"]
    assert renamed["id"] >= 1000 and plain["id"] == form.FIELD_IDS["_key"]


def test_column_with_a_dot_in_its_name_is_no_part_of_headers() -> None:
    (found,) = build_schema(metadata_of(column("headers.key", "string")))["fields"]
    assert found["id"] >= 1000


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (metadata_of(column("v", "variant")), "the column v has the type variant"),
        (metadata_of(column("a", {"type": "struct", "fields": [column("b", "interval day")]})), "a.b has the type"),
        (metadata_of(column("a", "long"), **{"delta.columnMapping.mode": "name"}), "other names in the files"),
        ({**metadata_of(column("a", "long")), "partitionColumns": ["a"]}, "partition columns"),
    ],
)
def test_table_that_iceberg_cannot_have_is_refused_by_name(metadata: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        build_schema(metadata)


def test_columns_with_the_same_id_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tiered.iceberg.schema.field_id", lambda path: 1234)
    with pytest.raises(Refused, match="b and a have the same id"):
        build_schema(metadata_of(column("a", "long"), column("b", "long")))
    monkeypatch.setattr("pyspark_tiered.iceberg.schema.field_id", lambda path: ID_MAX + 1)
    with pytest.raises(Refused, match="a column of Iceberg itself"):
        build_schema(metadata_of(column("a", "long")))
