"""CreateAcls (API key 30): adds ACLs, each with its own error.

v1 has patterns. v2 is flexible. v3 has the resource type USER.
"""

from __future__ import annotations

from tiered.controller.requests import CreateAcls
from tiered.errors import Code, Refused
from tiered.metadata.changes import AclAdded
from tiered.security.acls import Acl, Operation, PatternType, Permission, ResourceType, find_acl_fault
from tiered_api.kafka.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges
from tiered_api.kafka.server.requests.acl_words import read_word
from tiered_api.kafka.server.rights.authorization import check_acls_in_force


async def handle(context: KafkaContext, call: Call[CreateAclsRequest]) -> CreateAclsResponse:
    """Returns once the ACLs are in force."""
    creations = call.request.creations
    try:
        check_acls_in_force(context)
        acls = list(map(_read_acl, creations))
        results = {acl: find_acl_fault(acl) for acl in acls}
        valid = [acl for acl, refused in results.items() if refused is None]
        request = CreateAcls(tuple(AclAdded(*acl.to_texts()) for acl in valid))
        replies = await context.broker.submit(request, DEFAULT_TIMEOUT_MS / 1000, by=MutationCharges(context, call))
        results.update(zip(valid, replies, strict=True))
        return CreateAclsResponse(results=[_to_result(results[acl]) for acl in acls])
    except Refused as refused:
        return CreateAclsResponse(results=[_to_result(refused) async for _ in context.turns.each_of(creations)])


def _read_acl(requested: AclCreation) -> Acl:
    return Acl(
        read_word(ResourceType, requested.resource_type),
        read_word(PatternType, requested.resource_pattern_type),
        requested.resource_name,
        requested.principal,
        requested.host,
        read_word(Operation, requested.operation),
        read_word(Permission, requested.permission_type),
    )


def _to_result(refused: Refused | None) -> AclCreationResult:
    if refused is None:
        return AclCreationResult(Code.NONE.number, None)
    return AclCreationResult(refused.code.number, refused.why)
