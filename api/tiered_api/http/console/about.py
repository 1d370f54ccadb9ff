"""Tells a page, before it shows anything, its caller and what it may offer."""

from __future__ import annotations

from aiohttp import web

from tiered.security.acls import Operation, ResourceType
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response


async def get_console(request: HttpRequest) -> web.StreamResponse:
    """Returns the caller's principal, whether pages may change anything and show records, whether there are ACLs,
    logins with a password and a warehouse, and the topic of the audit log if there is one that the caller may
    describe."""
    broker = request.context.broker
    audit = broker.settings.tiered_audit_topic
    return json_response(
        {
            "principal": str(request.caller.principal),
            "node_id": broker.settings.node_id,
            "read_only": broker.settings.tiered_console_read_only,
            "messages": broker.settings.tiered_console_messages,
            "has_warehouse": bool(broker.settings.tiered_console_warehouse),
            "has_authorizer": broker.authorization.authorizer is not None,
            "takes_passwords": broker.settings.takes_passwords,
            "audit_topic": audit if audit and request.may(Operation.DESCRIBE, ResourceType.TOPIC, audit) else None,
        }
    )
