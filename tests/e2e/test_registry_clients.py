"""Serializers of confluent-kafka, unchanged, against the registry of a broker."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.common.schema_registry_client import (
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    ServerConfig,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from tests.e2e.http_site import HttpBroker, run
from tests.scenario import run_by

USER = {"type": "record", "name": "User", "fields": [{"name": "name", "type": "string"}]}
PERSON = {
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Person", "type": "object",
    "properties": {"name": {"type": "string"}}, "required": ["name"],
}  # fmt: skip


def make_order_type() -> Any:
    """Returns a message class as the compiler makes one, which imports another file."""
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/order.proto", package="tests", syntax="proto3", dependency=[timestamp_pb2.DESCRIPTOR.name]
    )
    at = file.message_type.add(name="Order").field.add(name="at", number=1, type=11, label=1)
    at.type_name = ".google.protobuf.Timestamp"
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.Order"))


def round_trip(subject: str, serialize: Callable[..., Any], deserialize: Callable[..., Any], value: Any) -> Any:
    """Returns a value that went through bytes with a schema id in front."""
    context = SerializationContext(subject, MessageField.VALUE)
    data = serialize(value, context)
    assert data[0] == 0 and int.from_bytes(data[1:5], "big") > 0
    return deserialize(data, context)


def serialize_all(client: SchemaRegistryClient) -> None:
    avro = AvroSerializer(client, json.dumps(USER)), AvroDeserializer(client)
    assert round_trip("avro", *avro, {"name": "Ann"}) == {"name": "Ann"}
    person = JSONSerializer(json.dumps(PERSON), client), JSONDeserializer(None, schema_registry_client=client)
    assert round_trip("json", *person, {"name": "Ann"}) == {"name": "Ann"}
    context = SerializationContext("headers", MessageField.VALUE, headers=[])
    by_guid = {"schema.id.serializer": header_schema_id_serializer}
    data = AvroSerializer(client, json.dumps(USER), conf=by_guid)({"name": "Annette"}, context)
    assert data == b"\x0eAnnette" and context.headers, "the schema is named by its guid in a header"
    assert AvroDeserializer(client)(data, context) == {"name": "Annette"}
    options = {"use.deprecated.format": False}
    order = make_order_type()
    protobuf = ProtobufSerializer(order, client, options), ProtobufDeserializer(order, options, client)
    sent = order(at=timestamp_pb2.Timestamp(seconds=5))
    assert round_trip("protobuf", *protobuf, sent) == sent
    assert client.get_subjects() == ["avro-value", "headers-value", "json-value", "protobuf-value"]
    assert sorted(client.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]


def use_all_calls(client: SchemaRegistryClient) -> None:
    user = Schema(json.dumps(USER), "AVRO")
    id = client.register_schema("users-value", user)
    assert client.get_schema(id).schema_type == "AVRO"
    assert client.lookup_schema("users-value", user).version == 1
    assert client.get_latest_version("users-value").schema_id == id
    assert client.get_versions("users-value") == [1]
    assert client.get_version("users-value", 1).schema_id == id
    order = {"type": "record", "name": "Order", "fields": [{"name": "by", "type": "User"}]}
    reference = SchemaReference("User", "users-value", 1)
    order_id = client.register_schema("orders-value", Schema(json.dumps(order), "AVRO", [reference]))
    assert client.get_schema(order_id).references == [reference]
    assert client.get_referenced_by("users-value", 1) == [order_id]
    wrong = Schema(json.dumps({**USER, "name": "Other"}), "AVRO")
    assert not client.test_compatibility("users-value", wrong)
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("users-value", wrong)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    client.set_compatibility("users-value", "NONE")
    assert client.get_compatibility("users-value") == "NONE"
    client.set_config(config=ServerConfig(compatibility=ConfigCompatibilityLevel.FULL))
    assert client.get_config().compatibility_level == ConfigCompatibilityLevel.FULL
    assert client.register_schema("users-value", wrong) == order_id + 1
    text = 'syntax = "proto3"; message M { int32 a = 1; }'
    written = client.register_schema("m-value", Schema(text, "PROTOBUF"))
    assert client.get_schema(written).schema_str == text
    shown = client.get_version("m-value", 1, fmt="serialized").schema
    assert shown is not None and shown.schema_str and base64.b64decode(shown.schema_str)
    assert client.delete_version("users-value", 2) == 2
    assert client.delete_subject("orders-value") == [1]
    assert client.delete_subject("orders-value", permanent=True) == [1]
    assert client.get_contexts() == ["."]
    tagged = Schema(
        json.dumps(USER), "AVRO", metadata=Metadata(None, MetadataProperties({"major": "1", "x": "y"}), None)
    )
    client.register_schema("tagged-value", tagged)
    found = client.get_latest_with_metadata("tagged-value", {"major": "1", "x": "y"})
    assert (found.version, found.subject) == (1, "tagged-value")


def run_client(scenario: Callable[[SchemaRegistryClient], None], url: str) -> None:
    with SchemaRegistryClient({"url": url}) as client:
        scenario(client)


@run_by(run, "tmp_path")
async def test_serializers_of_all_formats_work_unchanged(site: HttpBroker) -> None:
    await asyncio.to_thread(run_client, serialize_all, site.url)


@run_by(run, "tmp_path")
async def test_calls_of_the_client_get_the_replies_that_they_expect(site: HttpBroker) -> None:
    await asyncio.to_thread(run_client, use_all_calls, site.url)
