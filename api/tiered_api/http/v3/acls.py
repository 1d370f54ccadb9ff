"""REST v3: the ACLs of the cluster, listed, added and removed."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, TypeVar

from aiohttp import web

from tiered.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType, find_acl_fault
from tiered_api.http.admin.lockout import check_acls_change
from tiered_api.http.admin.requests import check_code, send_as_caller
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.exchange.schemas import ACL, names
from tiered_api.http.v3.shapes import Shape, base_shape, check_cluster, link, list_response
from tiered_api.kafka.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from tiered_api.kafka.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from tiered_api.kafka.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

DESCRIBE, CREATE, DELETE = 3, 3, 3
TEXTS = ("resource_name", "principal", "host")
CHOSEN = ("resource_type", "pattern_type", "operation", "permission")
"""The fields of a filter that a removal has to name, if only as ANY, so that an empty one removes nothing."""

E = TypeVar("E", bound=IntEnum)


def acl_shape(request: HttpRequest, acl: Acl) -> Shape:
    """Returns an ACL as a v3 object."""
    fields = {
        "resource_type": acl.resource_type.name,
        "resource_name": acl.resource_name,
        "pattern_type": acl.pattern_type.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
    return base_shape(request, "KafkaAcl", link(request, "acls"), "acl", acl.resource_name) | fields


def _word(kind: type[E], text: Any, name: str) -> E:
    """Returns a word of an ACL. Raises `HttpError` 400 for another one."""
    known = [each.name for each in kind if each.name != "UNKNOWN"]
    if not isinstance(text, str) or text.upper() not in known:
        raise HttpError(BAD_REQUEST, f"{name} has to be one of {', '.join(known)}")
    return kind[text.upper()]


def _parse_filter(request: HttpRequest) -> AclFilter:
    """Returns the filter of a query. A field that is missing stands for all."""
    given = request.query_parameters()
    return AclFilter(
        _word(ResourceType, given.get("resource_type", "ANY"), "resource_type"),
        _word(PatternType, given.get("pattern_type", "ANY"), "pattern_type"),
        given.get("resource_name"),
        given.get("principal"),
        given.get("host"),
        _word(Operation, given.get("operation", "ANY"), "operation"),
        _word(Permission, given.get("permission", "ANY"), "permission"),
    )


async def _list(request: HttpRequest, acls: Iterable[Acl]) -> web.StreamResponse:
    return await list_response(request, "KafkaAcl", sorted(acls), lambda acl: (acl_shape(request, acl),))


async def list_acls(request: HttpRequest) -> web.StreamResponse:
    """Lists the ACLs that a filter chooses, all of them without one. A cluster without an authorizer has none."""
    check_cluster(request)
    wanted = _parse_filter(request)
    if request.context.broker.authorization.authorizer is None:
        return await _list(request, ())
    message = DescribeAclsRequest(
        wanted.resource_type, wanted.resource_name, wanted.pattern_type, wanted.principal, wanted.host,
        wanted.operation, wanted.permission,
    )  # fmt: skip
    reply = await send_as_caller(request, message, DescribeAclsResponse, DESCRIBE)
    check_code(reply.error_code, "ACLs are not shown", reply.error_message)
    return await _list(
        request,
        [
            _to_acl(
                each.resource_type, each.pattern_type, each.resource_name, acl.principal, acl.host, acl.operation,
                acl.permission_type,
            )
            for each in reply.resources
            for acl in each.acls
        ],
    )  # fmt: skip


def _to_acl(kind: int, pattern: int, name: str, principal: str, host: str, operation: int, permission: int) -> Acl:
    return Acl(
        ResourceType(kind), PatternType(pattern), name, principal, host, Operation(operation), Permission(permission)
    )


async def create_acl(request: HttpRequest) -> web.StreamResponse:
    """Adds an ACL: 201; 409 if nobody could change the ACLs then, unless forced."""
    check_cluster(request)
    body = await request.read_json_object()
    check_fields(body, names(ACL), "the body")
    for name in TEXTS:
        if not isinstance(body.get(name), str):
            raise HttpError(422, f"{name} has to be a string")
    acl = Acl(
        _word(ResourceType, body.get("resource_type"), "resource_type"),
        _word(PatternType, body.get("pattern_type"), "pattern_type"),
        body["resource_name"],
        body["principal"],
        body["host"],
        _word(Operation, body.get("operation"), "operation"),
        _word(Permission, body.get("permission"), "permission"),
    )
    if find_acl_fault(acl) is None:  # else the broker says what is wrong
        check_acls_change(request, added=(acl,))
    creation = AclCreation(
        acl.resource_type, acl.resource_name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission
    )
    [result] = (await send_as_caller(request, CreateAclsRequest([creation]), CreateAclsResponse, CREATE)).results
    check_code(result.error_code, "the ACL is not added", result.error_message)
    return json_response({}, status=201)


async def delete_acls(request: HttpRequest) -> web.StreamResponse:
    """Removes the ACLs that a filter chooses, and returns them. The filter names its four kinds, if only as ANY. 409 if
    nobody could change the ACLs then, unless forced."""
    check_cluster(request)
    missing = [name for name in CHOSEN if name not in request.query_parameters()]
    if missing:
        raise HttpError(BAD_REQUEST, f"the filter needs {', '.join(missing)}; ANY stands for all")
    wanted = _parse_filter(request)
    if wanted.find_fault() is None:
        check_acls_change(request, removed=[each for each in request.context.broker.image.acls if wanted.matches(each)])
    chosen = DeleteAclsFilter(
        wanted.resource_type, wanted.resource_name, wanted.pattern_type, wanted.principal, wanted.host,
        wanted.operation, wanted.permission,
    )  # fmt: skip
    message = DeleteAclsRequest([chosen])
    [result] = (await send_as_caller(request, message, DeleteAclsResponse, DELETE)).filter_results
    check_code(result.error_code, "the ACLs are not removed", result.error_message)
    return await _list(
        request,
        [
            _to_acl(
                each.resource_type, each.pattern_type, each.resource_name, each.principal, each.host, each.operation,
                each.permission_type,
            )
            for each in result.matching_acls
        ],
    )  # fmt: skip
