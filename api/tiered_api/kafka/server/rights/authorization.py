"""The refusal of requests about ACLs on a broker that knows none."""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered_api.kafka.server.context.context import KafkaContext

NO_AUTHORIZER = "No Authorizer is configured on the broker"


def check_acls_in_force(context: KafkaContext) -> None:
    """Raises `Refused` (SECURITY_DISABLED) if everybody may do everything here."""
    if context.broker.authorization.authorizer is None:
        raise Refused(Code.SECURITY_DISABLED, NO_AUTHORIZER)
