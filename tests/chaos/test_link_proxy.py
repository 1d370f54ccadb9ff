"""Tests of links that can be cut: bytes that pass, bytes that wait, and refused connections."""

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
SECONDS = 120.0


@pytest.fixture
def links() -> Iterator[LinkProxy]:
    with link_proxy() as made:
        yield made


@pytest.fixture
def target() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(SECONDS)
        yield server


def connect(port: int) -> socket.socket:
    """Connects as soon as a process listens."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), SECONDS)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


def request(client: str) -> bytes:
    """Returns the head of a request of Kafka's protocol."""
    return struct.pack(">ihhih", 10 + len(client), 12, 4, 1, len(client)) + client.encode()


def forward_through(stack: ExitStack, port: int, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Returns both ends of a connection that has carried a byte."""
    there = stack.enter_context(closing(connect(port)))
    there.sendall(b"?")
    while True:
        here = stack.enter_context(closing(server.accept()[0]))
        here.settimeout(SECONDS)
        if here.recv(1) == b"?":
            return there, here


def test_bytes_and_the_end_of_a_stream_go_both_ways(links: LinkProxy, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=7)
    with ExitStack() as stack:
        there, here = forward_through(stack, port, target)
        here.sendall(b"!")
        assert there.recv(1) == b"!"
        here.close()
        assert there.recv(1) == b""


def test_one_way_cut_holds_bytes_until_it_heals(links: LinkProxy, target: socket.socket) -> None:
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


def test_reset_breaks_open_connections(links: LinkProxy, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=7)
    with ExitStack() as stack:
        there, _ = forward_through(stack, port, target)
        assert links.reset([1]) > 0
        with pytest.raises(ConnectionResetError):
            there.recv(1)


def test_target_that_does_not_listen_refuses_until_it_is_back(links: LinkProxy, target: socket.socket) -> None:
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


def test_broker_is_recognized_by_its_first_request(links: LinkProxy, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=None)
    links.cut([(3, 1)])
    with ExitStack() as stack:
        # Broker 1003 is a process of machine 3, and has its links.
        said = {name: request(f"broker-{name}") for name in (2, 3, 1003)}
        for head in said.values():
            stack.enter_context(closing(connect(port))).sendall(head + b"rest")
        found = b""
        while not found:
            found = stack.enter_context(closing(target.accept()[0])).recv(1000)
        assert found.startswith(said[2])
        target.settimeout(0.1)
        with pytest.raises(TimeoutError):
            target.accept()


def test_connection_of_unknown_origin_is_reset(links: LinkProxy, target: socket.socket) -> None:
    """A connection of a broker that passed for a client's would bypass a cut link."""
    port = links.add(1, target.getsockname()[1], origin=None)
    with closing(connect(port)) as mine:
        mine.sendall(request("somebody"))
        with pytest.raises(ConnectionResetError):
            mine.recv(1)
