"""DescribeUserScramCredentials (API key 50): the mechanisms and iterations of users' credentials (KIP-554).

Without names the reply has all users. No reply has a salt or a key.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.metadata.image import Image
from tiered.security.scram import MECHANISMS
from tiered_api.kafka.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext

TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
ABSENT = "Attempt to describe a user credential that does not exist: "


async def handle(
    context: KafkaContext, call: Call[DescribeUserScramCredentialsRequest]
) -> DescribeUserScramCredentialsResponse:
    """Returns the users that this broker knows."""
    image, turns = context.broker.image, context.turns
    times: dict[str, int] = {}
    async for each in turns.each_of(call.request.users or ()):
        times[each.name] = times.get(each.name, 0) + 1
    wanted = times or dict.fromkeys(sorted(image.scram), 1)
    results = [_describe(image, user, count) async for user, count in turns.each_of(wanted.items())]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _describe(image: Image, user: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        return DescribeUserScramCredentialsResult(user, Code.DUPLICATE_RESOURCE.number, TWICE + user)
    if user not in image.scram:
        return DescribeUserScramCredentialsResult(user, Code.RESOURCE_NOT_FOUND.number, ABSENT + user)
    infos = [
        CredentialInfo(MECHANISMS[name].number, each.iterations) for name, each in sorted(image.scram[user].items())
    ]
    return DescribeUserScramCredentialsResult(user, Code.NONE.number, None, infos)
