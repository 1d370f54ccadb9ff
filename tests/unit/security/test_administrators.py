"""The administrators of a cluster, by its rules and settings."""

from __future__ import annotations

import pytest

from tiered.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tiered.security.administrators import find_administrators, parse_super_users


def rule(
    principal: str,
    operation: Operation = Operation.ALTER,
    permission: Permission = Permission.ALLOW,
    host: str = "*",
    kind: ResourceType = ResourceType.CLUSTER,
) -> Acl:
    """Returns a rule for the cluster, or for everything of another type."""
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else "*"
    return Acl(kind, PatternType.LITERAL, name, principal, host, operation, permission)


@pytest.mark.parametrize(
    ("acls", "super_users", "is_open", "expected"),
    [
        ([], "", False, set()),
        ([], "", True, {"User:*"}),
        ([], " User:root ; User:CN=a,O=b;", False, {"User:root", "User:CN=a,O=b"}),
        ([rule("User:bob")], "", False, {"User:bob"}),
        ([rule("User:bob", Operation.ALL)], "", False, {"User:bob"}),
        ([rule("User:bob", Operation.DESCRIBE)], "", True, set()),
        ([rule("User:bob", kind=ResourceType.TOPIC)], "", False, set()),
        ([rule("User:bob", kind=ResourceType.TOPIC)], "", True, {"User:*"}),
        ([rule("User:bob", host="10.0.0.1")], "", False, {"User:bob"}),
        ([rule("User:bob"), rule("User:*", Operation.ALL, Permission.DENY)], "", False, set()),
        ([rule("User:bob"), rule("User:*", Operation.ALL, Permission.DENY)], "User:root", False, {"User:root"}),
        ([rule("User:bob"), rule("User:bob", Operation.READ, Permission.DENY)], "", False, {"User:bob"}),
        ([rule("User:*"), rule("User:bob", permission=Permission.DENY)], "", False, {"User:*"}),
        ([rule("User:bob"), rule("User:bob", permission=Permission.DENY, host="10.0.0.1")], "", False, {"User:bob"}),
        (
            [rule("User:bob", host="10.0.0.1"), rule("User:*", permission=Permission.DENY, host="10.0.0.1")],
            "",
            False,
            set(),
        ),
    ],
)
def test_administrators_are_those_that_may_alter_the_cluster(
    acls: list[Acl], super_users: str, is_open: bool, expected: set[str]
) -> None:
    assert find_administrators(acls, parse_super_users(super_users), is_open=is_open) == expected
