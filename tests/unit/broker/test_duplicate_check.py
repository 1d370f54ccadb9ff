"""Tests of the check for a duplicate broker (R6): only the same incarnation counts; every other reply is a no, and
soon."""

from __future__ import annotations

import pytest

from tests.sim.harness.clock import SimRng
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tiered.broker.duplicate_check import RESPONSE_BYTES_MAX, is_answering
from tiered.ids import incarnation_digest
from tiered.ports import Stream

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
ME = incarnation_digest("me").encode()
SELF = b'{"cluster_id":"c","node_id":1,"incarnation_sha256":"%s"}' % ME


def ask(reply: bytes | None, address: str = "broker:8082") -> tuple[bool, float]:
    """Returns true if "me" answers when a server sends this reply (None: never), and the virtual seconds that it
    took."""
    loop = SimLoop(1)

    async def main() -> tuple[bool, float]:
        network = SimNetwork(loop, SimRng(1).stream("net"))

        def accepted(stream: Stream) -> None:
            def respond() -> None:
                stream.on_readable(None)
                stream.recv_into(memoryview(bytearray(4096)))
                if reply is not None:
                    stream.sendmsg([reply])
                    stream.close()

            stream.on_readable(respond)

        await network.host("broker").listen("broker", 8082, accepted)
        began = loop.now_ns
        found = await is_answering(network.host("asker"), address, "me")
        return found, (loop.now_ns - began) / 1e9

    return loop.run(main())


def test_reply_of_the_same_incarnation_is_a_yes() -> None:
    assert ask(OK + SELF)[0]


@pytest.mark.parametrize(
    "reply",
    [
        OK + SELF.replace(ME, incarnation_digest("you").encode()),
        OK + SELF.replace(ME, b"me"),
        OK + SELF.replace(b"incarnation_sha256", b"incarnation"),
        OK + b"{}",
        OK + b"[1]",
        OK + b'{"incarnation_sha256":7}',
        OK + b"no json {",
        OK,
        b"",
        b"HTTP/1.1 503 Starting\r\n\r\n" + SELF,
        b"SSH-2.0-OpenSSH\r\n",
    ],
)
def test_reply_of_anyone_else_is_a_no(reply: bytes) -> None:
    assert not ask(reply)[0]


def test_endless_reply_is_not_read_to_its_end() -> None:
    assert not ask(OK + b" " * (RESPONSE_BYTES_MAX * 4))[0]


def test_silence_is_a_no_after_a_short_time() -> None:
    found, seconds = ask(None)
    assert not found
    assert 1 < seconds < 120


@pytest.mark.parametrize("address", ["broker:9999", "nowhere:8082", "", "broker", "broker:http"])
def test_refused_connection_is_a_no(address: str) -> None:
    assert not ask(OK + SELF, address)[0]
