"""The same questions to Kafka 4.2.0 and to ours: the answers are held against each other, field by field.

What has to differ is masked (ids, ports, words of errors, sizes of disks); what differs on purpose says why, and fails
when it does not differ any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.kafka_site import Client, kafka_site
from tests.peer.kafka import Peer
from tiered_api.kafka.protocol.apis import APIS
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

pytestmark = pytest.mark.java

NO_TOPIC = "A" * 21 + "Q"
MASKED = {"port", "cluster_id", "producer_id", "total_bytes", "usable_bytes", "log_dir", "documentation", "remote_size"}
"""Fields that no two clusters share."""
READS = {2, 3, 23, 32, 35, 43, 60, 61, 74, 75}
"""API keys of questions that change nothing."""


class Question(NamedTuple):
    """A request and the versions in which it is asked; all of them when none is named."""

    request: Message
    versions: tuple[int, ...] = ()
    own: str = ""
    """Why ours answers otherwise; empty where it must not."""


def wish(name: str, partitions: int = 1, copies: int = 1, *configs: tuple[str, str | None]) -> CreatableTopic:
    return CreatableTopic(name, partitions, copies, configs=[CreatableTopicConfig(*each) for each in configs])


def by_hand(name: str, *replicas: tuple[int, list[int]], partitions: int = -1) -> CreatableTopic:
    return CreatableTopic(name, partitions, -1, [CreatableReplicaAssignment(*each) for each in replicas])


def edits(kind: int, name: str, *changes: tuple[str, int, str | None], only: bool = False) -> Message:
    configs = [incremental_alter_configs.AlterableConfig(*change) for change in changes]
    resources = [incremental_alter_configs.AlterConfigsResource(kind, name, configs)]
    return incremental_alter_configs.IncrementalAlterConfigsRequest(resources, only)


def replaced(kind: int, name: str, *configs: tuple[str, str | None]) -> Message:
    given = [alter_configs.AlterableConfig(*each) for each in configs]
    return AlterConfigsRequest([alter_configs.AlterConfigsResource(kind, name, given)])


def shown(kind: int, name: str, *keys: str) -> Message:
    return DescribeConfigsRequest([DescribeConfigsResource(kind, name, list(keys))], include_synonyms=True)


def offsets(*partitions: tuple[int, int, int], topic: str = "a") -> Message:
    return ListOffsetsRequest(
        -1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(*each) for each in partitions])], 900
    )


def named(*names: str, create: bool = False) -> Message:
    return MetadataRequest([MetadataRequestTopic(name=name) for name in names], create)


def pages(limit: int, cursor: Cursor | None, *names: str) -> Message:
    return DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, cursor)


def topics() -> Iterator[Question]:
    """Creating, growing and naming topics."""
    first = [wish("a", 2, 1, ("retention.ms", "1000")), wish("b", 2, 3), wish("b/d"), wish("p0", 0), wish("r0", 1, 0)]
    first += [wish("c1", 1, 1, ("bogus", "1")), wish("c2", 1, 1, ("retention.ms", "much"))]
    first += [wish("c3", 1, 1, ("retention.ms", None)), wish(""), wish("x" * 250), wish(".."), wish("dup"), wish("dup")]
    first += [by_hand("m1", (0, [1]), (2, [1])), by_hand("m2", (0, [7])), by_hand("m3", (0, [1]), partitions=1)]
    first += [wish("b/e", 1, 1, ("bogus", "1")), CreatableTopic("m7", 2, 1, [CreatableReplicaAssignment(3, [1])])]
    first += [by_hand("m4", (0, [1, 1])), by_hand("m5", (0, [])), by_hand("m6", (0, [1]), (1, [1]))]
    yield Question(CreateTopicsRequest(first, 5_000, True))
    yield Question(CreateTopicsRequest(first, 5_000), (7,))
    yield Question(CreateTopicsRequest([wish("a"), wish("d.e", -1, -1)], 5_000), (4,))
    yield Question(CreateTopicsRequest([wish("d_e")], 5_000), (7,))
    yield Question(named())
    yield Question(MetadataRequest(None, False), tuple(range(1, 14)))
    yield Question(named("a", "no", "b/d", "", "a", "__consumer_offsets"), tuple(range(4, 14)))
    yield Question(MetadataRequest([MetadataRequestTopic(NO_TOPIC, None)], False), (12, 13))
    yield Question(MetadataRequest([MetadataRequestTopic(NO_TOPIC, "a")], False), (12, 13))
    yield Question(MetadataRequest([MetadataRequestTopic(name="a")], False, True, True), (8, 10, 12))
    yield Question(DescribeClusterRequest(True))
    yield Question(DescribeClusterRequest(endpoint_type=2), (1, 2))
    yield Question(DescribeClusterRequest(endpoint_type=3), (1, 2))
    grown = [CreatePartitionsTopic("a", 1, None), CreatePartitionsTopic("no", 3, None)]
    hands = [[CreatePartitionsAssignment([1])], [CreatePartitionsAssignment([9])], [CreatePartitionsAssignment([])]]
    for only in (True, False):
        yield Question(CreatePartitionsRequest(grown, 1_000, only))
        yield Question(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, hands[1])], 1_000, only), (3,))
        yield Question(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, hands[2])], 1_000, only), (3,))
        yield Question(CreatePartitionsRequest([CreatePartitionsTopic("a", 4, hands[0])], 1_000, only), (3,))
        yield Question(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, hands[0])] * 2, 1_000, only), (3,))
        yield Question(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, hands[0])], 1_000, only), (3,))
    yield Question(pages(2_000, None))
    yield Question(pages(2_000, None, "m6", "no", "a", "b/d", "a"))
    for limit in (0, 1, 3, 4):
        yield Question(pages(limit, None, "a", "d.e", "m6", "no"))
    for cursor in (Cursor("a", 1), Cursor("a", 9), Cursor("a", -1), Cursor("b", 0), Cursor("m6", 0)):
        yield Question(pages(2, cursor, "a", "m6", "no"))
    yield Question(ElectLeadersRequest(0, [TopicPartitions("a", [0, 9]), TopicPartitions("no", [0])], 1_000))
    yield Question(ElectLeadersRequest(5, [TopicPartitions("a", [0])], 1_000), (1, 2))
    yield Question(ElectLeadersRequest(0, None, 1_000))
    yield Question(ListPartitionReassignmentsRequest())
    for kinds in ([2], [4], [8], [99], [2, 4, 2]):
        yield Question(ListConfigResourcesRequest(kinds), (1,))


def logs() -> Iterator[Question]:
    """Offsets, producers and sizes; then the topics go."""
    for name in range(-7, 1):
        yield Question(offsets((0, -1, name), (9, -1, name)), tuple(range(1, 11 if name == -6 else 12)))
    yield Question(offsets((0, -1, -6)), (11,), "topics are tiered unless they say otherwise")
    yield Question(offsets((0, 0, -1), (1, 5, -1), (9, -1, -1)), (4, 11))
    yield Question(offsets((0, -1, -1), (0, -1, -2)))
    yield Question(offsets((0, -1, -1), topic="no"))
    ends = [OffsetForLeaderPartition(number, current, epoch) for number, current, epoch in
            ((0, -1, 0), (1, 7, 0), (9, -1, 0), (2, 0, 5))]  # fmt: skip
    yield Question(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("a", ends)]))
    yield Question(OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("no", ends[:1])]))
    deleted = [DeleteRecordsPartition(0, -1), DeleteRecordsPartition(1, 5), DeleteRecordsPartition(9, 0)]
    yield Question(DeleteRecordsRequest([DeleteRecordsTopic("a", deleted), DeleteRecordsTopic("no", deleted)], 1_000))
    yield Question(DeleteRecordsRequest([DeleteRecordsTopic("a", [DeleteRecordsPartition(0, -2)])], 1_000))
    yield Question(InitProducerIdRequest(None, 60_000))
    yield Question(InitProducerIdRequest(None, 60_000, 5, 3), (3, 4, 5))
    yield Question(InitProducerIdRequest(None, 60_000, -1, 3), (3, 4, 5))
    yield Question(InitProducerIdRequest("", 60_000))
    yield Question(
        InitProducerIdRequest("x", 0), own="transactions are not built yet: fatal at once, whatever is asked"
    )
    asked = [ProducersTopic("a", [0, 9]), ProducersTopic("no", [0]), ProducersTopic("b/d", [0])]
    yield Question(DescribeProducersRequest(asked))
    yield Question(UnregisterBrokerRequest(77))
    yield Question(DescribeLogDirsRequest(None))
    yield Question(DescribeLogDirsRequest([DescribableLogDirTopic("a", [0, 9]), DescribableLogDirTopic("no", [0])]))
    yield Question(DeleteTopicsRequest(topic_names=["no", "no"], timeout_ms=1_000), (1, 5))
    both = DeleteTopicState("a", NO_TOPIC)
    wrong = [DeleteTopicState("no"), DeleteTopicState(None, NO_TOPIC), both]
    yield Question(DeleteTopicsRequest(wrong, timeout_ms=1_000), (6,))
    yield Question(DeleteTopicsRequest(topic_names=["a", "no", "m6"], timeout_ms=5_000), (5,))


def settings() -> Iterator[Question]:
    """Settings of topics and brokers."""
    topic, broker = 2, 4
    yield Question(CreateTopicsRequest([wish("s", 1, 1, ("segment.bytes", "2097152"))], 5_000), (7,))
    for key in ("segment.bytes", "max.message.bytes", "cleanup.policy", "preallocate", "min.cleanable.dirty.ratio",
                "delete.retention.ms", "compression.lz4.level", "local.retention.ms", "file.delete.delay.ms",
                "message.timestamp.type", "flush.messages", "index.interval.bytes", "bogus"):  # fmt: skip
        yield Question(shown(topic, "s", key))
    for kind, name in ((2, "no"), (2, "b/d"), (2, ""), (4, "9"), (4, "x"), (99, "1"), (16, "x"), (32, "g"), (8, "9"),
                       (8, ""), (16, ""), (32, "")):  # fmt: skip
        yield Question(shown(kind, name, "retention.ms"))
    for key in ("num.partitions", "default.replication.factor", "auto.create.topics.enable", "message.max.bytes",
                "log.segment.bytes", "log.cleanup.policy", "offsets.topic.num.partitions", "delete.topic.enable",
                "log.message.timestamp.type", "group.max.session.timeout.ms"):  # fmt: skip
        yield Question(shown(broker, "1", key))
    changes: list[tuple[str, int, str | None]] = [
        ("max.message.bytes", 0, "2000"), ("max.message.bytes", 0, None), ("max.message.bytes", 0, "x"),
        ("max.message.bytes", 2, "1"), ("max.message.bytes", 1, None), ("bogus", 0, "1"), ("bogus", 1, None),
        ("leader.replication.throttled.replicas", 2, "0:1"), ("leader.replication.throttled.replicas", 2, "0:1,1:1"),
        ("leader.replication.throttled.replicas", 3, "0:1,9:9"),
    ]  # fmt: skip
    for change in changes:
        for only in (True, False):
            yield Question(edits(topic, "s", change, only=only))
        yield Question(shown(topic, "s", change[0]))
    yield Question(edits(topic, "s", ("flush.ms", 0, "1"), ("flush.ms", 0, "2")))
    yield Question(edits(topic, "s", ("flush.ms", 7, "1")), own="Kafka answers UNKNOWN_SERVER_ERROR")
    yield Question(edits(topic, "s", ("cleanup.policy", 2, "compact"), only=True), own="compaction is not built yet")
    for kind, name in ((2, "no"), (2, "b/d"), (2, ""), (4, "9"), (4, "q"), (99, "s")):
        yield Question(edits(kind, name, ("max.message.bytes", 0, "3000")))
        yield Question(replaced(kind, name, ("max.message.bytes", "3000")), (2,))
    for wrong in (("bogus", "1"), ("max.message.bytes", "x")):
        yield Question(replaced(topic, "no", wrong), (2,))
        yield Question(edits(topic, "no", (wrong[0], 0, wrong[1])))
    yield Question(edits(topic, "no", ("max.message.bytes", 2, "1")))
    yield Question(edits(topic, "no", ("bogus", 1, None)))
    yield Question(edits(broker, "1", ("num.partitions", 0, "3")))
    yield Question(edits(broker, "1", ("message.max.bytes", 0, "x")))
    yield Question(edits(broker, "1", ("bogus", 0, "3")), own="a name that nothing knows is refused, not kept")
    yield Question(replaced(topic, "s", ("flush.ms", "5"), ("max.message.bytes", "4000")))
    yield Question(replaced(topic, "s", ("flush.ms", "6")))
    yield Question(shown(topic, "s", "max.message.bytes"))
    yield Question(replaced(topic, "s", ("flush.ms", None)))
    for wrong in (("bogus", "1"), ("flush.ms", "x")):
        yield Question(replaced(topic, "s", wrong))
    yield Question(replaced(topic, "s", ("flush.ms", "5"), ("flush.ms", "6")))


def told(value: Any, field: str = "") -> Any:
    """An answer as plain values: masked, and in an order of its own where Kafka has none."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: told(getattr(value, each.name), each.name) for each in dataclasses.fields(value)}
    if isinstance(value, list):
        return sorted((told(each, field) for each in value), key=repr)
    if field in MASKED:
        return "masked"
    if field == "topic_id" and value not in (ZERO_ID, NO_TOPIC):
        return "an id"
    return bool(value) if field == "error_message" else value


def level(answer: Any) -> Any:
    """Leaves out what stands beside the question: settings of a new topic, words where only one side has some."""
    for topic in getattr(answer, "topics", None) or ():
        if getattr(topic, "configs", None):
            topic.configs = []
    masked = told(answer)
    for result in masked.get("results", ()):
        result.pop("error_message", None)
    for topic in masked.get("topics", ()) if isinstance(masked.get("topics"), list) else ():
        for partition in topic.get("partitions", ()):
            partition.pop("error_message", None)
    return masked


async def ask(client: Client, question: Question, version: int) -> Any:
    api = APIS[type(question.request).spec.key]
    return level(await client.ask(question.request, version, api.response_type))


async def compare(peer: Peer, directory: Path, questions: list[Question]) -> list[str]:
    """Every difference, in words."""
    found = []
    host, port = peer.address.split(":")
    async with kafka_site(directory) as site:
        theirs, ours = Client(*await asyncio.open_connection(host, int(port))), await site.client()
        await ready(theirs)
        for question in questions:
            api = APIS[type(question.request).spec.key]
            for version in question.versions or range(api.low, api.high + 1):
                b = await ask(ours, question, version)
                a = await settled(theirs, question, version, b)
                if (a != b) != bool(question.own):
                    found.append(f"{api.name} v{version} {question.request}\n  Kafka: {a}\n  ours:  {b}")
        theirs.close()
    return found


async def settled(client: Client, question: Question, version: int, expected: Any) -> Any:
    """Kafka's answer, asked for again for a while where it only reads: what it has just created it tells a moment
    later."""
    answer = await ask(client, question, version)
    for _ in range(20):
        if answer == expected or question.own or type(question.request).spec.key not in READS:
            break
        await asyncio.sleep(0.1)
        answer = await ask(client, question, version)
    return answer


async def ready(client: Client) -> None:
    """Kafka hands out no producer ids for a moment after its start."""
    question = Question(InitProducerIdRequest(None, 60_000))
    while (await ask(client, question, 5))["error_code"]:
        await asyncio.sleep(0.1)


def test_ours_answers_as_kafka_does(tmp_path: Path) -> None:
    asked = [*topics(), *logs(), *settings()]
    with Peer() as peer:
        found = asyncio.run(compare(peer, tmp_path, asked))
    assert not found, f"{len(found)} differences\n" + "\n".join(found)
