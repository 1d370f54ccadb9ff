"""Links that can be cut: what goes through, what waits, what is refused."""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.chaos.link_proxy import LinkProxy, link_proxy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a socket that is shut may listen again")
SECONDS = 10.0


@pytest.fixture
def links() -> Iterator[LinkProxy]:
    with link_proxy() as made:
        yield made


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(SECONDS)
        yield server


def connected(port: int) -> socket.socket:
    """As soon as somebody listens."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), SECONDS)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


def request(client: str) -> bytes:
    """The head of one, as Kafka's protocol has it."""
    return struct.pack(">ihhih", 10 + len(client), 12, 4, 1, len(client)) + client.encode()


def forward_through(stack: ExitStack, port: int, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection that has carried a byte."""
    there = stack.enter_context(closing(connected(port)))
    there.sendall(b"?")
    while True:
        here = stack.enter_context(closing(server.accept()[0]))
        here.settimeout(SECONDS)
        if here.recv(1) == b"?":
            return there, here


def test_bytes_go_both_ways_and_the_end_too(links: LinkProxy, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=7)
    with ExitStack() as stack:
        there, here = forward_through(stack, port, target)
        here.sendall(b"!")
        assert there.recv(1) == b"!"
        here.close()
        assert there.recv(1) == b""


def test_a_link_is_cut_in_one_direction_and_what_was_sent_arrives_later(
    links: LinkProxy, target: socket.socket
) -> None:
    port = links.add(1, target.getsockname()[1], origin=7)
    with ExitStack() as stack:
        there, here = forward_through(stack, port, target)
        links.cut([(7, 1)])
        there.sendall(b"held")
        here.sendall(b"back")
        assert there.recv(4) == b"back"
        here.settimeout(0.1)
        with pytest.raises(TimeoutError):
            here.recv(4)
        links.mend()
        here.settimeout(SECONDS)
        assert here.recv(4) == b"held"


def test_a_reset_breaks_what_is_open(links: LinkProxy, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=7)
    with ExitStack() as stack:
        there, _ = forward_through(stack, port, target)
        assert links.reset([1]) > 0
        with pytest.raises(ConnectionResetError):
            there.recv(1)


def test_who_does_not_listen_refuses_and_may_come_back(links: LinkProxy, target: socket.socket) -> None:
    own = target.getsockname()[1]
    port = links.add(1, own, origin=7)
    with ExitStack() as stack:
        forward_through(stack, port, target)
        target.close()
        links.refuse([1])
        links.refuse([1])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), SECONDS)
        again = stack.enter_context(closing(socket.create_server(("127.0.0.1", own))))
        again.settimeout(SECONDS)
        forward_through(stack, port, again)


def test_a_broker_is_known_by_its_first_request(links: LinkProxy, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=None)
    links.cut([(3, 1)])
    with ExitStack() as stack:
        said = {name: request(f"broker-{name}") for name in (2, 3)}
        for head in said.values():
            stack.enter_context(closing(connected(port))).sendall(head + b"rest")
        found = b""
        while not found:
            found = stack.enter_context(closing(target.accept()[0])).recv(1000)
        assert found.startswith(said[2])
        target.settimeout(0.1)
        with pytest.raises(TimeoutError):
            target.accept()


def test_who_cannot_be_told_is_reset(links: LinkProxy, target: socket.socket) -> None:
    """A connection of a broker that passed for a client's would go round a cut link."""
    port = links.add(1, target.getsockname()[1], origin=None)
    with closing(connected(port)) as mine:
        mine.sendall(request("somebody"))
        with pytest.raises(ConnectionResetError):
            mine.recv(1)
