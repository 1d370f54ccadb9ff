"""Tests of rights over HTTP: the table of routes, and the refusals of a broker. All clients are anonymous here."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.http_site import HttpBroker, run
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AclChoice, CreateAcls, DeleteAcls
from tiered.metadata.changes import AclAdded
from tiered_api.http.server.operations import ROUTE_RULES
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


def test_every_route_with_needs_is_refused_without_rights(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        for route in table().routes:
            rule = ROUTE_RULES[route.operation]
            if not rule.needs and not rule.super_only:
                continue
            for topic in ("t", "absent"):
                path = route.path.replace("{cluster}", site.broker.cluster_id).replace("{topic}", topic)
                path = path.replace("{partition}", "0").replace("{broker}", "1")
                for argument in ("group", "instance", "consumer", "config"):
                    path = path.replace(f"{{{argument}}}", "g")
                body: dict[str, str] | None = {} if route.method in ("POST", "PUT", "PATCH") else None
                answer = await site.ask(route.method, path, body)
                assert (answer.status, answer.json["error_code"]) == (403, 40301), route.operation

    run(tmp_path, scenario, authorizer_class_name=STANDARD_AUTHORIZER)


def test_rights_are_those_of_the_kafka_protocol_and_take_effect_at_once(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
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

    run(tmp_path, scenario, authorizer_class_name=STANDARD_AUTHORIZER)
