"""Tests of coordinators, membership and administration of groups, frame by frame, in every offered version."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.group_calls import QUICK, fetch_committed, join, make_commit, sync, versions
from tests.e2e.kafka_site import KafkaBroker, run, wait_until
from tests.scenario import run_by
from tiered.errors import Code
from tiered.metadata.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tiered_api.kafka.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tiered_api.kafka.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tiered_api.kafka.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tiered_api.kafka.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from tiered_api.kafka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.offset_commit import OffsetCommitResponse
from tiered_api.kafka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

# -- finding the coordinator ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(10))
@run_by(run, "tmp_path", **QUICK)
async def test_first_request_finds_a_ready_coordinator(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    assert OFFSETS_TOPIC not in site.broker.image.topics
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
    answer = await client.ask(request, version, FindCoordinatorResponse)
    found = answer.coordinators if version >= 4 else [answer]
    assert len(found) == (2 if version >= 4 else 1)
    for each in found:
        assert (each.error_code, each.node_id, f"{each.host}:{each.port}") == (0, 1, site.address)
    beat = await client.ask(HeartbeatRequest(group_id="g", member_id="m"), 4, HeartbeatResponse)
    assert beat.error_code == Code.UNKNOWN_MEMBER_ID.number
    topic = site.broker.image.topics[OFFSETS_TOPIC]
    assert len(topic.partitions) == 3 and topic.configs["remote.storage.enable"] == "false"


@pytest.mark.parametrize("version", range(1, 7))
@run_by(run, "tmp_path", **QUICK)
async def test_transactional_id_has_a_coordinator_and_a_share_group_has_none(
    site: KafkaBroker, *, version: int
) -> None:
    client = await site.client()
    request = FindCoordinatorRequest(key="x", key_type=1, coordinator_keys=["x"])
    answer = await client.ask(request, version, FindCoordinatorResponse)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, f"{found.host}:{found.port}") == (0, 1, site.address)
    request = FindCoordinatorRequest(key="x", key_type=2, coordinator_keys=["x"])
    answer = await client.ask(request, version, FindCoordinatorResponse)
    found = answer.coordinators[0] if version >= 4 else answer
    assert (found.error_code, found.node_id, found.port) == (Code.INVALID_REQUEST.number, -1, -1)
    assert "not served" in (found.error_message or "")
    assert set(site.broker.image.topics) == {TRANSACTIONS_TOPIC}


@run_by(run, "tmp_path", **QUICK)
async def test_concurrent_first_requests_create_the_topic_once(site: KafkaBroker) -> None:
    clients = [await site.client() for _ in range(20)]
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    answers = await asyncio.gather(*(each.ask(request, 6, FindCoordinatorResponse) for each in clients))
    assert {each.coordinators[0].error_code for each in answers} == {0}


# -- membership -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(11))
@run_by(run, "tmp_path", **QUICK)
async def test_member_joins_in_every_version(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    first = await client.ask(
        JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", b"s")],
        ),
        version, JoinGroupResponse,
    )  # fmt: skip
    if version >= 4:
        assert (first.error_code, first.generation_id) == (Code.MEMBER_ID_REQUIRED.number, -1)
        assert first.member_id.startswith("test-") and first.protocol_name == (None if version >= 7 else "")
        first = await join(client, "g", version, first.member_id)
    assert (first.error_code, first.generation_id, first.protocol_name) == (0, 1, "range")
    assert first.leader == first.member_id and len(first.members) == 1 and not first.skip_assignment
    assert first.protocol_type == ("consumer" if version >= 7 else None)
    refused = await join(client, "g", version, "nobody")
    assert refused.error_code == Code.UNKNOWN_MEMBER_ID.number and refused.member_id == "nobody"
    assert refused.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", versions(14))
@run_by(run, "tmp_path", **QUICK)
async def test_member_syncs_and_heartbeats_in_every_version(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    joined = await join(client, "g")
    synced = await sync(client, "g", joined, version)
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"assignment")
    assert synced.protocol_name == ("range" if version >= 5 else None)
    if version >= 5:
        nameless = SyncGroupRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        answer = await client.ask(nameless, version, SyncGroupResponse)
        assert answer.error_code == Code.INCONSISTENT_GROUP_PROTOCOL.number
    for each in versions(12):
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        assert (await client.ask(beat, each, HeartbeatResponse)).error_code == 0
        beat.generation_id = 2
        answer_to_wrong = await client.ask(beat, each, HeartbeatResponse)
        assert answer_to_wrong.error_code == Code.ILLEGAL_GENERATION.number


@pytest.mark.parametrize("version", versions(13))
@run_by(run, "tmp_path", **QUICK)
async def test_member_leaves_in_every_version(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    joined = await join(client, "g")
    everyone = [MemberIdentity(joined.member_id), MemberIdentity("nobody")]
    request = LeaveGroupRequest(group_id="g", member_id=joined.member_id, members=everyone)
    left = await client.ask(request, version, LeaveGroupResponse)
    assert left.error_code == 0
    codes = [each.error_code for each in left.members]
    assert codes == ([] if version < 3 else [0, Code.UNKNOWN_MEMBER_ID.number])
    again = await client.ask(LeaveGroupRequest(group_id="g", member_id="nobody"), version, LeaveGroupResponse)
    assert again.error_code == (Code.UNKNOWN_MEMBER_ID.number if version < 3 else 0)


@run_by(run, "tmp_path", **QUICK)
async def test_closed_connection_of_a_joining_member_delays_nobody(site: KafkaBroker) -> None:
    """A member in a rebalance that never learnt its id leaves with its connection."""
    first, second = await site.client(), await site.client()
    joined = await join(first, "g")
    await sync(first, "g", joined)
    await second.send(
        second.frame(
            JoinGroupRequest(
                group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol("range", b"s")],
            ),
            3,
        )
    )  # fmt: skip

    async def state() -> str:
        described = await first.ask(DescribeGroupsRequest(groups=["g"]), 6, DescribeGroupsResponse)
        return f"{described.groups[0].group_state} {len(described.groups[0].members)}"

    async def reaches(wanted: str) -> None:
        while await state() != wanted:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(reaches("PreparingRebalance 2"), 5)
    second.close()
    await asyncio.wait_for(reaches("PreparingRebalance 1"), 5)
    again = await join(first, "g", member_id=joined.member_id)
    assert again.error_code == 0 and len(again.members) == 1


# -- administration ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(15))
@run_by(run, "tmp_path", **QUICK)
async def test_groups_are_described_in_every_version(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    joined = await join(client, "g")
    await sync(client, "g", joined)
    request = DescribeGroupsRequest(groups=["g", "nobody"], include_authorized_operations=True)
    known, unknown = (await client.ask(request, version, DescribeGroupsResponse)).groups
    assert (known.error_code, known.group_state, known.protocol_type, known.protocol_data) == (
        0, "Stable", "consumer", "range",
    )  # fmt: skip
    member = known.members[0]
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "test", "/127.0.0.1")
    assert (bytes(member.member_metadata), bytes(member.member_assignment)) == (b"subscription", b"assignment")
    assert known.authorized_operations == (3400 if version >= 3 else -(2**31))
    assert (unknown.group_state, unknown.error_code) == ("Dead", 69 if version >= 6 else 0)
    request.include_authorized_operations = False
    plain = await client.ask(request, version, DescribeGroupsResponse)
    assert plain.groups[0].authorized_operations == -(2**31)


@pytest.mark.parametrize("version", versions(16))
@run_by(run, "tmp_path", **QUICK)
async def test_groups_are_listed_in_every_version(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    nothing = await client.ask(ListGroupsRequest(), version, ListGroupsResponse)
    assert (nothing.error_code, nothing.groups) == (0, []) and OFFSETS_TOPIC not in site.broker.image.topics
    await site.create("t")
    await join(client, "busy")
    await client.ask(make_commit("idle", 1), 9, OffsetCommitResponse)
    everything = await client.ask(ListGroupsRequest(), version, ListGroupsResponse)
    assert sorted(each.group_id for each in everything.groups) == ["busy", "idle"]
    if version >= 4:
        some = await client.ask(ListGroupsRequest(states_filter=["Empty"]), version, ListGroupsResponse)
        assert [(each.group_id, each.group_state) for each in some.groups] == [("idle", "Empty")]
    if version >= 5:
        some = await client.ask(ListGroupsRequest(types_filter=["consumer"]), version, ListGroupsResponse)
        assert some.groups == []
        assert {each.group_type for each in everything.groups} == {"classic"}


@pytest.mark.parametrize("version", versions(42))
@run_by(run, "tmp_path", **QUICK)
async def test_groups_are_deleted_in_every_version(site: KafkaBroker, *, version: int) -> None:
    client = await site.client()
    await site.create("t")
    await join(client, "busy")
    await client.ask(make_commit("idle", 1), 9, OffsetCommitResponse)
    request = DeleteGroupsRequest(groups_names=["busy", "idle", "nobody"])
    answer = await client.ask(request, version, DeleteGroupsResponse)
    assert [(each.group_id, each.error_code) for each in answer.results] == [
        ("busy", Code.NON_EMPTY_GROUP.number), ("idle", 0), ("nobody", Code.GROUP_ID_NOT_FOUND.number),
    ]  # fmt: skip
    assert await fetch_committed(client, "idle") == -1


@run_by(run, "tmp_path", **QUICK)
async def test_metrics_count_group_activity(site: KafkaBroker) -> None:
    client = await site.client()
    await site.create("t")
    joined = await join(client, "g")
    await sync(client, "g", joined)
    await client.ask(make_commit("idle", 1), 9, OffsetCommitResponse)
    page = site.broker.metrics.render()
    assert 'tiered_groups{state="Stable"} 1' in page and 'tiered_groups{state="Empty"} 1' in page
    assert "tiered_group_rebalances_total 1" in page and "tiered_group_offset_commits_total 1" in page
    await wait_until(lambda: site.broker.metrics.gauge("tiered_group_image_lag_seconds", "").value() > 0)
