"""Tests of topics and settings over the clients' own admin calls."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import pytest

from tests.compat.brokers import CompatBroker
from tests.compat.client import ClientError, ClientRecord, DriverClient, look_until
from tests.compat.clients import KINDS, ClientKind, kinds

T0 = int(time.time()) * 1000 - 3_600_000
Start = Callable[[ClientKind], DriverClient]


def partitions_seen(broker: CompatBroker, client: DriverClient, name: str, count: int) -> None:
    """Waits until the list of all topics has so many partitions of this one (0: it is missing)."""
    look_until(broker.name, lambda: client.ask("topics").get(name, 0), lambda found: found == count)


@pytest.mark.parametrize("kind", kinds("topics"))
def test_topic_is_created_deleted_and_recreated(
    kind: ClientKind,
    broker: CompatBroker,
    clients: Callable[[ClientKind], DriverClient],
    admin: DriverClient,
    start: Start,
    name: str,
) -> None:
    client = clients(kind)
    client.ask("create", topic=name, partitions=2, configs={"retention.ms": "3600000"})
    partitions = functools.partial(partitions_seen, broker, client, name)
    partitions(2)
    with pytest.raises(ClientError, match=r"(?i)exists|error 36"):
        client.ask("create", topic=name)
    client.ask("add_partitions", topic=name, total=3)
    partitions(3)
    admin.send(name, [ClientRecord(b"old", partition=partition) for partition in range(3)])
    with pytest.raises(ClientError, match=r"(?i)invalid.?partitions|error 37|number of partitions"):
        client.ask("add_partitions", topic=name, total=2)
    client.ask("delete", topic=name)
    partitions(0)
    client.ask("create", topic=name, partitions=1)
    partitions(1)
    assert start(KINDS[0]).send(name, [ClientRecord(b"new", timestamp=T0)]) == [(0, 0)]
    reader = start(KINDS[2])
    reader.ask("open", group=name)
    reader.ask("assign", partitions=[[name, 0, 0]])
    assert reader.wait_for(1) == [ClientRecord(b"new", timestamp=T0)]


@pytest.mark.parametrize("kind", kinds("topics"))
def test_invalid_topic_is_refused(kind: ClientKind, clients: Callable[[ClientKind], DriverClient], name: str) -> None:
    client = clients(kind)
    with pytest.raises(ClientError, match=r"(?i)topic|error 17"):
        client.ask("create", topic="no spaces allowed")
    with pytest.raises(ClientError, match=r"(?i)partitions|error 37"):
        client.ask("create", topic=name, partitions=0)
    with pytest.raises(ClientError, match=r"(?i)config|error 40"):
        client.ask("create", topic=name, configs={"retention.ms": "for ever"})
    with pytest.raises(ClientError, match=r"(?i)unknown|does not host|error 3"):
        client.ask("delete", topic=name)
    assert name not in client.ask("topics")


@pytest.mark.parametrize("kind", kinds("configs"))
def test_settings_of_a_topic_have_their_source(
    kind: ClientKind, broker: CompatBroker, clients: Callable[[ClientKind], DriverClient], name: str
) -> None:
    client = clients(kind)
    client.ask("create", topic=name, configs={"retention.ms": "3600000"})
    partitions_seen(broker, client, name, 1)
    settings = client.ask("configs", kind="topic", name=name)
    assert settings["retention.ms"][0] == "3600000"
    assert source(settings["retention.ms"]) == "topic"
    assert source(settings["segment.bytes"]) == "file"  # the brokers are started with log.segment.bytes
    assert settings["segment.bytes"][0] == "4194304"
    assert source(settings["max.message.bytes"]) == "default"
    assert {"cleanup.policy", "compression.type", "message.timestamp.type", "min.insync.replicas"} <= settings.keys()
    client.ask("alter", kind="topic", name=name, configs={"max.message.bytes": "5000", "retention.ms": None})
    look = functools.partial(client.ask, "configs", kind="topic", name=name)
    settings = look_until(broker.name, look, lambda found: found["max.message.bytes"][0] == "5000")
    assert source(settings["max.message.bytes"]) == "topic"
    assert source(settings["retention.ms"]) == "default"
    with pytest.raises(ClientError, match=r"(?i)TOO_LARGE|TooLarge"):
        client.send(name, [ClientRecord(b"x" * 9000)])
    with pytest.raises(ClientError, match=r"(?i)config"):
        client.ask("alter", kind="topic", name=name, configs={"max.message.bytes": "-7"})


SOURCES = {1: "topic", 2: "broker", 3: "every broker", 4: "file", 5: "default"}
WORDS = {"DYNAMIC_TOPIC_CONFIG": 1, "DYNAMIC_BROKER_CONFIG": 2, "DYNAMIC_DEFAULT_BROKER_CONFIG": 3}
WORDS |= {"STATIC_BROKER_CONFIG": 4, "DEFAULT_CONFIG": 5}


def source(setting: list[object]) -> str:
    """Returns the source of a setting; clients return it as a number or as a word."""
    said = setting[1]
    return SOURCES[said if isinstance(said, int) else WORDS[str(said).removeprefix("ConfigSourceType.")]]


@pytest.mark.parametrize("kind", kinds("configs"))
def test_settings_of_the_broker_change_while_it_runs(
    kind: ClientKind, broker: CompatBroker, clients: Callable[[ClientKind], DriverClient], name: str
) -> None:
    client = clients(kind)
    (number,) = client.ask("brokers")
    look = functools.partial(client.ask, "configs", kind="broker", name=number)
    settings = look()
    assert {"num.partitions", "default.replication.factor", "log.segment.bytes"} <= settings.keys()
    before = settings["log.retention.ms"]
    client.ask("alter", kind="broker", name=number, configs={"log.retention.ms": "86400000"})
    try:
        settings = look_until(broker.name, look, lambda found: found["log.retention.ms"][0] == "86400000")
        assert source(settings["log.retention.ms"]) == "broker"
        client.ask("create", topic=name)
        partitions_seen(broker, client, name, 1)
        of_topic = functools.partial(client.ask, "configs", kind="topic", name=name)
        look_until(broker.name, of_topic, lambda found: found["retention.ms"][0] == "86400000")
    finally:
        client.ask("alter", kind="broker", name=number, configs={"log.retention.ms": None})
    look_until(broker.name, look, lambda found: found["log.retention.ms"] == before)
