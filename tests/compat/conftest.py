"""Brokers and clients that a whole run shares; topics have names of their own."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from tests.compat.brokers import CompatBroker, run_broker
from tests.compat.client import DriverClient
from tests.compat.clients import KINDS, ClientKind
from tests.peer.wire import Wire
from tiered_api.kafka.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

WANTED = {"": ("ours",), "all": ("ours", "secure", "peer")}
"""Brokers by the variable COMPAT; `secure` is ours over SASL_SSL."""
CHOICE = os.environ.get("COMPAT", "")
BROKERS = [
    pytest.param(name, id=name, marks=[pytest.mark.java] if name == "peer" else [])
    for name in WANTED.get(CHOICE, (CHOICE,))
]
WITHOUT_LOGIN = ("test_moves.py", "test_registry.py", "test_transaction_requests.py")
"""Tests whose programs do not log in: `make compat` runs them on listeners without a login."""
NUMBERS = itertools.count(1)
LED_SECONDS = 60.0
LATEST = -1
Clients = Callable[[ClientKind], DriverClient]
"""Starter of the clients that many tests share."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raises deadlines: Java and two brokers are slow on a small machine. Skips what does not log in."""
    for item in items:
        if item.path.name in WITHOUT_LOGIN and (CHOICE == "secure" or "secure" in item.name):
            item.add_marker(pytest.mark.skip(reason="its programs do not log in"))
        if "compat" in item.path.parts and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session", params=BROKERS)
def broker(request: pytest.FixtureRequest) -> Iterator[CompatBroker]:
    """Yields each of the brokers; it stays for all tests."""
    with run_broker(request.param, secure=request.param == "secure") as one:
        yield one


@pytest.fixture(scope="module", params=BROKERS)
def fragile(request: pytest.FixtureRequest) -> Iterator[CompatBroker]:
    """Yields a broker that a test may kill."""
    with run_broker(request.param, secure=request.param == "secure") as one:
        yield one


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Returns a name for a topic or a group that no other test uses."""
    words = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return f"{words[:80]}-{next(NUMBERS)}"


@pytest.fixture(scope="session")
def clients(broker: CompatBroker) -> Iterator[Callable[[ClientKind], DriverClient]]:
    """Returns clients that produce and administrate for many tests: one JVM per test would be slow."""
    started: dict[ClientKind, DriverClient] = {}

    def start(kind: ClientKind) -> DriverClient:
        if kind not in started:
            started[kind] = kind.start(broker)
        return started[kind]

    yield start
    for each in started.values():
        each.close()


@pytest.fixture(scope="session")
def admin(broker: CompatBroker, clients: Callable[[ClientKind], DriverClient]) -> DriverClient:
    """Returns a client that creates topics where creation is not under test. Kafka replies before the leaders lead:
    then the first batches of a plain producer may be duplicated, and those of an idempotent one of some versions may
    never arrive."""
    client = clients(KINDS[0])
    if broker.name != "ours":
        client.created = partial(wait_led, broker.plain_address)
    return client


def wait_led(address: str, topic: str, partitions: int) -> None:
    """Waits until the only broker returns the log end of every partition: it leads them. A client would remember for
    long that it found no leader."""
    until = time.monotonic() + LED_SECONDS
    wanted = [ListOffsetsPartition(partition, timestamp=LATEST) for partition in range(partitions)]
    with Wire(address) as wire:
        while True:
            reply = wire.ask(ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, wanted)]), ListOffsetsResponse, 6)
            if not any(each.error_code for found in reply.topics for each in found.partitions):
                return
            assert time.monotonic() < until, f"{topic} is not led"


@pytest.fixture
def start(broker: CompatBroker) -> Iterator[Callable[[ClientKind], DriverClient]]:
    """Starts clients of one test, and ends them after it."""
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(kind.start(broker))
