"""`tiered user list|add|alter|remove`: the users that log in with SCRAM (KIP-554).

The password stays on this machine: the broker gets the salted password, from which it makes the keys that it keeps.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping

from tiered.errors import Code, Refused
from tiered.quotas.entity import USER as QUOTA_USER
from tiered.quotas.entity import entity_text
from tiered.security.acls import Acl
from tiered.security.lockout import check_users
from tiered.security.principal import USER, Principal
from tiered.security.scram import BY_NUMBER, MECHANISMS, make_salt, salt_password
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_error, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.security.acl_requests import delete_acls
from tiered_api.cli.security.lockout import FORCE, fetch_rights
from tiered_api.cli.security.login_mechanisms import check_mechanism
from tiered_api.cli.security.passwords import read_password
from tiered_api.cli.security.quotas import Quotas, fetch_quotas, remove_all_quotas
from tiered_api.cli.status import DRY_RUN, OK, format_status, print_outcomes
from tiered_api.kafka.client.client import KafkaClient, to_refused
from tiered_api.kafka.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tiered_api.kafka.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

SALT_RANDOM_BYTES = 32
COLUMNS = ("user", "mechanism", "iterations")

Credentials = Mapping[str, Mapping[str, int]]
"""By user and mechanism: the iterations."""
Rules = tuple[list[Acl], Quotas]
"""The ACLs and the quotas that name a user."""


async def list_users(args: Namespace) -> int:
    """Lists users with their mechanisms."""
    async with open_client(args) as client:
        known = await fetch_credentials(client)
    missing = [user for user in args.users if user not in known]
    if missing:
        raise Refused(Code.RESOURCE_NOT_FOUND, f"no user {', '.join(missing)}")
    rows = [
        {"user": user, "mechanism": mechanism, "iterations": iterations}
        for user, mechanisms in sorted(known.items())
        if user in args.users or not args.users
        for mechanism, iterations in sorted(mechanisms.items())
    ]
    print_rows(rows, args.format, COLUMNS)
    return Exit.OK


async def add_user(args: Namespace) -> int:
    """Adds a user, or a mechanism to a user."""
    return print_outcomes(await _set_password(args, is_new=True), args.format)


async def alter_user(args: Namespace) -> int:
    """Changes the password of a user."""
    return print_outcomes(await _set_password(args, is_new=False), args.format)


async def remove_users(args: Namespace) -> int:
    """Removes users, or their credentials of one mechanism."""
    async with open_client(args) as client:
        known = await fetch_credentials(client)
        wanted = {user: [each for each in known.get(user, {}) if args.mechanism in (None, each)] for user in args.users}
        missing = [user for user, mechanisms in wanted.items() if not mechanisms]
        if missing:
            of = f" with {args.mechanism}" if args.mechanism else ""
            raise Refused(Code.RESOURCE_NOT_FOUND, f"no user {', '.join(missing)}{of}")
        if not args.force:
            gone = [user for user, mechanisms in wanted.items() if len(mechanisms) == len(known[user])]
            check_users(await fetch_rights(client), gone, known.keys() - set(gone), FORCE)
        gone = [user for user, mechanisms in wanted.items() if len(mechanisms) == len(known[user])]
        # Before the removal: a user that removes itself has no login after it.
        rules = {user: await _fetch_rules(client, user) for user in gone}
        rows: list[Row] = []
        for user, mechanisms in wanted.items():
            for each in sorted(mechanisms):
                if args.dry_run:
                    rows.append({"user": user, "mechanism": each, "status": DRY_RUN})
                    continue
                deletion = ScramCredentialDeletion(user, MECHANISMS[each].number)
                rows += await _alter(client, AlterUserScramCredentialsRequest([deletion], []), each)
        done = {row["user"] for row in rows if row["status"] in (OK, DRY_RUN)}
        for user, found in rules.items():
            if user in done and args.with_rules:
                rows += await _remove_rules(client, user, found, is_dry=args.dry_run)
            elif user in done:
                _report_rules(user, found)
    return print_outcomes(rows, args.format)


async def fetch_credentials(client: KafkaClient) -> Credentials:
    """Fetches all users with their mechanisms."""
    got = await client.send(DescribeUserScramCredentialsRequest(None), DescribeUserScramCredentialsResponse)
    if got.error_code:
        raise to_refused(got.error_code, "users are not shown", got.error_message)
    return {
        each.user: {BY_NUMBER[info.mechanism].mechanism_name: info.iterations for info in each.credential_infos}
        for each in got.results
    }


async def _set_password(args: Namespace, *, is_new: bool) -> list[Row]:
    mechanism = MECHANISMS[args.mechanism]
    async with open_client(args) as client:
        mechanisms = (await fetch_credentials(client)).get(args.user, {})
        if is_new and args.mechanism in mechanisms:
            why = f"user {args.user} has a password for {args.mechanism}: `user alter` changes it"
            raise Refused(Code.DUPLICATE_RESOURCE, why)
        if not is_new and args.mechanism not in mechanisms:
            why = f"no user {args.user} with {args.mechanism}: `user add` makes one"
            raise Refused(Code.RESOURCE_NOT_FOUND, why)
        if is_new and not args.force:
            await check_mechanism(client, args.mechanism)
        salt = make_salt(os.urandom(SALT_RANDOM_BYTES))
        salted = salt_password(mechanism, read_password(args.password_file, args.user), salt, args.iterations)
        upsertion = ScramCredentialUpsertion(args.user, mechanism.number, args.iterations, salt, salted)
        return await _alter(client, AlterUserScramCredentialsRequest([], [upsertion]), args.mechanism)


async def _fetch_rules(client: KafkaClient, user: str) -> Rules:
    """Fetches the ACLs and the quotas that name a user."""
    principal = str(Principal(USER, user))
    acls = (await fetch_rights(client)).acls or ()
    quotas = await fetch_quotas(client, ((QUOTA_USER, user),), is_exact=False)
    return sorted(each for each in acls if each.principal == principal), quotas


def _report_rules(user: str, rules: Rules) -> None:
    """Says on the error stream what stays of a removed user."""
    acls, quotas = rules
    counts = (len(acls), "ACL"), (sum(map(len, quotas.values())), "quota")
    left = " and ".join(f"{count} {what}{'s' * (count > 1)}" for count, what in counts if count)
    if left:
        print_error(
            f"user {user} leaves {left}, which hold for the next user of that name:"
            f" `acl remove --principal User:{user}` and `quota remove --user {user}` remove them, as"
            " `user remove --with-rules` does"
        )


async def _remove_rules(client: KafkaClient, user: str, rules: Rules, *, is_dry: bool) -> list[Row]:
    """Removes the ACLs and the quotas that name a user."""
    acls, quotas = rules
    rows: list[Row] = []
    outcomes = await delete_acls(client, acls) if acls and not is_dry else ()
    statuses = [format_status(each.error_code, each.error_message) for each in outcomes]
    for acl, status in zip(acls, [DRY_RUN] * len(acls) if is_dry else statuses, strict=True):
        what = f"{acl.permission.name} {acl.operation.name} on {acl.resource_type.name} {acl.resource_name}"
        rows.append({"user": user, "mechanism": f"ACL: {what}", "status": status})
    for entity, values in quotas.items():
        status = await remove_all_quotas(client, entity, values, is_dry=is_dry)
        rows.append({"user": user, "mechanism": f"quotas of {entity_text(entity)}", "status": status})
    return rows


async def _alter(client: KafkaClient, request: AlterUserScramCredentialsRequest, mechanism: str) -> list[Row]:
    got = await client.send_to_controller(request, AlterUserScramCredentialsResponse)
    return [
        {"user": each.user, "mechanism": mechanism, "status": format_status(each.error_code, each.error_message)}
        for each in got.results
    ]
