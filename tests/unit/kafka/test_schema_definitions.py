"""Tests of our tables against Kafka's own message definitions, which kafka-python ships: fields, version ranges,
defaults."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any

import pytest
from kafka.protocol.schemas import load_json

from tests.unit.kafka.values import KIO_ONLY, TABLES
from tiered_api.kafka.protocol.schema import FIRST_PRIVATE_TAG, ZERO_ID, FieldSpec, FieldType, Versions, field_specs

NEWER = {"DescribeLogDirsRequest": "1-5", "DescribeLogDirsResponse": "1-5"}
"""Tables whose definition is from a Kafka after 4.2, which has one version more."""

NONE = Versions.parse("")
PLAIN = {kind.value: kind for kind in FieldType if kind is not FieldType.STRUCT}


def snake_case(name: str) -> str:
    """`TopicId` -> `topic_id`, `Enable2Pc` -> `enable2_pc`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def intersect(versions: Versions, to: Versions) -> Versions:
    """Returns the part of a range that lies in another one; all empty ranges are one value."""
    got = Versions(max(versions.low, to.low), min(versions.high, to.high))
    return got if got.low <= got.high else NONE


def version_range(definition: dict[str, Any], name: str, to: Versions) -> Versions:
    """Returns a range of a definition, limited to the versions of the table."""
    text = definition.get(name, "none")
    return intersect(Versions.parse("" if text == "none" else text), to)


def expected_default(field: dict[str, Any], kind: FieldType, is_array: bool) -> Any:
    """Returns the value that a definition gives a field that is not sent; `...` for a new struct."""
    text = field.get("default")
    if text == "null" or kind is FieldType.RECORDS:
        return None
    if is_array:
        return []
    if kind is FieldType.STRUCT:
        return ...
    if kind is FieldType.BOOL:
        return str(text).lower() == "true"
    if kind is FieldType.UUID:
        return ZERO_ID
    if kind in (FieldType.STRING, FieldType.BYTES):
        return text or ("" if kind is FieldType.STRING else b"")
    return int(str(text or 0), 0)


def check_struct(table: type[Any], definition: list[dict[str, Any]], known: Versions, where: str) -> None:
    there = [field for field in definition if intersect(Versions.parse(field["versions"]), known) != NONE]
    ours = [row for row in field_specs(table) if row.tag < FIRST_PRIVATE_TAG]
    assert [row.name for row in ours] == [snake_case(field["name"]) for field in there], where
    for row, field, made in zip(ours, there, fields(table)[: len(ours)], strict=True):
        check_field(row, field, known, f"{where}.{row.name}")
        fresh = made.default_factory
        default = made.default if fresh is MISSING else fresh()
        expected = expected_default(field, row.kind, row.is_array)
        assert (type(default) is row.of) if expected is ... else (default == expected), f"{where}.{row.name}"


def check_field(row: FieldSpec, field: dict[str, Any], known: Versions, where: str) -> None:
    element = field["type"].removeprefix("[]")
    there = version_range(field, "versions", known)
    assert row.is_array == field["type"].startswith("[]"), where
    assert row.kind is PLAIN.get(element, FieldType.STRUCT), where
    assert intersect(row.versions, known) == there, where
    assert intersect(row.nullable, there) == version_range(field, "nullableVersions", there), where
    assert intersect(row.tagged, there) == version_range(field, "taggedVersions", there), where
    assert row.tag == field.get("tag", -1), where
    assert "flexibleVersions" not in field, where
    expected = expected_default(field, row.kind, row.is_array)
    assert row.default == expected or (expected is ... and row.default is not None), where
    if row.of is not None:
        check_struct(row.of, field["fields"], there, where)


@pytest.mark.parametrize("name", [name for name in TABLES if name not in KIO_ONLY])
def test_table_equals_kafkas_definition(name: str) -> None:
    table, definition = TABLES[name], load_json(name)
    spec = table.spec
    assert spec.key == definition.get("apiKey", -1)
    known = Versions.parse(definition["validVersions"])
    if name in NEWER:
        assert definition["validVersions"] == NEWER[name]
        known = Versions(known.low, known.high - 1)
    assert spec.versions == known
    assert intersect(spec.flexible, spec.versions) == version_range(definition, "flexibleVersions", spec.versions)
    check_struct(table, definition["fields"], spec.versions, name)
