"""Tests of the columns of a JSON Schema: what it says plainly, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyspark_tiered.schemas.json_plan import columns_of, plan_json_schema
from pyspark_tiered.schemas.unreadable import UnreadableSchema
from pyspark_tiered.typed.kinds import describe, describe_columns, select_columns


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, "bigint"),
        ({"type": ["null", "number"]}, "double"),
        ({"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]}, "timestamp"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "email"}, "string"),
        ({"type": "array", "items": {"type": "boolean"}}, "array<boolean>"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "map<string, bigint>"),
        ({"$ref": "#/definitions/A", "definitions": {"A": {"$ref": "b.json#/x/0"}}}, "bigint"),
        ({"$ref": "#"}, "void"),
        ({"$ref": "elsewhere.json"}, "void"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "void"),
        ({"allOf": [{"type": "string"}]}, "void"),
        ({"type": ["string", "integer"]}, "void"),
        (True, "void"),
    ],
)
def test_type_of_a_schema(schema: Any, kind: str) -> None:
    assert describe(plan_json_schema(json.dumps(schema), [("b.json", '{"x":[{"type":"integer"}]}')])) == kind


def test_columns_are_the_properties_and_a_recursive_schema_ends() -> None:
    schema = {"type": "object", "properties": {
        "id": {"type": "integer"}, "of": {"type": "object", "properties": {"x": {}, "y": {"type": "string"}}},
        "any": {}, "next": {"$ref": "#"},
    }}  # fmt: skip
    columns = describe_columns(select_columns(columns_of(plan_json_schema(json.dumps(schema), []))))
    assert columns.startswith("id bigint, of struct<y: string>, next struct<id: bigint, of: struct<y: string>, next: ")


@pytest.mark.parametrize("text", ["{", '{"$ref":"#/x"}', '{"type":"object","properties":[1]}', " " * 3_000_000])
def test_unreadable_schema(text: str) -> None:
    with pytest.raises(UnreadableSchema):
        plan_json_schema(text, [])
