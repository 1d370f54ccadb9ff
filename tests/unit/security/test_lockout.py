"""The refusal of a change after which nobody could administrate the cluster any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiered.errors import Refused
from tiered.security.acls import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from tiered.security.lockout import ClusterRights, check_rules, check_users

BOB = Acl(
    ResourceType.CLUSTER, PatternType.LITERAL, CLUSTER_NAME, "User:bob", "*", Operation.ALTER, Permission.ALLOW
)  # fmt: skip
DENY = BOB._replace(principal="User:*", permission=Permission.DENY)


@pytest.mark.parametrize(
    ("rights", "after", "is_refused"),
    [
        (ClusterRights(frozenset({BOB})), frozenset(), True),
        (ClusterRights(frozenset({BOB})), frozenset({BOB, DENY}), True),
        (ClusterRights(frozenset({BOB}), frozenset({"User:root"})), frozenset(), False),
        (ClusterRights(frozenset({BOB}), is_open=True), frozenset(), False),
        (ClusterRights(frozenset(), is_open=True), frozenset({DENY}), True),
        (ClusterRights(frozenset({DENY})), frozenset(), False),
    ],
)
def test_rules_that_lock_out_the_last_administrator_are_refused(
    rights: ClusterRights, after: frozenset[Acl], is_refused: bool
) -> None:
    _check(lambda: check_rules(rights, after, "--force"), is_refused)


@pytest.mark.parametrize(
    ("rights", "gone", "left", "is_refused"),
    [
        (ClusterRights(frozenset({BOB})), ["bob"], ["alice"], True),
        (ClusterRights(frozenset({BOB})), ["alice"], ["bob"], False),
        (ClusterRights(frozenset({BOB}), frozenset({"User:root"})), ["bob"], [], False),
        (ClusterRights(frozenset({BOB}), frozenset({"User:root"})), ["bob", "root"], ["alice"], True),
        (ClusterRights(None), ["bob"], ["alice"], False),
        (ClusterRights(None), ["bob"], [], True),
        (ClusterRights(frozenset(), is_open=True), ["bob"], [], True),
        (ClusterRights(frozenset({BOB})), [], [], False),
    ],
)
def test_removal_of_the_last_administrator_is_refused(
    rights: ClusterRights, gone: list[str], left: list[str], is_refused: bool
) -> None:
    _check(lambda: check_users(rights, gone, left, "--force"), is_refused)


def _check(check: Callable[[], None], is_refused: bool) -> None:
    if not is_refused:
        check()
        return
    with pytest.raises(Refused, match="--force does it"):
        check()
