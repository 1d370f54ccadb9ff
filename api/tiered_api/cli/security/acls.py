"""`tiered acl list|add|remove`: the ACLs that say which operations a principal may carry out."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import product

from tiered.errors import Code, Refused
from tiered.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    find_acl_fault,
)
from tiered.security.lockout import ClusterRights, check_rules
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.security.acl_requests import AclOutcome, choose_acls, create_acls, delete_acls, fetch_acls
from tiered_api.cli.security.lockout import FORCE, fetch_rights
from tiered_api.cli.status import DRY_RUN, format_status, print_outcomes

COLUMNS = ("principal", "host", "permission", "operation", "resource_type", "resource_name", "pattern")
RULES_PER_REQUEST = 100
"""Most ACLs in one request."""


async def list_acls(args: Namespace) -> int:
    """Lists the ACLs that the options choose."""
    async with open_client(args) as client:
        found = choose_acls(await fetch_acls(client), read_filters(args))
    print_rows(list(map(_row, found)), args.format, COLUMNS)
    return Exit.OK


async def add_acls(args: Namespace) -> int:
    """Adds the ACLs of all combinations of the options."""
    acls = read_new_acls(args)
    faults = [refused for refused in map(find_acl_fault, acls) if refused is not None]
    if faults:
        raise faults[0]
    async with open_client(args) as client:
        if not args.force:
            rights = await fetch_rights(client)
            check_rules(rights, _in_force(rights) | frozenset(acls), FORCE)
        found = await _carry_out(acls, args, partial(create_acls, client))
    return _print_outcomes(found, args)


async def remove_acls(args: Namespace) -> int:
    """Removes the ACLs that the options choose."""
    filters = read_filters(args)
    if filters == [AclFilter()]:
        raise Refused(Code.INVALID_REQUEST, "acl remove needs an option that chooses rules")
    async with open_client(args) as client:
        rights = await fetch_rights(client)
        known = _in_force(rights)
        chosen = choose_acls(known, filters)
        if not chosen:
            raise Refused(Code.RESOURCE_NOT_FOUND, "no rule fits the options")
        if not args.force:
            check_rules(rights, known - frozenset(chosen), FORCE)
        found = await _carry_out(chosen, args, partial(delete_acls, client))
    return _print_outcomes(found, args)


def read_new_acls(args: Namespace) -> list[Acl]:
    """Returns the ACLs that the options of `add` name."""
    resources = _resources(args)
    principals = [
        *((principal, Permission.ALLOW) for principal in args.allow_principal),
        *((principal, Permission.DENY) for principal in args.deny_principal),
    ]
    if not resources:
        raise Refused(Code.INVALID_REQUEST, "acl add needs a resource, such as --topic NAME or --cluster")
    if not principals:
        raise Refused(Code.INVALID_REQUEST, "acl add needs --allow-principal or --deny-principal")
    pattern = PatternType[args.pattern.upper()]
    made = [
        Acl(kind, pattern, name, principal, host, operation, permission)
        for (kind, name), (principal, permission), host, operation in product(
            resources, principals, args.host or [WILDCARD], args.operation or [Operation.ALL]
        )
    ]
    return list(dict.fromkeys(made))


def read_filters(args: Namespace) -> list[AclFilter]:
    """Returns the filters that the options of `list` and `remove` name."""
    principals: list[tuple[str | None, Permission]] = [
        *((principal, Permission.ANY) for principal in args.principal),
        *((principal, Permission.ALLOW) for principal in args.allow_principal),
        *((principal, Permission.DENY) for principal in args.deny_principal),
    ]
    pattern = PatternType[args.pattern.upper()]
    return [
        AclFilter(kind, pattern, name, principal, host, operation, permission)
        for (kind, name), (principal, permission), host, operation in product(
            _resources(args) or [(ResourceType.ANY, None)],
            principals or [(None, Permission.ANY)],
            args.host or [None],
            args.operation or [Operation.ANY],
        )
    ]


def _resources(args: Namespace) -> list[tuple[ResourceType, str | None]]:
    named = (
        (ResourceType.TOPIC, args.topic),
        (ResourceType.GROUP, args.group),
        (ResourceType.TRANSACTIONAL_ID, args.transactional_id),
        (ResourceType.DELEGATION_TOKEN, args.delegation_token),
        (ResourceType.USER, args.user_principal),
        (ResourceType.CLUSTER, [CLUSTER_NAME] if args.cluster else []),
    )
    return [(kind, name) for kind, names in named for name in names]


def _in_force(rights: ClusterRights) -> frozenset[Acl]:
    if rights.acls is None:
        raise Refused(Code.SECURITY_DISABLED, "the broker has no authorizer.class.name, so no rule is in force")
    return rights.acls


async def _carry_out(
    acls: list[Acl], args: Namespace, send: Callable[[list[Acl]], Awaitable[Sequence[AclOutcome]]]
) -> list[tuple[Acl, str]]:
    """Sends ACLs in shares, and returns the status of each."""
    if args.dry_run:
        return [(acl, DRY_RUN) for acl in acls]
    statuses: list[str] = []
    for first in range(0, len(acls), RULES_PER_REQUEST):
        for result in await send(acls[first : first + RULES_PER_REQUEST]):
            statuses.append(format_status(result.error_code, result.error_message))
    return list(zip(acls, statuses, strict=True))


def _print_outcomes(outcomes: list[tuple[Acl, str]], args: Namespace) -> int:
    return print_outcomes([{**_row(acl), "status": status} for acl, status in outcomes], args.format)


def _row(acl: Acl) -> Row:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "permission": acl.permission.name,
        "operation": acl.operation.name,
        "resource_type": acl.resource_type.name,
        "resource_name": acl.resource_name,
        "pattern": acl.pattern_type.name,
    }
