"""Tests of committed offsets, frame by frame, in every offered version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.group_calls import NOBODY, QUICK, fetch_committed, make_commit, versions
from tests.e2e.kafka_site import KafkaBroker, run, wait_until
from tests.refusal import refuses
from tests.scenario import run_by
from tiered.controller.requests import DeleteTopic
from tiered.errors import Code
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tiered_api.kafka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tiered_api.kafka.server.requests import group_requests


@pytest.mark.parametrize("version", versions(8))
@run_by(run, "tmp_path", **QUICK)
async def test_offsets_are_committed_in_every_version(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    replica = await site.create("t")
    by_id = version >= 10
    answer = await client.ask(make_commit("g", 7, topic_id=replica.topic_id), version, OffsetCommitResponse)
    codes = [each.error_code for each in answer.topics[0].partitions]
    assert codes == [0, Code.UNKNOWN_TOPIC_OR_PARTITION.number]
    assert (answer.topics[0].name, answer.topics[0].topic_id) == (
        ("", replica.topic_id) if by_id else ("t", answer.topics[0].topic_id)
    )
    assert await fetch_committed(client, "g") == 7
    unknown = await client.ask(make_commit("g", 7, topic="nowhere", topic_id=NOBODY), version, OffsetCommitResponse)
    wanted = Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
    assert {each.error_code for each in unknown.topics[0].partitions} == {wanted.number}
    outsider = make_commit("other", 7, topic_id=replica.topic_id, generation=3, member="m")
    answer = await client.ask(outsider, version, OffsetCommitResponse)
    wanted = Code.GROUP_ID_NOT_FOUND if version >= 9 else Code.ILLEGAL_GENERATION
    assert answer.topics[0].partitions[0].error_code == wanted.number


def test_offsets_of_many_partitions_are_committed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_requests, "COMMIT_PIECE_PARTITIONS", 2)

    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        await site.create("t", 5)
        rows = [OffsetCommitRequestPartition(number, 10 + number) for number in (4, 9, 0, 1, 3, 2)]
        request = OffsetCommitRequest("g", topics=[OffsetCommitRequestTopic("t", partitions=rows)])
        answer = await client.ask(request, 9, OffsetCommitResponse)
        assert [(each.partition_index, each.error_code) for each in answer.topics[0].partitions] == [
            (4, 0), (9, Code.UNKNOWN_TOPIC_OR_PARTITION.number), (0, 0), (1, 0), (3, 0), (2, 0),
        ]  # fmt: skip
        named = [OffsetFetchRequestTopics("t", partition_indexes=list(range(5)))]
        groups = [OffsetFetchRequestGroup("g", topics=named)]
        got = await client.ask(OffsetFetchRequest(groups=groups), 9, OffsetFetchResponse)
        assert [each.committed_offset for each in got.groups[0].topics[0].partitions] == [10, 11, 12, 13, 14]

    run(tmp_path, scenario, **QUICK)


@pytest.mark.parametrize("version", versions(9))
@run_by(run, "tmp_path", **QUICK)
async def test_offsets_are_fetched_in_every_version(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    replica = await site.create("t")
    await client.ask(make_commit("g", 7), 9, OffsetCommitResponse)
    if version < 8:
        named = [OffsetFetchRequestTopic("t", [0, 1]), OffsetFetchRequestTopic("nowhere", [0])]
        old = await client.ask(OffsetFetchRequest(group_id="g", topics=named), version, OffsetFetchResponse)
        rows = [(t.name, p.partition_index, p.committed_offset, p.metadata) for t in old.topics for p in t.partitions]
        assert rows == [("t", 0, 7, "m"), ("t", 1, -1, ""), ("nowhere", 0, -1, "")]
        if version >= 2:
            old = await client.ask(OffsetFetchRequest(group_id="g", topics=None), version, OffsetFetchResponse)
            assert [(t.name, len(t.partitions)) for t in old.topics] == [("t", 1)] and old.error_code == 0
        return
    asked = [
        OffsetFetchRequestTopics("t", replica.topic_id, [0, 1]),
        OffsetFetchRequestTopics("nowhere", NOBODY, [0]),
    ]
    groups = [OffsetFetchRequestGroup("g", topics=asked), OffsetFetchRequestGroup("g", topics=None)]
    answer = await client.ask(OffsetFetchRequest(groups=groups), version, OffsetFetchResponse)
    some, everything = answer.groups
    found = [(p.committed_offset, p.error_code) for topic in some.topics for p in topic.partitions]
    missing = Code.UNKNOWN_TOPIC_ID.number if version >= 10 else 0
    assert found == [(7, 0), (-1, 0), (-1, missing)]
    assert [(p.partition_index, p.committed_offset) for t in everything.topics for p in t.partitions] == [(0, 7)]
    assert everything.topics[0].topic_id == (replica.topic_id if version >= 10 else everything.topics[0].topic_id)


@run_by(run, "tmp_path", **QUICK)
async def test_offsets_of_a_deleted_topic_are_gone_for_a_recreated_one(site: KafkaBroker) -> None:
    client = await site.client()
    await site.create("t")
    await site.create("u")
    await client.ask(make_commit("g", 7), 9, OffsetCommitResponse)
    await client.ask(make_commit("g", 8, topic="u"), 9, OffsetCommitResponse)
    await site.broker.submit(DeleteTopic("t"))
    await site.create("t")
    assert (await fetch_committed(client, "g"), await fetch_committed(client, "g", "u")) == (-1, 8)


@run_by(run, "tmp_path", **QUICK)
async def test_offsets_are_deleted_one_by_one(site: KafkaBroker) -> None:
    client = await site.client()
    await site.create("t")
    await client.ask(make_commit("g", 7), 9, OffsetCommitResponse)
    asked = OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0), OffsetDeleteRequestPartition(9)])
    answer = await client.ask(OffsetDeleteRequest("g", [asked]), 0, OffsetDeleteResponse)
    codes = [each.error_code for each in answer.topics[0].partitions]
    assert (answer.error_code, codes) == (0, [0, Code.UNKNOWN_TOPIC_OR_PARTITION.number])
    assert await fetch_committed(client, "g") == -1
    answer = await client.ask(OffsetDeleteRequest("nobody", [asked]), 0, OffsetDeleteResponse)
    assert (answer.error_code, answer.topics) == (Code.GROUP_ID_NOT_FOUND.number, [])


@run_by(run, "tmp_path", **QUICK)
async def test_client_that_leaves_during_the_offsets_topic_creation_harms_none(site: KafkaBroker) -> None:
    leaving = asyncio.ensure_future(site.broker.group_coordinators.host.partition_for("g"))
    await asyncio.sleep(0)  # one turn: it has asked for the topic now
    leaving.cancel()
    with refuses(Code.COORDINATOR_NOT_AVAILABLE):
        await site.broker.group_coordinators.host.partition_for("g")
    await wait_until(lambda: OFFSETS_TOPIC in site.broker.image.topics)
    assert (
        0
        <= await site.broker.group_coordinators.host.partition_for("g")
        < len(site.broker.image.topics[OFFSETS_TOPIC].partitions)
    )
