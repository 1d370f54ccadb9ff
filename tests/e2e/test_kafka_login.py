"""Tests of listeners with a login: users by SCRAM, and the state of a connection before its login."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, batch, fetch, run, wait_until
from tests.scenario import run_by
from tiered.access.audit_log import LOGGER
from tiered.config.listener_overrides import PLAIN_USERS, ListenerOverride
from tiered.config.settings import SASL_MECHANISMS
from tiered.controller.requests import AlterScramCredentials, RotateBrokerSecret, ScramDeletion
from tiered.controller.scram_credentials import set_password
from tiered.errors import Code, Refused
from tiered.replication.leader_replica import ACKS_ALL
from tiered.security import broker_login
from tiered.security.broker_secrets import SECRET_BYTES
from tiered.security.scram import ScramClient, ScramMechanism, salt_password
from tiered.security.secret import Secret
from tiered.system.clock import SystemClock
from tiered.system.network import SocketNet
from tiered_api.cli.broker.scram_users import read_credentials
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.login import UserLogin
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.protocol.apis import ALL_APIS, API_VERSIONS
from tiered_api.kafka.protocol.headers import encode_request_header
from tiered_api.kafka.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
)
from tiered_api.kafka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tiered_api.kafka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tiered_api.kafka.server.login import LOGIN_FRAME_BYTES, SASL_AUTHENTICATE, SASL_HANDSHAKE

USERS = ("SCRAM-SHA-256=[name=alice,password=pencil]", "SCRAM-SHA-512=[name=bob,password=a,b=c]")
SMALL = "SCRAM-SHA-256"


def run_with_login(directory: Path, scenario: Callable[[KafkaBroker], Awaitable[None]], **settings: Any) -> None:
    """Runs a scenario against a broker with two users, and a listener that wants a login."""

    async def act(site: KafkaBroker) -> None:
        for each in read_credentials(USERS):
            assert set((await site.broker.submit(AlterScramCredentials((), (each,)))).values()) == {None}
        await scenario(site)

    run(directory, act, listener_security_protocol_map=("PLAINTEXT:SASL_PLAINTEXT",), **settings)


async def shake_hands(client: RawClient, mechanism: str = SMALL) -> SaslHandshakeResponse:
    return await client.ask(SaslHandshakeRequest(mechanism), 1, SaslHandshakeResponse)


async def authenticate(client: RawClient, message: bytes) -> SaslAuthenticateResponse:
    return await client.ask(SaslAuthenticateRequest(message), 2, SaslAuthenticateResponse)


async def log_in(client: RawClient, user: str = "alice", password: str = "pencil") -> SaslAuthenticateResponse:
    """Logs in by SCRAM-SHA-256; returns the last reply."""
    assert (await shake_hands(client)).error_code == 0
    machine = ScramClient(ScramMechanism.SHA_256, user, password, "nonce")
    first = await authenticate(client, machine.make_first())
    assert first.error_code == 0, first.error_message
    return await authenticate(client, machine.step(first.auth_bytes))


async def list_groups(client: RawClient) -> int:
    return (await client.ask(ListGroupsRequest(), 0, ListGroupsResponse)).error_code


PLAIN = ListenerOverride(
    "PLAINTEXT", PLAIN_USERS, Secret('a.PlainLoginModule required user_carol="a;b" user_alice="pen";')
)


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [
        ("alice", "pencil", SMALL),
        ("bob", "a,b=c", "SCRAM-SHA-512"),
        ("carol", "a;b", "PLAIN"),
        ("alice", "pen", "PLAIN"),
    ],
)
def test_user_logs_in_and_is_served(
    tmp_path: Path, user: str, password: str, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    async def scenario(site: KafkaBroker) -> None:
        host, port = site.address.rsplit(":", 1)
        brokers = [Address(host, int(port))]

        async def try_login(login: UserLogin) -> str:
            client = KafkaClient(SocketNet(), SystemClock(), brokers, login=login)
            try:
                await client.fetch_metadata(None)
                return "served"
            except Refused as refused:
                return refused.why.partition("login: ")[2]
            finally:
                await client.close()

        login = UserLogin(user, Secret(password), mechanism)
        assert await try_login(login) == "served"
        wrong = await try_login(login._replace(password=Secret("nonsense")))
        assert wrong == await try_login(login._replace(user="nobody")) != "served"
        principals = {str(each.caller.principal) for each in site.server.connections}
        assert principals <= {f"User:{user}"}

    run_with_login(
        tmp_path,
        scenario,
        connection_failed_authentication_delay_ms=0,
        sasl_enabled_mechanisms=SASL_MECHANISMS,
        listener_overrides=(PLAIN,),
    )
    assert "PLAIN without TLS: passwords cross the network in clear listener=PLAINTEXT" in caplog.text
    assert "nonsense" not in caplog.text
    refused = [json.loads(line) for line in caplog.messages if line.startswith("{") and '"refused"' in line]
    assert [(each["host"], each["claimed_user"]) for each in refused] == [("127.0.0.1", user), ("127.0.0.1", "nobody")]


@run_by(
    run_with_login,
    "tmp_path",
    connection_failed_authentication_delay_ms=200,
    listener_overrides=(PLAIN, ListenerOverride("PLAINTEXT", "sasl.enabled.mechanisms", ("PLAIN",))),
)
async def test_wrong_password_of_plain_is_answered_late(site: KafkaBroker) -> None:
    loop = asyncio.get_running_loop()
    texts = set()
    for message in (b"\0carol\0pencil", b"\0nobody\0pencil", b"\0alice\0pencil"):
        client = await site.client()
        begun = loop.time()
        assert (await shake_hands(client, "PLAIN")).error_code == 0
        failed = await authenticate(client, message)
        assert loop.time() - begun >= 0.2
        assert failed.error_code == Code.SASL_AUTHENTICATION_FAILED.number and not failed.auth_bytes
        texts.add(failed.error_message)
        assert await client.read_to_end() == b""
    assert len(texts) == 1


def test_mechanisms_and_time_of_a_listener_win_over_those_of_the_broker(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        refused = await shake_hands(client)
        assert (refused.error_code, refused.mechanisms) == (Code.UNSUPPORTED_SASL_MECHANISM.number, ["PLAIN"])
        client = await site.client()
        assert (await shake_hands(client, "PLAIN")).mechanisms == ["PLAIN"]
        assert (await authenticate(client, b"\0carol\0a;b")).session_lifetime_ms == 5000

    overrides = (
        PLAIN,
        ListenerOverride("PLAINTEXT", "sasl.enabled.mechanisms", ("PLAIN",)),
        ListenerOverride("PLAINTEXT", "connections.max.reauth.ms", 5000),
    )
    run_with_login(tmp_path, scenario, connection_failed_authentication_delay_ms=0, listener_overrides=overrides)


@run_by(run_with_login, "tmp_path", connection_failed_authentication_delay_ms=0)
async def test_no_api_is_answered_before_the_login(site: KafkaBroker) -> None:
    """The walk has each API that is served and many that are not: only three of them get an answer."""
    answered = {}
    for key in sorted({*ALL_APIS, *range(-2, 100)}):
        api = ALL_APIS.get(key)
        client = await site.client()
        version, body = (0, b"") if api is None or key == API_VERSIONS else (api.high, bytes(64))
        known = ALL_APIS[key if api is not None else API_VERSIONS]
        head = bytearray(encode_request_header(known, version, 7, "test"))
        head[:2] = key.to_bytes(2, "big", signed=True)
        frame = bytes(head) + body
        await client.send(len(frame).to_bytes(4, "big") + frame)
        client.writer.write_eof()
        answered[key] = len(await client.read_to_end())
        client.close()
    assert {key for key, size in answered.items() if size} <= {API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE}
    assert answered[API_VERSIONS] > 0
    assert site.count_refusals("login") >= len(answered) - 3


@run_by(run_with_login, "tmp_path", connection_failed_authentication_delay_ms=200)
async def test_failed_login_is_answered_late_and_ends_the_connection(site: KafkaBroker) -> None:
    loop = asyncio.get_running_loop()
    texts = set()
    for user, password in (("alice", "pen"), ("nobody", "pencil")):
        client = await site.client()
        begun = loop.time()
        failed = await log_in(client, user, password)
        assert loop.time() - begun >= 0.2
        assert failed.error_code == Code.SASL_AUTHENTICATION_FAILED.number and not failed.auth_bytes
        texts.add(failed.error_message)
        assert await client.read_to_end() == b""
    assert len(texts) == 1


@run_by(run_with_login, "tmp_path", connection_failed_authentication_delay_ms=200)
async def test_frame_behind_a_wrong_password_does_not_skip_its_delay(site: KafkaBroker) -> None:
    client = await site.client()
    await shake_hands(client)
    machine = ScramClient(ScramMechanism.SHA_256, "alice", "wrong", "nonce")
    first = await authenticate(client, machine.make_first())
    begun = asyncio.get_running_loop().time()
    last = client.frame(SaslAuthenticateRequest(machine.step(first.auth_bytes)), 2)
    await client.send(last, client.frame(ListGroupsRequest(), 0))
    assert (await client.receive(SaslAuthenticateResponse, 2)).error_code == 58
    assert asyncio.get_running_loop().time() - begun >= 0.2
    assert await client.read_to_end() == b""


@run_by(run_with_login, "tmp_path", connection_failed_authentication_delay_ms=200, connections_max_reauth_ms=600_000)
async def test_connection_serves_nothing_after_a_failed_second_login(site: KafkaBroker) -> None:
    client = await site.client()
    assert (await log_in(client)).error_code == 0
    await shake_hands(client)
    wrong, other = client.frame(SaslAuthenticateRequest(b"nonsense"), 2), client.frame(ListGroupsRequest(), 0)
    await client.send(wrong, other)
    await wait_until(lambda: site.count_refusals("login") == 1)
    await client.send(other)
    await client.read_to_end()
    assert site.server.context.requests[16] == 0


@run_by(run_with_login, "tmp_path", connection_failed_authentication_delay_ms=0)
async def test_steps_out_of_order_never_end_with_a_login(site: KafkaBroker) -> None:
    first = ScramClient(ScramMechanism.SHA_256, "alice", "pencil", "nonce").make_first()
    client = await site.client()
    assert (await authenticate(client, first)).error_code == Code.ILLEGAL_SASL_STATE.number
    client = await site.client()
    unknown = await shake_hands(client, "PLAIN")
    assert unknown.error_code == Code.UNSUPPORTED_SASL_MECHANISM.number and SMALL in unknown.mechanisms
    client = await site.client()
    old = await client.ask(SaslHandshakeRequest(SMALL), 0, SaslHandshakeResponse)
    assert old.error_code == Code.UNSUPPORTED_VERSION.number, "tokens without headers would follow"
    assert await client.read_to_end() == b""
    client = await site.client()
    await shake_hands(client)
    await authenticate(client, first)
    await client.send(client.frame(ListGroupsRequest(), 0))
    assert await client.read_to_end() == b"", "half a login is none"
    client = await site.client()
    await client.send((LOGIN_FRAME_BYTES + 1).to_bytes(4, "big") + bytes(100))
    assert await client.read_to_end() == b""


@run_by(
    run_with_login,
    "tmp_path",
    connections_max_reauth_ms=600_000,
    connection_failed_authentication_delay_ms=0,
    sasl_enabled_mechanisms=SASL_MECHANISMS,
)
async def test_connection_has_to_log_in_again_as_the_same_user(site: KafkaBroker) -> None:
    client = await site.client()
    assert (await log_in(client)).session_lifetime_ms == 600_000
    assert await list_groups(client) == 0
    assert (await log_in(client)).error_code == 0
    assert await list_groups(client) == 0
    other = read_credentials(["SCRAM-SHA-256=[name=carol,password=pencil]"])
    await site.broker.submit(AlterScramCredentials((), other))
    assert (await log_in(client, "carol")).error_code == Code.SASL_AUTHENTICATION_FAILED.number
    assert await client.read_to_end() == b""
    client = await site.client()
    await log_in(client)
    assert (await shake_hands(client, "SCRAM-SHA-512")).error_code == Code.ILLEGAL_SASL_STATE.number
    assert await client.read_to_end() == b"", "by the same mechanism too"


@run_by(run_with_login, "tmp_path", connections_max_reauth_ms=300)
async def test_client_logs_in_again_before_its_session_ends(site: KafkaBroker) -> None:
    """It changes to another connection: no request fails, and none of the old ones stays."""
    host, port = site.address.rsplit(":", 1)
    login = UserLogin("alice", Secret("pencil"), SMALL)
    client = KafkaClient(SocketNet(), SystemClock(), [Address(host, int(port))], login=login)
    await client.fetch_metadata(None)
    node, peers = site.broker.settings.node_id, set[str]()
    while len(peers) < 6:
        assert not (await client.send(ListGroupsRequest(), ListGroupsResponse, node_id=node)).error_code
        peers |= {each.peer for each in site.server.connections}
    await wait_until(lambda: len(site.server.connections) <= 2)
    assert site.count_refusals("login_timeout") == 0
    await client.close()


@run_by(run_with_login, "tmp_path", sasl_enabled_mechanisms=SASL_MECHANISMS)
async def test_connections_of_a_removed_or_changed_user_end_and_no_others(
    site: KafkaBroker, *, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that waits in a fetch: it gets no later record. The log names the user."""
    replica = await site.create("t")
    idle, waiting, other = [await site.client() for _ in range(3)]
    for client in (idle, waiting):
        assert (await log_in(client)).error_code == 0
    bob = ScramClient(ScramMechanism.SHA_512, "bob", "a,b=c", "nonce")
    await shake_hands(other, "SCRAM-SHA-512")
    first = await authenticate(other, bob.make_first())
    assert (await authenticate(other, bob.step(first.auth_bytes))).error_code == 0
    await waiting.send(waiting.frame(fetch((replica, 0), wait_ms=60_000), 12))
    await wait_until(lambda: site.server.pending_requests == 1)
    changed = read_credentials(["SCRAM-SHA-256=[name=alice,password=pen]"])
    await site.broker.submit(AlterScramCredentials((), changed))
    assert [await client.read_to_end() for client in (idle, waiting)] == [b"", b""]
    assert await list_groups(other) == 0
    again = await site.client()
    assert (await log_in(again, password="pen")).error_code == 0
    await site.broker.submit(AlterScramCredentials((ScramDeletion("alice", SMALL),)))
    assert await again.read_to_end() == b"" and await list_groups(other) == 0
    assert site.count_refusals("login_ended") == 3
    assert "why=User:alice was removed or has another password" in caplog.text


@run_by(run_with_login, "tmp_path")
async def test_user_that_is_removed_by_its_own_request_gets_the_reply(site: KafkaBroker) -> None:
    client = await site.client()
    await log_in(client)
    lines: list[str] = []
    site.broker.audit.subscribe(lines.append)

    def look_again() -> None:
        """Looks as after another change, while the connection waits for its last reply."""
        for each in list(site.server.connections):
            site.server.dispatch.login_handler.end_revoked(each)

    site.broker.subscribe_to_logins(look_again)
    request = AlterUserScramCredentialsRequest([ScramCredentialDeletion("alice", 1)], [])
    answer = await client.ask(request, 0, AlterUserScramCredentialsResponse)
    assert [each.error_code for each in answer.results] == [0]
    assert await client.read_to_end() == b""
    assert sum('"ended"' in line for line in lines) == 1


@run_by(run_with_login, "tmp_path", connection_failed_authentication_delay_ms=0)
async def test_user_that_is_removed_during_a_login_cannot_log_in(site: KafkaBroker) -> None:
    shaken, halfway = await site.client(), await site.client()
    machine, other = (ScramClient(ScramMechanism.SHA_256, "alice", "pencil", "nonce") for _ in range(2))
    await shake_hands(shaken)
    await shake_hands(halfway)
    reply = await authenticate(halfway, machine.make_first())
    await site.broker.submit(AlterScramCredentials((ScramDeletion("alice", SMALL),)))
    assert (await authenticate(halfway, machine.step(reply.auth_bytes))).error_code != 0
    reply = await authenticate(shaken, other.make_first())
    assert (await authenticate(shaken, other.step(reply.auth_bytes))).error_code != 0


@run_by(run_with_login, "tmp_path")
async def test_connection_without_a_login_in_time_ends(site: KafkaBroker) -> None:
    silent = await site.client()
    await wait_until(lambda: bool(site.server.connections))
    for connection in site.server.connections:
        connection.login_ends = 0.0
    assert await silent.read_to_end() == b""
    assert site.count_refusals("login_timeout") == 1


@run_by(run_with_login, "tmp_path", connections_max_reauth_ms=600_000)
async def test_expired_login_leaves_replies_on_their_way_and_another_login(site: KafkaBroker) -> None:
    """Kafka does the same: clients log in again only once they have something to send."""
    replica = await site.create("t")
    waiting, idle, used = [await site.client() for _ in range(3)]
    for client in (waiting, idle, used):
        assert (await log_in(client)).session_lifetime_ms == 600_000
    await waiting.send(waiting.frame(fetch((replica, 0), wait_ms=60_000), 12))
    await wait_until(lambda: site.server.pending_requests == 1)
    for connection in site.server.connections:
        connection.login_ends = 0.0
    await wait_until(lambda: {each.login_ends for each in site.server.connections} == {-1.0})
    site.server._on_quotas()
    await used.send(used.frame(ListGroupsRequest(), 0))
    assert await used.read_to_end() == b""
    await replica.append(batch([b"late"]), acks=ACKS_ALL, timeout_ms=5_000)
    assert b"late" in await waiting.read_reply()
    assert (await log_in(idle)).error_code == await list_groups(idle) == 0
    assert site.count_refusals("login_timeout") == 1


@run_by(run_with_login, "tmp_path", connections_max_reauth_ms=1, connections_max_idle_ms=500)
async def test_expired_connection_that_idles_is_closed(site: KafkaBroker) -> None:
    client = await site.client()
    await log_in(client)
    assert await client.read_to_end() == b""
    assert (site.count_refusals("idle"), site.count_refusals("login_timeout")) == (1, 0)


@run_by(run_with_login, "tmp_path", max_connection_creation_rate=1)
async def test_time_of_a_login_begins_once_the_connection_is_opened(site: KafkaBroker) -> None:
    """Another connection has taken the place of this second."""
    (waiting,) = site.server._unopened.values()
    await site.client()
    await site.client()
    await wait_until(lambda: bool(waiting))
    connection = waiting[0]
    assert connection.login_ends == -1
    await wait_until(lambda: connection.is_reading)
    assert connection.login_ends > asyncio.get_running_loop().time()


@run_by(run_with_login, "tmp_path", connection_failed_authentication_delay_ms=0)
async def test_broker_proves_the_secret_of_the_cluster(site: KafkaBroker) -> None:
    for secret, code in ((site.broker.credential, 0), (b"x" * 32, Code.SASL_AUTHENTICATION_FAILED.number)):
        client = await site.client()
        assert (await shake_hands(client, broker_login.MECHANISM)).error_code == 0
        machine = broker_login.make_client(secret, 2, "nonce")
        first = await authenticate(client, machine.make_first())
        last = await authenticate(client, machine.step(first.auth_bytes))
        assert last.error_code == code
        known = {str(each.caller.principal) for each in site.server.connections}
        assert ("Broker:2" in known) is (code == 0)
        client.close()
        await asyncio.wait_for(client.writer.wait_closed(), 5)


@run_by(run_with_login, "tmp_path")
async def test_broker_that_logs_in_sends_its_secret_to_nobody(site: KafkaBroker) -> None:
    sent = bytearray()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            sent.extend(data)
            writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = site.address.rsplit(":", 1)
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    between = await asyncio.start_server(relay, "127.0.0.1", 0)
    peers = KafkaPeers(SocketNet(), login_node_id=2)
    peers.cluster_id, peers.credential = site.broker.cluster_id, site.broker.credential
    view = await peers.get_controller_view(f"127.0.0.1:{between.sockets[0].getsockname()[1]}", 5)
    await peers.close()
    between.close()
    assert view.node_id == 1 and broker_login.MECHANISM.encode() in sent
    assert site.broker.credential not in sent


@pytest.mark.parametrize("version", range(3))
@run_by(run_with_login, "tmp_path")
async def test_login_works_in_every_version_of_its_messages(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    machine = ScramClient(ScramMechanism.SHA_256, "alice", "pencil", "nonce")
    assert (await shake_hands(client)).error_code == 0
    message = machine.make_first()
    for _ in range(2):
        reply = await client.ask(SaslAuthenticateRequest(message), version, SaslAuthenticateResponse)
        assert (reply.error_code, reply.session_lifetime_ms) == (0, 0), reply
        message = machine.step(reply.auth_bytes)
    assert machine.is_done and await list_groups(client) == 0


@run_by(run_with_login, "tmp_path")
async def test_salt_of_an_unknown_user_outlives_a_rotation_as_those_of_users_do(site: KafkaBroker) -> None:
    async def find_salts() -> list[bytes]:
        replies = []
        for user in ("alice", "nobody"):
            client = await site.client()
            await shake_hands(client)
            machine = ScramClient(ScramMechanism.SHA_256, user, "x", "nonce")
            replies.append((await authenticate(client, machine.make_first())).auth_bytes)
        return [reply.partition(b",s=")[2] for reply in replies]

    before = await find_salts()
    for version in range(3):
        await site.broker.submit(RotateBrokerSecret(version, f"{version}a" * SECRET_BYTES))
    assert await find_salts() == before


@run_by(run_with_login, "tmp_path")
async def test_salt_of_an_unknown_user_has_the_size_of_those_of_users(site: KafkaBroker) -> None:
    """librdkafka's admin client makes salts of 64 bytes. Names whose salts had another size were free."""
    salt, iterations = bytes(range(64)), 8192
    salted = salt_password(ScramMechanism.SHA_256, "pencil", salt, iterations)
    change = set_password("alice", ScramMechanism.SHA_256, salted, salt, iterations)
    assert set((await site.broker.submit(AlterScramCredentials((), (change,)))).values()) == {None}
    for user in ("alice", "nobody", "nobody-else"):
        client = await site.client()
        await shake_hands(client)
        reply = (
            await authenticate(client, ScramClient(ScramMechanism.SHA_256, user, "x", "n").make_first())
        ).auth_bytes
        fields = dict(each.split(b"=", 1) for each in reply.split(b","))
        assert (len(b64decode(fields[b"s"])), fields[b"i"]) == (64, b"8192")


@run_by(run_with_login, "tmp_path")
async def test_connection_of_a_broker_ends_once_its_secret_is_not_accepted(site: KafkaBroker) -> None:
    client = await site.client()
    assert (await shake_hands(client, broker_login.MECHANISM)).error_code == 0
    machine = broker_login.make_client(site.broker.credential, 2, "nonce")
    first = await authenticate(client, machine.make_first())
    assert (await authenticate(client, machine.step(first.auth_bytes))).error_code == 0
    for version in (1, 2):
        await site.broker.submit(RotateBrokerSecret(version - 1, "ab" * SECRET_BYTES))
        assert await list_groups(client) == 0, "the secret is accepted still"
    await site.broker.submit(RotateBrokerSecret(2, "ab" * SECRET_BYTES))
    assert await client.read_to_end() == b""
