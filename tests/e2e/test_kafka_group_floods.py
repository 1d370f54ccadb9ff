"""Tests of requests about groups whose replies could be thousands of times as large."""

from __future__ import annotations

from tests.e2e.group_calls import QUICK, fetch_committed, join, make_commit, sync
from tests.e2e.kafka_site import KafkaBroker, run
from tests.scenario import run_by
from tiered_api.kafka.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

TIMES = 20_000


@run_by(run, "tmp_path", **QUICK)
async def test_repeated_partition_of_an_offset_fetch_is_returned_once(site: KafkaBroker) -> None:
    await site.create("t")
    client = await site.client()
    await client.ask(make_commit("g", 7), 8, OffsetCommitResponse)
    everything = [OffsetFetchRequestGroup("g", topics=None)] * TIMES
    many = await client.ask(OffsetFetchRequest(groups=everything), 9, OffsetFetchResponse)
    assert [len(group.topics) for group in many.groups] == [1]

    partitions = [OffsetFetchRequestTopics("t", partition_indexes=[0] * TIMES)]
    one = OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=partitions)])
    (group,) = (await client.ask(one, 9, OffsetFetchResponse)).groups
    assert [each.committed_offset for each in group.topics[0].partitions] == [7]

    topics = [OffsetFetchRequestTopic("t", [0])] * TIMES
    older = await client.ask(OffsetFetchRequest(group_id="g", topics=topics), 7, OffsetFetchResponse)
    assert [len(topic.partitions) for topic in older.topics] == [1]


@run_by(run, "tmp_path", **QUICK)
async def test_repeated_group_is_described_once(site: KafkaBroker) -> None:
    client = await site.client()
    await sync(client, "g", await join(client, "g"))
    request = DescribeGroupsRequest(groups=["g"] * TIMES + ["h"])
    answer = await client.ask(request, 5, DescribeGroupsResponse)
    assert [(group.group_id, len(group.members)) for group in answer.groups] == [("g", 1), ("h", 0)]


@run_by(run, "tmp_path", offsets_topic_segment_bytes=1_500_000, **QUICK)
async def test_commit_larger_than_a_segment_is_appended_in_parts(site: KafkaBroker) -> None:
    await site.create("t")
    client = await site.client()
    places = [OffsetCommitRequestPartition(0, number, committed_metadata="m" * 4000) for number in range(450)]
    request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic("t", partitions=places)])
    answer = await client.ask(request, 8, OffsetCommitResponse)
    assert {each.error_code for each in answer.topics[0].partitions} == {0}
    assert await fetch_committed(client, "g") == 449
