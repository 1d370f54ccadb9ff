"""`tiered user list|add|alter|remove`: the users that log in with SCRAM (KIP-554).

The password stays on this machine: the broker gets the salted password, from which it makes the keys that it keeps.
"""

from __future__ import annotations

import asyncio
import os
from argparse import Namespace
from collections.abc import Mapping

from tiered.errors import Code, Refused
from tiered.security.scram import BY_NUMBER, MECHANISMS, make_salt, salt_password
from tiered_api.cli.exits import Exit
from tiered_api.cli.output import Row, print_rows
from tiered_api.cli.reach import open_client
from tiered_api.cli.security.lockout import check_users, fetch_rights
from tiered_api.cli.security.passwords import read_password
from tiered_api.cli.status import OK, format_status
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


def list_users(args: Namespace) -> int:
    """Lists users with their mechanisms."""
    known = asyncio.run(_fetch(args))
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


def add_user(args: Namespace) -> int:
    """Adds a user, or a mechanism to a user."""
    return _print_rows(asyncio.run(_set_password(args, is_new=True)), args)


def alter_user(args: Namespace) -> int:
    """Changes the password of a user."""
    return _print_rows(asyncio.run(_set_password(args, is_new=False)), args)


def remove_users(args: Namespace) -> int:
    """Removes users, or their credentials of one mechanism."""
    return _print_rows(asyncio.run(_remove(args)), args)


def _print_rows(rows: list[Row], args: Namespace) -> int:
    print_rows(rows, args.format)
    return Exit.OK if all(row["status"] == OK for row in rows) else Exit.FAILED


async def fetch_credentials(client: KafkaClient) -> Credentials:
    """Fetches all users with their mechanisms."""
    got = await client.send(DescribeUserScramCredentialsRequest(None), DescribeUserScramCredentialsResponse)
    if got.error_code:
        raise to_refused(got.error_code, "users are not shown", got.error_message)
    return {
        each.user: {BY_NUMBER[info.mechanism].mechanism_name: info.iterations for info in each.credential_infos}
        for each in got.results
    }


async def _fetch(args: Namespace) -> Credentials:
    async with open_client(args) as client:
        return await fetch_credentials(client)


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
        salt = make_salt(os.urandom(SALT_RANDOM_BYTES))
        salted = salt_password(mechanism, read_password(args.password_file, args.user), salt, args.iterations)
        upsertion = ScramCredentialUpsertion(args.user, mechanism.number, args.iterations, salt, salted)
        return await _alter(client, AlterUserScramCredentialsRequest([], [upsertion]), args.mechanism)


async def _remove(args: Namespace) -> list[Row]:
    async with open_client(args) as client:
        known = await fetch_credentials(client)
        wanted = {user: [each for each in known.get(user, {}) if args.mechanism in (None, each)] for user in args.users}
        missing = [user for user, mechanisms in wanted.items() if not mechanisms]
        if missing:
            of = f" with {args.mechanism}" if args.mechanism else ""
            raise Refused(Code.RESOURCE_NOT_FOUND, f"no user {', '.join(missing)}{of}")
        if not args.force:
            gone = [user for user, mechanisms in wanted.items() if len(mechanisms) == len(known[user])]
            check_users(await fetch_rights(client), gone, known.keys() - set(gone))
        rows = []
        for user, mechanisms in wanted.items():
            for each in sorted(mechanisms):
                deletion = ScramCredentialDeletion(user, MECHANISMS[each].number)
                rows += await _alter(client, AlterUserScramCredentialsRequest([deletion], []), each)
        return rows


async def _alter(client: KafkaClient, request: AlterUserScramCredentialsRequest, mechanism: str) -> list[Row]:
    got = await client.send_to_controller(request, AlterUserScramCredentialsResponse)
    return [
        {"user": each.user, "mechanism": mechanism, "status": format_status(each.error_code, each.error_message)}
        for each in got.results
    ]
