"""The users that log in with SCRAM, without their secrets (KIP-554). The broker salts a password and keeps its keys."""

from __future__ import annotations

import os
from typing import Any

from aiohttp import web

from tiered.errors import Code
from tiered.security.scram import BY_NUMBER, ITERATIONS_MAX, ITERATIONS_MIN, MECHANISMS, make_salt, salt_password
from tiered_api.http.admin.lockout import check_users_removal
from tiered_api.http.admin.requests import check_code, send_as_caller
from tiered_api.http.exchange.context import INLINE_BYTES
from tiered_api.http.exchange.errors import BAD_REQUEST, HttpError
from tiered_api.http.exchange.fields import check_fields
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response, no_content
from tiered_api.http.exchange.schemas import USER_PASSWORD, names
from tiered_api.kafka.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tiered_api.kafka.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

DESCRIBE, ALTER = 0, 0
PASSWORD_MAX = 1024
SALT_RANDOM_BYTES = 32


async def list_users(request: HttpRequest) -> web.StreamResponse:
    """Lists the users with their mechanisms, never with a secret."""
    return json_response({"users": await _fetch(request)})


async def _fetch(request: HttpRequest, user: str | None = None) -> list[dict[str, Any]]:
    message = DescribeUserScramCredentialsRequest(None if user is None else [UserName(user)])
    reply = await send_as_caller(request, message, DescribeUserScramCredentialsResponse, DESCRIBE)
    check_code(reply.error_code, "users are not shown", reply.error_message)
    return [
        {
            "user": each.user,
            "mechanisms": [
                {"mechanism": BY_NUMBER[info.mechanism].mechanism_name, "iterations": info.iterations}
                for info in each.credential_infos
            ],
        }
        for each in reply.results
        if each.error_code != Code.RESOURCE_NOT_FOUND.number
    ]


async def set_user_password(request: HttpRequest) -> web.StreamResponse:
    """Adds a user, or gives a user another password."""
    body = await request.read_json_object()
    check_fields(body, names(USER_PASSWORD), "the body")
    mechanism, password = body.get("mechanism"), body.get("password")
    iterations = body.get("iterations", ITERATIONS_MIN)
    if not isinstance(mechanism, str) or mechanism not in MECHANISMS:
        raise HttpError(422, f"mechanism has to be one of {', '.join(MECHANISMS)}")
    if not isinstance(password, str) or not 0 < len(password) <= PASSWORD_MAX:
        raise HttpError(422, f"password has to be a string of 1 to {PASSWORD_MAX} characters")
    if type(iterations) is not int:
        raise HttpError(422, "iterations has to be an integer")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise HttpError(BAD_REQUEST, f"iterations has to be {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    chosen, salt = MECHANISMS[mechanism], make_salt(os.urandom(SALT_RANDOM_BYTES))
    salted = await request.run_job(INLINE_BYTES + 1, salt_password, chosen, password, salt, iterations)
    upsertion = ScramCredentialUpsertion(request.args["user"], chosen.number, iterations, salt, salted)
    await _alter(request, AlterUserScramCredentialsRequest([], [upsertion]))
    return no_content()


async def delete_user(request: HttpRequest) -> web.StreamResponse:
    """Removes a user, or the password of one mechanism. ACLs and quotas of the user stay. 409 if the caller is
    the last user who may change users, unless forced."""
    user, only = request.args["user"], request.query_parameters().get("mechanism")
    if only is not None and only not in MECHANISMS:
        raise HttpError(400, f"mechanism={only[:40]!r} is none of {', '.join(MECHANISMS)}")
    found = [each["mechanism"] for row in await _fetch(request, user) for each in row["mechanisms"]]
    gone = [each for each in found if only in (None, each)]
    if not gone:
        raise HttpError(404, f"user {user[:249]!r} not found")
    if gone == found:
        check_users_removal(request, [user])
    deletions = [ScramCredentialDeletion(user, MECHANISMS[each].number) for each in gone]
    await _alter(request, AlterUserScramCredentialsRequest(deletions, []))
    return no_content()


async def _alter(request: HttpRequest, message: AlterUserScramCredentialsRequest) -> None:
    reply = await send_as_caller(request, message, AlterUserScramCredentialsResponse, ALTER)
    for each in reply.results:
        check_code(each.error_code, f"user {each.user[:249]!r}", each.error_message)
