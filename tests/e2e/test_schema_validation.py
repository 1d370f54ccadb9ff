"""Topics whose records the schema registry judges: over Kafka's protocol and over HTTP, at any broker."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.e2e import http_cluster
from tests.e2e.http_cluster import HttpCluster
from tests.e2e.http_site import HttpBroker, run
from tests.e2e.kafka_site import LISTENER, KafkaBroker, produce
from tests.e2e.test_registry import avro, register
from tests.scenario import run_by
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered.records.model import Codec
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.server.server import serve_kafka

VALIDATED: dict[str, Any] = {"confluent_value_schema_validation": "true"}


def framed(id: int, data: bytes = b"\2") -> bytes:
    return b"\0" + id.to_bytes(4, "big") + data


def entry(value: bytes) -> dict[str, Any]:
    return {"id": value.hex(), "value": {"type": "BINARY", "data": base64.b64encode(value).decode()}}


def send_with_serializer(address: str, url: str) -> list[str]:
    """Sends a record as an application with Confluent's serializer does, and one without it."""
    reports: list[str] = []
    with SchemaRegistryClient({"url": url}) as registry:
        serialize = AvroSerializer(registry, avro("a")["schema"])
        data = serialize({"a": 1}, SerializationContext("t", MessageField.VALUE))
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    for value in (data, b"no frame"):
        producer.produce("t", value, on_delivery=lambda error, message: reports.append(str(error)))
        producer.flush(60)
    return reports


@run_by(run, "tmp_path")
async def test_records_without_a_schema_of_the_topic_are_refused(site: HttpBroker) -> None:
    await site.create("t", **VALIDATED)
    await site.create("plain")
    server = await serve_kafka(site.broker)
    try:
        await site.broker.announce("127.0.0.1:1", {LISTENER: server.address})
        kafka = KafkaBroker(site.broker, server)
        client = await kafka.client()
        replica = site.broker.leader_replica("t", 0)
        ours, other = await register(site, "t-value", avro("a")), await register(site, "u-value", avro("b"))

        async def send(*values: bytes, version: int = 9, codec: Codec = Codec.NONE) -> Any:
            now = site.broker.world.clock.wall_ms()
            raw = bytearray(encode_batch([(now, None, value, ()) for value in values], codec=codec))
            reply = await client.ask(produce(replica, raw=raw), version, ProduceResponse)
            return reply.responses[0].partition_responses[0]

        for codec in (Codec.NONE, Codec.ZSTD):
            part = await send(framed(ours), framed(other), b"no frame", framed(ours), codec=codec)
            assert part.error_code == Code.INVALID_RECORD.number
            assert [each.batch_index for each in part.record_errors] == [1, 2]
            words = [each.batch_index_error_message or "" for each in part.record_errors]
            assert f"schema id {other}" in words[0] and "'t-value'" in words[0] and "names no schema" in words[1]
            assert part.error_message == words[0]
        assert replica.log.end_offset == 0
        for version in (3, 9, 13):
            assert (await send(framed(ours), version=version)).error_code == 0
        assert replica.log.end_offset == 3
        assert (await send(framed(ours), framed(ours), codec=Codec.GZIP)).base_offset == 3

        path = f"{site.cluster}/topics/t/records:batch"
        answer = await site.ask("POST", path, {"entries": [entry(framed(ours)), entry(b"x"), entry(framed(other))]})
        assert [each["id"] for each in answer.json["successes"]] == [framed(ours).hex()]
        assert ["schema id 2" in each["message"] for each in answer.json["failures"]] == [False, True]
        single = {"value": {"type": "BINARY", "data": "eA=="}}
        answer = await site.ask("POST", f"{site.cluster}/topics/t/records", single)
        assert answer.status in (400, 422) and "names no schema" in answer.json["message"]
        answer = await site.ask("POST", f"{site.cluster}/topics/plain/records", single)
        assert answer.status == 200

        end = replica.log.end_offset
        accepted, refused = await asyncio.to_thread(send_with_serializer, server.address, site.url)
        assert accepted == "None" and "INVALID_RECORD" in refused
        assert replica.log.end_offset == end + 1
    finally:
        kafka.close_clients()
        await server.close()


@run_by(http_cluster.run, "tmp_path")
async def test_schema_registered_at_another_broker_counts_at_once(three: HttpCluster) -> None:
    """Each broker registers a schema, and the next one sends a record for it to a partition that a third one leads."""
    await three.create("_schemas", [1, 2, 3], cleanup_policy="compact")
    await three.create("t", [2, 3, 1], **VALIDATED)
    for number in (1, 2, 3, 1):
        id = await register(three[number], "t-value", avro("a", f"f{number}"))
        sender = three[number % 3 + 1]
        path = f"/v3/clusters/{sender.broker.cluster_id}/topics/t/records:batch"
        body = {"entries": [entry(framed(id)), entry(framed(id + 100))]}
        answer = await sender.ask("POST", path, body)
        assert [each["id"] for each in answer.json["successes"]] == [framed(id).hex()], answer
        [failure] = answer.json["failures"]
        assert f"schema id {id + 100}, which the schema registry does not have" in failure["message"]
