"""Tests of the short path of POST for callers with logins, rights and quotas: what it serves, and what ends that."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.certificates import sign
from tests.e2e.http_site import HttpBroker, http_broker, run
from tests.e2e.test_http_login import basic, remove_user, set_user
from tests.e2e.test_http_quotas import put
from tests.e2e.test_http_rights import SETTINGS, grant, take_away
from tests.e2e.test_token_logins import token_settings, write_keys
from tests.scenario import run_alone, run_by
from tests.tokens import token
from tiered.config.settings import STANDARD_AUTHORIZER
from tiered.security.acls import Operation, ResourceType
from tiered.security.bearer_tokens import KeySet
from tiered.security.scram import ScramMechanism
from tiered_api.http.server.rights import ROUTE_RULES, RouteNeed, RouteRule
from tiered_api.http.server.server import serve_http
from tiered_api.http.v3.fast_produce import OPERATION

BODY = b'{"value":{"type":"JSON","data":1}}'


class Client:
    """One connection, on which the same head always has the same bytes."""

    def __init__(self, site: HttpBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._site = site
        self._reader = reader
        self._writer = writer
        self.took_short_path = False
        """How the broker served the last request."""
        self.reply: Any = None

    async def post(self, *lines: str, topic: str = "t") -> int:
        """Sends one record with these lines in the head. Returns the status."""
        path = f"{self._site.cluster}/topics/{topic}/records"
        head = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines]
        full = self._site.broker.metrics.histogram("tiered_http_request_seconds", "", (1.0,), ("operation",))
        before = full.count(OPERATION)
        self._writer.write("\r\n".join([*head, f"Content-Length: {len(BODY)}", "", ""]).encode() + BODY)
        start = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(start.split("content-length: ")[1].split("\r\n")[0])
        self.reply = json.loads(await self._reader.readexactly(length))
        self.took_short_path = full.count(OPERATION) == before
        return int(start.split(" ")[1])


@asynccontextmanager
async def connect(site: HttpBroker, url: str = "", **options: Any) -> AsyncIterator[Client]:
    """Yields a new connection."""
    host, port = (url or site.url).partition("://")[2].rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), **options)
    try:
        yield Client(site, reader, writer)
    finally:
        writer.close()


def login(user: str, password: str = "secret") -> str:
    return f"Authorization: {basic(user, password)}"


async def learn(client: Client, *lines: str) -> None:
    """Sends a head until the short path serves it."""
    assert await client.post(*lines) == 200
    assert await client.post(*lines) == 200 and client.took_short_path


def test_short_path_needs_no_other_right_than_its_route() -> None:
    assert ROUTE_RULES[OPERATION] == RouteRule((RouteNeed(Operation.WRITE, ResourceType.TOPIC, "topic"),))


@run_by(run, "tmp_path", **{**SETTINGS, "connection_failed_authentication_delay_ms": 1})
async def test_known_head_counts_for_its_login_while_login_and_right_last(site: HttpBroker) -> None:
    await site.create("t")
    for user in ("alice", "bob", "carol"):
        await set_user(site, user, "secret")
    for user in ("alice", "carol"):
        await grant(site, user, ("TOPIC", "t", "WRITE"))
    async with connect(site) as client, connect(site) as other:
        await learn(client, login("alice"))
        assert await other.post(login("alice")) == 200 and other.took_short_path, "the same caller"
        for _ in range(2):
            assert await client.post(login("bob")) == 403
            assert await client.post(login("alice", "wrong")) == 401
            assert await client.post() == 401
            assert await client.post(login("alice")) == 200 and client.took_short_path
        await learn(client, login("carol"))
        keyed = 'Idempotency-Key: "order-1"'
        found = []
        for user in ("alice", "carol", "alice", "carol"):
            assert await client.post(login(user), keyed) == 200
            found.append((client.reply["offset"], client.took_short_path))
        assert found[0][0] != found[1][0], "a key of one principal means nothing to others"
        assert [each[0] for each in found[2:]] == [each[0] for each in found[:2]]
        assert all(each[1] for each in found), "a head is the same with any key"
        await take_away(site, "t")
        assert [await client.post(login(user)) for user in ("alice", "carol")] == [403, 403]
        await grant(site, "alice", ("TOPIC", "t", "WRITE"))
        await learn(client, login("alice"))
        await set_user(site, "alice", "other")
        assert await client.post(login("alice")) == 401
        await set_user(site, "alice", "secret", ScramMechanism.SHA_256)
        await learn(client, login("alice"))
        await remove_user(site, "alice", "SCRAM-SHA-256")
        assert await client.post(login("alice")) == 401
        await remove_user(site, "alice")
        assert await client.post(login("alice")) == 401


def test_known_head_counts_for_a_token_while_its_keys_last(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        async with connect(site) as client:
            line = f"Authorization: Bearer {token()}"
            await learn(client, line)
            tokens, keys = site.broker.tokens, site.broker.tokens.keys
            tokens.keys = KeySet()
            assert await client.post(line) == 401
            tokens.keys = keys
            await learn(client, line)
            short = f"Authorization: Bearer {token(sub='bob', exp=0)}"
            assert await client.post(short) == 401

    settings = token_settings(write_keys(tmp_path / "keys"))
    run(tmp_path / "data", scenario, authentication_method=("BEARER",), **settings)


@run_by(run_alone)
async def test_known_head_counts_for_the_certificate_of_its_connection(*, tmp_path: Path) -> None:
    authority = sign("CN=authority")
    trusted = tmp_path / "ca.pem"
    trusted.write_text(authority.certificate_pem)
    clients = {name: sign(f"CN={name}", authority).write(tmp_path / f"{name}.pem") for name in ("alice", "bob")}
    settings: dict[str, Any] = {
        "ssl_keystore_location": sign("CN=broker", authority).write(tmp_path / "broker.pem"),
        "ssl_truststore_location": str(trusted),
        "ssl_client_auth": "requested",
        "ssl_principal_mapping_rules": "RULE:^CN=(.*)$/$1/",
        "authorizer_class_name": STANDARD_AUTHORIZER,
    }
    async with http_broker(tmp_path / "data", **settings) as site:
        await site.create("t")
        await grant(site, "alice", ("TOPIC", "t", "WRITE"))
        server = await serve_http(site.broker, "127.0.0.1", 0, has_tls=True)
        contexts = {}
        for name in (*clients, ""):
            contexts[name] = ssl.create_default_context(cafile=str(trusted))
            if name:
                contexts[name].load_cert_chain(clients[name])
        try:
            async with (
                connect(site, server.url, ssl=contexts["alice"]) as alice,
                connect(site, server.url, ssl=contexts["bob"]) as bob,
                connect(site, server.url, ssl=contexts[""]) as nobody,
            ):
                await learn(alice)
                assert [await each.post() for each in (bob, nobody)] == [403, 403]
                assert await alice.post() == 200 and alice.took_short_path
        finally:
            await server.close()


@run_by(run, "tmp_path")
async def test_key_that_aiohttp_refuses_is_not_served_after_a_known_head(site: HttpBroker) -> None:
    """A bare line feed may end the head for a proxy. Only aiohttp judges such bytes, and Python strips them."""
    await site.create("t")
    async with connect(site) as client:
        await learn(client)
    for key in ("a\n", "\na", "a\r", "a\x1c", "a\x0b", "a\0"):
        found = []
        for lines in ((), ("X-Unknown: head",)):
            async with connect(site) as client:
                found.append(await client.post(f"Idempotency-Key: {key}", *lines))
        assert found == [400, 400], key


@run_by(run, "tmp_path")
async def test_quotas_count_on_the_short_path_too(site: HttpBroker) -> None:
    app = "X-Client-Id: app"
    await site.create("t")
    async with connect(site) as client:
        await learn(client, app)
        await put(site, producer_byte_rate=1.0)
        assert await client.post(app) == 200 and client.took_short_path
        assert await client.post(app) == 429, "the short path charges the bytes of a record"
        await learn(client, "X-Client-Id: other")
        await put(site, producer_byte_rate=None, request_percentage=0.0001)
        assert await client.post(app) == 200 and client.took_short_path
        assert await client.post(app) == 429, "the short path takes time too"
        await put(site, request_percentage=None)
        assert await client.post(app) == 200 and client.took_short_path
