"""Tests of ACLs over real sockets: the APIs that change them, and their effect on requests.

All clients here are anonymous. The addresses 127.0.0.1 (the administrator) and 127.0.0.2 tell them apart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import CreateAcls
from tiered.errors import Code
from tiered.metadata.changes import AclAdded
from tiered_api.kafka.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tiered_api.kafka.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from tiered_api.kafka.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

ADMIN, GUEST = "127.0.0.1", "127.0.0.2"
ME = "User:ANONYMOUS"
TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
ALL, READ, ALTER, DESCRIBE = 2, 3, 7, 8
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
EVERY_TYPE = ("TOPIC", "GROUP", "TRANSACTIONAL_ID")


async def grant(site: KafkaBroker, *acls: tuple[str, ...], host: str = GUEST) -> None:
    """Adds rules (resource type, name, operation) without the protocol, for one address."""
    added = [AclAdded(kind, "LITERAL", name, ME, host, operation, "ALLOW") for kind, name, operation in acls]
    for refused in await site.node.submit(CreateAcls(tuple(added))):
        assert refused is None, refused


def run_with_acls(directory: Path, scenario: Callable[[KafkaBroker], Awaitable[None]]) -> None:
    """Runs a scenario against a broker whose administrator at 127.0.0.1 may do everything."""

    async def act(site: KafkaBroker) -> None:
        everything = [(kind, "*", "ALL") for kind in EVERY_TYPE]
        await grant(site, *everything, ("CLUSTER", "kafka-cluster", "ALL"), host=ADMIN)
        await scenario(site)

    run(directory, act, authorizer_class_name=STANDARD_AUTHORIZER)


async def describe(client: RawClient, version: int, *fields: object) -> DescribeAclsResponse:
    return await client.ask(DescribeAclsRequest(*fields), version, DescribeAclsResponse)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rules_are_created_described_and_deleted(tmp_path: Path, version: int) -> None:
    async def scenario(site: KafkaBroker) -> None:
        client = await site.client(ADMIN)
        good = AclCreation(TOPIC, "orders", PREFIXED, "User:alice", "*", READ, ALLOW)
        bad = AclCreation(CLUSTER, "other", LITERAL, "User:alice", "*", ALTER, ALLOW)
        unknown = AclCreation(99, "orders", LITERAL, "User:alice", "*", READ, ALLOW)
        creation = CreateAclsRequest([good, bad, unknown, good])
        answer = await client.ask(creation, version, CreateAclsResponse)
        assert [each.error_code for each in answer.results] == [0, 42, 42, 0]
        assert answer.results[1].error_message == "The only valid name for the CLUSTER resource is kafka-cluster"
        described = await describe(client, version, TOPIC, "orders-1", 2, None, None, 1, ALLOW)  # 2: MATCH
        found = {
            (each.resource_name, each.pattern_type, acl.principal) for each in described.resources for acl in each.acls
        }
        assert found == {("orders", PREFIXED, "User:alice"), ("*", LITERAL, ME)}
        wanted = DeleteAclsFilter(1, None, 1, "User:alice", None, 1, 1)
        wrong = DeleteAclsFilter(1, None, 1, None, None, 99, 1)
        deleted = await client.ask(DeleteAclsRequest([wanted, wrong]), version, DeleteAclsResponse)
        first, second = deleted.filter_results
        assert [
            (each.resource_type, each.resource_name, each.pattern_type, each.operation) for each in first.matching_acls
        ] == [(TOPIC, "orders", PREFIXED, READ)]
        assert (first.error_code, second.error_code, second.error_message) == (0, 42, "Unknown entryFilter.")
        after = await describe(client, version, 1, None, 1, "User:alice", None, 1, 1)
        assert (after.error_code, after.error_message, after.resources) == (0, None, [])

    run_with_acls(tmp_path, scenario)


def test_rules_need_rights_on_the_cluster(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        await grant(site, ("CLUSTER", "kafka-cluster", "DESCRIBE"))
        client = await site.client(GUEST)
        rule = AclCreation(TOPIC, "orders", PREFIXED, "User:alice", "*", READ, ALLOW)
        created = await client.ask(CreateAclsRequest([rule]), 3, CreateAclsResponse)
        deleted = await client.ask(
            DeleteAclsRequest([DeleteAclsFilter(1, None, 1, None, None, 1, 1)]), 3, DeleteAclsResponse
        )
        codes = created.results[0].error_code, deleted.filter_results[0].error_code
        assert codes == (Code.CLUSTER_AUTHORIZATION_FAILED.number,) * 2
        before = await describe(client, 3, 1, None, 1, None, None, 1, 1)
        assert before.error_code == 0 and before.resources
        other = await site.client("127.0.0.3")
        refused = await describe(other, 3, 1, None, 1, None, None, 1, 1)
        assert (refused.error_code, refused.resources) == (Code.CLUSTER_AUTHORIZATION_FAILED.number, [])

    run_with_acls(tmp_path, scenario)


def test_broker_without_authorizer_knows_no_rules(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        described = await describe(client, 3, 1, None, 1, None, None, 1, 1)
        assert described.error_code == Code.SECURITY_DISABLED.number
        rule = AclCreation(TOPIC, "orders", PREFIXED, "User:alice", "*", READ, ALLOW)
        created = await client.ask(CreateAclsRequest([rule]), 3, CreateAclsResponse)
        assert [each.error_code for each in created.results] == [Code.SECURITY_DISABLED.number]
        assert site.node.image.acls == frozenset()

    run(tmp_path, scenario)
