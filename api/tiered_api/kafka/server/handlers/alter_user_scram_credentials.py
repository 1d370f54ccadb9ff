"""AlterUserScramCredentials (API key 51): sets and removes the SCRAM credentials of users (KIP-554).

The client sends the salted password, from which the broker computes the keys. Only the keys are kept. Each user of a
request is altered on its own, and at most once.
"""

from __future__ import annotations

from tiered.controller.requests import AlterScramCredentials, ScramDeletion
from tiered.controller.scram_credentials import set_password
from tiered.errors import Code, Refused
from tiered.metadata.changes import ScramCredentialSet
from tiered.security.scram import BY_NUMBER
from tiered_api.kafka.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.error_codes import DEFAULT_TIMEOUT_MS
from tiered_api.kafka.server.context.mutation_charges import MutationCharges

UNKNOWN_MECHANISM = "unknown"


async def handle(
    context: KafkaContext, call: Call[AlterUserScramCredentialsRequest]
) -> AlterUserScramCredentialsResponse:
    """Returns once the credentials are in force."""
    request = call.request
    try:
        alteration = AlterScramCredentials(
            tuple(ScramDeletion(each.name, _mechanism_name(each.mechanism)) for each in request.deletions),
            tuple(map(_read_upsertion, request.upsertions)),
        )
        results = await context.broker.submit(alteration, DEFAULT_TIMEOUT_MS / 1000, by=MutationCharges(context, call))
    except Refused as refused:
        wanted: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
        results = dict.fromkeys((each.name for each in wanted), refused)
    return AlterUserScramCredentialsResponse(results=[_to_result(user, refused) for user, refused in results.items()])


def _mechanism_name(number: int) -> str:
    mechanism = BY_NUMBER.get(number)
    return UNKNOWN_MECHANISM if mechanism is None else mechanism.mechanism_name


def _read_upsertion(requested: ScramCredentialUpsertion) -> ScramCredentialSet:
    mechanism = BY_NUMBER.get(requested.mechanism)
    if mechanism is None:
        return ScramCredentialSet(requested.name, UNKNOWN_MECHANISM, "", "", "", requested.iterations)
    return set_password(requested.name, mechanism, requested.salted_password, requested.salt, requested.iterations)


def _to_result(user: str, refused: Refused | None) -> AlterUserScramCredentialsResult:
    if refused is None:
        return AlterUserScramCredentialsResult(user, Code.NONE.number, None)
    return AlterUserScramCredentialsResult(user, refused.code.number, refused.why)
