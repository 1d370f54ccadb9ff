"""DescribeUserScramCredentials (API key 50): the mechanisms and iterations of users' credentials (KIP-554).

Without names the reply has all users. No reply has a salt or a key.
"""

from __future__ import annotations

from collections import Counter

from tiered.errors import Code, Refused
from tiered.metadata.image import Image
from tiered.security.acls import Operation
from tiered.security.scram import MECHANISMS
from tiered_api.kafka.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from tiered_api.kafka.server.exchange.authorization import check_cluster
from tiered_api.kafka.server.exchange.context import Call, KafkaContext

TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
ABSENT = "Attempt to describe a user credential that does not exist: "


async def handle(
    context: KafkaContext, call: Call[DescribeUserScramCredentialsRequest]
) -> DescribeUserScramCredentialsResponse:
    """Returns the users that this broker knows."""
    try:
        check_cluster(context, call, Operation.DESCRIBE)
    except Refused as refused:
        return DescribeUserScramCredentialsResponse(error_code=refused.code.number, error_message=refused.why)
    image = context.broker.image
    times = Counter(each.name for each in call.request.users or ()) or dict.fromkeys(sorted(image.scram), 1)
    return DescribeUserScramCredentialsResponse(
        error_message=None, results=[_describe(image, user, count) for user, count in times.items()]
    )


def _describe(image: Image, user: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        return DescribeUserScramCredentialsResult(user, Code.DUPLICATE_RESOURCE.number, TWICE + user)
    if user not in image.scram:
        return DescribeUserScramCredentialsResult(user, Code.RESOURCE_NOT_FOUND.number, ABSENT + user)
    infos = [
        CredentialInfo(MECHANISMS[name].number, each.iterations) for name, each in sorted(image.scram[user].items())
    ]
    return DescribeUserScramCredentialsResult(user, Code.NONE.number, None, infos)
