"""Tests of records with every client, every codec and every part of a record, and of refused records."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from tests.compat.client import ClientError, ClientRecord, DriverClient
from tests.compat.clients import KINDS, ClientKind, kinds

MIB = 1 << 20
T0 = int(time.time()) * 1000 - 3_600_000
LARGEST = random.Random(1).randbytes(MIB // 32) + (b"0123456789abcdef" * 65536)[: MIB - MIB // 32]
"""Size of a batch that our broker still takes: it may expand at most a hundredfold."""
READER = KINDS[0]
OTHER_READER = KINDS[1]


def various_records(kind: ClientKind) -> list[ClientRecord]:
    """Returns records of every shape that the client can express."""
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", b"\xff\x00")]
    if "null headers" in kind.features:
        headers.append(("none", None))
    if "double headers" in kind.features:
        headers.insert(1, ("a", b"2"))
    return [
        ClientRecord(b"x", timestamp=T0),
        ClientRecord(b"value", b"key", tuple(headers), T0 + 1),
        ClientRecord(None, b"tombstone", (), T0 + 2),
        ClientRecord(b"", b"", (("empty", b""),), T0 + 3),
        ClientRecord(bytes(range(256)) * 400, b"k" * 1000, (), T0 + 4),
        ClientRecord("grüße 世界".encode(), b"key", (("kopf", "ü".encode()),), T0 + 5),
        ClientRecord(LARGEST, b"largest", (), T0 + 6),
    ]


def read(client: DriverClient, group: str, topic: str, count: int, partition: int = 0) -> list[ClientRecord]:
    """Returns the records of a consumer without a group, from the start; with a group for a client that knows nothing
    else."""
    client.records.clear()
    client.ask("open", group=group)
    if "driver.js" in str(client):
        client.ask("subscribe", topics=[topic])
    else:
        client.ask("assign", partitions=[[topic, partition, 0]])
    found = client.wait_for(count)
    client.ask("leave")
    return sorted(found, key=lambda each: (each.partition, each.offset))


EACH = ("confluent", "aiokafka", "kafka-python", "java-4.2")
"""Clients that `make test` runs, each of them here at least."""


@pytest.mark.parametrize("kind", kinds("records", few=True))
def test_every_codec_carries_every_record(
    kind: ClientKind, clients: Callable[[ClientKind], DriverClient], admin: DriverClient, name: str
) -> None:
    client, other = clients(kind), clients(OTHER_READER if kind is READER else READER)
    for codec in kind.codecs:
        topic = f"{name}-{codec}"
        admin.ask("create", topic=topic, configs={"max.message.bytes": "2097152"})
        sent = various_records(kind)
        placed = client.send(topic, sent, codec=codec)
        assert placed == [(0, number) for number in range(len(sent))], codec
        assert read(client, topic, topic, len(sent)) == sent, codec
        assert read(other, topic + "-other", topic, len(sent)) == sent, codec


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("kind", kinds("records", few=True))
def test_many_small_records_of_an_idempotent_producer_keep_their_order(
    kind: ClientKind,
    idempotent: bool,
    clients: Callable[[ClientKind], DriverClient],
    admin: DriverClient,
    name: str,
) -> None:
    client = clients(kind)
    admin.ask("create", topic=name, partitions=3)
    sent = [ClientRecord(b"%d" % number, timestamp=T0 + number, partition=number % 3) for number in range(3000)]
    placed = client.send(name, sent, idempotent=idempotent, codec="gzip")
    assert [each for each in placed if each is None] == []
    assert sorted({each for each in placed if each}) == [(p, o) for p in range(3) for o in range(1000)]
    for partition in range(3):
        if kind.name != "kafkajs":
            found = read(client, name, name, 1000, partition)
            if not idempotent:  # a batch that is sent again comes behind those that were in flight with it
                found.sort(key=lambda each: each.timestamp or 0)
            assert found == [each for each in sent if each.partition == partition]
    if kind.name == "kafkajs":
        assert read(client, name, name, 3000) == sorted(sent, key=lambda each: (each.partition, each.timestamp))


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("kind", kinds("records", few=True, often=EACH))
def test_records_with_any_acks_are_written(
    kind: ClientKind, acks: str, clients: Callable[[ClientKind], DriverClient], admin: DriverClient, name: str
) -> None:
    client = clients(kind)
    admin.ask("create", topic=name)
    sent = [ClientRecord(b"%d" % number, timestamp=T0) for number in range(50)]
    placed = client.send(name, sent, acks=acks)
    if acks != "0":
        assert placed == [(0, number) for number in range(50)]
    assert read(client, name, name, 50) == sent
    assert admin_ends(admin, name) == (0, 50)


def admin_ends(admin: DriverClient, topic: str, partition: int = 0) -> tuple[int, int]:
    """Returns the first and the next offset of a partition."""
    admin.ask("open", group=topic + "-ends")
    ((_, _, first, end),) = admin.ask("ends", partitions=[[topic, partition]])
    admin.ask("leave")
    return first, end


@pytest.mark.parametrize("kind", kinds("records", few=True))
def test_log_append_time_replaces_the_timestamp(
    kind: ClientKind, clients: Callable[[ClientKind], DriverClient], admin: DriverClient, name: str
) -> None:
    client = clients(kind)
    admin.ask("create", topic=name, configs={"message.timestamp.type": "LogAppendTime"})
    before = int(time.time() * 1000)
    client.send(name, [ClientRecord(b"%d" % number, timestamp=T0) for number in range(10)], codec="gzip")
    after = int(time.time() * 1000)
    for each in read(client, name, name, 10):
        assert each.timestamp is not None and before - 1000 <= each.timestamp <= after + 1000


@pytest.mark.parametrize("kind", kinds("records", few=True))
def test_too_large_record_is_refused_by_name(
    kind: ClientKind, clients: Callable[[ClientKind], DriverClient], admin: DriverClient, name: str
) -> None:
    client = clients(kind)
    admin.ask("create", topic=name, configs={"max.message.bytes": "2000"})
    with pytest.raises(ClientError, match=r"(?i)too.?large|larger than|MSG_SIZE"):
        client.send(name, [ClientRecord(b"x" * 5000)])
    assert client.send(name, [ClientRecord(b"x" * 500)]) == [(0, 0)]


@pytest.mark.parametrize("kind", kinds("records", few=True))
def test_topic_is_created_by_its_first_record(
    kind: ClientKind, clients: Callable[[ClientKind], DriverClient], name: str
) -> None:
    client = clients(kind)
    assert client.send(name, [ClientRecord(b"first", timestamp=T0)]) == [(0, 0)]
    assert read(client, name, name, 1) == [ClientRecord(b"first", timestamp=T0)]
