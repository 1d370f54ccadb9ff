"""Members and administrators of groups who speak to a simulated broker's coordinators, past the wire."""

from __future__ import annotations

from tests.e2e.site import QUICK, Site
from tiered.config.settings import Settings
from tiered.coordinator.snapshot import SnapshotName, parse_key
from tiered.errors import Code
from tiered.groups.requests import (
    HeartbeatReply,
    PartitionOffset,
    CommitOffsets,
    CommitOffsetsReply,
    DescribeGroupReply,
    DescribeGroup,
    FetchOffsetsReply,
    FetchOffsets,
    Heartbeat,
    JoinGroupReply,
    JoinGroup,
    SyncGroupReply,
    SyncGroup,
)
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.replication.leader_replica import LeaderReplica

GROUPS = Settings(
    **{name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__}
    | {"offsets_topic_num_partitions": 2, "group_initial_rebalance_delay_ms": 0}
)


async def commit(
    site: Site, group: str, offset: int, *, topic: str = "t", generation: int = -1, member: str = ""
) -> Code:
    """One offset of partition 0."""
    request = CommitOffsets(group, (PartitionOffset(topic, 0, offset),), generation, member)
    reply = await site.node.group_coordinators.ask(group, request)
    assert isinstance(reply, CommitOffsetsReply)
    return reply.codes[0]


async def committed(site: Site, group: str, topic: str = "t") -> int:
    """-1 where nothing was."""
    reply = await site.node.group_coordinators.ask(group, FetchOffsets(group, ((topic, 0),)))
    assert isinstance(reply, FetchOffsetsReply)
    return reply.offsets[0].offset


async def join(
    site: Site, group: str, member: str = "", instance: str | None = None, session_ms: int = 10_000
) -> JoinGroupReply:
    """A member of a group of its own accord: no id is asked for first."""
    request = JoinGroup(
        group, member, instance, "client", "/host", session_ms, 10_000, "consumer", (("range", b""),),
        member_id_required=False,
    )  # fmt: skip
    reply = await site.node.group_coordinators.ask(group, request)
    assert isinstance(reply, JoinGroupReply)
    return reply


async def sync(site: Site, group: str, joined: JoinGroupReply) -> SyncGroupReply:
    """The leader of a group of one assigns."""
    request = SyncGroup(group, joined.generation, joined.member_id, assignments=((joined.member_id, b"all"),))
    reply = await site.node.group_coordinators.ask(group, request)
    assert isinstance(reply, SyncGroupReply)
    return reply


async def beat(site: Site, group: str, joined: JoinGroupReply) -> Code:
    reply = await site.node.group_coordinators.ask(group, Heartbeat(group, joined.generation, joined.member_id))
    assert isinstance(reply, HeartbeatReply)
    return reply.code


async def described(site: Site, group: str) -> DescribeGroupReply:
    reply = await site.node.group_coordinators.ask(group, DescribeGroup(group))
    assert isinstance(reply, DescribeGroupReply)
    return reply


def log_of(site: Site, partition: int) -> LeaderReplica:
    return site.node.leader_replica(OFFSETS_TOPIC, partition)


def images(site: Site, partition: int) -> list[SnapshotName]:
    """Images in the bucket, oldest first."""
    names = [name for key in site.bucket.objects if (name := parse_key(key)) is not None]
    return sorted(name for name in names if name.pid.partition == partition)


async def loaded(site: Site) -> None:
    """All groups are served."""
    await site.until(lambda: site.node.metrics.gauge("tiered_group_partitions_loading", "").value() == 0)
