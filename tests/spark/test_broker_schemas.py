"""Tests of tables of what confluent-kafka's serializers wrote, with the schemas of the broker's own registry."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.wrappers_pb2 import StringValue

from pyspark_tiered.log.bucket import ColdTopicReader
from pyspark_tiered.proof.verify import verify
from pyspark_tiered.typed.tables import TypedTable
from tests.e2e.serving import INTERNAL_CONFIGS, ServeProcess, run_tiered
from tests.spark.typed_site import rows_of

AVRO = {"type": "record", "name": "R", "fields": [{"name": "name", "type": "string"}]}
JSON = {"title": "R", "type": "object", "properties": {"name": {"type": "string"}}}


def serializers(client: SchemaRegistryClient) -> dict[str, Any]:
    """Returns a serializer for each kind of table, and one that writes the schema into a header."""
    message = {"use.deprecated.format": False}
    return {
        "avro": AvroSerializer(client, json.dumps(AVRO)),
        "json-schema": JSONSerializer(json.dumps(JSON), client),
        "protobuf": ProtobufSerializer(StringValue, client, message),
    }


def test_values_of_serializers_are_tables(tmp_path: Path) -> None:
    soon = (*INTERNAL_CONFIGS, "-c", "log.retention.check.interval.ms=100")
    with ExitStack() as opened:
        broker = opened.enter_context(ServeProcess(tmp_path / "data", "--store", f"file://{tmp_path}/store", *soon))
        producer = Producer({"bootstrap.servers": broker.kafka})
        client = opened.enter_context(SchemaRegistryClient({"url": broker.url}))
        in_header = AvroSerializer(client, json.dumps(AVRO), conf={"schema.id.serializer": header_schema_id_serializer})
        made = {**serializers(client), "header": in_header}
        for kind, serialize in made.items():
            broker.create_topic(kind, internal_segment_bytes="200")
            for number in range(20):
                text = f"{kind} {number}"
                context = SerializationContext(kind, MessageField.VALUE, [] if kind == "header" else None)
                data = serialize(StringValue(value=text) if kind == "protobuf" else {"name": text}, context)
                producer.produce(kind, data, headers=context.headers or None)
                assert producer.flush(60) == 0
            broker.wait_for_offset(kind, "cold_end_offset", 15)
        for kind in made:
            values = "avro" if kind == "header" else kind
            place = ("--store", f"file://{tmp_path}/store", "--topic", kind, "--warehouse", str(tmp_path / "tables"))
            done = run_tiered("load", "--engine", "native", *place, "--values", values)
            assert done.returncode == 0, done.stderr
            assert check(tmp_path, kind, "value" if kind == "protobuf" else "name") >= 15
        other = Path(tmp_path, "other")
        none = ("--registry", f"{broker.url}/contexts/.none", "--unknown-ids", "wait")
        place = ("--store", f"file://{tmp_path}/store", "--topic", "avro", "--warehouse", str(other))
        done = run_tiered("load", "--engine", "native", *place, "--values", "avro", *none)
        assert (done.returncode != 0, "the registry has no schema" in done.stderr) == (True, True), done.stderr


def check(root: Path, topic: str, column: str) -> int:
    """Compares the rows of a table with what was written, and proves it. Returns their number."""
    with closing(ColdTopicReader(f"file://{root}/store")) as reader:
        topic_id = reader.topic_id(topic)
    with closing(TypedTable(f"file:{root}/tables/{topic}_typed", topic, topic_id)) as table:
        table.snapshot()
        found = rows_of(table, (column,))
    assert found == [(f"{topic} {number}",) for number in range(len(found))]
    proof = verify(f"file://{root}/store", topic, str(root / "tables"))
    assert proof.values is not None
    assert (proof.ok, proof.values.rows, proof.values.dead) == (True, len(found), 0)
    return len(found)
