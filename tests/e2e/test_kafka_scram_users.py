"""Tests of the APIs for SCRAM credentials of users (KIP-554) over real sockets."""

from __future__ import annotations

from tests.e2e.kafka_site import KafkaBroker, run
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.errors import Code
from tiered.security.scram import ScramMechanism, has_password, salt_password
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

SALT = b"letters-and-digits"


def upsertion(user: str, mechanism: ScramMechanism, iterations: int = 4096) -> ScramCredentialUpsertion:
    """Returns the request that sets the password of a user to `pencil`."""
    salted = salt_password(mechanism, "pencil", SALT, iterations)
    return ScramCredentialUpsertion(user, mechanism.number, iterations, SALT, salted)


@run_by(run, "tmp_path")
async def test_credentials_are_set_described_and_removed(site: KafkaBroker) -> None:
    client = await site.client()

    async def alter(
        *deleted: ScramCredentialDeletion, put: tuple[ScramCredentialUpsertion, ...] = ()
    ) -> dict[str, int]:
        request = AlterUserScramCredentialsRequest(list(deleted), list(put))
        answer = await client.ask(request, 0, AlterUserScramCredentialsResponse)
        return {each.user: each.error_code for each in answer.results}

    async def describe(*users: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        request = DescribeUserScramCredentialsRequest(list(map(UserName, users)) or None)
        answer = await client.ask(request, 0, DescribeUserScramCredentialsResponse)
        return {
            each.user: (each.error_code, [(info.mechanism, info.iterations) for info in each.credential_infos])
            for each in answer.results
        }

    small, large = ScramMechanism.SHA_256, ScramMechanism.SHA_512
    assert await alter(put=(upsertion("alice", small), upsertion("bob", large, 8192))) == {"alice": 0, "bob": 0}
    assert await alter(put=(upsertion("alice", large), upsertion("carol", small, 4095))) == {
        "alice": 0,
        "carol": Code.UNACCEPTABLE_CREDENTIAL.number,
    }
    assert await describe() == {"alice": (0, [(1, 4096), (2, 4096)]), "bob": (0, [(2, 8192)])}
    kept = site.broker.image.scram["alice"]["SCRAM-SHA-256"]
    assert has_password(small, kept, "pencil") and not has_password(small, kept, "pen")
    assert await alter(ScramCredentialDeletion("alice", 1), ScramCredentialDeletion("bob", 9)) == {
        "alice": 0,
        "bob": Code.UNSUPPORTED_SASL_MECHANISM.number,
    }
    assert await describe("alice", "dave", "bob", "bob") == {
        "alice": (0, [(2, 4096)]),
        "dave": (Code.RESOURCE_NOT_FOUND.number, []),
        "bob": (Code.DUPLICATE_RESOURCE.number, []),
    }


@run_by(run, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_credentials_need_a_right_on_the_cluster(site: KafkaBroker) -> None:
    client = await site.client()
    request = AlterUserScramCredentialsRequest([], [upsertion("alice", ScramMechanism.SHA_256)])
    altered = await client.ask(request, 0, AlterUserScramCredentialsResponse)
    assert [each.error_code for each in altered.results] == [Code.CLUSTER_AUTHORIZATION_FAILED.number]
    described = await client.ask(DescribeUserScramCredentialsRequest(None), 0, DescribeUserScramCredentialsResponse)
    assert described.error_code == Code.CLUSTER_AUTHORIZATION_FAILED.number
    assert not described.results and not site.broker.image.scram
