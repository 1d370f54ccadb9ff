"""Tests of rights over HTTP: the table of routes, and the refusals of a broker. All clients are anonymous here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from tests.e2e.http_site import HttpBroker, run
from tests.e2e.test_http_groups import GROUP, join_and_commit
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AclChoice, CreateAcls, DeleteAcls
from tiered.ids import TopicPartition
from tiered.metadata.changes import AclAdded
from tiered_api.http.server.rights import ROUTE_RULES
from tiered_api.http.server.routes import table

RECORD = {"value": {"type": "JSON", "data": 1}}
EVERY_ACL = AclChoice("ANY", "ANY", None, None, None, "ANY", "ANY")


async def grant(site: HttpBroker, *acls: tuple[str, str, str]) -> None:
    """Adds rules (resource type, name, operation) for every anonymous client."""
    added = [
        AclAdded(kind, "LITERAL", name, "User:ANONYMOUS", "*", operation, "ALLOW") for kind, name, operation in acls
    ]
    for refused in await site.broker.submit(CreateAcls(tuple(added))):
        assert refused is None, refused


def test_each_route_has_a_rule_and_names_its_resources() -> None:
    routes = {route.operation: route for route in table().routes}
    assert ROUTE_RULES.keys() == routes.keys()
    for operation, rule in ROUTE_RULES.items():
        for need in rule.needs:
            assert not need.argument or f"{{{need.argument}}}" in routes[operation].path


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_every_route_with_needs_is_refused_without_rights(site: HttpBroker) -> None:
    await site.create("t")
    for route in table().routes:
        rule = ROUTE_RULES[route.operation]
        if not rule.needs:
            continue
        for topic in ("t", "absent"):
            path = route.path.replace("{cluster}", site.broker.cluster_id).replace("{topic}", topic)
            path = path.replace("{partition}", "0").replace("{broker}", "1")
            for argument in ("group", "instance", "consumer", "config"):
                path = path.replace(f"{{{argument}}}", "g")
            body: dict[str, str] | None = {} if route.method in ("POST", "PUT", "PATCH") else None
            answer = await site.ask(route.method, path, body)
            assert (answer.status, answer.json["error_code"]) == (403, 40301), route.operation


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_rights_are_those_of_the_kafka_protocol_and_take_effect_at_once(site: HttpBroker) -> None:
    await site.create("t")
    await site.create("hidden")
    records, topics = f"{site.cluster}/topics/t/records", f"{site.cluster}/topics"
    await grant(site, ("TOPIC", "t", "WRITE"))
    for _ in range(3):
        assert (await site.ask("POST", records, RECORD)).status == 200
    assert (await site.ask("GET", "/topics")).json == ["t"]
    assert [each["topic_name"] for each in (await site.ask("GET", topics)).json["data"]] == ["t"]
    assert (await site.ask("GET", f"{topics}/t")).status == 200, "WRITE implies DESCRIBE"
    assert (await site.ask("GET", "/topics/t/partitions/0/records")).status == 403
    await site.broker.submit(DeleteAcls((EVERY_ACL,)))
    assert (await site.ask("POST", records, RECORD)).status == 403
    assert (await site.ask("GET", "/healthz")).status == 200


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_lags_leave_out_topics_that_the_caller_may_not_describe(site: HttpBroker) -> None:
    await site.create("t")
    await site.create("hidden")
    await join_and_commit(site, TopicPartition("t", 0), TopicPartition("hidden", 0))
    await grant(site, ("TOPIC", "t", "DESCRIBE"), ("GROUP", GROUP, "DESCRIBE"))
    lags = f"{site.cluster}/consumer-groups/{GROUP}/lags"
    assert [each["topic_name"] for each in (await site.ask("GET", lags)).json["data"]] == ["t"]
    summary = (await site.ask("GET", lags.replace("/lags", "/lag-summary"))).json
    assert summary["max_lag_topic_name"] == "t"
    for topic in ("hidden", "absent"):
        assert (await site.ask("GET", f"{lags}/{topic}/partitions/0")).status == 404


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_event_stream_ends_when_its_right_is_taken_away(site: HttpBroker) -> None:
    await site.create("t")
    await grant(site, ("TOPIC", "t", "READ"), ("TOPIC", "t", "WRITE"))
    path, headers = f"{site.url}/topics/t/partitions/0/records", {"Accept": "text/event-stream"}
    async with site.session.get(path, headers=headers) as response:
        assert await response.content.readuntil(b"\n\n") == b": open\n\n"
        await site.produce("t", "seen")
        assert b"seen" in await response.content.readuntil(b"\n\n")
        await site.broker.submit(DeleteAcls((EVERY_ACL,)))
        await grant(site, ("TOPIC", "t", "WRITE"))
        await site.produce("t", "hidden")
        rest = await response.content.read()
        assert b"40301" in rest and b"hidden" not in rest


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_health_says_no_more_than_its_status_to_callers_without_rights(site: HttpBroker) -> None:
    assert (await site.ask("GET", "/healthz")).json == {"ok": True}
    await grant(site, ("CLUSTER", "kafka-cluster", "DESCRIBE"))
    assert (await site.ask("GET", "/healthz")).json["details"]


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_produce_stream_ends_when_its_right_is_taken_away(site: HttpBroker) -> None:
    await site.create("t")
    await grant(site, ("TOPIC", "t", "WRITE"))
    taken_away = asyncio.Event()

    async def records() -> AsyncGenerator[bytes, None]:
        yield json.dumps(RECORD).encode()
        await taken_away.wait()
        yield json.dumps(RECORD).encode()

    path, headers = f"{site.url}{site.cluster}/topics/t/records", {"Content-Type": "application/json"}
    async with site.session.post(path, data=records(), headers=headers) as response:
        assert json.loads(await response.content.readline())["offset"] == 0
        await site.broker.submit(DeleteAcls((EVERY_ACL,)))
        taken_away.set()
        assert json.loads(await response.content.readline())["error_code"] == 40301
    assert site.broker.leader_replica("t", 0).high_watermark == 1
