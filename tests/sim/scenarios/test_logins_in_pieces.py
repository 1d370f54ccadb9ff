"""Connections that send all their requests at once, in pieces of any size: logins in any order, with other requests
between them.

I29: a request is answered only if the login before it was right. The reference knows the order of the frames only.
Each bug that is put in is reported.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from tests.sim.cluster.observer import patched
from tests.sim.scenarios.three import ThreeBrokers, run_scenario
from tiered.config.listener_overrides import PLAIN_USERS, ListenerOverride
from tiered.config.listeners import SASL_PLAINTEXT, Endpoint
from tiered.errors import Unavailable
from tiered.ports import Stream
from tiered.security.secret import Secret
from tiered_api.kafka.protocol.apis import APIS
from tiered_api.kafka.protocol.codec import encode
from tiered_api.kafka.protocol.headers import encode_request_header
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest
from tiered_api.kafka.protocol.messages.list_groups import ListGroupsRequest
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest
from tiered_api.kafka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tiered_api.kafka.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.connection import ClientConnection
from tiered_api.kafka.server.login import LoginHandler

LISTENER, PORT = "CLIENTS", 9093
USERS = Secret('a.PlainLoginModule required user_alice="pencil";')
SETTINGS: dict[str, Any] = {
    "sasl_enabled_mechanisms": ("PLAIN",),
    "listener_overrides": (ListenerOverride(LISTENER, PLAIN_USERS, USERS),),
    "connection_failed_authentication_delay_ms": 100,
}
CONNECTIONS, FRAMES_MAX = 120, 7
QUIET_SECONDS = 2.0
"""Time after which no reply comes any more."""


class Frame(NamedTuple):
    """A request that is sent in version `version`."""

    message: Message
    version: int


VERSIONS = Frame(ApiVersionsRequest("test", "1"), 3)
HANDSHAKE, OTHER_HANDSHAKE = Frame(SaslHandshakeRequest("PLAIN"), 1), Frame(SaslHandshakeRequest("SCRAM-SHA-256"), 1)
RIGHT = Frame(SaslAuthenticateRequest(b"\0alice\0pencil"), 2)
WRONG = Frame(SaslAuthenticateRequest(b"\0alice\0pen"), 2)
REQUESTS = (Frame(ListGroupsRequest(), 0), Frame(MetadataRequest(topics=[]), 9))
CHOICES = (VERSIONS, HANDSHAKE, HANDSHAKE, HANDSHAKE, RIGHT, RIGHT, RIGHT, WRONG, OTHER_HANDSHAKE, *REQUESTS, *REQUESTS)


def count_answered(frames: Sequence[Frame]) -> int:
    """Returns how many of the frames are answered: all before the first that ends the connection."""
    is_shaken = is_logged_in = False
    for number, frame in enumerate(frames):
        if is_logged_in or frame is VERSIONS:
            continue
        if frame in REQUESTS:
            return number
        if frame is HANDSHAKE and not is_shaken:
            is_shaken = True
        elif frame is RIGHT and is_shaken:
            is_logged_in = True
        else:  # the refusal of a login is answered too
            return number + 1
    return len(frames)


def encode_frames(frames: Sequence[Frame]) -> bytes:
    """Returns the bytes of all frames. Their correlation ids are 0, 1, and so on."""
    data = b""
    for number, (message, version) in enumerate(frames):
        body = encode_request_header(APIS[message.spec.key], version, number, "test") + encode(message, version)
        data += len(body).to_bytes(4, "big") + body
    return data


def read_answers(data: bytes) -> list[int]:
    """Returns the correlation ids of the replies."""
    found, at = list[int](), 0
    while at < len(data):
        found.append(int.from_bytes(data[at + 4 : at + 8], "big"))
        at += 4 + int.from_bytes(data[at : at + 4], "big")
    assert at == len(data), "half a reply"
    return found


async def send_all(stream: Stream, data: bytes, rng: random.Random) -> bytes:
    """Sends the bytes in pieces, and returns all that came back."""
    got, buffer = bytearray(), memoryview(bytearray(1 << 16))

    def read() -> None:
        size: int | None = 0
        with suppress(Unavailable):
            size = stream.recv_into(buffer)
        got.extend(buffer[: size or 0])
        if size == 0:
            stream.on_readable(None)

    stream.on_readable(read)
    at = 0
    with suppress(Unavailable):  # the broker has ended the connection
        while at < len(data):
            at += stream.sendmsg([data[at : at + rng.choice((1, 3, 40, len(data)))]]) or 0
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.01)))
    await asyncio.sleep(QUIET_SECONDS)
    stream.close()
    return bytes(got)


def run_logins(seed: int) -> dict[str, int]:
    """Runs one seed. Returns how many connections logged in, and how many were ended. Raises if a reply is one too many
    or one too few."""
    counts = {"served": 0, "ended": 0}

    async def scenario(three: ThreeBrokers) -> None:
        broker, rng = three.brokers[1], random.Random(f"{seed}/logins")
        three.network.small_chunk_share = 0.5
        await broker.server.listen(Endpoint(LISTENER, "0.0.0.0", PORT, SASL_PLAINTEXT))

        async def connect(number: int) -> None:
            frames = rng.choices(CHOICES, k=rng.randint(1, FRAMES_MAX))
            own = random.Random(f"{seed}/{number}")
            stream = await three.network.host(f"10.0.0.{number}").connect(broker.name, PORT, 1.0)
            answers, expected = read_answers(await send_all(stream, encode_frames(frames), own)), count_answered(frames)
            is_served = expected == len(frames)  # what was answered before a connection ends may be lost with it
            assert answers == list(range(expected if is_served else min(len(answers), expected))), f"I29: {answers}"
            counts["served" if is_served else "ended"] += 1

        await asyncio.gather(*map(connect, range(CONNECTIONS)))

    run_scenario(scenario, seed, **SETTINGS)
    return counts


def test_i29_only_a_right_login_before_a_request_gets_it_answered() -> None:
    counts = run_logins(1)
    assert min(counts.values()) > CONNECTIONS // 5


def serve_before(original: Any) -> Any:
    """A connection is served from the handshake on."""

    def shake_hands(handler: LoginHandler, connection: ClientConnection, *rest: Any) -> Any:
        reply = original(handler, connection, *rest)
        connection.on_login(connection.caller, 0)
        return reply

    return shake_hands


def serve_after_failure(original: Any) -> Any:
    """A login that failed does not end the connection."""

    def drain(connection: ClientConnection) -> None:
        if connection.login is None or not connection.login.has_failed:
            original(connection)

    return drain


BUGS = [(LoginHandler, "_shake_hands", serve_before), (ClientConnection, "drain", serve_after_failure)]


@pytest.mark.parametrize("bug", BUGS, ids=[name for _, name, _ in BUGS])
def test_i29_request_that_is_answered_without_a_login_is_reported(bug: tuple[type, str, Any]) -> None:
    with patched(*bug), pytest.raises(AssertionError, match="I29"):
        run_logins(1)
