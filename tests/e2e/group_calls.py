"""Requests of group members to a broker, one by one."""

from __future__ import annotations

from tests.e2e.kafka_site import RawClient
from tiered.errors import Code
from tiered_api.kafka.protocol.apis import APIS
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tiered_api.kafka.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

QUICK = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 3}
NOBODY = "AAAAAAAAAAAAAAAAAAAAAB"


def versions(key: int) -> range:
    return range(APIS[key].low, APIS[key].high + 1)


async def join(
    client: RawClient, group: str, version: int = 9, member_id: str = "", **fields: object
) -> JoinGroupResponse:
    """Joins a group, and joins again with the member id from the first reply."""
    request = JoinGroupRequest(
        group_id=group, session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id=member_id,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol("range", b"subscription")],
    )  # fmt: skip
    for name, value in fields.items():
        setattr(request, name, value)
    answer = await client.ask(request, version, JoinGroupResponse)
    if answer.error_code == Code.MEMBER_ID_REQUIRED.number:
        return await join(client, group, version, answer.member_id, **fields)
    return answer


async def sync(client: RawClient, group: str, joined: JoinGroupResponse, version: int = 5) -> SyncGroupResponse:
    mine = [SyncGroupRequestAssignment(joined.member_id, b"assignment")]
    request = SyncGroupRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id, protocol_type="consumer",
        protocol_name="range", assignments=mine,
    )  # fmt: skip
    return await client.ask(request, version, SyncGroupResponse)


def make_commit(
    group: str, offset: int, *, topic: str = "t", topic_id: str = "", generation: int = -1, member: str = ""
) -> OffsetCommitRequest:
    asked = OffsetCommitRequestTopic(
        topic,
        partitions=[
            OffsetCommitRequestPartition(0, offset, committed_metadata="m"),
            OffsetCommitRequestPartition(9, 1),
        ],
    )
    if topic_id:
        asked.topic_id = topic_id
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=[asked]
    )


async def fetch_committed(client: RawClient, group: str, topic: str = "t", partition: int = 0) -> int:
    wanted = [OffsetFetchRequestTopics(topic, partition_indexes=[partition])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=wanted)])
    answer = await client.ask(request, 9, OffsetFetchResponse)
    assert answer.groups[0].error_code == 0, answer
    return answer.groups[0].topics[0].partitions[0].committed_offset
