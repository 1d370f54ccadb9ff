"""ACLs and filters in requests and replies: the numbers of the protocol as the words of ACLs.

A number that this version does not know is UNKNOWN, and its ACL or filter is refused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from tiered.security.acls import AclFilter, Operation, PatternType, Permission, ResourceType
from tiered_api.kafka.protocol.messages.delete_acls import DeleteAclsFilter
from tiered_api.kafka.protocol.messages.describe_acls import DescribeAclsRequest

E = TypeVar("E", bound=IntEnum)


def read_word(kind: type[E], number: int) -> E:
    """Returns the word of a number."""
    return kind(number if number in kind._value2member_map_ else 0)


def read_filter(requested: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Returns the filter of a request."""
    return AclFilter(
        read_word(ResourceType, requested.resource_type_filter),
        read_word(PatternType, requested.pattern_type_filter),
        requested.resource_name_filter,
        requested.principal_filter,
        requested.host_filter,
        read_word(Operation, requested.operation),
        read_word(Permission, requested.permission_type),
    )
