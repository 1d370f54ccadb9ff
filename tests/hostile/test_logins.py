"""Tests of logins that fail, and of TLS handshakes that never end."""

from __future__ import annotations

import asyncio
import base64
import hashlib

from tests.e2e.kafka_site import RawClient
from tests.hostile.attacks import attack
from tests.hostile.target import ROOT, AttackedBroker, scale
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


@attack(connection_failed_authentication_delay_ms=scale(1, 100))
async def test_logins_that_fail_delay_nobody(to: AttackedBroker) -> None:
    """Known and unknown users, from several addresses. A login that begins and never ends is among them."""
    port = to.port_of("SASL_PLAINTEXT")

    async def fail(number: int) -> None:
        host = f"127.0.0.{2 + number % HOSTS}"
        for turn in range(scale(3, 100)):
            client = await to.client(host, port)
            await log_in_with_wrong_proof(client, (ROOT, f"nobody-{turn}")[turn % 2])
            client.close()
            begun = await to.client(host, port)
            await begun.send(begun.frame(SaslHandshakeRequest("SCRAM-SHA-512"), 1))
            begun.close()

    async with to.attack("logins that fail", memory=60):
        await asyncio.gather(*map(fail, range(scale(8, 64))))


@attack()
async def test_handshakes_that_never_end_delay_nobody(to: AttackedBroker) -> None:
    """Each connection sends the first bytes of a handshake, or nothing, or bytes that are no handshake."""
    async with to.attack("TLS handshakes that never end", memory=scale(60, 150)):
        for number in range(scale(60, 2_000)):
            client = await to.client(f"127.0.0.{2 + number % HOSTS}", to.port_of("SSL"))
            client.writer.write((CLIENT_HELLO, b"", b"GET / HTTP/1.1\r\n\r\n")[number % 3])
        await asyncio.sleep(scale(0, 12))  # longer than the time limit of a handshake
