"""The ACLs and the settings of a cluster that decide who may administrate it.

The settings are those of one broker. A broker that does not show `super.users` counts as one without.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.security.administrators import parse_super_users
from tiered.security.lockout import SUPER_USERS, ClusterRights
from tiered_api.cli.configs import BROKER, describe_configs
from tiered_api.cli.security.acl_requests import fetch_acls
from tiered_api.kafka.client.client import KafkaClient, only_result

IS_OPEN = "allow.everyone.if.no.acl.found"
FORCE = "--force"
"""The option of commands that may lock out the last administrator."""


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
