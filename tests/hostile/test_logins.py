"""Tests of logins that fail, and of TLS handshakes that never end."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from pathlib import Path

from tests.certificates import sign
from tests.e2e.kafka_site import RawClient
from tests.hostile.target import AttackedBroker, attacked_broker, scale
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tiered_api.kafka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

HOSTS = 8
CLIENT_HELLO = bytes.fromhex("16 0301 0200 01 0001fc 0303") + bytes(100)
"""The beginning of a TLS handshake: the header announces more bytes."""


async def log_in_with_wrong_proof(client: RawClient, user: str) -> None:
    """Logs in by SCRAM with a proof of the right size, and reads the refusal."""
    shaken = await client.ask(SaslHandshakeRequest("SCRAM-SHA-512"), 1, SaslHandshakeResponse)
    assert shaken.error_code == 0
    first = await client.ask(SaslAuthenticateRequest(f"n,,n={user},r=abcdefgh".encode()), 2, SaslAuthenticateResponse)
    nonce = first.auth_bytes.split(b",")[0].removeprefix(b"r=").decode()
    proof = base64.b64encode(hashlib.sha512(user.encode()).digest()).decode()
    last = await client.ask(
        SaslAuthenticateRequest(f"c=biws,r={nonce},p={proof}".encode()), 2, SaslAuthenticateResponse
    )
    assert last.error_code == Code.SASL_AUTHENTICATION_FAILED.number


def test_logins_that_fail_delay_nobody(tmp_path: Path) -> None:
    """Known and unknown users, from several addresses. A login that begins and never ends is among them."""

    async def scenario(to: AttackedBroker, port: int) -> None:
        async def fail(number: int) -> None:
            host = f"127.0.0.{2 + number % HOSTS}"
            for turn in range(scale(3, 100)):
                client = await to.client(host, port)
                await log_in_with_wrong_proof(client, ("root", f"nobody-{turn}")[turn % 2])
                client.close()
                begun = await to.client(host, port)
                await begun.send(begun.frame(SaslHandshakeRequest("SCRAM-SHA-512"), 1))
                begun.close()

        async with to.attack("logins that fail", memory=60):
            await asyncio.gather(*map(fail, range(scale(8, 64))))

    users = tmp_path / "users"
    users.write_text("SCRAM-SHA-512=[name=root,password=eighty-eight]\n")
    listeners = "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0"
    with attacked_broker(
        tmp_path / "data", "--add-scram", f"@{users}", listeners=listeners,
        connection_failed_authentication_delay_ms=scale(1, 100),
    ) as to:  # fmt: skip
        asyncio.run(scenario(to, to.ports[1]))


def test_handshakes_that_never_end_delay_nobody(tmp_path: Path) -> None:
    """Each connection sends the first bytes of a handshake, or nothing, or bytes that are no handshake."""

    async def scenario(to: AttackedBroker, port: int) -> None:
        async with to.attack("TLS handshakes that never end", memory=scale(60, 150)):
            for number in range(scale(60, 2_000)):
                client = await to.client(f"127.0.0.{2 + number % HOSTS}", port)
                client.writer.write((CLIENT_HELLO, b"", b"GET / HTTP/1.1\r\n\r\n")[number % 3])
            await asyncio.sleep(scale(0, 12))  # longer than the time limit of a handshake

    authority = sign("CN=authority")
    broker = sign("CN=broker", authority)
    key = tmp_path / "broker.pem"
    key.write_text(broker.encrypted_key_pem("eighty-eight") + broker.certificate_pem)
    listeners = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"
    with attacked_broker(
        tmp_path / "data", listeners=listeners, ssl_keystore_location=key, ssl_key_password="eighty-eight"
    ) as to:
        asyncio.run(scenario(to, to.ports[1]))
