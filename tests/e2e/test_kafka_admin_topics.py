"""Tests of CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords and their like over real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.kafka_site import TEST_SECONDS, KafkaBroker, RawClient, kafka_broker, run, wait_until
from tests.scenario import run_alone, run_by
from tests.sim.rig.broker_rig import batch
from tiered.durability.log_store import OPENING_AT_ONCE
from tiered.errors import Code
from tiered.hot import checkpoints
from tiered.ports import FileSlice, World
from tiered.records.batch import decode_records
from tiered.security.principal import ANONYMOUS, Caller
from tiered.system import turns
from tiered.system.local_disk import LocalDisk
from tiered_api.kafka.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tiered_api.kafka.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tiered_api.kafka.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tiered_api.kafka.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tiered_api.kafka.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tiered_api.kafka.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tiered_api.kafka.protocol.messages.tiered_compact import CompactedTopic, TieredCompactRequest
from tiered_api.kafka.protocol.schema import ZERO_ID
from tiered_api.kafka.server.context.context import Call
from tiered_api.kafka.server.handlers import tiered_compact


def new_topic(name: str, partitions: int = -1, copies: int = -1, **configs: str | None) -> CreatableTopic:
    given = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
    return CreatableTopic(name, partitions, copies, configs=given)


def assigned_topic(name: str, replicas: dict[int, list[int]], partitions: int = -1) -> CreatableTopic:
    given = [CreatableReplicaAssignment(number, brokers) for number, brokers in replicas.items()]
    return CreatableTopic(name, partitions, -1, given)


async def create(client: RawClient, version: int, *topics: CreatableTopic, only: bool = False) -> CreateTopicsResponse:
    return await client.ask(CreateTopicsRequest(list(topics), 5_000, only), version, CreateTopicsResponse)


@pytest.mark.parametrize("version", range(2, 8))
@run_by(run, "tmp_path", num_partitions=3)
async def test_topic_is_usable_when_its_creation_is_acknowledged(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    defaults = new_topic("d") if version >= 4 else new_topic("d", 3, 1)
    answer = await create(client, version, new_topic("t", 2, 1, retention_ms="5000"), defaults)
    assert [(topic.name, topic.error_code, topic.error_message) for topic in answer.topics] == [
        ("t", 0, None),
        ("d", 0, None),
    ]
    for name, count in (("t", 2), ("d", 3)):
        for number in range(count):
            assert (await site.broker.leader_replica(name, number).append(batch([b"v"]))).base_offset == 0
    first = answer.topics[0]
    assert first.topic_id == (site.broker.image.topics["t"].topic_id if version >= 7 else ZERO_ID)
    if version >= 5:
        assert (first.num_partitions, first.replication_factor, answer.topics[1].num_partitions) == (2, 1, 3)
        shown = {config.name: (config.value, config.config_source) for config in first.configs or ()}
        assert shown["retention.ms"] == ("5000", 1) and shown["cleanup.policy"] == ("delete", 5)
        assert {"min.cleanable.dirty.ratio", "preallocate", "leader.replication.throttled.replicas"} <= shown.keys()


@run_by(run, "tmp_path")
async def test_each_topic_has_its_own_error_and_the_others_are_created(site: KafkaBroker) -> None:
    client = await site.client()
    await site.create("old")
    creations = {
        Code.TOPIC_ALREADY_EXISTS: new_topic("old"),
        Code.INVALID_TOPIC_EXCEPTION: new_topic("b/d"),
        Code.INVALID_PARTITIONS: new_topic("none", 0),
        Code.INVALID_REPLICATION_FACTOR: new_topic("copies", 1, 2),
        Code.INVALID_CONFIG: new_topic("config", retention_ms="much"),
        Code.INVALID_REPLICA_ASSIGNMENT: assigned_topic("gap", {0: [1], 2: [1]}),
        Code.INVALID_REQUEST: assigned_topic("both", {0: [1], 2: [1]}, 1),
    }
    good = [
        new_topic("good"),
        assigned_topic("hand", {1: [1], 0: [1]}),
        new_topic("compacted", min_cleanable_dirty_ratio="0.1"),
    ]
    answer = await create(client, 7, *creations.values(), *good)
    expected = [code.number for code in creations] + [0, 0, 0]
    assert [topic.error_code for topic in answer.topics] == expected
    assert all(topic.error_message and topic.configs == [] for topic in answer.topics[: len(creations)])
    assert set(site.broker.image.topics) == {"old", "good", "hand", "compacted"}
    assert len(site.broker.image.topics["hand"].partitions) == 2

    more = await create(client, 7, new_topic("x"), new_topic("y"), new_topic("x"),
        new_topic("c", cleanup_policy="shred"),
                        new_topic("u", bogus="1"), new_topic("n", retention_ms=None))  # fmt: skip
    codes = {topic.name: Code((topic.error_code, False)).name for topic in more.topics}
    assert codes == {"x": "INVALID_REQUEST", "y": "NONE"} | dict.fromkeys("cun", "INVALID_CONFIG")
    why = {topic.name: topic.error_message or "" for topic in more.topics}
    both = await create(client, 7, new_topic("b/e", bogus="1"), new_topic("old", retention_ms=None))
    assert [topic.error_code for topic in both.topics] == [17, 36], "names are looked at first"
    assert "shred" in why["c"] and "bogus" in why["u"] and "retention.ms" in why["n"]


@run_by(run, "tmp_path")
async def test_validated_topic_is_not_created(site: KafkaBroker) -> None:
    answer = await create(await site.client(), 7, new_topic("t", 2, 1), new_topic("b/d"), only=True)
    assert [(each.error_code, each.num_partitions) for each in answer.topics] == [(0, 2), (17, -1)]
    assert not site.broker.image.topics and not site.broker.leader_replicas()


@run_by(run, "tmp_path")
async def test_topics_of_a_request_are_one_entry_of_the_metadata_log(site: KafkaBroker) -> None:
    before = site.broker.image.slot
    answer = await create(await site.client(), 7, *(new_topic(f"t.{number}_x") for number in range(300)))
    assert not any(topic.error_code for topic in answer.topics) and len(site.broker.leader_replicas()) == 300
    assert site.broker.image.slot == before + 1


@run_by(run, "tmp_path")
async def test_other_requests_are_served_while_many_partitions_open(site: KafkaBroker) -> None:
    opened = [0]

    async def watch() -> None:
        while True:
            opened.append(len(site.broker.leader_replicas()))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    answer = await create(await site.client(), 7, new_topic("t", 400), new_topic("u", 200))
    watching.cancel()
    opened.append(len(site.broker.leader_replicas()))
    assert [topic.error_code for topic in answer.topics] == [0, 0] and opened[-1] == 600
    assert max(after - before for before, after in pairwise(opened)) <= OPENING_AT_ONCE


def test_other_requests_are_served_while_many_partitions_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0.0)

    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        await create(client, 7, new_topic("t", 400), new_topic("u", 200))
        logs, left = tmp_path / "log", [600]

        async def watch() -> None:
            while True:
                left.append(sum(each.name[:2] in ("t-", "u-") and "delete" not in each.name for each in logs.iterdir()))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        request = DeleteTopicsRequest(topics=[DeleteTopicState("t"), DeleteTopicState("u")], timeout_ms=20_000)
        answer = await client.ask(request, 6, DeleteTopicsResponse)
        await wait_until(lambda: left[-1] == 0)
        watching.cancel()
        assert [each.error_code for each in answer.responses] == [0, 0]
        assert max(before - after for before, after in pairwise(left)) <= 2

    run(tmp_path, scenario)


@pytest.mark.parametrize("version", range(1, 7))
@run_by(run, "tmp_path")
async def test_topics_are_deleted_by_name_and_by_id(site: KafkaBroker, *, version: int) -> None:
    for name in "abc":
        await site.create(name)
    ids = {name: site.broker.image.topics[name].topic_id for name in "abc"}
    client = await site.client()
    if version < 6:
        request = DeleteTopicsRequest(topic_names=["a", "no", "a", "b"], timeout_ms=5_000)
        expected: list[tuple[str | None, int]] = [("a", 42), ("no", 3), ("b", 0)]
    else:
        both = DeleteTopicState("c", ids["c"])
        named = [DeleteTopicState("a"), DeleteTopicState("no"), DeleteTopicState(None, ids["b"])]
        unknown = DeleteTopicState(None, "A" * 21 + "Q")
        request = DeleteTopicsRequest(topics=[*named, both, unknown], timeout_ms=5_000)
        expected = [("a", 0), ("no", 3), ("b", 0), ("c", 42), (None, 100)]
    answer = await client.ask(request, version, DeleteTopicsResponse)
    assert [(each.name, each.error_code) for each in answer.responses] == expected
    gone = {each.name for each in answer.responses if not each.error_code}
    assert set(site.broker.image.topics) == set("abc") - gone
    if version >= 6:
        assert [each.topic_id for each in answer.responses][:3] == [ids["a"], ZERO_ID, ids["b"]]


@run_by(run, "tmp_path", delete_topic_enable=False)
async def test_broker_may_forbid_topic_deletion(site: KafkaBroker) -> None:
    await site.create("t")
    request = DeleteTopicsRequest(topics=[DeleteTopicState("t")], timeout_ms=5_000)
    answer = await (await site.client()).ask(request, 6, DeleteTopicsResponse)
    assert answer.responses[0].error_code == Code.TOPIC_DELETION_DISABLED.number
    assert "t" in site.broker.image.topics


@run_by(run, "tmp_path")
async def test_partitions_are_added_to_a_topic(site: KafkaBroker) -> None:
    for name in "abc":
        await site.create(name, 2)
    client = await site.client()
    wanted = [
        CreatePartitionsTopic("a", 4, None),
        CreatePartitionsTopic("b", 3, [CreatePartitionsAssignment([1])]),
        CreatePartitionsTopic("c", 2, None),
        CreatePartitionsTopic("no", 2, None),
        CreatePartitionsTopic("c", 9, None),
    ]
    for only, sizes in ((True, [2, 2, 2]), (False, [4, 3, 2])):
        answer = await client.ask(CreatePartitionsRequest(wanted, 5_000, only), 3, CreatePartitionsResponse)
        assert [(each.name, each.error_code) for each in answer.results] == [
            ("a", 0),
            ("b", 0),
            ("c", 42),
            ("no", 3),
        ]
        assert [len(site.broker.image.topics[name].partitions) for name in "abc"] == sizes
    await site.broker.leader_replica("a", 3).append(batch([b"v"]))
    wrong = [CreatePartitionsTopic("a", 4, None), CreatePartitionsTopic("b", 4, [CreatePartitionsAssignment([9])])]
    answer = await client.ask(CreatePartitionsRequest(wrong, 5_000), 3, CreatePartitionsResponse)
    assert [each.error_code for each in answer.results] == [37, 39]


@run_by(run, "tmp_path", tiered_partitions_max_per_broker=20_000)
async def test_partitions_of_a_create_request_are_bounded(site: KafkaBroker) -> None:
    await site.create("t")
    client = await site.client()
    for creations in ([new_topic("a", 6_000), new_topic("b", 4_001)], [new_topic("a", 2), new_topic("b", 10_001)]):
        answer = await create(client, 7, *creations, only=True)
        assert [topic.error_code for topic in answer.topics] == [0, Code.POLICY_VIOLATION.number]
    many = [CreatePartitionsTopic("t", 10_002, None), CreatePartitionsTopic("no", 5, None)]
    refused = await client.ask(CreatePartitionsRequest(many, 5_000, True), 3, CreatePartitionsResponse)
    assert [each.error_code for each in refused.results] == [Code.POLICY_VIOLATION.number] * 2


@run_by(run, "tmp_path", tiered_partitions_max_per_broker=4)
async def test_every_request_that_creates_topics_has_their_limits(site: KafkaBroker) -> None:
    await site.create("t", 3)
    client, denied = await site.client(), Code.POLICY_VIOLATION.number
    made = await create(client, 7, new_topic("a", 2), new_topic("b"))
    assert [each.error_code for each in made.topics] == [denied, 0]
    assert "tiered.partitions.max.per.broker" in str(made.topics[0].error_message)
    grown = await client.ask(
        CreatePartitionsRequest([CreatePartitionsTopic("t", 4, None)], 5_000), 3, CreatePartitionsResponse
    )
    assert grown.results[0].error_code == denied
    assert "tiered.partitions.max.per.broker" in str(grown.results[0].error_message)
    asked = MetadataRequest([MetadataRequestTopic(name="auto"), MetadataRequestTopic(name="t")], True)
    told = await client.ask(asked, 12, MetadataResponse)
    assert {each.name: each.error_code for each in told.topics} == {"auto": denied, "t": 0}
    assert sorted(site.broker.image.topics) == ["b", "t"]


@run_by(run, "tmp_path")
async def test_request_without_time_changes_nothing(site: KafkaBroker) -> None:
    replica = await site.create("t")
    await replica.append(batch([b"v"]))
    client, late = await site.client(), Code.REQUEST_TIMED_OUT.number
    for none in (0, -1):
        created = await client.ask(CreateTopicsRequest([new_topic("a")], none), 7, CreateTopicsResponse)
        state = DeleteTopicState("t")
        deleted = await client.ask(DeleteTopicsRequest(topics=[state], timeout_ms=none), 6, DeleteTopicsResponse)
        grown = [CreatePartitionsTopic("t", 3, None)]
        more = await client.ask(CreatePartitionsRequest(grown, none), 3, CreatePartitionsResponse)
        start = DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(0, -1)])], none)
        cut = await client.ask(start, 2, DeleteRecordsResponse)
        codes = [created.topics[0].error_code, deleted.responses[0].error_code, more.results[0].error_code]
        assert [*codes, cut.topics[0].partitions[0].error_code] == [late] * 4
    assert {name: len(topic.partitions) for name, topic in site.broker.image.topics.items()} == {"t": 1}
    assert replica.log_start_offset == 0


@run_by(run, "tmp_path")
async def test_log_starts_at_the_deleted_offset(site: KafkaBroker) -> None:
    await site.create("t", 2)
    for number in range(2):
        await site.broker.leader_replica("t", number).append(batch([b"%d" % n for n in range(10)]))
    client = await site.client()

    async def delete(*wanted: tuple[int, int]) -> list[tuple[int, int, int]]:
        partitions = [DeleteRecordsPartition(number, offset) for number, offset in wanted]
        request = DeleteRecordsRequest([DeleteRecordsTopic("t", partitions)], 5_000)
        answer = await client.ask(request, 2, DeleteRecordsResponse)
        return [(each.partition_index, each.low_watermark, each.error_code) for each in answer.topics[0].partitions]

    assert await delete((0, 4), (1, -1), (9, 0)) == [(0, 4, 0), (1, 10, 0), (9, -1, 3)]
    assert await delete((0, 11), (0, -2), (0, 2)) == [(0, -1, 1), (0, -1, 1), (0, 4, 0)]
    replica = site.broker.leader_replica("t", 0)
    assert replica.log_start_offset == 4
    manifest = await site.broker.cold_tier.manifests.load(replica.partition_id)
    assert manifest is not None and manifest.log_start_offset == 4, "answered when it is in the bucket"
    fetched = await replica.reads.read(4, 1 << 20)
    assert isinstance(fetched.data, FileSlice)
    held = fetched.data.file.pread(fetched.data.start, fetched.data.length)
    assert [record.offset for record in decode_records(held) if record.offset >= 4] == [4, 5, 6, 7, 8, 9]


@run_by(run_alone)
async def test_records_of_many_partitions_are_deleted_with_few_writes(
    *, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of all logs were written again for each 32 partitions. A request for 10,000 timed out. They may be
    written once for each turn of the request: here all of it is one turn, however slow the machine is."""
    monkeypatch.setattr(turns, "TURN_SECONDS", TEST_SECONDS)
    monkeypatch.setattr(turns, "GATHER_SECONDS", TEST_SECONDS)
    count = 400
    written: list[str] = []

    class CountingDisk(LocalDisk):
        def rename(self, old: str, new: str) -> None:
            written.append(new)
            super().rename(old, new)

    def count_writes(world: World) -> World:
        return replace(world, disk=CountingDisk(str(tmp_path)))

    async with asyncio.timeout(TEST_SECONDS), kafka_broker(tmp_path, count_writes) as site:
        await site.create("t", count, remote_storage_enable="false")
        for number in range(count):
            site.broker.leader_replica("t", number).append_now(batch([b"v"]), acks=1)
        client = await site.client()
        wanted = [DeleteRecordsPartition(number, -1) for number in range(count)]
        written.clear()
        request = DeleteRecordsRequest([DeleteRecordsTopic("t", wanted)], 30_000)
        answer = await client.ask(request, 2, DeleteRecordsResponse)
        found = [(row.low_watermark, row.error_code) for row in answer.topics[0].partitions]
        assert found == [(1, 0)] * count
        assert 1 <= sum(path.endswith(checkpoints.LOG_STARTS) for path in written) <= 3, written


@run_by(run, "tmp_path")
async def test_election_and_reassignment_of_one_broker_change_nothing(site: KafkaBroker) -> None:
    await site.create("t")
    client = await site.client()
    wanted = [TopicPartitions("t", [0, 7]), TopicPartitions("no", [0])]
    for version in range(3):
        answer = await client.ask(ElectLeadersRequest(0, wanted), version, ElectLeadersResponse)
        codes = [[each.error_code for each in topic.partition_result] for topic in answer.replica_election_results]
        assert codes == [[Code.ELECTION_NOT_NEEDED.number, 3], [3]] and answer.error_code == 0
    unknown = await client.ask(ElectLeadersRequest(5, wanted), 2, ElectLeadersResponse)
    assert unknown.error_code == Code.INVALID_REQUEST.number
    moving = await client.ask(ListPartitionReassignmentsRequest(), 0, ListPartitionReassignmentsResponse)
    assert (moving.error_code, moving.error_message, moving.topics) == (0, None, [])


@run_by(run, "tmp_path")
async def test_clean_of_a_partition_that_is_named_often_has_one_row(site: KafkaBroker) -> None:
    """A few bytes named all partitions of a topic, once for each time that the topic stood in the request."""
    await site.create("t", 3, cleanup_policy="compact")
    named = [CompactedTopic("t"), CompactedTopic("t"), CompactedTopic("t", [1, 1]), CompactedTopic("u")]
    for topics, rows in ((named, [0, 1, 2]), (named[2:], [1]), ([CompactedTopic("t", [2, 0, 9, -1])], [0, 2])):
        call = Call(TieredCompactRequest(topics), 0, 0, "", "127.0.0.1:1", "PLAINTEXT", Caller(ANONYMOUS, "127.0.0.1"))
        found = await tiered_compact.handle(site.server.context, call)
        assert [(each.topic, each.partition) for each in found.partitions] == [("t", each) for each in rows]
