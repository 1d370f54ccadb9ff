"""Tests of consumer positions: seek, time, pause, commits with metadata, and a log whose start has moved."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.compat.client import ClientError, ClientRecord, DriverClient
from tests.compat.clients import ClientKind, kinds

T0 = int(time.time()) * 1000 - 3_600_000
Start = Callable[[ClientKind], DriverClient]


def fill(admin: DriverClient, topic: str, count: int = 100, partitions: int = 1) -> None:
    """Appends records one second apart in every partition; the value is the offset. Batches have ten records."""
    admin.ask("create", topic=topic, partitions=partitions)
    for start in range(0, count, 10):
        for partition in range(partitions):
            numbers = range(start, start + 10)
            records = [ClientRecord(b"%d" % each, timestamp=T0 + each * 1000, partition=partition) for each in numbers]
            admin.send(topic, records)


def offsets(records: list[ClientRecord]) -> list[int]:
    return [each.offset for each in records]


@pytest.mark.parametrize("kind", kinds("assign"))
def test_seek_moves_the_position(kind: ClientKind, start: Start, admin: DriverClient, name: str) -> None:
    fill(admin, name)
    client = start(kind)
    client.ask("open", group=name)
    client.ask("assign", partitions=[[name, 0, 95]])
    assert offsets(client.wait_for(5)) == [95, 96, 97, 98, 99]
    client.records.clear()
    client.ask("seek", topic=name, partition=0, offset=42)
    assert offsets(client.wait_for(58)) == list(range(42, 100))


@pytest.mark.parametrize("kind", kinds("times"))
def test_offsets_are_found_by_time(kind: ClientKind, start: Start, admin: DriverClient, name: str) -> None:
    """Inside a batch, between two records, before the first, and after the last."""
    fill(admin, name)
    client = start(kind)
    client.ask("open", group=name)
    for moment, offset in ((T0 + 42_000, 42), (T0 + 42_001, 43), (T0 - 5, 0), (T0 + 99_000, 99)):
        assert client.ask("times", partitions=[[name, 0, moment]]) == [[name, 0, offset]], moment
    # Java's clients say null, librdkafka and KafkaJS the end: the wire's answer to all of them is -1.
    assert client.ask("times", partitions=[[name, 0, T0 + 100_000]])[0][2] in (-1, 100)
    assert client.ask("ends", partitions=[[name, 0]]) == [[name, 0, 0, 100]]


@pytest.mark.parametrize("kind", kinds("times"))
def test_records_of_every_codec_are_found_by_time(
    kind: ClientKind, start: Start, admin: DriverClient, name: str
) -> None:
    """Sarama 1.45.0 leaves the greatest timestamp of its batches unset."""
    client = start(kind)
    client.ask("open", group=name)
    for codec in kind.codecs:
        topic = f"{name}-{codec}"
        admin.ask("create", topic=topic)
        for first in range(0, 20, 5):
            times = (first + 1, first, first + 4, first + 2, first + 3)
            client.send(topic, [ClientRecord(b"v", timestamp=T0 + 1000 * each) for each in times], codec=codec)
        # The first record that is late enough, in the order of offsets.
        for second, offset in ((0, 0), (1, 0), (2, 2), (5, 5), (6, 5), (7, 7), (18, 17), (19, 17)):
            found = client.ask("times", partitions=[[topic, 0, T0 + 1000 * second]])
            assert found == [[topic, 0, offset]], (codec, second)
        assert client.ask("times", partitions=[[topic, 0, T0 + 20_000]])[0][2] in (-1, 20)


@pytest.mark.parametrize("kind", kinds("assign"))
def test_paused_partition_returns_nothing_until_it_is_resumed(
    kind: ClientKind, start: Start, admin: DriverClient, name: str
) -> None:
    fill(admin, name, 10, partitions=2)
    client = start(kind)
    client.ask("open", group=name)
    client.ask("assign", partitions=[[name, 0, 0], [name, 1, 0]])
    client.wait_for(20)
    client.records.clear()
    client.ask("pause", partitions=[[name, 0]])
    for partition in (0, 1):
        admin.send(name, [ClientRecord(b"%d" % each, partition=partition) for each in range(10, 15)])
    client.wait_until(lambda: len([each for each in client.records if each.partition == 1]) == 5)
    assert [each for each in client.records if each.partition == 0] == []
    client.ask("resume", partitions=[[name, 0]])
    client.wait_for(10)
    assert offsets([each for each in client.records if each.partition == 0]) == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("kind", kinds(few=True))
def test_group_continues_at_its_committed_offset(
    kind: ClientKind, start: Start, admin: DriverClient, name: str
) -> None:
    fill(admin, name, 30)
    client = start(kind)
    client.ask("open", group=name, assignor=kind.assignors[0])
    client.ask("subscribe", topics=[name])
    assert offsets(client.wait_for(30)) == list(range(30))
    assert client.ask("committed", partitions=[[name, 0]]) == [[name, 0, -1, ""]]
    client.ask("commit", offsets=[[name, 0, 17, "half way, grüße"]])
    assert client.ask("committed", partitions=[[name, 0]]) == [[name, 0, 17, "half way, grüße"]]
    client.ask("leave")
    client.records.clear()
    client.ask("open", group=name, assignor=kind.assignors[0])
    client.ask("subscribe", topics=[name])
    assert offsets(client.wait_for(13)) == list(range(17, 30))
    client.ask("commit")
    assert client.ask("committed", partitions=[[name, 0]])[0][2] == 30
    client.ask("leave")


@pytest.mark.parametrize("kind", kinds("assign"))
def test_commit_metadata_above_the_limit_is_refused(
    kind: ClientKind, start: Start, admin: DriverClient, name: str
) -> None:
    fill(admin, name, 10)
    client = start(kind)
    client.ask("open", group=name)
    client.ask("assign", partitions=[[name, 0, 0]])
    client.wait_for(10)
    client.ask("commit", offsets=[[name, 0, 5, "x" * 4000]])
    with pytest.raises(ClientError, match=r"(?i)metadata"):
        client.ask("commit", offsets=[[name, 0, 6, "x" * 4097]])
    assert client.ask("committed", partitions=[[name, 0]]) == [[name, 0, 5, "x" * 4000]]


@pytest.mark.parametrize("kind", kinds("delete records"))
def test_deleted_records_are_gone_at_once(kind: ClientKind, start: Start, admin: DriverClient, name: str) -> None:
    fill(admin, name)
    client = start(kind)
    assert client.ask("delete_records", partitions=[[name, 0, 33]]) == [33]
    client.ask("open", group=name, assignor=kind.assignors[0])
    assert client.ask("ends", partitions=[[name, 0]]) == [[name, 0, 33, 100]]
    assert client.ask("times", partitions=[[name, 0, T0]]) == [[name, 0, 33]]
    client.ask("subscribe", topics=[name])
    assert offsets(client.wait_for(67)) == list(range(33, 100))
    client.ask("leave")
    assert client.send(name, [ClientRecord(b"next")]) == [(0, 100)]


@pytest.mark.parametrize("kind", kinds("assign"))
def test_offset_out_of_range_follows_the_reset_policy(
    kind: ClientKind, start: Start, admin: DriverClient, name: str
) -> None:
    fill(admin, name)
    admin.ask("delete_records", partitions=[[name, 0, 90]])
    for reset, first in (("earliest", 90), ("latest", 100)):
        client = start(kind)
        client.ask("open", group=f"{name}-{reset}", reset=reset)
        client.ask("assign", partitions=[[name, 0, 7]])
        if reset == "latest":
            # Only records show its position, and it gets none before a record is new.
            client.ask("ends", partitions=[[name, 0]])
            number = 0
            while not client.records and number < 600:
                number += 1
                admin.send(name, [ClientRecord(b"new")])
            client.wait_for(1)
            assert client.records[0].offset >= first
        else:
            client.wait_for(10)
            assert client.records[0].offset == first
