"""Links that can be cut: what goes through, what waits, what is refused."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.chaos.wires import CLIENT, Wires, owner, wires

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for sockets in /proc")
SECONDS = 10.0


@pytest.fixture
def links() -> Iterator[Wires]:
    """All connections are of node 7."""
    with wires(lambda port: 7) as made:
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


def through(stack: ExitStack, port: int, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection that has carried a byte."""
    there = stack.enter_context(closing(connected(port)))
    there.sendall(b"?")
    while True:
        here = stack.enter_context(closing(server.accept()[0]))
        here.settimeout(SECONDS)
        if here.recv(1) == b"?":
            return there, here


def test_bytes_go_both_ways_and_the_end_too(links: Wires, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=None)
    with ExitStack() as stack:
        there, here = through(stack, port, target)
        here.sendall(b"!")
        assert there.recv(1) == b"!"
        here.close()
        assert there.recv(1) == b""


def test_a_link_is_cut_in_one_direction_and_what_was_sent_arrives_later(links: Wires, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=None)
    with ExitStack() as stack:
        there, here = through(stack, port, target)
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


def test_a_reset_breaks_what_is_open(links: Wires, target: socket.socket) -> None:
    port = links.add(1, target.getsockname()[1], origin=None)
    with ExitStack() as stack:
        there, _ = through(stack, port, target)
        assert links.reset([1]) > 0
        with pytest.raises(ConnectionResetError):
            there.recv(1)


def test_who_does_not_listen_refuses_and_may_come_back(links: Wires, target: socket.socket) -> None:
    own = target.getsockname()[1]
    port = links.add(1, own, origin=None)
    with ExitStack() as stack:
        through(stack, port, target)
        target.close()
        links.shut([1])
        links.shut([1])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), SECONDS)
        again = stack.enter_context(closing(socket.create_server(("127.0.0.1", own))))
        again.settimeout(SECONDS)
        through(stack, port, again)


def test_the_owner_of_a_connection_is_found(target: socket.socket) -> None:
    with closing(socket.create_connection(target.getsockname())) as mine:
        port = mine.getsockname()[1]
        assert owner(port, {3: os.getpid()}) == 3
        assert owner(port, {3: 1 << 22}) == CLIENT
