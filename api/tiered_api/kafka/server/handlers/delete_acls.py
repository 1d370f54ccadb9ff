"""DeleteAcls (API key 31): removes the ACLs that filters choose, and names them.

v1 has patterns. v2 is flexible. v3 has the resource type USER.
"""

from __future__ import annotations

from tiered.controller.requests import AclChoice, DeleteAcls
from tiered.errors import Code, Refused
from tiered.metadata.changes import AclRemoved
from tiered.security.acls import AclFilter, acl_from_texts
from tiered_api.kafka.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.requests.acl_words import read_filter
from tiered_api.kafka.server.rights.authorization import check_acls_in_force


async def handle(context: KafkaContext, call: Call[DeleteAclsRequest]) -> DeleteAclsResponse:
    """Returns once the ACLs are gone."""
    filters = call.request.filters
    try:
        check_acls_in_force(context)
        chosen = tuple(_to_choice(read_filter(each)) for each in filters)
        results = await context.broker.submit(
            DeleteAcls(chosen), DEFAULT_TIMEOUT_MS / 1000, by=MutationCharges(context, call)
        )
        return DeleteAclsResponse(filter_results=list(map(_to_result, results)))
    except Refused as refused:
        return DeleteAclsResponse(filter_results=[_to_result(refused) async for _ in context.turns.each_of(filters)])


def _to_choice(wanted: AclFilter) -> AclChoice:
    return AclChoice(
        wanted.resource_type.name, wanted.pattern_type.name, wanted.resource_name, wanted.principal, wanted.host,
        wanted.operation.name, wanted.permission.name,
    )  # fmt: skip


def _to_result(result: tuple[AclRemoved, ...] | Refused) -> DeleteAclsFilterResult:
    if isinstance(result, Refused):
        return DeleteAclsFilterResult(result.code.number, result.why)
    return DeleteAclsFilterResult(Code.NONE.number, None, [_to_matching(each) for each in result])


def _to_matching(removed: AclRemoved) -> DeleteAclsMatchingAcl:
    acl = acl_from_texts(
        removed.resource_type, removed.pattern_type, removed.resource_name, removed.principal, removed.host,
        removed.operation, removed.permission,
    )  # fmt: skip
    return DeleteAclsMatchingAcl(
        Code.NONE.number, None, acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host,
        acl.operation, acl.permission,
    )  # fmt: skip
