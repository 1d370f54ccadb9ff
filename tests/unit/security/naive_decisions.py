"""Decisions of ACLs by a look at every rule: what the authorizer is compared with."""

from __future__ import annotations

from collections.abc import Collection

from tiered.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from tiered.security.principal import Caller


def decide_naively(
    acls: Collection[Acl], caller: Caller, operation: Operation, kind: ResourceType, name: str
) -> bool | None:
    """Returns a decision by a look at every rule; None if no rule is about the resource."""
    about = [
        each
        for each in acls
        if each.resource_type is kind
        and (
            name.startswith(each.resource_name)
            if each.pattern_type is PatternType.PREFIXED
            else each.resource_name in (name, "*")
        )
    ]
    mine = [
        each
        for each in about
        if each.principal in (str(caller.principal), "User:*") and each.host in (caller.host, "*")
    ]
    implying = {operation, Operation.ALL}
    if operation is Operation.DESCRIBE:
        implying |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation is Operation.DESCRIBE_CONFIGS:
        implying |= {Operation.ALTER_CONFIGS}
    if not about:
        return None
    if any(each.permission is Permission.DENY and each.operation in (operation, Operation.ALL) for each in mine):
        return False
    return any(each.permission is Permission.ALLOW and each.operation in implying for each in mine)
