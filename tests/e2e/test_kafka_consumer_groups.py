"""Consumer groups (KIP-848) frame by frame: in both versions, with their offsets, and after `group.version` is 0."""

from __future__ import annotations

import pytest

from tests.e2e.group_calls import QUICK, fetch_committed, join, make_commit, versions
from tests.e2e.kafka_site import KafkaBroker, RawClient, run
from tests.e2e.test_kafka_admin_configs import SET, change_configs
from tests.scenario import run_by
from tests.unit.groups.consumer.classic_client import encode_subscription
from tiered.errors import Code
from tiered.groups.subscription import encode_assignment, parse_assignment
from tiered.ids import TopicPartition
from tiered_api.kafka.client.group_member import read_assignment
from tiered_api.kafka.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupMember,
    DescribedAssignment,
    DescribedConsumerGroup,
    DescribedTopicPartitions,
)
from tiered_api.kafka.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerTopicPartitions,
)
from tiered_api.kafka.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from tiered_api.kafka.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequestProtocol
from tiered_api.kafka.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.offset_commit import OffsetCommitResponse
from tiered_api.kafka.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tiered_api.kafka.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from tiered_api.kafka.server.requests.config_resources import ConfigResourceType

GROUP, HEARTBEAT = ConfigResourceType.GROUP, "consumer.heartbeat.interval.ms"
Owned = list[tuple[str, list[int]]] | None


async def consume(
    client: RawClient, member_id: str, epoch: int, owned: Owned = None, version: int = 1
) -> ConsumerGroupHeartbeatResponse:
    """Sends a heartbeat; one that joins says all that a join needs."""
    request = ConsumerGroupHeartbeatRequest("g", member_id, epoch)
    if epoch == 0:
        request.rebalance_timeout_ms, request.subscribed_topic_names, owned = 30_000, ["t"], []
    if owned is not None:
        request.topic_partitions = [ConsumerTopicPartitions(*each) for each in owned]
    return await client.ask(request, version, ConsumerGroupHeartbeatResponse)


def given(reply: ConsumerGroupHeartbeatResponse) -> Owned:
    """Returns the assignment of a reply; None if it has none."""
    if reply.assignment is None:
        return None
    return [(each.topic_id, each.partitions) for each in reply.assignment.topic_partitions]


@pytest.mark.parametrize("version", versions(68))
@run_by(run, "tmp_path", **QUICK)
async def test_members_share_partitions_and_commit_with_their_epochs(site: KafkaBroker, *, version: int) -> None:
    await site.create("t", 4)
    topic_id = site.broker.image.topics["t"].topic_id
    client = await site.client()
    first = await consume(client, "a", 0, version=version)
    assert (first.error_code, first.member_id, first.member_epoch, first.heartbeat_interval_ms) == (0, "a", 1, 5_000)
    assert given(first) == [(topic_id, [0, 1, 2, 3])]
    second = await consume(client, "b", 0, version=version)
    assert (second.member_epoch, given(second)) == (2, [])
    told = await consume(client, "a", 1, given(first), version)
    assert (told.member_epoch, given(told)) == (1, [(topic_id, [0, 1])])
    assert given(await consume(client, "b", 2, version=version)) is None
    assert (await consume(client, "a", 1, given(told), version)).member_epoch == 2
    assert given(await consume(client, "b", 2, version=version)) == [(topic_id, [2, 3])]

    request = ConsumerGroupDescribeRequest(["g", "g", "gone"], True)
    described = await client.ask(request, version, ConsumerGroupDescribeResponse)
    halves = [DescribedAssignment([DescribedTopicPartitions(topic_id, "t", each)]) for each in ([0, 1], [2, 3])]
    members = [
        ConsumerGroupMember(
            name, None, None, 2, "test", "/127.0.0.1", ["t"], None, half, half, 1 if version >= 1 else -1
        )
        for name, half in zip("ab", halves, strict=True)
    ]
    assert described.groups == [
        DescribedConsumerGroup(0, None, "g", "Stable", 2, 2, "uniform", members, 0b110101001000),
        DescribedConsumerGroup(Code.GROUP_ID_NOT_FOUND.number, "Group gone not found.", "gone"),
    ]
    listed = await client.ask(ListGroupsRequest(types_filter=["consumer"]), 5, ListGroupsResponse)
    assert listed.groups == [ListedGroup("g", "consumer", "Stable", "consumer")]
    assert (await client.ask(ListGroupsRequest(types_filter=["classic"]), 5, ListGroupsResponse)).groups == []

    classic = DescribeGroupsRequest(["g"], include_consumer_groups=True)
    [shown] = (await client.ask(classic, 6, DescribeGroupsResponse)).groups
    assert (shown.group_state, shown.protocol_data, shown.group_type) == ("Stable", "uniform", "consumer")
    assert read_assignment(shown.members[1].member_assignment) == [TopicPartition("t", 2), TopicPartition("t", 3)]
    classic.include_consumer_groups = False
    [hidden] = (await client.ask(classic, 6, DescribeGroupsResponse)).groups
    assert hidden.error_code == Code.GROUP_ID_NOT_FOUND.number

    async def commit(offset: int, epoch: int, member_id: str = "a") -> int:
        answer = await client.ask(make_commit("g", offset, generation=epoch, member=member_id), 9, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code

    assert await commit(7, 2) == 0
    assert await commit(8, 1) == Code.STALE_MEMBER_EPOCH.number
    assert await commit(8, 2, "c") == Code.UNKNOWN_MEMBER_ID.number
    assert await fetch_committed(client, "g") == 7
    assert await change_configs(client, GROUP, "g", (HEARTBEAT, SET, "7000")) == (0, None)
    assert (await consume(client, "a", 2, version=version)).heartbeat_interval_ms == 7_000
    left = await consume(client, "a", -1, version=version)
    assert (left.error_code, left.member_id, left.member_epoch) == (0, "a", -1)
    assert given(await consume(client, "b", 2, [(topic_id, [2, 3])], version)) == [(topic_id, [0, 1, 2, 3])]


@run_by(run, "tmp_path", **QUICK)
async def test_group_lives_on_with_grown_topics_and_refuses_strange_requests(site: KafkaBroker) -> None:
    await site.create("t", 1)
    topic_id = site.broker.image.topics["t"].topic_id
    client = await site.client()
    anonymous = await consume(client, "", 0, version=0)
    assert anonymous.member_id
    assert (await consume(client, anonymous.member_id, -1, version=0)).error_code == 0
    assert (await consume(client, "", 0)).error_code == Code.INVALID_REQUEST.number, "its client has to make an id"
    epoch = (await consume(client, "a", 0)).member_epoch
    future = await consume(client, "a", epoch + 1)
    assert future.error_code == Code.FENCED_MEMBER_EPOCH.number
    assert "greater member epoch" in (future.error_message or "")
    for regex in ("(", "(t|u" * 2_500):
        request = ConsumerGroupHeartbeatRequest("g", "b", 0, None, None, 1, None, regex, None, [])
        refused = await client.ask(request, 1, ConsumerGroupHeartbeatResponse)
        assert refused.error_code == Code.INVALID_REGULAR_EXPRESSION.number
        assert "is not a valid regular expression: missing )" in (refused.error_message or "")
    more = CreatePartitionsRequest([CreatePartitionsTopic("t", 2, None)], 5_000)
    assert (await client.ask(more, 3, CreatePartitionsResponse)).results[0].error_code == 0
    assert given(await consume(client, "a", epoch, [(topic_id, [0])])) == [(topic_id, [0, 1])]
    request = ConsumerGroupHeartbeatRequest("h", "b", 0, None, None, 1, None, "t|u.*" + "|x" * 5_000, None, [])
    matched = await client.ask(request, 1, ConsumerGroupHeartbeatResponse)
    assert given(matched) == [(topic_id, [0, 1])]
    down = UpdateFeaturesRequest(5_000, [FeatureUpdateKey("group.version", 0, False, 2)])
    assert (await client.ask(down, 1, UpdateFeaturesResponse)).error_code == 0
    assert (await consume(client, "a", epoch + 1)).error_code == Code.UNSUPPORTED_VERSION.number
    described = await client.ask(ConsumerGroupDescribeRequest(["g"]), 1, ConsumerGroupDescribeResponse)
    assert described.groups == [DescribedConsumerGroup(Code.UNSUPPORTED_VERSION.number, group_id="g")]


@run_by(run, "tmp_path", **QUICK)
async def test_classic_member_goes_on_in_an_upgraded_group_and_back(site: KafkaBroker) -> None:
    await site.create("t", 2)
    topic_id = site.broker.image.topics["t"].topic_id
    client = await site.client()
    protocols = [JoinGroupRequestProtocol("range", encode_subscription(["t"], {}))]
    classic = await join(client, "g", protocols=protocols)
    whole = encode_assignment({"t": frozenset({0, 1})})
    mine = [SyncGroupRequestAssignment(classic.member_id, whole)]
    request = SyncGroupRequest("g", classic.generation_id, classic.member_id, None, "consumer", "range", mine)
    assert (await client.ask(request, 5, SyncGroupResponse)).assignment == whole
    joined = await consume(client, "a", 0)
    assert (joined.error_code, joined.member_epoch, given(joined)) == (0, 2, [])
    [described] = (await client.ask(ConsumerGroupDescribeRequest(["g"]), 1, ConsumerGroupDescribeResponse)).groups
    assert {each.member_id: each.member_type for each in described.members} == {classic.member_id: 0, "a": 1}

    async def beat(generation: int) -> int:
        heartbeat = HeartbeatRequest("g", generation, classic.member_id)
        return (await client.ask(heartbeat, 4, HeartbeatResponse)).error_code

    assert await beat(1) == Code.REBALANCE_IN_PROGRESS.number
    again = await join(client, "g", member_id=classic.member_id, protocols=protocols)
    assert (again.error_code, again.generation_id, again.leader, again.protocol_name) == (0, 2, "", "range")
    request = SyncGroupRequest("g", 2, classic.member_id, None, "consumer", "range")
    half = parse_assignment((await client.ask(request, 5, SyncGroupResponse)).assignment)
    assert half == {"t": frozenset({0})} and await beat(2) == 0
    assert given(await consume(client, "a", 2, [])) == [(topic_id, [1])]
    assert (await consume(client, "a", -1)).error_code == 0
    listed = await client.ask(ListGroupsRequest(), 5, ListGroupsResponse)
    assert listed.groups == [ListedGroup("g", "consumer", "PreparingRebalance", "classic")]
    last = await join(client, "g", member_id=classic.member_id, protocols=protocols)
    assert (last.error_code, last.generation_id, last.leader) == (0, 3, classic.member_id)
