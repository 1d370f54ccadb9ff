"""The administrators of a cluster: principals that may change its ACLs and users, because they may ALTER the cluster.

Tools look at the administrators before a change, so that a change does not lock out the last one by mistake.
"""

from __future__ import annotations

from collections.abc import Collection

from tiered.security.acls import (
    ANY_USER,
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    Permission,
    ResourceType,
)
from tiered.security.authorizer import Authorizer
from tiered.security.principal import USER, Caller, Principal


def parse_super_users(text: str) -> frozenset[str]:
    """Returns the principals of the setting `super.users`."""
    return frozenset(filter(None, (each.strip() for each in text.split(";"))))


def find_administrators(acls: Collection[Acl], super_users: Collection[str], *, is_open: bool) -> frozenset[str]:
    """Returns the principals that may ALTER the cluster from some host. `User:*` stands for those without an ACL of
    their own."""
    of_cluster = [acl for acl in acls if acl.resource_type is ResourceType.CLUSTER]
    authorizer = Authorizer(of_cluster, super_users, is_open=is_open)
    principals = {acl.principal for acl in of_cluster if acl.permission is Permission.ALLOW}
    hosts = {acl.host for acl in of_cluster if acl.permission is Permission.ALLOW} | {WILDCARD}
    if is_open:
        principals.add(ANY_USER)
    return frozenset(super_users) | {
        principal
        for principal in principals
        if any(
            authorizer.is_allowed(
                Caller(_some_principal(principal), host), Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME
            )
            for host in hosts
        )
    }


def _some_principal(principal: str) -> Principal:
    """Returns a principal of a rule. The wildcard as a name is one that no other rule can name."""
    kind, _, name = principal.partition(":")
    return Principal(kind or USER, name)
