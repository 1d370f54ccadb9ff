"""Tests of a compacted topic with clients: ours is cleaned in the bucket, and local copies go."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientError, ClientRecord, DriverClient, look_until
from tests.compat.clients import ClientKind, kinds

SECONDS = 60.0
SENT, KEYS = 36, 3
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}


def read_up_to(client: DriverClient, topic: str, last: bytes) -> list[ClientRecord]:
    """Returns the records of a consumer from the start to the one with the key `last`."""
    client.records.clear()
    client.ask("open", group=topic)
    client.ask("assign", partitions=[[topic, 0, 0]])
    client.wait_until(lambda: any(each.key == last for each in client.records))
    client.ask("leave")
    return sorted(client.records, key=lambda each: each.offset)


@pytest.mark.parametrize("kind", kinds("configs", few=True))
def test_compacted_topic_keeps_the_last_record_of_each_key(
    kind: ClientKind,
    broker: CompatBroker,
    clients: Callable[[ClientKind], DriverClient],
    admin: DriverClient,
    name: str,
) -> None:
    client, rng = clients(kind), Random(1)
    admin.ask(
        "create", topic=name, configs=COMPACTED | ({"local.retention.bytes": "1"} if broker.name == "ours" else {})
    )
    with pytest.raises(ClientError, match=r"(?i)invalid.?record"):
        client.send(name, [ClientRecord(b"a value without a key")])
    client.ask("alter", kind="topic", name=name, configs={"delete.retention.ms": "3600000"})
    settings = look_until(
        broker.name,
        lambda: client.ask("configs", kind="topic", name=name),
        lambda found: found["delete.retention.ms"][0] == "3600000",
    )
    assert settings["cleanup.policy"][0] == "compact"
    sent = [ClientRecord(rng.randbytes(100_000), b"k%d" % (number % KEYS)) for number in range(SENT)]
    sent += [ClientRecord(None, b"k0"), *(ClientRecord(rng.randbytes(500_000), b"filler") for _ in range(4))]
    for each in [*sent, ClientRecord(b"", b"end")]:
        client.send(name, [each])
    deadline, found = time.monotonic() + SECONDS, read_up_to(client, name, b"end")
    while len(found) > 12 and time.monotonic() < deadline:
        found = read_up_to(client, name, b"end")
    assert len(found) <= 12, "nothing was cleaned"
    state = {each.key: each.value for each in found}
    assert state == {each.key: each.value for each in sent} | {b"end": b""}
    assert state[b"k0"] is None, "a tombstone stays for delete.retention.ms"
    assert [each.offset for each in found] == sorted({each.offset for each in found})
