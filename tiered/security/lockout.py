"""The refusal of a change after which nobody could administrate the cluster any more.

The Kafka protocol knows no such refusal, and a request of Kafka's own tools is carried out. Commands and HTTP look
first, and name the `override` that does it nevertheless.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.security.acls import ANY_USER, Acl
from tiered.security.administrators import find_administrators
from tiered.security.principal import USER, Principal

SUPER_USERS = "super.users"


class ClusterRights(NamedTuple):
    """All that decides who may administrate a cluster: its ACLs, and the settings of one broker. Without `acls`
    everybody may."""

    acls: frozenset[Acl] | None
    super_users: frozenset[str] = frozenset()
    is_open: bool = False
    has_shown_settings: bool = True

    def administrators(self, acls: Collection[Acl] | None) -> frozenset[str]:
        """Returns the administrators under these ACLs."""
        if acls is None:
            return frozenset((ANY_USER,))
        return find_administrators(acls, self.super_users, is_open=self.is_open)


def check_rules(rights: ClusterRights, acls: Collection[Acl], override: str) -> None:
    """Raises `Refused` if no principal may change the ACLs under other ones, and somebody may now."""
    if rights.administrators(rights.acls) and not rights.administrators(acls):
        why = "after this change no principal may ALTER the cluster, so nobody can change its rules"
        raise _refuse(rights, why, override)


def check_users(rights: ClusterRights, users: Iterable[str], left: Iterable[str], override: str) -> None:
    """Raises `Refused` if all administrators are among the users who go, and none among those that are left."""
    administrators = rights.administrators(rights.acls)
    gone = {str(Principal(USER, user)) for user in users}
    stay = administrators - gone
    if ANY_USER in stay:
        stay = (stay - {ANY_USER}) | {str(Principal(USER, user)) for user in left}
    if administrators and gone and not stay:
        raise _refuse(rights, "no user would be left that may ALTER the cluster", override)


def _refuse(rights: ClusterRights, why: str, override: str) -> Refused:
    unseen = "" if rights.has_shown_settings else f"; the broker does not show {SUPER_USERS}, which may name others"
    return Refused(Code.POLICY_VIOLATION, f"{why}{unseen}. {override} does it")
