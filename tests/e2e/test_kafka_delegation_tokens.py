"""Tests of delegation tokens (KIP-48) over real sockets: their APIs, logins by them, and the ends of their sessions."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, run, wait_until
from tests.scenario import run_by
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.controller.requests import AlterScramCredentials, CreateAcls
from tiered.errors import Code
from tiered.metadata.changes import AclAdded
from tiered.security.scram import MECHANISMS, ScramClient
from tiered.security.secret import Secret
from tiered_api.cli.broker.scram_users import read_credentials
from tiered_api.kafka.protocol.messages.create_delegation_token import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from tiered_api.kafka.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tiered_api.kafka.protocol.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from tiered_api.kafka.protocol.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tiered_api.kafka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

USERS = ("alice", "bob", "carol")
SMALL, LARGE = "SCRAM-SHA-256", "SCRAM-SHA-512"
KEY = Secret("key-of-tokens")
NOT_ALLOWED = Code.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED.number
FAILED = Code.SASL_AUTHENTICATION_FAILED.number


def run_with_tokens(directory: Path, scenario: Callable[[KafkaBroker], Awaitable[None]], **settings: Any) -> None:
    """Runs a scenario against a broker with three users, whose passwords are their names."""

    async def act(site: KafkaBroker) -> None:
        users = read_credentials([f"{SMALL}=[name={user},password={user}]" for user in USERS])
        assert set((await site.broker.submit(AlterScramCredentials((), tuple(users)))).values()) == {None}
        await scenario(site)

    chosen = {"delegation_token_secret_key": KEY, "connection_failed_authentication_delay_ms": 0} | settings
    run(directory, act, listener_security_protocol_map=("PLAINTEXT:SASL_PLAINTEXT",), **chosen)


async def log_in(
    site: KafkaBroker, user: str, password: str = "", mechanism: str = SMALL, *, by_token: bool = False
) -> tuple[RawClient, SaslAuthenticateResponse]:
    """Returns a connection after a login, with its last reply."""
    client = await site.client()
    machine = ScramClient(MECHANISMS[mechanism], user, password or user, "nonce", by_token=by_token)
    return client, await authenticate(client, machine, mechanism)


async def authenticate(client: RawClient, machine: ScramClient, mechanism: str) -> SaslAuthenticateResponse:
    assert not (await client.ask(SaslHandshakeRequest(mechanism), 1, SaslHandshakeResponse)).error_code
    reply = await client.ask(SaslAuthenticateRequest(machine.make_first()), 2, SaslAuthenticateResponse)
    return await client.ask(SaslAuthenticateRequest(machine.step(reply.auth_bytes)), 2, SaslAuthenticateResponse)


async def user(site: KafkaBroker, name: str) -> RawClient:
    client, reply = await log_in(site, name)
    assert reply.error_code == 0
    return client


async def create(
    client: RawClient, *renewers: str, owner: str | None = None, version: int = 3, lifetime_ms: int = -1
) -> CreateDelegationTokenResponse:
    request = CreateDelegationTokenRequest(
        None if owner is None else "User", owner, [CreatableRenewers("User", each) for each in renewers], lifetime_ms
    )
    return await client.ask(request, version, CreateDelegationTokenResponse)


async def describe(client: RawClient, *owners: str, version: int = 3, chosen: bool = False) -> list[str]:
    """Returns the ids of tokens, or the error."""
    names = [DescribeDelegationTokenOwner("User", each) for each in owners]
    request = DescribeDelegationTokenRequest(names if names or chosen else None)
    reply = await client.ask(request, version, DescribeDelegationTokenResponse)
    return [f"error {reply.error_code}"] if reply.error_code else sorted(each.token_id for each in reply.tokens)


async def renew(client: RawClient, hmac: bytes, period_ms: int = -1, version: int = 2) -> tuple[int, int]:
    reply = await client.ask(RenewDelegationTokenRequest(hmac, period_ms), version, RenewDelegationTokenResponse)
    return reply.error_code, reply.expiry_timestamp_ms


async def expire(client: RawClient, hmac: bytes, period_ms: int = -1, version: int = 2) -> tuple[int, int]:
    reply = await client.ask(ExpireDelegationTokenRequest(hmac, period_ms), version, ExpireDelegationTokenResponse)
    return reply.error_code, reply.expiry_timestamp_ms


@run_by(run_with_tokens, "tmp_path")
async def test_token_is_created_described_renewed_and_expired_in_all_versions(site: KafkaBroker) -> None:
    alice, carol = await user(site, "alice"), await user(site, "carol")
    made = [await create(alice, "carol", version=version) for version in (1, 2, 3)]
    for each in made:
        assert (each.error_code, each.principal_type, each.principal_name) == (0, "User", "alice")
        assert each.max_timestamp_ms - each.issue_timestamp_ms == 7 * 24 * 3600 * 1000
        assert each.expiry_timestamp_ms - each.issue_timestamp_ms == 24 * 3600 * 1000
        assert len(each.hmac) == 64
    assert (made[2].token_requester_principal_type, made[2].token_requester_principal_name) == ("User", "alice")
    ids = sorted(each.token_id for each in made)
    for version in (1, 2, 3):
        assert await describe(alice, version=version) == await describe(carol, version=version) == ids
        assert await describe(alice, "carol", "nobody", version=version) == ids
    assert await describe(alice, "nobody") == await describe(alice, chosen=True) == []
    first, second, third = (each.hmac for each in made)
    code, expiry_ms = await renew(carol, first, 5000, version=1)
    assert code == 0 and expiry_ms < made[0].expiry_timestamp_ms
    assert (await renew(alice, second))[1] >= made[1].expiry_timestamp_ms
    code, expiry_ms = await expire(carol, second, 60_000, version=1)
    assert code == 0 and expiry_ms < made[1].expiry_timestamp_ms
    assert (await expire(alice, third))[0] == 0
    assert made[2].token_id not in await describe(alice)
    for hmac in (third, b"", b"x" * 64):
        assert await renew(alice, hmac) == await expire(alice, hmac) == (Code.DELEGATION_TOKEN_NOT_FOUND.number, -1)
    bob = await user(site, "bob")
    mismatch = Code.DELEGATION_TOKEN_OWNER_MISMATCH.number
    assert (await renew(bob, first))[0] == (await expire(bob, first))[0] == mismatch


@pytest.mark.parametrize("mechanism", [SMALL, LARGE])
@run_by(run_with_tokens, "tmp_path")
async def test_bearer_acts_as_the_owner_and_makes_no_tokens(site: KafkaBroker, *, mechanism: str) -> None:
    alice = await user(site, "alice")
    token = await create(alice)
    password = b64encode(token.hmac).decode()
    bearer, reply = await log_in(site, token.token_id, password, mechanism, by_token=True)
    day_ms = 24 * 3600 * 1000
    assert reply.error_code == 0 and day_ms - 60_000 < reply.session_lifetime_ms <= day_ms
    assert [str(each.caller.principal) for each in site.server.connections] == ["User:alice"] * 2
    assert (await create(bearer)).error_code == NOT_ALLOWED
    assert await describe(bearer) == [f"error {NOT_ALLOWED}"]
    assert await renew(bearer, token.hmac) == await expire(bearer, token.hmac) == (NOT_ALLOWED, -1)
    again = ScramClient(MECHANISMS[mechanism], token.token_id, password, "other", by_token=True)
    assert (await authenticate(bearer, again, mechanism)).error_code == 0
    for wrong in (log_in(site, token.token_id, "nonsense", by_token=True), log_in(site, token.token_id, password)):
        assert (await wrong)[1].error_code == FAILED
    assert (await log_in(site, "alice", by_token=True))[1].error_code == FAILED


@run_by(run_with_tokens, "tmp_path")
async def test_removal_of_a_token_ends_its_sessions_and_no_others(site: KafkaBroker) -> None:
    alice = await user(site, "alice")
    token, other = await create(alice), await create(alice)
    login = token.token_id, b64encode(token.hmac).decode()
    bearer, _ = await log_in(site, *login, by_token=True)
    kept, _ = await log_in(site, other.token_id, b64encode(other.hmac).decode(), by_token=True)
    assert (await expire(alice, token.hmac))[0] == 0
    assert await bearer.read_to_end() == b""
    assert site.count_refusals("login_ended") == 1
    assert await describe(kept) == [f"error {NOT_ALLOWED}"]
    assert (await log_in(site, *login, by_token=True))[1].error_code == FAILED
    (kept_connection,) = (each for each in site.server.connections if each.caller.by_token)
    before = kept_connection.login_ends
    assert (await expire(alice, other.hmac, 60_000))[0] == 0
    await wait_until(lambda: kept_connection.login_ends < before - 3600)


@run_by(run_with_tokens, "tmp_path", delegation_token_expiry_check_interval_ms=100)
async def test_expired_token_is_no_login_and_is_removed(site: KafkaBroker) -> None:
    alice = await user(site, "alice")
    token = await create(alice, lifetime_ms=1)
    clock = site.broker.world.clock
    await wait_until(lambda: clock.wall_ms() > token.expiry_timestamp_ms)
    bearer = await log_in(site, token.token_id, b64encode(token.hmac).decode(), by_token=True)
    assert bearer[1].error_code == FAILED
    await wait_until(lambda: not site.broker.image.delegation_tokens)


def test_tokens_need_a_secret_key_and_a_login(tmp_path: Path) -> None:
    async def without_key(site: KafkaBroker) -> None:
        alice, disabled = await user(site, "alice"), Code.DELEGATION_TOKEN_AUTH_DISABLED.number
        assert (await create(alice)).error_code == disabled
        assert (await renew(alice, b""))[0] == (await expire(alice, b""))[0] == disabled
        assert await describe(alice) == [f"error {disabled}"]

    async def without_login(site: KafkaBroker) -> None:
        client = await site.client()
        assert (await create(client)).error_code == NOT_ALLOWED
        assert (await renew(client, b""))[0] == (await expire(client, b""))[0] == NOT_ALLOWED
        assert await describe(client) == [f"error {NOT_ALLOWED}"]

    run_with_tokens(tmp_path / "1", without_key, delegation_token_secret_key=Secret())
    run(tmp_path / "2", without_login, delegation_token_secret_key=KEY)


@run_by(run_with_tokens, "tmp_path", authorizer_class_name=STANDARD_AUTHORIZER)
async def test_tokens_of_others_need_rights(site: KafkaBroker) -> None:
    async def grant(kind: str, name: str, operation: str) -> None:
        acl = AclAdded(kind, "LITERAL", name, "User:bob", "*", operation, "ALLOW")
        assert await site.broker.submit(CreateAcls((acl,))) == (None,)

    alice, bob, carol = [await user(site, name) for name in USERS]
    own = await create(alice, owner="alice")
    assert own.error_code == 0 and await describe(bob) == []
    assert (await create(bob, owner="alice")).error_code == Code.DELEGATION_TOKEN_AUTHORIZATION_FAILED.number
    await grant("USER", "User:alice", "CREATE_TOKENS")
    made = await create(bob, owner="alice")
    requester = made.token_requester_principal_type, made.token_requester_principal_name
    assert (made.error_code, made.principal_name, requester) == (0, "alice", ("User", "bob"))
    assert (await create(bob, owner="carol")).error_code == Code.DELEGATION_TOKEN_AUTHORIZATION_FAILED.number
    await log_in(site, made.token_id, b64encode(made.hmac).decode(), by_token=True)
    assert {str(each.caller.principal) for each in site.server.connections if each.caller.by_token} == {"User:alice"}
    assert await describe(bob) == [made.token_id]
    assert (await renew(bob, made.hmac))[0] == Code.DELEGATION_TOKEN_OWNER_MISMATCH.number
    await grant("DELEGATION_TOKEN", own.token_id, "DESCRIBE")
    assert await describe(bob) == sorted((made.token_id, own.token_id))
    third, foreign = await create(alice), await create(carol)
    assert await describe(bob) == sorted((made.token_id, own.token_id))
    await grant("USER", "User:carol", "DESCRIBE_TOKENS")
    assert await describe(bob) == sorted((made.token_id, own.token_id, foreign.token_id))
    assert await describe(alice) == sorted((made.token_id, own.token_id, third.token_id))


@run_by(run_with_tokens, "tmp_path")
async def test_owner_and_renewers_are_users(site: KafkaBroker) -> None:
    alice = await user(site, "alice")
    for request in (
        CreateDelegationTokenRequest("Broker", "1", [], -1),
        CreateDelegationTokenRequest(None, "bob", [], -1),
        CreateDelegationTokenRequest(None, None, [CreatableRenewers("Group", "g")], -1),
    ):
        refused = await alice.ask(request, 3, CreateDelegationTokenResponse)
        assert refused.error_code == Code.INVALID_PRINCIPAL_TYPE.number and not refused.hmac
    assert not site.broker.image.delegation_tokens
