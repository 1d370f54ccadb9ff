"""The check of requests about the cluster as a whole."""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.security.acls import Operation
from tiered_api.kafka.server.exchange.context import Call, KafkaContext, R

NO_AUTHORIZER = "No Authorizer is configured on the broker"


def check_cluster(context: KafkaContext, call: Call[R], operation: Operation) -> None:
    """Raises `Refused` (CLUSTER_AUTHORIZATION_FAILED) if the caller may not carry out an operation on the cluster."""
    if not context.broker.authorization.is_allowed_on_cluster(call.caller, operation):
        raise Refused(
            Code.CLUSTER_AUTHORIZATION_FAILED,
            f"{call.caller.principal} has no right to {operation.name} on the cluster",
        )


def check_acls_in_force(context: KafkaContext) -> None:
    """Raises `Refused` (SECURITY_DISABLED) if this broker knows no ACLs."""
    if context.broker.authorization.authorizer is None:
        raise Refused(Code.SECURITY_DISABLED, NO_AUTHORIZER)
