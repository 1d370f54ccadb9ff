"""TLS over sockets: failed handshakes, their limits, and bytes that arrive together with the handshake."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.certificates import Signed, sign
from tests.contract.test_net import receive
from tests.scenario import run_alone, run_by
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tiered.errors import Unavailable
from tiered.ports import Stream
from tiered.system import tls
from tiered.system.network import SocketNet
from tiered.system.tls import TlsNet

HOST = "127.0.0.1"
AUTHORITY = sign("CN=authority")


class Site(NamedTuple):
    """A listener with TLS, and what became of the connections to it."""

    port: int
    accepted: asyncio.Queue[Stream]
    failures: asyncio.Queue[str]


def server_context(signed: Signed, path: Path) -> ssl.SSLContext:
    """Returns the context of a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(signed.write(path / "server.pem"))
    return context


def client_context(authority: Signed) -> ssl.SSLContext:
    """Returns the context of a client that trusts one authority, and checks the host."""
    return ssl.create_default_context(cadata=authority.certificate_pem)


def with_site(
    context: ssl.SSLContext, body: Callable[[Site], Awaitable[None]], accept: tls.MakeSession | None = None
) -> None:
    """Runs `body` beside a listener. `accept` makes its sessions instead of `context`."""

    async def main() -> None:
        accepted: asyncio.Queue[Stream] = asyncio.Queue(1000)
        failures: asyncio.Queue[str] = asyncio.Queue(1000)
        net = TlsNet(
            SocketNet(),
            accept or (lambda received, unsent: context.wrap_bio(received, unsent, server_side=True)),
            on_failure=lambda peer, why: failures.put_nowait(why),
        )
        listener = await net.listen(HOST, 0, accepted.put_nowait)
        try:
            async with asyncio.timeout(120):
                await body(Site(listener.port, accepted, failures))
        finally:
            listener.close()
            while not accepted.empty():
                accepted.get_nowait().close()

    asyncio.run(main())


async def connect(site: Site, context: ssl.SSLContext, seconds: float = 10) -> Stream:
    """Connects with TLS."""
    net = TlsNet(
        SocketNet(),
        connect_to=lambda host: lambda received, unsent: context.wrap_bio(received, unsent, server_hostname=host),
    )
    return await net.connect(HOST, site.port, seconds)


@pytest.mark.parametrize(
    ("signed", "trusted", "words"),
    [
        (sign("CN=x", AUTHORITY, days=(-5, -1)), AUTHORITY, "certificate has expired"),
        (sign("CN=x", AUTHORITY, hosts=("elsewhere",)), AUTHORITY, "IP address mismatch"),
        (sign("CN=127.0.0.1"), AUTHORITY, "self-signed certificate"),
        (sign("CN=x", AUTHORITY), sign("CN=authority"), "unable to get local issuer|signature failure"),
    ],
)
def test_certificate_that_is_not_good_is_refused_by_the_client(
    signed: Signed, trusted: Signed, words: str, tmp_path: Path
) -> None:
    async def body(site: Site) -> None:
        with pytest.raises(Unavailable, match=words) as caught:
            await connect(site, client_context(trusted))
        assert caught.value.final
        await site.failures.get()
        assert site.accepted.empty()

    with_site(server_context(signed, tmp_path), body)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "speaks HTTP without TLS"),
        (b"\0\0\0\x20\0\x12\0\3\0\0\0\1\0\4test" + bytes(30), "WRONG_VERSION_NUMBER|speaks no TLS"),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", "the other side closed the connection"),
    ],
)
def test_bytes_that_are_no_handshake_end_the_connection_with_a_reason(said: bytes, words: str, tmp_path: Path) -> None:
    async def body(site: Site) -> None:
        with socket.create_connection((HOST, site.port)) as client:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            why = await site.failures.get()
        assert re.search(words, why), why
        (await connect(site, client_context(AUTHORITY))).close()

    with_site(server_context(sign("CN=x", AUTHORITY), tmp_path), body)


@run_by(run_alone)
async def test_tls_for_a_listener_without_it_fails_with_a_reason() -> None:
    accepted: list[Stream] = []

    def reply(stream: Stream) -> None:
        accepted.append(stream)
        stream.sendmsg([b"\0\0\0\x0e\0\0\0\x01" + bytes(10)])

    listener = await SocketNet().listen(HOST, 0, reply)
    with pytest.raises(Unavailable, match="the other side speaks no TLS"):
        await connect(Site(listener.port, asyncio.Queue(1), asyncio.Queue(1)), client_context(AUTHORITY))
    listener.close()
    accepted[0].close()


def test_handshake_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_SECONDS", 0.05)

    async def body(site: Site) -> None:
        with socket.create_connection((HOST, site.port)) as client:
            client.sendall(b"\x16\x03\x01")
            assert "was not complete within" in await site.failures.get()
            client.settimeout(5)
            assert client.recv(100) == b""

    with_site(server_context(sign("CN=x", AUTHORITY), tmp_path), body)


def test_server_that_says_nothing_is_called_a_timeout_of_the_handshake() -> None:
    loop = SimLoop(1)
    plain = SimNetwork(loop, random.Random(1)).host("a")
    net = TlsNet(plain, connect_to=lambda host: partial(client_context(AUTHORITY).wrap_bio, server_hostname=host))

    async def main() -> None:
        accepted: list[Stream] = []
        listener = await plain.listen(HOST, 0, accepted.append)
        with pytest.raises(Unavailable, match="timeout of the TLS handshake"):
            await net.connect("127.0.0.1", listener.port, 5)
        assert loop.time() == pytest.approx(5, abs=0.1), "connect and handshake share the time"
        listener.close()

    loop.run(main())


def test_handshakes_at_once_are_bounded_and_a_late_one_still_completes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKES_MAX", 3)

    async def body(site: Site) -> None:
        silent = [socket.create_connection((HOST, site.port)) for _ in range(8)]
        (await connect(site, client_context(AUTHORITY))).close()
        assert site.failures.qsize() == 6, "each one beyond three ended the oldest"
        assert "most of 3 handshakes" in await site.failures.get()
        for each in silent:
            each.close()

    with_site(server_context(sign("CN=x", AUTHORITY), tmp_path), body)


def test_handshakes_that_come_at_once_take_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two hundred in one turn of the event loop delayed all other clients by their sum."""
    monkeypatch.setattr(tls, "HANDSHAKE_TURN_SECONDS", 0.0)

    async def body(site: Site) -> None:
        clients = [socket.create_connection((HOST, site.port)) for _ in range(20)]
        for each in clients:
            received, unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
            with pytest.raises(ssl.SSLWantReadError):
                client_context(AUTHORITY).wrap_bio(received, unsent, server_hostname=HOST).do_handshake()
            each.sendall(unsent.read())
            each.setblocking(False)
        answered, most = 0, 0
        while answered < len(clients):
            await asyncio.sleep(0)
            now = sum(has_bytes(each) for each in clients)
            answered, most = now, max(most, now - answered)
        assert most <= 2, "the first one, and one of those that wait"
        for each in clients:
            each.close()

    with_site(server_context(sign("CN=x", AUTHORITY), tmp_path), body)


def test_handshake_with_an_unknown_error_ends_and_the_others_go_on(tmp_path: Path) -> None:
    """The error came in the turn of several handshakes, and no other handshake of the listener had a turn again."""
    context = server_context(sign("CN=x", AUTHORITY), tmp_path)
    made = 0

    def accept(received: ssl.MemoryBIO, unsent: ssl.MemoryBIO) -> ssl.SSLObject:
        nonlocal made
        made += 1
        if made == 2:
            raise OSError("no memory file")
        return context.wrap_bio(received, unsent, server_side=True)

    async def body(site: Site) -> None:
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, facts: errors.append(facts["exception"]))
        clients = [socket.create_connection((HOST, site.port)) for _ in range(2)]
        for each in clients:
            each.sendall(b"\x16\x03\x01")
        assert "no memory file" in await site.failures.get()
        (await connect(site, client_context(AUTHORITY))).close()
        assert [str(error) for error in errors] == ["no memory file"], "the log has it once"
        for each in clients:
            each.close()

    with_site(context, body, accept)


def has_bytes(client: socket.socket) -> bool:
    """True if bytes have come, which stay there."""
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def test_bytes_that_come_with_the_end_of_the_handshake_are_reported(tmp_path: Path) -> None:
    """No event of the socket follows them."""
    received, unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(AUTHORITY).wrap_bio(received, unsent, server_hostname=HOST)

    async def body(site: Site) -> None:
        reader, writer = await asyncio.open_connection(HOST, site.port)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        writer.write(unsent.read())
        while unsent.pending == 0:
            received.write(await reader.read(10_000))
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
        client.write(b"first")
        writer.write(unsent.read())
        far = await site.accepted.get()
        assert await receive(far, 5) == b"first"
        assert far.sendmsg([b"re", b"ply"]) == 5
        said = b""
        while not said:
            received.write(await reader.read(10_000))
            with contextlib.suppress(ssl.SSLWantReadError):
                said = client.read(100)
        assert said == b"reply"
        writer.close()
        assert await receive(far, 1) == b""
        far.close()

    with_site(server_context(sign("CN=x", AUTHORITY), tmp_path), body)


def test_tickets_leave_together_with_the_first_reply(tmp_path: Path) -> None:
    """A system call of their own took as long as a small request."""
    received, unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(AUTHORITY).wrap_bio(received, unsent, server_hostname=HOST)

    async def body(site: Site) -> None:
        loop = asyncio.get_running_loop()
        with socket.create_connection((HOST, site.port)) as connection:
            connection.setblocking(False)
            with pytest.raises(ssl.SSLWantReadError):
                client.do_handshake()
            await loop.sock_sendall(connection, unsent.read())
            while unsent.pending == 0:
                received.write(await loop.sock_recv(connection, 10_000))
                with contextlib.suppress(ssl.SSLWantReadError):
                    client.do_handshake()
            await loop.sock_sendall(connection, unsent.read())
            far = await site.accepted.get()
            assert client.version() == "TLSv1.3"
            assert not has_bytes(connection)
            assert far.sendmsg([b"reply"]) == 5
            received.write(await loop.sock_recv(connection, 10_000))
            assert client.read(100) == b"reply"
            assert client.session is not None and client.session.has_ticket
            far.close()

    with_site(server_context(sign("CN=x", AUTHORITY), tmp_path), body)


class TalkingSession:
    """A session without cryptography that has a reply of TLS itself, such as to a new key, to all that it reads."""

    server_side = True

    def __init__(self, unsent: ssl.MemoryBIO) -> None:
        self._unsent = unsent

    def do_handshake(self) -> None:
        """Is complete at once."""

    def getpeercert(self) -> None:
        """Knows no certificate."""

    def version(self) -> str:
        return "TLSv1.3"

    def read(self, size: int, into: memoryview) -> int:
        self._unsent.write(bytes(1 << 20))
        raise ssl.SSLWantReadError

    def pending(self) -> int:
        return 0

    def unwrap(self) -> None:
        """Says nothing."""


def test_client_that_takes_no_replies_of_tls_is_cut_off(tmp_path: Path) -> None:
    """A client that asks for a new key again and again made the broker keep all its replies."""

    async def body(site: Site) -> None:
        buffer = memoryview(bytearray(1000))
        with socket.create_connection((HOST, site.port)) as connection:
            connection.sendall(b"x")
            far = await site.accepted.get()
            with pytest.raises(Unavailable, match="takes no replies of TLS"):
                for _ in range(100):
                    connection.sendall(b"x")
                    assert far.recv_into(buffer) is None
            far.close()

    context = server_context(sign("CN=x", AUTHORITY), tmp_path)
    with_site(context, body, lambda received, unsent: TalkingSession(unsent))  # type: ignore[return-value, arg-type]
