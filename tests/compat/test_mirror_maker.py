"""Tests of MirrorMaker 2 between Kafka and ours, in both directions at once, with the configuration of
docs/how-to/move-from-kafka.md: records exactly once over a `kill -9` of MirrorMaker, settings, and the offsets of
groups."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.compat.brokers import CompatBroker, run_broker
from tests.compat.clients import ALL, DRIVERS
from tests.compat.compacted import wait_for
from tests.compat.conftest import CHOICE
from tests.peer.kafka import HERE as PEER
from tests.peer.kafka import jars

pytestmark = [
    pytest.mark.java,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not ALL or CHOICE in ("secure", "peer"),
        reason="make compat runs it once, between both brokers: MirrorMaker, which starts four times",
    ),
]
MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
kafka_admin = pytest.importorskip("confluent_kafka.admin")
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "move-from-kafka.md"
POLICIES = {"identity": "IdentityReplicationPolicy", "default": "DefaultReplicationPolicy"}
PARTITIONS = 2
RECORDS, READ = 600, 250
SECONDS = 30
QUICK = {
    "refresh.topics.interval.seconds": "1",
    "refresh.groups.interval.seconds": "1",
    "sync.topic.configs.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
    "emit.checkpoints.interval.seconds": "1",
    "emit.heartbeats.interval.seconds": "1",
    "offset.flush.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "1000",
}
"""Settings in front of those of the page: a test waits for each interval, and brokers here are single."""
ONE_REPLICA = (
    "replication.factor",
    "checkpoints.topic.replication.factor",
    "heartbeats.topic.replication.factor",
    "offset-syncs.topic.replication.factor",
    "config.storage.replication.factor",
    "offset.storage.replication.factor",
    "status.storage.replication.factor",
)
SOURCE_SETTINGS = {
    "kafka": {
        "preallocate": "true",
        "remote.log.copy.disable": "true",
        "remote.log.delete.on.disable": "true",
        "retention.ms": "8640000000",
        "retention.bytes": "-1",
        "max.message.bytes": "2000000",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.0001",
        "segment.bytes": "1048576",
        "segment.index.bytes": "32",
    },
    "tiered": {
        "local.retention.ms": "1000",
        "retention.ms": "8640000000",
        "max.message.bytes": "2000000",
        "segment.ms": "86400000",
        "preallocate": "true",
    },
}
"""By cluster: settings of a topic that the other cluster has to have too."""


class Flow(NamedTuple):
    """A direction: the records of `topic` go from one broker to the other, where it is called `copy`."""

    source: CompatBroker
    target: CompatBroker
    topic: str
    copy: str
    settings: Mapping[str, str]

    @property
    def group(self) -> str:
        return f"{self.topic}-readers"


@pytest.fixture(scope="module")
def both() -> Iterator[dict[str, CompatBroker]]:
    """Yields Kafka and ours, by the names that the page gives them."""
    with run_broker("peer") as kafka, run_broker("ours") as ours:
        yield {"kafka": kafka, "tiered": ours}


def page_properties() -> str:
    """Returns the configuration of MirrorMaker on the page."""
    found = re.search(r"```properties\n(.*?clusters *=.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def write_properties(path: Path, both: Mapping[str, CompatBroker], flows: Mapping[str, Flow], policy: str) -> None:
    """Writes the configuration of the page, with our addresses, topics and intervals in place of its own."""
    own = QUICK | dict.fromkeys(ONE_REPLICA, "1")
    own |= {f"{name}.bootstrap.servers": broker.address for name, broker in both.items()}
    own |= {"replication.policy.class": f"org.apache.kafka.connect.mirror.{POLICIES[policy]}"}
    for name, other in (("kafka", "tiered"), ("tiered", "kafka")):
        own |= {f"{name}->{other}.enabled": "true", f"{name}->{other}.topics": flows[name].topic}
    names = {line.partition("=")[0].strip() for line in page_properties().splitlines()}
    assert {"clusters", "kafka->tiered.enabled", "replication.policy.class", "kafka.bootstrap.servers"} <= names
    kept = [line for line in page_properties().splitlines() if line.partition("=")[0].strip() not in own]
    path.write_text("\n".join([*kept, *(f"{name} = {value}" for name, value in own.items())]))


@contextmanager
def mirroring(properties: Path, output: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Runs MirrorMaker until the end of the block; kills it then."""
    log = f"-Dlog4j2.configurationFile={PEER / 'log4j2.properties'}"
    classes = f"{jars(DRIVERS / 'connect' / 'pom.xml')}/*"
    command = ["java", "-XX:TieredStopAtLevel=1", "-Xmx512m", log, "-cp", classes, MIRROR_MAKER, str(properties)]
    process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def admin(broker: CompatBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address})


def create(flow: Flow) -> None:
    new = NewTopic(flow.topic, PARTITIONS, 1, config=dict(flow.settings))
    client = admin(flow.source)
    client.create_topics([new])[flow.topic].result(SECONDS)


def write(flow: Flow, first: int, *, commit: bool = True) -> None:
    """Writes numbered records in one transaction, and ends it."""
    producer = Producer({"bootstrap.servers": flow.source.address, "transactional.id": f"{flow.topic}-writer"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for number in range(first, first + RECORDS):
        value = f"{number}" if commit else f"aborted {number}"
        producer.produce(
            flow.topic, value, f"key-{number}", number % PARTITIONS, timestamp=1_790_000_000_000 + number,
            headers=[("number", f"{number}".encode())],
        )  # fmt: skip
    producer.flush(SECONDS)
    if commit:
        producer.commit_transaction(SECONDS)
    else:
        producer.abort_transaction(SECONDS)


def read_all(broker: CompatBroker, topic: str, start: Mapping[int, int] | None = None) -> list[tuple[object, ...]]:
    """Returns the committed records of a topic, from the start or from offsets on."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "enable.auto.commit": False})
    found: list[tuple[object, ...]] = []
    try:
        for partition in range(PARTITIONS):
            low, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), SECONDS)
            at = low if start is None else start.get(partition, low)
            consumer.assign([TopicPartition(topic, partition, at)])
            while at < end:
                for each in consumer.consume(500, 1.0):
                    assert each.error() is None
                    found.append(
                        (each.partition(), each.key(), each.value(), each.timestamp()[1], tuple(each.headers() or ()))
                    )
                at = consumer.position([TopicPartition(topic, partition)])[0].offset
    finally:
        consumer.close()
    return found


def numbers(records: list[tuple[object, ...]]) -> list[int]:
    return sorted(int(str(each[2], "ascii")) for each in records if isinstance(each[2], bytes))


def read_some(flow: Flow) -> None:
    """Reads records as a group, and commits."""
    consumer = Consumer(
        {
            "bootstrap.servers": flow.source.address,
            "group.id": flow.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([flow.topic])
    count = 0
    while count < READ:
        count += len(consumer.consume(min(50, READ - count), 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()


def committed(broker: CompatBroker, group: str) -> dict[tuple[str, int], int]:
    """Returns the offsets of a group."""
    client = admin(broker)
    [future] = client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {(each.topic, each.partition): each.offset for each in future.result(SECONDS).topic_partitions}


def settings_of(broker: CompatBroker, topic: str) -> dict[str, str]:
    """Returns the settings that a topic itself has."""
    client = admin(broker)
    [future] = client.describe_configs([kafka_admin.ConfigResource(kafka_admin.ResourceType.TOPIC, topic)]).values()
    own = kafka_admin.ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {name: each.value for name, each in future.result(SECONDS).items() if each.source == own}


def alter(broker: CompatBroker, topic: str, name: str, value: str) -> None:
    entry = kafka_admin.ConfigEntry(name, value, incremental_operation=kafka_admin.AlterConfigOpType.SET)
    resource = kafka_admin.ConfigResource(kafka_admin.ResourceType.TOPIC, topic, incremental_configs=[entry])
    client = admin(broker)
    [future] = client.incremental_alter_configs([resource]).values()
    future.result(SECONDS)


def tail(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read()[-4000:].decode(errors="replace")


def end_of(broker: CompatBroker, topic: str) -> int:
    """Returns the number of offsets of a topic; 0 without the topic."""
    if topic not in admin(broker).list_topics(timeout=SECONDS).topics:
        return 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    try:
        ends = (consumer.get_watermark_offsets(TopicPartition(topic, each), SECONDS)[1] for each in range(PARTITIONS))
        return sum(ends)
    finally:
        consumer.close()


@pytest.mark.parametrize("policy", POLICIES)
def test_mirror_maker_copies_records_once_with_settings_and_offsets(
    policy: str, both: dict[str, CompatBroker], tmp_path: Path
) -> None:
    flows = {}
    for name, other in (("kafka", "tiered"), ("tiered", "kafka")):
        topic = f"{policy}-of-{name}"
        copy = topic if policy == "identity" else f"{name}.{topic}"
        flows[name] = Flow(both[name], both[other], topic, copy, SOURCE_SETTINGS[name])
    for flow in flows.values():
        create(flow)
        write(flow, 0)
        write(flow, RECORDS, commit=False)
        read_some(flow)
    properties = tmp_path / "mirror-maker.properties"
    write_properties(properties, both, flows, policy)
    with tempfile.TemporaryFile() as output:
        with mirroring(properties, output):
            for flow in flows.values():
                wait_copied(flow, RECORDS, output)
            for flow in flows.values():
                write(flow, 2 * RECORDS)
        # It was killed while it copied, and goes on where its last transaction ended.
        with mirroring(properties, output):
            for flow in flows.values():
                write(flow, 3 * RECORDS)
            for flow in flows.values():
                check_records(flow, [*range(RECORDS), *range(2 * RECORDS, 4 * RECORDS)], output)
                check_settings(flow, output)
                check_group(flow, output)


def wait_copied(flow: Flow, count: int, output: IO[bytes]) -> None:
    """Waits until the copy has so many records, or more."""
    wait_for(
        lambda: end_of(flow.target, flow.copy) >= count and len(read_all(flow.target, flow.copy)) >= count,
        lambda: tail(output),
    )


def check_records(flow: Flow, wanted: list[int], output: IO[bytes]) -> None:
    """Checks that the copy has each committed record once, with key, headers and time, and none of the aborted ones."""
    wait_copied(flow, len(wanted), output)
    copied = read_all(flow.target, flow.copy)
    assert numbers(copied) == wanted
    assert sorted(copied, key=repr) == sorted(read_all(flow.source, flow.topic), key=repr)


def check_settings(flow: Flow, output: IO[bytes]) -> None:
    """Checks that the copy has the settings of its source, also after a change."""

    def wait(name: str, value: str) -> None:
        wait_for(
            lambda: settings_of(flow.target, flow.copy).get(name) == value,
            lambda: f"{name} is not {value}: {settings_of(flow.target, flow.copy)} {tail(output)}",
        )

    for name, value in settings_of(flow.source, flow.topic).items():
        wait(name, value)
    assert settings_of(flow.target, flow.copy).keys() >= flow.settings.keys()
    alter(flow.source, flow.topic, "retention.ms", "7776000000")
    wait("retention.ms", "7776000000")


def check_group(flow: Flow, output: IO[bytes]) -> None:
    """Checks that the group goes on in the copy without a gap: it reads what it had not read, and little twice."""
    places = {(flow.copy, partition): offset for (_, partition), offset in committed(flow.source, flow.group).items()}
    wait_for(
        lambda: committed(flow.target, flow.group).keys() >= places.keys(),
        lambda: f"{committed(flow.target, flow.group)} {tail(output)}",
    )
    found = committed(flow.target, flow.group)
    assert all(0 <= found[place] <= offset for place, offset in places.items())
    rest = read_all(flow.target, flow.copy, {partition: offset for (_, partition), offset in found.items()})
    first = {partition: offset for (_, partition), offset in committed(flow.source, flow.group).items()}
    missed = set(numbers(read_all(flow.source, flow.topic, first))) - set(numbers(rest))
    assert not missed
