"""Records with schemas over HTTP: the embedded formats of REST v2 and v3, read back as JSON and by the serializers."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.e2e.http_site import HttpBroker, HttpReply, run
from tests.e2e.test_http_acls import grant
from tests.e2e.test_registry import EVERY_ACL, avro, register
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import DeleteAcls
from tiered.records.batch import decode_records
from tiered_api.http.registry import value_codecs
from tiered_api.http.registry.value_codecs import ValueCodecs

V2 = "application/vnd.kafka.v2+json"
PROTO = 'syntax = "proto3"; message M { string name = 1; }'
JSON_SCHEMA = json.dumps({"type": "object", "title": "Person", "properties": {"name": {"type": "string"}}})
USER = json.dumps({"type": "record", "name": "User", "fields": [{"name": "name", "type": ["null", "string"]}]})
FORMS: dict[str, tuple[str, Any]] = {
    "avro": (USER, {"name": {"string": "Ann"}}),
    "jsonschema": (JSON_SCHEMA, {"name": "Ann"}),
    "protobuf": (PROTO, {"name": "Ann"}),
}


def kind(form: str) -> str:
    return f"application/vnd.kafka.{form}.v2+json"


async def send(site: HttpBroker, topic: str, form: str, body: dict[str, Any]) -> HttpReply:
    return await site.ask("POST", f"/topics/{topic}", body, kind=kind(form), accept=V2)


async def consume(site: HttpBroker, group: str, topic: str, form: str, count: int) -> HttpReply:
    """Returns the first reply with so many records, or the first error."""
    await site.ask(
        "POST", f"/consumers/{group}", {"name": "c", "format": form, "auto.offset.reset": "earliest"}, kind=V2
    )
    base = f"/consumers/{group}/instances/c"
    await site.ask("POST", f"{base}/assignments", {"partitions": [{"topic": topic, "partition": 0}]}, kind=V2)
    rows: list[Any] = []
    while True:
        reply = await site.get(f"{base}/records?timeout=1000", accept=kind(form))
        if reply.status != 200:
            return reply
        rows += reply.json
        if len(rows) >= count:
            return reply._replace(body=json.dumps(rows).encode())


def stored(site: HttpBroker, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Returns keys and values of a topic's only partition."""
    log, out, offset = site.broker.leader_replica(topic, 0).log, list[tuple[bytes | None, bytes | None]](), 0
    while (found := log.read(offset, 1, end_offset=log.end_offset)) is not None:
        rows = decode_records(found.file.pread(found.start, found.length))
        out += [(row.key, row.value) for row in rows]
        offset = rows[-1].offset + 1
    return out


@pytest.mark.parametrize("form", FORMS)
@run_by(run, "tmp_path")
async def test_v2_writes_and_reads_each_format(site: HttpBroker, *, form: str) -> None:
    schema, value = FORMS[form]
    await site.create("t")
    keyed = {"key_schema": schema, "value_schema": schema, "records": [{"key": value, "value": value}, {"value": None}]}
    first = await send(site, "t", form, keyed)
    assert first.status == 200, first
    assert [each["offset"] for each in first.json["offsets"]] == [0, 1]
    id = first.json["value_schema_id"]
    assert first.json["key_schema_id"] == id, "one schema has one id"
    assert (await site.get("/subjects")).json == ["t-key", "t-value"]
    again = await send(site, "t", form, {"value_schema_id": str(id), "records": [{"value": value}]})
    assert (again.status, again.json["value_schema_id"], again.json["key_schema_id"]) == (200, id, None)
    rows = (await consume(site, "g", "t", form, 3)).json
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [
        (value, value, 0), (None, None, 1), (None, value, 2),
    ]  # fmt: skip
    data = stored(site, "t")[0][1]
    assert data is not None and data[:5] == b"\0" + id.to_bytes(4, "big")
    if form != "protobuf":  # its serializer needs a class
        assert await asyncio.to_thread(deserialize, site.url, form, data) == {"name": "Ann"}


def deserialize(url: str, form: str, data: bytes) -> Any:
    with SchemaRegistryClient({"url": url}) as client:
        of = AvroDeserializer(client) if form == "avro" else JSONDeserializer(None, schema_registry_client=client)
        return of(data, SerializationContext("t", MessageField.VALUE))


@run_by(run, "tmp_path")
async def test_v2_refuses_whole_requests_with_the_codes_of_the_rest_proxy(site: HttpBroker) -> None:
    await site.create("t")
    value = {"name": {"string": "Ann"}}
    for body, code in (
        ({"value_schema": USER, "records": [{"key": "k", "value": value}]}, 42201),
        ({"records": [{"value": value}]}, 42202),
        ({"value_schema": USER, "records": [{"value": value}, {"value": {"name": "Ann"}}]}, 42203),
        ({"value_schema": "no schema", "records": [{"value": value}]}, 42205),
        ({"value_schema_id": 77, "records": [{"value": value}]}, 42206),
        ({"value_schema_id": -1, "records": [{"value": value}]}, 42206),
    ):
        reply = await send(site, "t", "avro", body)
        assert reply.json["error_code"] == code, (body, reply)
    wrong = await send(site, "t", "jsonschema", {"value_schema_id": 1, "records": [{"value": value}]})
    assert wrong.json["error_code"] == 42203 and "is of AVRO" in wrong.json["message"]
    assert stored(site, "t") == []


@run_by(run, "tmp_path")
async def test_v3_names_schemas_by_id_by_version_and_by_text(site: HttpBroker) -> None:
    await site.create("t")
    value = {"a": 1}
    schema = avro("a")["schema"]
    path = f"{site.cluster}/topics/t/records"
    made = await site.ask("POST", path, {"value": {"type": "AVRO", "schema": schema, "data": value}})
    assert made.status == 200, made
    id = made.json["value"]["schema_id"]
    assert made.json["value"] == {"type": "AVRO", "size": 6, "schema_id": id}
    assert (await site.get("/subjects")).json == ["t-value"]
    others = await register(site, "elsewhere", avro("a", "b"))
    fields: list[dict[str, Any]] = [
        {"schema_id": id, "data": value},
        {"type": "AVRO", "schema_id": id, "data": value},
        {"type": "AVRO", "data": value},
        {"schema_version": 1, "data": value},
        {"schema_version": "latest", "subject": "elsewhere", "data": {"a": 1, "b": 2}},
        {"type": "AVRO", "schema": schema, "subject_name_strategy": "RECORD_NAME", "data": value},
        {"type": "AVRO", "schema": schema, "subject_name_strategy": "TOPIC_RECORD_NAME", "data": value},
    ]
    entries = [{"id": str(n), "value": each} for n, each in enumerate(fields)]
    reply = await site.ask("POST", f"{path}:batch", {"entries": entries})
    assert not reply.json["failures"], reply
    assert [each["value"]["schema_id"] for each in reply.json["successes"]] == [id, id, id, id, others, id, id]
    assert (await site.get("/subjects")).json == ["R", "elsewhere", "t-R", "t-value"]
    rows = (await consume(site, "g", "t", "avro", 8)).json
    assert [row["value"] for row in rows] == [value] * 5 + [{"a": 1, "b": 2}] + [value] * 2
    stream = b"".join(
        json.dumps({"value": each}).encode() for each in (fields[0], {"schema_id": 99, "data": 1}, fields[3])
    )
    lines = [json.loads(line) for line in (await site.ask("POST", path, stream)).body.splitlines()]
    assert [line["error_code"] for line in lines] == [200, 42206, 200]
    keyed = await site.ask("POST", path, {"value": fields[0]}, Idempotency_Key='"k"')
    assert keyed.status == 200 and keyed.json["value"]["schema_id"] == id


@run_by(run, "tmp_path")
async def test_v3_says_what_is_wrong_with_a_schema(site: HttpBroker) -> None:
    await site.create("t")
    schema = avro("a")["schema"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"type": "JSON", "schema_id": 1, "data": 1}, "type has to be one of AVRO"),
        ({"schema": schema, "data": 1}, "needs a type"),
        ({"type": "AVRO", "schema": schema, "schema_id": 1, "data": 1}, "only one of"),
        (
            {"type": "AVRO", "schema": schema, "subject": "s", "subject_name_strategy": "RECORD_NAME", "data": 1},
            "either",
        ),
        ({"subject_name_strategy": "RECORD_NAME", "data": 1}, "needs a schema"),
        ({"schema_version": 0, "data": 1}, "a number from 1 on"),
        ({"type": "AVRO", "data": 1}, "not found"),
        ({"type": "AVRO", "schema": schema, "data": {"a": "x"}}, "the value.a has to be an 32-bit integer"),
        ({"type": "AVRO", "schema": "{", "data": 1}, "Invalid schema"),
    ]
    entries = [{"id": str(n), "value": field} for n, (field, _) in enumerate(wrong)]
    reply = await site.ask("POST", f"{site.cluster}/topics/t/records:batch", {"entries": entries})
    messages = {each["id"]: each["message"] for each in reply.json["failures"]}
    for n, (_, words) in enumerate(wrong):
        assert words in messages[str(n)], (words, messages)
    assert stored(site, "t") == []


@run_by(run, "tmp_path")
async def test_record_without_a_frame_stops_a_consumer_with_words(site: HttpBroker) -> None:
    await site.create("t")
    assert (await send(site, "t", "avro", {"value_schema": '"string"', "records": [{"value": "x"}]})).status == 200
    await site.produce("t", "plain")
    first = await consume(site, "g", "t", "avro", 1)
    assert [row["value"] for row in first.json] == ["x"]
    stopped = await consume(site, "g", "t", "avro", 1)
    assert stopped.json["error_code"] == 42203 and "no zero byte with a schema id" in stopped.json["message"]


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_schema_that_the_caller_may_not_see_does_not_exist(site: HttpBroker) -> None:
    """The right on a topic is one on its subjects, and on no others. A record may name any id."""
    await site.create("t")
    await site.create("secret")
    await grant(site, ("TOPIC", "secret", "WRITE"))
    body = {"value_schema": '"string"', "records": [{"value": "x"}]}
    id = (await send(site, "secret", "avro", body)).json["value_schema_id"]
    await site.broker.submit(DeleteAcls((EVERY_ACL,)))
    await grant(site, ("TOPIC", "t", "WRITE"), ("TOPIC", "t", "READ"), ("GROUP", "g", "READ"))
    path = f"{site.cluster}/topics/t/records"
    for field in ({"schema_id": id, "data": "x"}, {"subject": "secret-value", "data": "x"}):
        reply = await site.ask("POST", path, {"value": field})
        assert reply.status in (403, 422), reply
    taken = {"type": "AVRO", "schema": '"string"', "subject": "secret-value", "data": "x"}
    assert (await site.ask("POST", path, {"value": taken})).status == 403
    frame = base64.b64encode(b"\0" + id.to_bytes(4, "big") + b"\2x").decode()
    assert (await site.ask("POST", path, {"value": {"type": "BINARY", "data": frame}})).status == 200
    read = await consume(site, "g", "t", "avro", 1)
    assert read.json["error_code"] == 42203 and f"Schema {id} not found" in read.json["message"]


@run_by(run, "tmp_path")
async def test_schemas_that_are_kept_are_bounded_by_their_size(site: HttpBroker) -> None:
    """Each is parsed in more memory than its text takes, and users choose the texts."""
    codecs = site.http._listener.context.lazy_service(ValueCodecs)
    with patch.object(value_codecs, "KEPT_CHARACTERS_MAX", 2 * len(USER) + 20):
        for number in range(8):
            schema = USER.replace("User", f"User{number}")
            body = {"value_schema": schema, "records": [{"value": {"name": None}}]}
            await site.create(f"t{number}")
            assert (await send(site, f"t{number}", "avro", body)).status == 200
            assert 1 <= len(codecs._codecs) <= 2 and 1 <= len(codecs._ids) <= 2
