"""Tests of the schemas that a process keeps of a registry: each is asked for once, and what is made of it goes by the
format that was expected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyspark_tiered.schemas import registry
from pyspark_tiered.schemas.registry import SchemaRegistry
from pyspark_tiered.schemas.sorting import plan_schema
from pyspark_tiered.schemas.unreadable import UnreadableSchema
from tests.spark.schema_server import SchemaServer, serve_schemas


@pytest.fixture
def server() -> Iterator[SchemaServer]:
    with serve_schemas() as started:
        yield started


def test_record_that_names_a_schema_of_another_format_spoils_it_for_nobody(server: SchemaServer) -> None:
    """Keys are Avro and values Protobuf: a value that names the schema of the keys is one dead letter alone."""
    server.register(7, "string")
    known = SchemaRegistry((server.url,), {})
    with pytest.raises(UnreadableSchema, match="it is AVRO, and not PROTOBUF"):
        known.plan("protobuf", 7, plan_schema)
    assert known.plan("avro", 7, plan_schema) is known.plan("avro", 7, plan_schema)
    with pytest.raises(UnreadableSchema, match="it is AVRO, and not PROTOBUF"):
        known.plan("protobuf", 7, plan_schema)


def test_schema_that_cannot_be_read_is_asked_for_once(server: SchemaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SCHEMA_BYTES_MAX", 10)
    server.register(7, {"type": "record", "name": "R", "fields": []})
    known = SchemaRegistry((server.url,), {})
    for _ in range(3):
        with pytest.raises(UnreadableSchema, match="more than 10 characters"):
            known.find(7)
    assert server.asked.count("/schemas/ids/7") == 1
