"""DescribeAcls (API key 29): the ACLs that a filter chooses, by resource.

v1 has patterns. v2 is flexible. v3 has the resource type USER.
"""

from __future__ import annotations

from tiered.errors import Refused
from tiered_api.kafka.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.requests.acl_words import read_filter
from tiered_api.kafka.server.rights.authorization import check_acls_in_force


async def handle(context: KafkaContext, call: Call[DescribeAclsRequest]) -> DescribeAclsResponse:
    """Returns the ACLs of this broker's image."""
    try:
        check_acls_in_force(context)
        wanted = read_filter(call.request)
        fault = wanted.find_fault()
        if fault is not None:
            raise fault
    except Refused as refused:
        return DescribeAclsResponse(error_code=refused.code.number, error_message=refused.why)
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in sorted(filter(wanted.matches, context.broker.image.acls)):
        key = acl.resource_type, acl.resource_name, acl.pattern_type
        resource = resources.setdefault(key, DescribeAclsResource(*key))
        resource.acls.append(AclDescription(acl.principal, acl.host, acl.operation, acl.permission))
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))
