"""Tests of clients whose logins end while they work (KIP-368): they log in again, or connect anew."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.compat.brokers import CompatBroker, TieredBroker, run_broker
from tests.compat.client import ClientRecord
from tests.compat.clients import KINDS, ClientKind, kinds
from tests.compat.conftest import CHOICE
from tests.compat.test_records import read

pytestmark = pytest.mark.timeout(600)
WANTED = {"secure": ("ours",), "peer": ("peer",), "all": ("ours", "peer")}
AGAIN_MS = 1500
LOGINS = 4


@pytest.fixture(scope="module", params=WANTED.get(CHOICE, ()))
def strict(request: pytest.FixtureRequest) -> Iterator[CompatBroker]:
    """Yields each of the brokers, which wants another login after a second and a half."""
    with run_broker(request.param, secure=True, again_ms=AGAIN_MS) as one:
        yield one


def count_logins(broker: CompatBroker) -> int:
    """Returns the logins that our broker has accepted."""
    return (
        broker.served.log.read_text().count('"event": "login", "outcome": "allowed"')
        if isinstance(broker, TieredBroker)
        else 0
    )


@pytest.mark.parametrize("kind", kinds("transactions"))
def test_producer_whose_logins_end_writes_each_record_once(kind: ClientKind, strict: CompatBroker, name: str) -> None:
    if (strict.name, kind.name) == ("peer", "kafkajs"):
        pytest.skip("KafkaJS logs in again ten seconds early; Kafka refuses a login within a second after another")
    with KINDS[0].start(strict) as admin, kind.start(strict) as client:
        admin.ask("create", topic=name)
        before = count_logins(strict)
        assert client.send(name, [ClientRecord(b"0")], idempotent=True) == [(0, 0)]
        until, sent = time.monotonic() + LOGINS * AGAIN_MS / 1000, 1
        while time.monotonic() < until or sent == 1:
            placed = client.send(name, [ClientRecord(b"%d" % sent)], idempotent=True)
            assert placed == [(0, sent)]
            sent += 1
        assert strict.name != "ours" or count_logins(strict) - before >= LOGINS
        values = [int(each.value or b"") for each in read(admin, name, name, sent)]
        assert values == list(range(sent))
