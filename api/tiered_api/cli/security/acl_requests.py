"""ACLs over the Kafka protocol: those of the cluster, new ones, and their removal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tiered.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from tiered_api.kafka.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tiered_api.kafka.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

AclOutcome: TypeAlias = AclCreationResult | DeleteAclsFilterResult


async def fetch_acls(client: KafkaClient) -> frozenset[Acl]:
    """Fetches all ACLs. Raises `Refused` (SECURITY_DISABLED) without an authorizer."""
    request = DescribeAclsRequest(
        ResourceType.ANY, None, PatternType.ANY, None, None, Operation.ANY, Permission.ANY
    )  # fmt: skip
    got = await client.send(request, DescribeAclsResponse)
    if got.error_code:
        raise to_refused(got.error_code, "rules are not shown", got.error_message)
    return frozenset(
        Acl(
            ResourceType(resource.resource_type), PatternType(resource.pattern_type), resource.resource_name,
            acl.principal, acl.host, Operation(acl.operation), Permission(acl.permission_type),
        )
        for resource in got.resources
        for acl in resource.acls
    )  # fmt: skip


async def create_acls(client: KafkaClient, acls: Sequence[Acl]) -> list[AclCreationResult]:
    """Adds ACLs, each with its own result."""
    creations = [
        AclCreation(
            acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host, acl.operation,
            acl.permission,
        )
        for acl in acls
    ]  # fmt: skip
    return (await client.send_to_controller(CreateAclsRequest(creations), CreateAclsResponse)).results


async def delete_acls(client: KafkaClient, acls: Sequence[Acl]) -> list[DeleteAclsFilterResult]:
    """Removes exactly these ACLs, each with its own result."""
    filters = [
        DeleteAclsFilter(
            acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host, acl.operation,
            acl.permission,
        )
        for acl in acls
    ]  # fmt: skip
    return (await client.send_to_controller(DeleteAclsRequest(filters), DeleteAclsResponse)).filter_results


def choose_acls(acls: frozenset[Acl], filters: Sequence[AclFilter]) -> list[Acl]:
    """Returns the ACLs that one of the filters chooses, in their order."""
    return sorted(acl for acl in acls if any(each.matches(acl) for each in filters))
