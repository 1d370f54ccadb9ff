"""Tests of logins by token: over HTTP, by OAUTHBEARER, and the keys from a file and from a token server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from aiohttp import web
from confluent_kafka import Producer

from tests.e2e.http_site import HttpBroker, HttpReply, run, wait_until
from tests.e2e.kafka_site import KafkaBroker, RawClient
from tests.e2e.kafka_site import run as run_kafka
from tests.e2e.serving import SECONDS, ServeProcess
from tests.e2e.test_http_login import basic, set_user
from tests.e2e.test_kafka_login import authenticate, list_groups, shake_hands
from tests.scenario import run_alone, run_by
from tests.tokens import AUDIENCE, ISSUER, RSA, UNTRUSTED, key_set, public_key, token
from tiered.access import token_validator
from tiered.config.settings import STANDARD_AUTHORIZER, Settings
from tiered.controller.requests import CreateAcls
from tiered.errors import Refused
from tiered.metadata.changes import AclAdded
from tiered.security.sasl_oauthbearer import INVALID, MECHANISM
from tiered.system.clock import SystemClock
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

RECORD = {"value": {"type": "JSON", "data": 1}}


def token_settings(url: str, **more: Any) -> dict[str, Any]:
    """Returns the settings of a broker that takes tokens by keys from `url`."""
    return {
        "sasl_oauthbearer_jwks_endpoint_url": url,
        "sasl_oauthbearer_expected_issuer": ISSUER,
        "sasl_oauthbearer_expected_audience": (AUDIENCE,),
        "connection_failed_authentication_delay_ms": 1,
        **more,
    }


def write_keys(directory: Path, text: bytes = b"") -> str:
    """Writes a set of keys into a file; returns its URL."""
    directory.mkdir(exist_ok=True)
    (directory / "keys.json").write_bytes(text or key_set())
    return f"file://{directory}/keys.json"


async def ask_with(site: HttpBroker, text: str, path: str = "/topics") -> HttpReply:
    return await site.ask("GET", path, Authorization=f"Bearer {text}")


def test_token_gives_its_principal_and_the_rights_of_it(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await site.create("t")
        rule = AclAdded("TOPIC", "LITERAL", "t", "User:alice", "*", "WRITE", "ALLOW")
        await site.broker.submit(CreateAcls((rule,)))
        assert (await ask_with(site, token())).json == ["t"]
        assert (await ask_with(site, token(sub="bob"))).json == []
        path = f"{site.cluster}/topics/t/records"
        for _ in range(3):
            for subject, status in (("alice", 200), ("bob", 403)):
                login = f"Bearer {token(sub=subject)}"
                assert (await site.ask("POST", path, RECORD, Authorization=login)).status == status
        for wrong in (token(UNTRUSTED), token(aud="other"), token(exp=1), token(key=None, algorithm="none"), "", "x"):
            refused = await ask_with(site, wrong)
            assert (refused.status, refused.json["error_code"]) == (401, 40101), wrong
            assert refused.headers["WWW-Authenticate"] == 'Bearer realm="tiered", error="invalid_token"'
        assert (await site.get("/topics")).headers["WWW-Authenticate"] == 'Bearer realm="tiered"'
        assert (await site.ask("GET", "/topics", Authorization=basic("alice", "x"))).status == 401

    settings = token_settings(write_keys(tmp_path / "keys"), authorizer_class_name=STANDARD_AUTHORIZER)
    run(tmp_path / "data", scenario, authentication_method=("BEARER",), **settings)


def test_passwords_and_tokens_may_both_be_logins(tmp_path: Path) -> None:
    async def scenario(site: HttpBroker) -> None:
        await set_user(site, "alice", "wonderland")
        assert (await ask_with(site, token())).status == 200
        assert (await site.ask("GET", "/topics", Authorization=basic("alice", "wonderland"))).status == 200
        assert (await site.get("/topics")).status == 401

    settings = token_settings(write_keys(tmp_path / "keys"))
    run(tmp_path / "data", scenario, authentication_method=("BASIC", "BEARER"), **settings)


@asynccontextmanager
async def token_server() -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yields the URL of a token server, and what it does: `text` are its keys, `status` and `location` its reply."""
    given: dict[str, Any] = {"text": key_set(), "status": 200, "location": "", "asked": 0}

    async def answer(request: web.BaseRequest) -> web.Response:
        given["asked"] += 1
        headers = {"Location": given["location"]} if given["location"] else {}
        return web.Response(body=given["text"], status=given["status"], headers=headers)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    listener = web.TCPSite(runner, "127.0.0.1", 0)
    await listener.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/keys", given
    finally:
        await runner.cleanup()


async def start_validator(url: str) -> token_validator.TokenValidator:
    """Returns a validator that has looked for its keys once."""
    settings = Settings(authentication_method=("BEARER",), **token_settings(url))
    made = token_validator.TokenValidator(settings, SystemClock())
    await made.start()
    return made


def test_new_key_of_the_token_server_is_found_and_old_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_validator, "PAUSE_SECONDS", 0.01)

    async def scenario() -> None:
        async with token_server() as (url, given):
            tokens = await start_validator(url)
            assert tokens.verify(token()).name == "alice"
            assert given["asked"] == 1
            newer = token(RSA, "RS256", "newer")
            with pytest.raises(Refused, match="key is not known"):
                tokens.verify(newer)
            given["text"] = key_set(public_key(RSA, "newer"))
            with pytest.raises(Refused):
                tokens.verify(newer)
            await wait_until(lambda: tokens.keys.has("newer"))
            assert tokens.verify(newer).name == "alice"

            def was_asked() -> bool:
                return bool(given["asked"])

            with pytest.raises(Refused):
                tokens.verify(token())
            for text, status, location in (
                (b"", 200, ""),
                (key_set(), 500, ""),
                (key_set(), 302, url),
                (b"x" * (2 << 20), 200, ""),
            ):
                given |= {"text": text, "status": status, "location": location}
                given["asked"] = 0
                with pytest.raises(Refused):
                    tokens.verify(token())
                await wait_until(was_asked)
                assert tokens.verify(newer).name == "alice", "the known keys stay"
            await tokens.close()

    asyncio.run(scenario())


def test_looks_for_newer_keys_go_on_after_any_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And they come sooner than usual: the keys are read every hour otherwise."""
    monkeypatch.setattr(token_validator, "PAUSE_SECONDS", 0.01)
    read_url = token_validator.read_url

    async def scenario() -> None:
        async with token_server() as (url, given):
            tokens = await start_validator(url)
            faults: list[str] = []

            def fail(asked: str) -> bytes:
                faults.append(asked)
                raise RuntimeError("no such fault was expected")

            monkeypatch.setattr(token_validator, "read_url", fail)
            with pytest.raises(Refused, match="key is not known"):
                tokens.verify(token(RSA, "RS256", "newer"))
            await wait_until(lambda: len(faults) > 2)
            assert tokens.verify(token()).name == "alice", "the known keys stay"
            given["text"] = key_set(public_key(RSA, "newer"))
            monkeypatch.setattr(token_validator, "read_url", read_url)
            await wait_until(lambda: tokens.keys.has("newer"))
            await tokens.close()

    asyncio.run(scenario())
    assert "the known ones stay keys=" in caplog.text and "RuntimeError: no such fault" in caplog.text


@run_by(run_alone)
async def test_broker_starts_without_its_token_server_and_finds_it_later(*, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_validator, "PAUSE_SECONDS", 0.01)
    async with token_server() as (url, given):
        given["status"] = 503
        tokens = await start_validator(url)
        with pytest.raises(Refused):
            tokens.verify(token())
        given["status"] = 200
        await wait_until(lambda: tokens.keys.has("ec"))
        assert tokens.verify(token()).name == "alice"
        await tokens.close()


@run_by(run_alone)
async def test_file_of_keys_is_read_anew_and_has_to_be_there_at_the_start(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_validator, "PAUSE_SECONDS", 0.01)
    for text in (b"{}", b"[" * 2000):
        with pytest.raises(Refused, match=r"jwks\.endpoint\.url"):
            await start_validator(write_keys(tmp_path, text))
    with pytest.raises(Refused, match=r"/absent: it cannot be read: No such file or directory$"):
        await start_validator(f"file://{tmp_path}/absent")
    tokens = await start_validator(write_keys(tmp_path))
    assert tokens.verify(token()).name == "alice"
    write_keys(tmp_path, key_set(public_key(RSA, "newer")))
    await wait_until(lambda: tokens.keys.has("newer"))
    with pytest.raises(Refused):
        tokens.verify(token())
    await tokens.close()


# -- OAUTHBEARER ------------------------------------------------------------------------------------------------------


def first(text: str) -> bytes:
    """Returns the first message of a client."""
    return f"n,,\x01auth=Bearer {text}\x01\x01".encode()


def kafka_settings(tmp_path: Path) -> dict[str, Any]:
    """Returns the settings of a listener that takes tokens."""
    return token_settings(
        write_keys(tmp_path / "keys"),
        listener_security_protocol_map=("PLAINTEXT:SASL_PLAINTEXT",),
        sasl_enabled_mechanisms=(MECHANISM,),
    )


async def log_in(client: RawClient, text: str) -> SaslAuthenticateResponse:
    assert (await shake_hands(client, MECHANISM)).error_code == 0
    return await authenticate(client, first(text))


def test_kafka_client_logs_in_by_token_until_it_expires(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        logged_in = await log_in(client, token(exp=time.time() + 100))
        assert logged_in.error_code == 0 and 90_000 < logged_in.session_lifetime_ms <= 100_000
        assert await list_groups(client) == 0
        assert {str(each.caller.principal) for each in site.server.connections} == {"User:alice"}
        again = await log_in(client, token(exp=time.time() + 200))
        assert again.error_code == 0 and again.session_lifetime_ms > 190_000
        assert (await log_in(client, token(sub="bob"))).error_code == 58, "the connection is that of alice"

    run_kafka(tmp_path / "data", scenario, **kafka_settings(tmp_path))


def test_login_ends_with_its_token_or_the_time_of_logins(tmp_path: Path) -> None:
    """The earlier of the two ends it."""

    async def scenario(site: KafkaBroker) -> None:
        found = []
        for seconds in (100, 3600):
            logged_in = await log_in(await site.client(), token(exp=time.time() + seconds))
            assert logged_in.error_code == 0, logged_in.error_message
            found.append(logged_in.session_lifetime_ms)
        assert 90_000 < found[0] <= 100_000 and found[1] == 600_000

    run_kafka(tmp_path / "data", scenario, connections_max_reauth_ms=600_000, **kafka_settings(tmp_path))


@pytest.mark.parametrize("wrong", [{"key": UNTRUSTED}, {"exp": 1}, {"key": None, "algorithm": "none"}])
def test_kafka_client_with_another_token_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        fault = await log_in(client, token(**wrong))
        assert (fault.error_code, fault.auth_bytes) == (0, INVALID)
        refused = await authenticate(client, b"\x01")
        assert refused.error_code == 58 and "the token is refused" in (refused.error_message or "")
        assert await client.read_to_end() == b""
        assert site.count_refusals("login") == 1

    run_kafka(tmp_path / "data", scenario, **kafka_settings(tmp_path))


def test_refused_token_is_told_late_and_its_failure_recorded_at_once(tmp_path: Path) -> None:
    """Its client leaves before the last reply."""

    async def scenario(site: KafkaBroker) -> None:
        lines, loop = list[str](), asyncio.get_running_loop()
        site.broker.audit.subscribe(lines.append)
        client, leaving = await site.client(), await site.client()
        begun = loop.time()
        assert (await log_in(client, token(exp=1))).auth_bytes == INVALID
        assert loop.time() - begun >= 0.2
        assert [json.loads(line)["outcome"] for line in lines] == ["refused"]
        assert (await authenticate(client, b"\x01")).error_code == 58
        await shake_hands(leaving, MECHANISM)
        await leaving.send(leaving.frame(SaslAuthenticateRequest(first(token(exp=1))), 2))
        leaving.close()
        await wait_until(lambda: len(lines) == 2)
        assert site.count_refusals("login") == 2

    settings = kafka_settings(tmp_path) | {"connection_failed_authentication_delay_ms": 200}
    run_kafka(tmp_path / "data", scenario, **settings)


@pytest.mark.also("tests/e2e/test_token_logins.py::test_kafka_client_logs_in_by_token_until_it_expires")
def test_librdkafka_and_http_log_in_by_the_same_token(tmp_path: Path) -> None:
    settings = (
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms=OAUTHBEARER",
        "authentication.method=BEARER",
        f"sasl.oauthbearer.jwks.endpoint.url={write_keys(tmp_path / 'keys')}",
        f"sasl.oauthbearer.expected.issuer={ISSUER}",
        f"sasl.oauthbearer.expected.audience={AUDIENCE}",
    )
    pairs = [word for each in settings for word in ("-c", each)]
    text = token(RSA, "RS256", "rsa")
    with ServeProcess(tmp_path / "data", *pairs) as broker:
        client: dict[str, Any] = {
            "bootstrap.servers": broker.kafka,
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (text, time.time() + 300),
        }
        producer = Producer(client)
        producer.produce("flights", b"one")
        assert producer.flush(SECONDS) == 0
        asked = Request(f"{broker.url}/topics", headers={"Authorization": f"Bearer {text}"})
        with urlopen(asked) as reply:
            assert "flights" in json.load(reply)
        log = broker.log.read_text()
    assert "Traceback" not in log and text not in log
