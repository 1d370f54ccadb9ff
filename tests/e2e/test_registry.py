"""The schema registry at one broker: Confluent's addresses and errors, rights, bounds, and records of others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.e2e.http_site import HttpBroker, HttpReply, run
from tests.e2e.test_http_acls import grant
from tests.scenario import run_by
from tests.unit.registry.test_records import EXPORT
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AclChoice, DeleteAcls
from tiered.records.batch import encode_batch
from tiered.registry.records import write_version
from tiered.registry.schema import Schema
from tiered_api.http.registry import schema_log

TYPE = "application/vnd.schemaregistry.v1+json"
EVERY_ACL = AclChoice("ANY", "ANY", None, None, None, "ANY", "ANY")


def avro(*fields: str, **more: Any) -> dict[str, Any]:
    """Returns the body of a record schema whose fields are ints; those after the first one have a default."""
    rows = [{"name": name, "type": "int", **({"default": 0} if n else {})} for n, name in enumerate(fields)]
    return {"schema": json.dumps({"type": "record", "name": "R", "fields": rows}), **more}


async def ask(site: HttpBroker, method: str, path: str, body: Any = None) -> HttpReply:
    return await site.ask(method, path, body, kind=TYPE if body is not None else "")


async def code(site: HttpBroker, method: str, path: str, body: Any = None) -> int:
    reply = await ask(site, method, path, body)
    return int(reply.json["error_code"])


async def register(site: HttpBroker, subject: str, body: dict[str, Any]) -> int:
    reply = await ask(site, "POST", f"/subjects/{subject}/versions", body)
    assert reply.status == 200, reply
    return int(reply.json["id"])


@run_by(run, "tmp_path")
async def test_schema_lives_through_all_addresses(site: HttpBroker) -> None:
    assert (await site.get("/subjects")).json == []
    assert (await site.get("/schemas/types")).json == ["JSON", "PROTOBUF", "AVRO"]
    assert "_schemas" not in site.broker.image.topics, "a read makes no topic"
    first = await register(site, "t-value", avro("a"))
    assert await register(site, "t-value", avro("a")) == await register(site, "u-value", avro("a")) == first
    second = await register(site, "t-value", avro("a", "b"))
    assert (first, second) == (1, 2)
    version = await ask(site, "GET", "/subjects/t-value/versions/2")
    assert version.headers["Content-Type"] == TYPE
    assert {**version.json, "guid": ""} == {
        "subject": "t-value", "version": 2, "id": 2, "guid": "",
        "schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},'
        '{"name":"b","type":"int","default":0}]}',
    }  # fmt: skip
    assert (await site.get("/subjects/t-value/versions/latest")).json == version.json
    assert (await site.get("/subjects/t-value/versions/2/schema")).json == json.loads(version.json["schema"])
    assert (await site.get("/schemas/ids/2")).json["schema"] == version.json["schema"]
    assert (await site.get("/schemas/ids/2?fetchMaxId=true")).json["maxId"] == 2
    assert (await site.get("/schemas/ids/2/schema")).body.decode() == version.json["schema"]
    assert (await site.get("/schemas/ids/1/subjects")).json == ["t-value", "u-value"]
    assert (await site.get("/schemas/ids/2/versions")).json == [{"subject": "t-value", "version": 2}]
    assert (await site.get("/subjects/t-value/versions?offset=1&limit=5")).json == [2]
    assert [each["id"] for each in (await site.get("/schemas?latestOnly=true")).json] == [2, 1]
    assert (await site.get("/contexts")).json == ["."]
    assert (await ask(site, "POST", "/subjects/t-value", avro("a"))).json["version"] == 1
    assert (await ask(site, "DELETE", "/subjects/t-value/versions/1")).json == 1
    assert (await ask(site, "DELETE", "/subjects/t-value")).json == [2]
    assert (await site.get("/subjects")).json == ["u-value"]
    assert (await site.get("/subjects?deletedOnly=True")).json == ["t-value"]
    assert (await site.get("/schemas/ids/2")).status == 200, "records with the id can still be read"
    assert (await ask(site, "DELETE", "/subjects/t-value?permanent=true")).json == [1, 2]
    assert await code(site, "GET", "/schemas/ids/2") == 40403


@run_by(run, "tmp_path")
async def test_levels_and_modes_hold_for_their_subjects(site: HttpBroker) -> None:
    await register(site, "t-value", avro("a"))
    check = "/compatibility/subjects/t-value/versions"
    wrong = {"schema": json.dumps({"type": "record", "name": "R", "fields": [{"name": "z", "type": "int"}]})}
    refused = await ask(site, "POST", "/subjects/t-value/versions", wrong)
    assert (refused.status, refused.json["error_code"]) == (409, 409)
    assert "reader_field_missing_default_value at /fields/0: z" in refused.json["message"]
    for path in (check, f"{check}/latest", f"{check}/1"):
        verdict = (await ask(site, "POST", f"{path}?verbose=true", wrong)).json
        assert not verdict["is_compatible"] and verdict["messages"], path
        assert (await ask(site, "POST", path, avro("a", "b"))).json == {"is_compatible": True}
    assert (await ask(site, "POST", "/compatibility/subjects/new/versions/latest", wrong)).json["is_compatible"]
    assert await code(site, "POST", f"{check}/9", wrong) == 40402
    assert (await site.get("/config")).json == {"compatibilityLevel": "BACKWARD"}
    assert await code(site, "GET", "/config/t-value") == 40408
    assert (await site.get("/config/t-value?defaultToGlobal=true")).json == {"compatibilityLevel": "BACKWARD"}
    assert await code(site, "PUT", "/config/t-value", {"compatibility": "SOMETIMES"}) == 42203
    assert (await ask(site, "PUT", "/config/t-value", {"compatibility": "NONE"})).json == {"compatibility": "NONE"}
    assert await register(site, "t-value", wrong) == 2
    removed = (await ask(site, "DELETE", "/config/t-value")).json
    assert removed == {"compatibility": "NONE", "compatibilityLevel": "NONE"}
    assert await code(site, "PUT", "/mode", {"mode": "IMPORT"}) == 42205
    assert (await ask(site, "PUT", "/mode/new", {"mode": "IMPORT"})).json == {"mode": "IMPORT"}
    assert await register(site, "new", avro("q", id=70, version=3)) == 70
    assert (await site.get("/subjects/new/versions")).json == [3]
    assert (await ask(site, "DELETE", "/mode/new")).json == {"mode": "IMPORT"}
    assert await register(site, "t-value", avro("a")) == 1
    assert (await ask(site, "PUT", "/mode", {"mode": "READONLY"})).status == 200
    assert await code(site, "DELETE", "/subjects/t-value") == 42205


@run_by(run, "tmp_path")
async def test_errors_have_the_codes_of_confluent(site: HttpBroker) -> None:
    await register(site, "s", avro("a"))
    text = "x" * (3 << 20)
    for method, path, body, wanted in (
        ("GET", "/subjects/absent/versions", None, 40401),
        ("GET", "/subjects/s/versions/7", None, 40402),
        ("GET", "/subjects/s/versions/first", None, 42202),
        ("GET", "/schemas/ids/99", None, 40403),
        ("GET", "/schemas/ids/x", None, 40403),
        ("GET", "/mode/s", None, 40409),
        ("GET", "/subjects/s/versions/1?format=xml", None, 422),
        ("GET", "/subjects?deleted=perhaps", None, 400),
        ("POST", "/subjects/s", avro("b"), 40403),
        ("POST", "/subjects/absent", avro("b"), 40401),
        ("POST", "/subjects/s/versions", {"schema": "{"}, 42201),
        ("POST", "/subjects/s/versions", {"schema": ""}, 42201),
        ("POST", "/subjects/s/versions", {"schema": "{}", "schemaType": "XML"}, 42201),
        ("POST", "/subjects/s/versions", {"schema": 3}, 422),
        ("POST", "/subjects/s/versions", {"shema": "{}"}, 422),
        ("POST", "/subjects/s/versions", avro("a", references=[{"name": "x"}]), 422),
        ("POST", "/subjects/s/versions", avro("a", references=[{"name": "x", "subject": "y", "version": 1}]), 42201),
        ("POST", "/subjects/s/versions", avro("b", id=5), 42205),
        ("POST", "/subjects/%20/versions", avro("a"), 42208),
        ("POST", "/subjects/s/versions", {"schema": f'"{text}"'}, 42209),
        ("POST", "/subjects/s/versions", {"schema": f'"{text * 2}"'}, 413),
        ("POST", "/subjects/s/versions", {"schema": "[" * 100_000}, 42201),
        ("DELETE", "/subjects/s?permanent=true", None, 40405),
        ("DELETE", "/subjects/s/versions/1?permanent=true", None, 40407),
        ("DELETE", "/subjects/absent", None, 40401),
    ):
        assert await code(site, method, path, body) == wanted, path
    # The record is larger than the topic takes, although the text is short enough.
    big = {"schema": json.dumps({"type": "record", "name": "R", "fields": [], "doc": '"' * 524_000})}
    assert await code(site, "POST", "/subjects/s/versions", big) == 42209
    assert (await site.get("/subjects/s/versions")).json == [1], "nothing is lost, and the registry goes on"


@run_by(run, "tmp_path")
async def test_contexts_have_ids_of_their_own(site: HttpBroker) -> None:
    assert await register(site, "s", avro("a")) == 1
    assert await register(site, "s", avro("a", "b")) == 2
    assert await register(site, ":.c:s", avro("a", "b")) == 1
    assert (await site.get("/contexts")).json == [".", ".c"]
    assert (await site.get("/subjects")).json == [":.c:s", "s"]
    assert (await site.get("/subjects?subjectPrefix=:.c:")).json == [":.c:s"]
    inner, outer = [(await site.get(f"/schemas/ids/1{query}")).json["schema"] for query in ("?subject=:.c:", "")]
    assert '"b"' in inner and '"b"' not in outer
    below = "/contexts/.c"
    assert (await ask(site, "POST", f"{below}/subjects/s/versions", avro("a"))).json["subject"] == ":.c:s"
    assert (await site.get(f"{below}/subjects")).json == [":.c:s"]
    assert (await site.get(f"{below}/schemas/ids/1")).json["schema"] == inner
    assert (await ask(site, "PUT", f"{below}/config", {"compatibility": "NONE"})).status == 200
    assert (await site.get("/config/:.c:?defaultToGlobal=true")).json == {"compatibilityLevel": "NONE"}
    assert (await site.get("/config")).json == {"compatibilityLevel": "BACKWARD"}


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_rights_on_a_topic_are_rights_on_its_subjects(site: HttpBroker) -> None:
    mine, other = "/subjects/t-value/versions", "/subjects/com.shop.R/versions"
    await grant(site, ("TOPIC", "_schemas", "WRITE"))
    assert await register(site, "com.shop.R", avro("secret")) == 1
    await site.broker.submit(DeleteAcls((EVERY_ACL,)))
    for method, path, body in (
        ("GET", mine, None),
        ("POST", mine, avro("a")),
        ("PUT", "/config", {}),
        ("GET", "/config", None),
    ):
        assert await code(site, method, path, body) == 40301, path
    assert (await site.get("/subjects")).json == (await site.get("/schemas")).json == []
    assert await code(site, "GET", "/schemas/ids/1") == 40403, "an id says nothing to a caller without rights"
    await grant(site, ("TOPIC", "t", "WRITE"))
    assert await register(site, "t-value", avro("a")) == 2
    assert (await site.get(mine)).json == [1], "WRITE implies DESCRIBE"
    assert (await site.get("/subjects")).json == ["t-value"]
    assert (await site.get("/schemas/ids/2")).status == 200
    for method, path, body in (
        ("GET", other, None),
        ("DELETE", "/subjects/t-value", None),
        ("GET", "/config/t-value", None),
        ("PUT", "/mode/t-value", {"mode": "READONLY"}),
        ("GET", "/subjects/:.c:t-value/versions", None),
        ("POST", mine, avro("a", references=[{"name": "R", "subject": "com.shop.R", "version": 1}])),
    ):
        assert await code(site, method, path, body) == 40301, path
    assert await code(site, "GET", "/schemas/ids/1") == 40403
    await grant(site, ("TOPIC", "t", "DELETE"), ("TOPIC", "t", "ALTER_CONFIGS"))
    assert (await ask(site, "PUT", "/config/t-value", {"compatibility": "FULL"})).status == 200
    assert (await ask(site, "DELETE", "/subjects/t-value")).json == [1]


@run_by(run, "tmp_path")
async def test_export_of_another_registry_is_served_once_it_is_in_the_topic(site: HttpBroker) -> None:
    await site.create("_schemas", cleanup_policy="compact")
    records = [(0, key.encode(), None if value is None else value.encode(), ()) for key, value in EXPORT]
    for batch in (records, [(0, b"no JSON", b"at all", ())]):
        await site.broker.leader_replica("_schemas", 0).append(bytearray(encode_batch(batch)))
    assert (await site.get("/subjects")).json == ["top-value"]
    assert (await site.get("/schemas/ids/9")).json["references"][0]["subject"] == "base-value"
    assert (await site.get("/config")).json == {"compatibilityLevel": "FULL"}
    assert await register(site, "next-value", avro("a")) == 10
    metrics = (await site.get("/metrics")).body.decode()
    assert "tiered_registry_versions 4" in metrics
    assert "tiered_registry_skipped_records_total 2" in metrics, "the context, and the record that is no JSON"


@run_by(run, "tmp_path")
async def test_topic_that_would_lose_schemas_is_refused(site: HttpBroker) -> None:
    await site.create("_schemas", cleanup_policy="delete")
    reply = await ask(site, "GET", "/subjects")
    assert (reply.status, reply.json["error_code"]) == (500, 50001)
    assert "cleanup.policy=compact" in reply.json["message"]


@run_by(run, "tmp_path")
async def test_concurrent_registrations_get_one_id_for_each_schema(site: HttpBroker) -> None:
    bodies = [avro("a", f"f{n % 4}") for n in range(24)]
    ids = await asyncio.gather(*(register(site, f"s{n}", body) for n, body in enumerate(bodies)))
    assert [ids[n % 4] for n in range(24)] == ids
    assert sorted(set(ids)) == [1, 2, 3, 4]


@run_by(run, "tmp_path")
async def test_registry_is_read_anew_after_its_topic_was_made_again(site: HttpBroker) -> None:
    await register(site, "s", avro("a"))
    assert (await ask(site, "DELETE", f"{site.cluster}/topics/{schema_log.SCHEMAS_TOPIC}")).status == 204
    assert (await site.get("/subjects")).json == []
    assert await register(site, "other", avro("b")) == 1
    assert (await ask(site, "DELETE", f"{site.cluster}/topics/{schema_log.SCHEMAS_TOPIC}")).status == 204
    await site.create("_schemas", cleanup_policy="compact")
    record = [(0, *write_version("as long as before", 1, 7, Schema("{}", "JSON")), ())]
    await site.broker.leader_replica("_schemas", 0).append(bytearray(encode_batch(record)))
    assert (await site.get("/subjects")).json == ["as long as before"]


@run_by(run, "tmp_path")
async def test_each_change_has_a_line_in_the_audit_log(site: HttpBroker) -> None:
    lines: list[dict[str, str]] = []
    site.broker.audit.subscribe(lambda line: lines.append(json.loads(line)))
    await register(site, "s", avro("a"))
    await register(site, "s", avro("a"))
    await ask(site, "PUT", "/config", {"compatibility": "full"})
    await ask(site, "PUT", "/mode/s", {"mode": "READWRITE"})
    await ask(site, "DELETE", "/mode/s")
    await ask(site, "DELETE", "/subjects/s")
    await ask(site, "DELETE", "/subjects/s")
    changes = [each for each in lines if each.get("resource_type") == "SUBJECT"]
    assert [(each["operation"], each["resource_name"], each["detail"], each["outcome"]) for each in changes] == [
        ("CREATE", "s", "version=1 id=1", "done"),
        ("ALTER_CONFIGS", "*", "level=full", "done"),
        ("ALTER_CONFIGS", "s", "mode=READWRITE", "done"),
        ("ALTER_CONFIGS", "s", "mode=default", "done"),
        ("DELETE", "s", "versions=1 permanent=false", "done"),
    ]


@run_by(run, "tmp_path")
async def test_latest_version_is_found_by_properties_of_its_metadata(site: HttpBroker) -> None:
    for fields, properties in ((("a",), {"major": "1", "x": "y"}), (("a", "b"), {"major": "1"}), (("c", "d"), {})):
        await ask(site, "PUT", "/config", {"compatibility": "NONE"})
        await register(site, "t-value", avro(*fields, metadata={"properties": properties}))
    for query, version in (("key=major&value=1", 2), ("key=major&value=1&key=x&value=y", 1), ("deleted=false", 3)):
        assert (await site.get(f"/subjects/t-value/metadata?{query}")).json["version"] == version
    assert await code(site, "GET", "/subjects/t-value/metadata?key=major&value=2") == 40403
    assert await code(site, "GET", "/subjects/other/metadata?key=major&value=2") == 40401
    assert await code(site, "GET", "/subjects/t-value/metadata?key=major") == 400
    assert await code(site, "GET", "/subjects/t-value/metadata?deleted=true&deleted=true") == 400
