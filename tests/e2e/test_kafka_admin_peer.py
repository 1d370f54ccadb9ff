"""Test of the same requests to Kafka 4.2.0 and to ours: the replies are compared field by field.

Fields that must differ are masked (ids, ports, error texts, sizes on disk). A field that differs on purpose has a
reason, and fails once it no longer differs.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.kafka_site import RawClient, kafka_broker
from tests.peer.kafka import Peer
from tiered_api.kafka.protocol.apis import APIS
from tiered_api.kafka.protocol.messages import alter_client_quotas as quota_changes
from tiered_api.kafka.protocol.messages import alter_configs, incremental_alter_configs
from tiered_api.kafka.protocol.messages.alter_configs import AlterConfigsRequest
from tiered_api.kafka.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from tiered_api.kafka.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tiered_api.kafka.protocol.messages.describe_cluster import DescribeClusterRequest
from tiered_api.kafka.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tiered_api.kafka.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tiered_api.kafka.protocol.messages.describe_producers import DescribeProducersRequest
from tiered_api.kafka.protocol.messages.describe_producers import TopicRequest as ProducersTopic
from tiered_api.kafka.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from tiered_api.kafka.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest
from tiered_api.kafka.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tiered_api.kafka.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tiered_api.kafka.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tiered_api.kafka.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tiered_api.kafka.protocol.messages.unregister_broker import UnregisterBrokerRequest
from tiered_api.kafka.protocol.schema import ZERO_ID, Message

pytestmark = [pytest.mark.java, pytest.mark.also("kafka")]

NO_TOPIC = "A" * 21 + "Q"
MASKED = {"port", "cluster_id", "producer_id", "total_bytes", "usable_bytes", "log_dir", "documentation", "remote_size"}
"""Fields that differ between any two clusters."""
READS = {2, 3, 23, 32, 35, 43, 48, 60, 61, 74, 75}
"""API keys of requests that change nothing."""


class PeerRequest(NamedTuple):
    """A request and its versions; all versions if none is named."""

    request: Message
    versions: tuple[int, ...] = ()
    difference: str = ""
    """Reason for which our reply differs; empty if it must not."""


def new_topic(name: str, partitions: int = 1, copies: int = 1, *configs: tuple[str, str | None]) -> CreatableTopic:
    return CreatableTopic(name, partitions, copies, configs=[CreatableTopicConfig(*each) for each in configs])


def assigned_topic(name: str, *replicas: tuple[int, list[int]], partitions: int = -1) -> CreatableTopic:
    return CreatableTopic(name, partitions, -1, [CreatableReplicaAssignment(*each) for each in replicas])


def alter_configs_incrementally(
    kind: int, name: str, *changes: tuple[str, int, str | None], only: bool = False
) -> Message:
    configs = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
    resources = [incremental_alter_configs.AlterConfigsResource(kind, name, configs)]
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources, only)


def replace_configs(kind: int, name: str, *configs: tuple[str, str | None]) -> Message:
    given = [alter_configs.AlterableConfig(*each) for each in configs]
    return AlterConfigsRequest([alter_configs.AlterConfigsResource(kind, name, given)])


def describe_configs(kind: int, name: str, *keys: str) -> Message:
    return DescribeConfigsRequest([DescribeConfigsResource(kind, name, list(keys))], include_synonyms=True)


def list_offsets(*partitions: tuple[int, int, int], topic: str = "a") -> Message:
    return ListOffsetsRequest(
        -1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(*each) for each in partitions])], 900
    )


def metadata_of(*names: str, create: bool = False) -> Message:
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], create)


def describe_partitions(limit: int, cursor: Cursor | None, *names: str) -> Message:
    return DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, cursor)


def topic_requests() -> Iterator[PeerRequest]:
    """Returns requests that create, grow and name topics."""
    first = [
        new_topic("a", 2, 1, ("retention.ms", "1000")),
        new_topic("b", 2, 3),
        new_topic("b/d"),
        new_topic("p0", 0),
        new_topic("r0", 1, 0),
    ]
    first += [new_topic("c1", 1, 1, ("bogus", "1")), new_topic("c2", 1, 1, ("retention.ms", "much"))]
    first += [
        new_topic("c3", 1, 1, ("retention.ms", None)),
        new_topic(""),
        new_topic("x" * 250),
        new_topic(".."),
        new_topic("dup"),
        new_topic("dup"),
    ]
    first += [
        assigned_topic("m1", (0, [1]), (2, [1])),
        assigned_topic("m2", (0, [7])),
        assigned_topic("m3", (0, [1]), partitions=1),
    ]
    first += [new_topic("b/e", 1, 1, ("bogus", "1")), CreatableTopic("m7", 2, 1, [CreatableReplicaAssignment(3, [1])])]
    first += [
        assigned_topic("m4", (0, [1, 1])),
        assigned_topic("m5", (0, [])),
        assigned_topic("m6", (0, [1]), (1, [1])),
    ]
    yield PeerRequest(CreateTopicsRequest(first, 5_000, True))
    yield PeerRequest(CreateTopicsRequest(first, 5_000), (7,))
    yield PeerRequest(CreateTopicsRequest([new_topic("a"), new_topic("d.e", -1, -1)], 5_000), (4,))
    yield PeerRequest(CreateTopicsRequest([new_topic("d_e")], 5_000), (7,))
    yield PeerRequest(metadata_of())
    yield PeerRequest(MetadataRequest(None, False), tuple(range(1, 14)))
    yield PeerRequest(metadata_of("a", "no", "b/d", "", "a", "__consumer_offsets"), tuple(range(4, 14)))
    yield PeerRequest(MetadataRequest([MetadataRequestTopic(NO_TOPIC, None)], False), (12, 13))
    yield PeerRequest(MetadataRequest([MetadataRequestTopic(NO_TOPIC, "a")], False), (12, 13))
    yield PeerRequest(MetadataRequest([MetadataRequestTopic(name="a")], False, True, True), (8, 10, 12))
    yield PeerRequest(DescribeClusterRequest(True))
    yield PeerRequest(DescribeClusterRequest(endpoint_type=2), (1, 2))
    yield PeerRequest(DescribeClusterRequest(endpoint_type=3), (1, 2))
    grown = [CreatePartitionsTopic("a", 1, None), CreatePartitionsTopic("no", 3, None)]
    hands = [[CreatePartitionsAssignment([1])], [CreatePartitionsAssignment([9])], [CreatePartitionsAssignment([])]]
    for only in (True, False):
        yield PeerRequest(CreatePartitionsRequest(grown, 1_000, only))
        yield PeerRequest(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, hands[1])], 1_000, only), (3,))
        yield PeerRequest(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, hands[2])], 1_000, only), (3,))
        yield PeerRequest(CreatePartitionsRequest([CreatePartitionsTopic("a", 4, hands[0])], 1_000, only), (3,))
        yield PeerRequest(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, hands[0])] * 2, 1_000, only), (3,))
        yield PeerRequest(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, hands[0])], 1_000, only), (3,))
    yield PeerRequest(describe_partitions(2_000, None))
    yield PeerRequest(describe_partitions(2_000, None, "m6", "no", "a", "b/d", "a"))
    for limit in (0, 1, 3, 4):
        yield PeerRequest(describe_partitions(limit, None, "a", "d.e", "m6", "no"))
    for cursor in (Cursor("a", 1), Cursor("a", 9), Cursor("a", -1), Cursor("b", 0), Cursor("m6", 0)):
        yield PeerRequest(describe_partitions(2, cursor, "a", "m6", "no"))
    yield PeerRequest(ElectLeadersRequest(0, [TopicPartitions("a", [0, 9]), TopicPartitions("no", [0])], 1_000))
    yield PeerRequest(ElectLeadersRequest(5, [TopicPartitions("a", [0])], 1_000), (1, 2))
    yield PeerRequest(ElectLeadersRequest(0, None, 1_000))
    yield PeerRequest(ListPartitionReassignmentsRequest())
    for kinds in ([2], [4], [8], [99], [2, 4, 2]):
        yield PeerRequest(ListConfigResourcesRequest(kinds), (1,))


def log_requests() -> Iterator[PeerRequest]:
    """Returns requests for offsets, producers and sizes; then the topics are deleted."""
    for name in range(-7, 1):
        yield PeerRequest(list_offsets((0, -1, name), (9, -1, name)), tuple(range(1, 11 if name == -6 else 12)))
    yield PeerRequest(list_offsets((0, -1, -6)), (11,), "topics are tiered unless they say otherwise")
    yield PeerRequest(list_offsets((0, 0, -1), (1, 5, -1), (9, -1, -1)), (4, 11))
    yield PeerRequest(list_offsets((0, -1, -1), (0, -1, -2)))
    yield PeerRequest(list_offsets((0, -1, -1), topic="no"))
    ends = [OffsetForLeaderPartition(number, current, epoch) for number, current, epoch in
            ((0, -1, 0), (1, 7, 0), (9, -1, 0), (2, 0, 5))]  # fmt: skip
    yield PeerRequest(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("a", ends)]))
    yield PeerRequest(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("no", ends[:1])]))
    deleted = [DeleteRecordsPartition(0, -1), DeleteRecordsPartition(1, 5), DeleteRecordsPartition(9, 0)]
    yield PeerRequest(
        DeleteRecordsRequest([DeleteRecordsTopic("a", deleted), DeleteRecordsTopic("no", deleted)], 1_000)
    )
    yield PeerRequest(DeleteRecordsRequest([DeleteRecordsTopic("a", [DeleteRecordsPartition(0, -2)])], 1_000))
    yield PeerRequest(InitProducerIdRequest(None, 60_000))
    yield PeerRequest(InitProducerIdRequest(None, 60_000, 5, 3), (3, 4, 5))
    yield PeerRequest(InitProducerIdRequest(None, 60_000, -1, 3), (3, 4, 5))
    yield PeerRequest(InitProducerIdRequest("", 60_000))
    asked = [ProducersTopic("a", [0, 9]), ProducersTopic("no", [0]), ProducersTopic("b/d", [0])]
    yield PeerRequest(DescribeProducersRequest(asked))
    yield PeerRequest(UnregisterBrokerRequest(77))
    yield PeerRequest(DescribeLogDirsRequest(None))
    yield PeerRequest(DescribeLogDirsRequest([DescribableLogDirTopic("a", [0, 9]), DescribableLogDirTopic("no", [0])]))
    yield PeerRequest(DeleteTopicsRequest(topic_names=["no", "no"], timeout_ms=1_000), (1, 5))
    both = DeleteTopicState("a", NO_TOPIC)
    wrong = [DeleteTopicState("no"), DeleteTopicState(None, NO_TOPIC), both]
    yield PeerRequest(DeleteTopicsRequest(wrong, timeout_ms=1_000), (6,))
    yield PeerRequest(DeleteTopicsRequest(topic_names=["a", "no", "m6"], timeout_ms=5_000), (5,))


def setting_requests() -> Iterator[PeerRequest]:
    """Returns requests for settings of topics and brokers."""
    topic, broker = 2, 4
    yield PeerRequest(CreateTopicsRequest([new_topic("s", 1, 1, ("segment.bytes", "2097152"))], 5_000), (7,))
    for key in ("segment.bytes", "max.message.bytes", "cleanup.policy", "preallocate", "min.cleanable.dirty.ratio",
                "delete.retention.ms", "compression.lz4.level", "local.retention.ms", "file.delete.delay.ms",
                "message.timestamp.type", "flush.messages", "index.interval.bytes", "bogus"):  # fmt: skip
        yield PeerRequest(describe_configs(topic, "s", key))
    for kind, name in ((2, "no"), (2, "b/d"), (2, ""), (4, "9"), (4, "x"), (99, "1"), (16, "x"), (32, "g"), (8, "9"),
                       (8, ""), (16, ""), (32, "")):  # fmt: skip
        yield PeerRequest(describe_configs(kind, name, "retention.ms"))
    for key in ("num.partitions", "default.replication.factor", "auto.create.topics.enable", "message.max.bytes",
                "log.segment.bytes", "log.cleanup.policy", "offsets.topic.num.partitions", "delete.topic.enable",
                "log.message.timestamp.type", "group.max.session.timeout.ms"):  # fmt: skip
        yield PeerRequest(describe_configs(broker, "1", key))
    changes: list[tuple[str, int, str | None]] = [
        ("max.message.bytes", 0, "2000"), ("max.message.bytes", 0, None), ("max.message.bytes", 0, "x"),
        ("max.message.bytes", 2, "1"), ("max.message.bytes", 1, None), ("bogus", 0, "1"), ("bogus", 1, None),
        ("leader.replication.throttled.replicas", 2, "0:1"), ("leader.replication.throttled.replicas", 2, "0:1,1:1"),
        ("leader.replication.throttled.replicas", 3, "0:1,9:9"),
    ]  # fmt: skip
    for change in changes:
        for only in (True, False):
            yield PeerRequest(alter_configs_incrementally(topic, "s", change, only=only))
        yield PeerRequest(describe_configs(topic, "s", change[0]))
    yield PeerRequest(alter_configs_incrementally(topic, "s", ("flush.ms", 0, "1"), ("flush.ms", 0, "2")))
    yield PeerRequest(
        alter_configs_incrementally(topic, "s", ("flush.ms", 7, "1")), difference="Kafka answers UNKNOWN_SERVER_ERROR"
    )
    yield PeerRequest(alter_configs_incrementally(topic, "s", ("cleanup.policy", 2, "compact"), only=True))
    for kind, name in ((2, "no"), (2, "b/d"), (2, ""), (4, "9"), (4, "q"), (99, "s")):
        yield PeerRequest(alter_configs_incrementally(kind, name, ("max.message.bytes", 0, "3000")))
        yield PeerRequest(replace_configs(kind, name, ("max.message.bytes", "3000")), (2,))
    for wrong in (("bogus", "1"), ("max.message.bytes", "x")):
        yield PeerRequest(replace_configs(topic, "no", wrong), (2,))
        yield PeerRequest(alter_configs_incrementally(topic, "no", (wrong[0], 0, wrong[1])))
    yield PeerRequest(alter_configs_incrementally(topic, "no", ("max.message.bytes", 2, "1")))
    yield PeerRequest(alter_configs_incrementally(topic, "no", ("bogus", 1, None)))
    yield PeerRequest(alter_configs_incrementally(broker, "1", ("num.partitions", 0, "3")))
    yield PeerRequest(alter_configs_incrementally(broker, "1", ("message.max.bytes", 0, "x")))
    yield PeerRequest(
        alter_configs_incrementally(broker, "1", ("bogus", 0, "3")),
        difference="a name that nothing knows is refused, not kept",
    )
    yield PeerRequest(replace_configs(topic, "s", ("flush.ms", "5"), ("max.message.bytes", "4000")))
    yield PeerRequest(replace_configs(topic, "s", ("flush.ms", "6")))
    yield PeerRequest(describe_configs(topic, "s", "max.message.bytes"))
    yield PeerRequest(replace_configs(topic, "s", ("flush.ms", None)))
    for wrong in (("bogus", "1"), ("flush.ms", "x")):
        yield PeerRequest(replace_configs(topic, "s", wrong))
    yield PeerRequest(replace_configs(topic, "s", ("flush.ms", "5"), ("flush.ms", "6")))


def alter_quotas(
    entity: Sequence[tuple[str, str | None]], *ops: tuple[str, float | None], only: bool = False
) -> quota_changes.AlterClientQuotasRequest:
    """Returns the request that sets quotas of one entity; None removes one."""
    parts = [quota_changes.EntityData(*part) for part in entity]
    changed = [quota_changes.OpData(key, value or 0.0, value is None) for key, value in ops]
    return quota_changes.AlterClientQuotasRequest([quota_changes.EntryData(parts, changed)], only)


def describe_quotas(*components: tuple[str, int, str | None], strict: bool = False) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict)


def quota_requests() -> Iterator[PeerRequest]:
    """Returns requests for client quotas."""
    both = (("user", "u"), ("client-id", "c"))
    rate, share, connections = "producer_byte_rate", "request_percentage", "connection_creation_rate"
    yield PeerRequest(alter_quotas(both, (rate, 1024.0), (share, 0.5), only=True))
    yield PeerRequest(alter_quotas(both, (rate, 1024.0), (share, 0.5)))
    yield PeerRequest(alter_quotas((("user", "u"),), (rate, 2048.0)))
    yield PeerRequest(alter_quotas((("user", None),), ("consumer_byte_rate", 1.0)))
    yield PeerRequest(alter_quotas((("client-id", None),), ("controller_mutation_rate", 2500.25)))
    yield PeerRequest(alter_quotas((("ip", "10.0.0.7"),), (connections, 5.0)))
    yield PeerRequest(alter_quotas((("ip", None),), (connections, 6.0)))
    for strict in (False, True):
        yield PeerRequest(describe_quotas(strict=strict))
        for match, name in ((0, "u"), (0, "no"), (1, None), (2, None), (0, None), (1, "u"), (2, "u"), (7, None)):
            yield PeerRequest(describe_quotas(("user", match, name), strict=strict))
        yield PeerRequest(describe_quotas(("user", 0, "u"), ("client-id", 0, "c"), strict=strict))
        yield PeerRequest(describe_quotas(("user", 2, None), ("client-id", 1, None), strict=strict))
        yield PeerRequest(describe_quotas(("ip", 0, "10.0.0.7"), strict=strict))
        yield PeerRequest(describe_quotas(("ip", 2, None), ("user", 2, None), strict=strict))
        yield PeerRequest(describe_quotas(("user", 2, None), ("user", 2, None), strict=strict))
        yield PeerRequest(describe_quotas(("", 2, None), strict=strict))
        yield PeerRequest(describe_quotas(("group", 2, None), strict=strict))
    for key, value in (
        (rate, 0.0),
        (rate, -1.0),
        (rate, 1.5),
        (rate, 1e30),
        ("bogus", 1.0),
        (connections, 1.0),
        (share, 0.0),
    ):
        yield PeerRequest(alter_quotas((("user", "v"),), (key, value)))
    for wrong in ((), (("user", ""),), (("group", "g"),), (("ip", "x y"),)):
        yield PeerRequest(alter_quotas(wrong, (rate, 1.0)))
    yield PeerRequest(alter_quotas((("ip", "10.0.0.8"), ("user", "a")), (connections, 1.0)))
    yield PeerRequest(alter_quotas((("ip", "10.0.0.8"),), (rate, 1.0)))
    yield PeerRequest(alter_quotas((("ip", "10.0.0.8"),), (connections, 1.5)))
    yield PeerRequest(alter_quotas(both, (rate, 1.0), (rate, 2.0)))
    yield PeerRequest(alter_quotas(both, (rate, None), ("consumer_byte_rate", None)))
    yield PeerRequest(alter_quotas((("user", "unknown"),), (rate, None)))
    yield PeerRequest(describe_quotas())
    yield PeerRequest(
        alter_quotas((("user", "a"), ("user", "b")), (rate, 1.0)), difference="Kafka takes the last name of a type"
    )


def to_plain(value: Any, field: str = "") -> Any:
    """Returns a reply as plain values: masked, and sorted where Kafka has no order."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: to_plain(getattr(value, each.name), each.name) for each in dataclasses.fields(value)}
    if isinstance(value, list):
        return sorted((to_plain(each, field) for each in value), key=repr)
    if field in MASKED:
        return "masked"
    if field == "topic_id" and value not in (ZERO_ID, NO_TOPIC):
        return "an id"
    return bool(value) if field == "error_message" else value


def normalize(answer: Any) -> Any:
    """Removes fields beside the question: settings of a new topic, and texts that only one side has."""
    for topic in getattr(answer, "topics", None) or ():
        if getattr(topic, "configs", None):
            topic.configs = []
    masked = to_plain(answer)
    for result in masked.get("results", ()):
        result.pop("error_message", None)
    for topic in masked.get("topics", ()) if isinstance(masked.get("topics"), list) else ():
        for partition in topic.get("partitions", ()):
            partition.pop("error_message", None)
    return masked


async def ask(client: RawClient, question: PeerRequest, version: int) -> Any:
    api = APIS[type(question.request).spec.key]
    return normalize(await client.ask(question.request, version, api.response_type))


async def compare(peer: Peer, directory: Path, questions: list[PeerRequest]) -> list[str]:
    """Returns a description of every difference."""
    found = []
    host, port = peer.address.split(":")
    async with kafka_broker(directory) as site:
        theirs, ours = RawClient(*await asyncio.open_connection(host, int(port))), await site.client()
        await wait_ready(theirs)
        for question in questions:
            api = APIS[type(question.request).spec.key]
            for version in question.versions or range(api.low, api.high + 1):
                b = await ask(ours, question, version)
                a = await ask_until_equal(theirs, question, version, b)
                if (a != b) != bool(question.difference):
                    found.append(f"{api.name} v{version} {question.request}\n  Kafka: {a}\n  ours:  {b}")
        theirs.close()
    return found


async def ask_until_equal(client: RawClient, question: PeerRequest, version: int, expected: Any) -> Any:
    """Returns Kafka's reply. Repeats requests that only read for a while, because Kafka shows new objects a moment
    later."""
    answer = await ask(client, question, version)
    for _ in range(20):
        if answer == expected or question.difference or type(question.request).spec.key not in READS:
            break
        await asyncio.sleep(0.1)
        answer = await ask(client, question, version)
    return answer


async def wait_ready(client: RawClient) -> None:
    """Waits until Kafka allocates producer ids, a moment after its start."""
    question = PeerRequest(InitProducerIdRequest(None, 60_000))
    while (await ask(client, question, 5))["error_code"]:
        await asyncio.sleep(0.1)


def test_replies_equal_those_of_kafka(tmp_path: Path) -> None:
    # The last request, because ours creates `__transaction_state` for it, which lists of logs would show.
    refused = PeerRequest(InitProducerIdRequest("x", 0))
    asked = [*topic_requests(), *log_requests(), *setting_requests(), *quota_requests(), refused]
    with Peer() as peer:
        found = asyncio.run(compare(peer, tmp_path, asked))
    assert not found, f"{len(found)} differences\n" + "\n".join(found)
