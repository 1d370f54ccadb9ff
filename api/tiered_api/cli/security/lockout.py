"""The refusal of a change after which nobody could administrate the cluster any more.

The ACLs are those of the cluster, and the settings those of one broker. A broker that does not show `super.users`
counts as one without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from tiered.errors import Code, Refused
from tiered.security.acls import ANY_USER, Acl
from tiered.security.administrators import find_administrators, parse_super_users
from tiered.security.principal import USER, Principal
from tiered_api.cli.configs import BROKER, describe_configs
from tiered_api.cli.security.acl_requests import fetch_acls
from tiered_api.kafka.client.client import KafkaClient, only_result

SUPER_USERS, IS_OPEN = "super.users", "allow.everyone.if.no.acl.found"
FORCE = "--force"


class ClusterRights(NamedTuple):
    """All that decides who may administrate a cluster. Without `acls` everybody may."""

    acls: frozenset[Acl] | None
    super_users: frozenset[str] = frozenset()
    is_open: bool = False
    has_shown_settings: bool = True

    def administrators(self, acls: Collection[Acl] | None) -> frozenset[str]:
        """Returns the administrators under these ACLs."""
        if acls is None:
            return frozenset((ANY_USER,))
        return find_administrators(acls, self.super_users, is_open=self.is_open)


async def fetch_rights(client: KafkaClient) -> ClusterRights:
    """Fetches the ACLs and the settings."""
    try:
        acls = await fetch_acls(client)
    except Refused as refused:
        if refused.code is not Code.SECURITY_DISABLED:
            raise
        return ClusterRights(None)
    await client.fetch_metadata([])
    node = min(client.brokers)
    shown = only_result(await describe_configs(client, BROKER, [str(node)], [SUPER_USERS, IS_OPEN], node=node))
    values = {each.name: each.value for each in shown.configs}
    return ClusterRights(
        acls,
        parse_super_users(values.get(SUPER_USERS) or ""),
        values.get(IS_OPEN) == "true",
        values.get(SUPER_USERS) is not None,
    )


def check_rules(rights: ClusterRights, acls: Collection[Acl]) -> None:
    """Raises `Refused` if no principal may change the ACLs under other ones, and somebody may now."""
    if rights.administrators(rights.acls) and not rights.administrators(acls):
        raise _refuse(rights, "after this change no principal may ALTER the cluster, so nobody can change its rules")


def check_users(rights: ClusterRights, users: Iterable[str], left: Iterable[str]) -> None:
    """Raises `Refused` if all administrators are among the users who go, and none among those that are left."""
    administrators = rights.administrators(rights.acls)
    gone = {str(Principal(USER, user)) for user in users}
    stay = administrators - gone
    if ANY_USER in stay:
        stay = (stay - {ANY_USER}) | {str(Principal(USER, user)) for user in left}
    if administrators and gone and not stay:
        raise _refuse(rights, "no user would be left that may ALTER the cluster")


def _refuse(rights: ClusterRights, why: str) -> Refused:
    unseen = "" if rights.has_shown_settings else f"; the broker does not show {SUPER_USERS}, which may name others"
    return Refused(Code.POLICY_VIOLATION, f"{why}{unseen}. {FORCE} does it")
