"""Tests of a topic whose local copies are gone: every client reads it from the bucket like a local one. Ours only."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientRecord, DriverClient
from tests.compat.clients import KINDS, ClientKind, kinds

COUNT = 3000
T0 = int(time.time()) * 1000 - 3_600_000


@pytest.fixture(scope="session")
def cold(broker: CompatBroker, admin: DriverClient, clients: Callable[[ClientKind], DriverClient]) -> str:
    """Returns a topic with 3,000 records, nearly all of them in the bucket only."""
    if broker.name != "ours":
        pytest.skip("Kafka has no bucket here")
    topic = "replayed"
    small = {"internal.segment.bytes": "65536", "local.retention.bytes": "1", "retention.ms": "-1"}
    admin.ask("create", topic=topic, configs=small)
    for start in range(0, COUNT, 100):
        batch = [ClientRecord(value(number), b"k%d" % number, (), T0 + number) for number in range(start, start + 100)]
        admin.send(topic, batch, codec="none" if start % 200 else "gzip")
    deadline = time.monotonic() + 60
    while clients(KINDS[2]).ask("local_start", topic=topic, partition=0) < COUNT * 9 // 10:
        assert time.monotonic() < deadline, "the local copies stay"
    return topic


def value(number: int) -> bytes:
    return (b"%08d" % number) * 40


@pytest.mark.parametrize("kind", kinds(few=True))
def test_every_client_reads_a_cold_topic_from_the_start(
    kind: ClientKind, cold: str, start: Callable[[ClientKind], DriverClient], name: str
) -> None:
    client = start(kind)
    client.ask("open", group=name, assignor=kind.assignors[0])
    client.ask("subscribe", topics=[cold])
    found = client.wait_for(COUNT)
    client.ask("leave")
    assert [each.offset for each in found] == list(range(COUNT))
    assert [each.value for each in found] == [value(number) for number in range(COUNT)]
    assert [each.timestamp for each in found] == [T0 + number for number in range(COUNT)]


@pytest.mark.parametrize("kind", kinds("assign"))
def test_lookup_by_time_and_seek_reach_cold_records(
    kind: ClientKind, cold: str, start: Callable[[ClientKind], DriverClient], name: str
) -> None:
    client = start(kind)
    client.ask("open", group=name)
    assert client.ask("ends", partitions=[[cold, 0]]) == [[cold, 0, 0, COUNT]]
    assert client.ask("times", partitions=[[cold, 0, T0 + 1234]]) == [[cold, 0, 1234]]
    client.ask("assign", partitions=[[cold, 0, 1234]])
    assert client.wait_for(10)[0].offset == 1234
    client.records.clear()
    client.ask("seek", topic=cold, partition=0, offset=77)
    client.wait_until(lambda: any(each.offset == 77 for each in client.records))
