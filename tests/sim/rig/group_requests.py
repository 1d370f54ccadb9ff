"""Members and administrators of groups that call the coordinators of a simulated broker directly, without the wire."""

from __future__ import annotations

from tests.sim.rig.broker_rig import QUICK, SimBrokerRig
from tiered.config.settings import Settings
from tiered.coordination.snapshot_stores import GROUP_SNAPSHOTS
from tiered.coordinator.snapshot import SnapshotName
from tiered.errors import Code
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    DescribeGroup,
    DescribeGroupReply,
    FetchOffsets,
    FetchOffsetsReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    PartitionOffset,
    SyncGroup,
    SyncGroupReply,
)
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.replication.leader_replica import LeaderReplica

GROUP_SETTINGS = Settings(
    **{name: getattr(QUICK, name) for name in QUICK.__dataclass_fields__}
    | {"offsets_topic_num_partitions": 2, "group_initial_rebalance_delay_ms": 0}
)


async def commit(
    rig: SimBrokerRig, group: str, offset: int, *, topic: str = "t", generation: int = -1, member: str = ""
) -> Code:
    """Commits one offset of partition 0."""
    request = CommitOffsets(group, (PartitionOffset(topic, 0, offset),), generation, member)
    reply = await rig.broker.group_coordinators.submit(group, request)
    assert isinstance(reply, CommitOffsetsReply)
    return reply.codes[0]


async def fetch_committed(rig: SimBrokerRig, group: str, topic: str = "t") -> int:
    """Returns the committed offset, or -1 if there is none."""
    reply = await rig.broker.group_coordinators.submit(group, FetchOffsets(group, ((topic, 0),)))
    assert isinstance(reply, FetchOffsetsReply)
    return reply.offsets[0].offset


async def join(
    rig: SimBrokerRig, group: str, member: str = "", instance: str | None = None, session_ms: int = 10_000
) -> JoinGroupReply:
    """Joins a member to a group without asking for a member id first."""
    request = JoinGroup(
        group, member, instance, "client", "/host", session_ms, 10_000, "consumer", (("range", b""),),
        member_id_required=False,
    )  # fmt: skip
    reply = await rig.broker.group_coordinators.submit(group, request)
    assert isinstance(reply, JoinGroupReply)
    return reply


async def sync(rig: SimBrokerRig, group: str, joined: JoinGroupReply) -> SyncGroupReply:
    """Assigns partitions as the leader of a group of one."""
    request = SyncGroup(group, joined.generation, joined.member_id, assignments=((joined.member_id, b"all"),))
    reply = await rig.broker.group_coordinators.submit(group, request)
    assert isinstance(reply, SyncGroupReply)
    return reply


async def heartbeat(rig: SimBrokerRig, group: str, joined: JoinGroupReply) -> Code:
    reply = await rig.broker.group_coordinators.submit(group, Heartbeat(group, joined.generation, joined.member_id))
    assert isinstance(reply, HeartbeatReply)
    return reply.code


async def describe(rig: SimBrokerRig, group: str) -> DescribeGroupReply:
    reply = await rig.broker.group_coordinators.submit(group, DescribeGroup(group))
    assert isinstance(reply, DescribeGroupReply)
    return reply


def offsets_replica(rig: SimBrokerRig, partition: int) -> LeaderReplica:
    return rig.broker.leader_replica(OFFSETS_TOPIC, partition)


def snapshots(rig: SimBrokerRig, partition: int) -> list[SnapshotName]:
    """Returns the snapshots in the bucket, oldest first."""
    names = [name for key in rig.bucket.objects if (name := GROUP_SNAPSHOTS.parse_key(key)) is not None]
    return sorted(name for name in names if name.partition_id.partition == partition)


async def wait_groups_loaded(rig: SimBrokerRig) -> None:
    """Waits until all groups are served."""
    await rig.wait_until(lambda: rig.broker.metrics.gauge("tiered_group_partitions_loading", "").value() == 0)
