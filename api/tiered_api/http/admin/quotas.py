"""The quotas of users, client ids and addresses (KIP-546): listed, set and removed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tiered.quotas.entity import CLIENT_ID, IP, USER
from tiered_api.http.admin.requests import check_code, send_as_caller
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response, no_content
from tiered_api.http.exchange.schemas import QUOTA_CHANGE, names
from tiered_api.http.v3.topics import boolean_field
from tiered_api.kafka.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from tiered_api.kafka.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

DESCRIBE, ALTER = 1, 1
OWNERS = {"user": USER, "client_id": CLIENT_ID, "ip": IP}
"""The parts of an owner, by their fields in a body. A part that is null stands for all without a quota of their own."""


async def list_quotas(request: HttpRequest) -> web.StreamResponse:
    """Lists the quotas with their owners."""
    reply = await send_as_caller(request, DescribeClientQuotasRequest(), DescribeClientQuotasResponse, DESCRIBE)
    check_code(reply.error_code, "quotas are not shown", reply.error_message)
    fields = {kind: name for name, kind in OWNERS.items()}
    rows = [
        {
            "owner": {fields[part.entity_type]: part.entity_name for part in each.entity},
            "quotas": {value.key: value.value for value in each.values},
        }
        for each in reply.entries or ()
    ]
    return json_response({"quotas": rows})


async def alter_quotas(request: HttpRequest) -> web.StreamResponse:
    """Sets and removes quotas of one owner, all of them or none."""
    body = await request.read_json_object()
    check_fields(body, names(QUOTA_CHANGE), "the body")
    only = boolean_field(body, "validate_only")
    owner = body.get("owner")
    if not isinstance(owner, dict) or not owner:
        raise HttpError(422, "owner has to be an object with user, client_id or ip")
    check_fields(owner, OWNERS.keys(), "owner")
    if any(name is not None and not isinstance(name, str) for name in owner.values()):
        raise HttpError(422, "a part of the owner has to be a string, or null for its default")
    operations = _parse_operations(body)
    entity = [EntityData(OWNERS[kind], name) for kind, name in owner.items()]
    message = AlterClientQuotasRequest([EntryData(entity, operations)], only)
    for each in (await send_as_caller(request, message, AlterClientQuotasResponse, ALTER)).entries:
        check_code(each.error_code, "quotas", each.error_message)
    return no_content()


def _parse_operations(body: Mapping[str, Any]) -> list[OpData]:
    """Returns the changes of `set` and `remove`. Raises `HttpError`."""
    wanted, gone = body.get("set", {}), body.get("remove", [])
    if not isinstance(wanted, dict) or any(
        isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        for value in wanted.values()
    ):
        raise HttpError(422, "set has to be an object of quotas with numbers")
    if not isinstance(gone, list) or not all(isinstance(each, str) for each in gone):
        raise HttpError(422, "remove has to be an array of quotas")
    if not wanted and not gone:
        raise HttpError(422, "the body needs quotas to set or to remove")
    if len({*gone, *wanted}) < len(gone) + len(wanted):
        raise HttpError(BAD_REQUEST, "a quota appears twice")
    return [OpData(key, float(value)) for key, value in wanted.items()] + [OpData(key, 0.0, True) for key in gone]
