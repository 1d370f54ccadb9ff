"""Requests to a group coordinator, its replies and its events: plain values, free of wire versions.

Replies carry a code where Kafka's carry one; the shard never raises for a caller's mistake. The handlers care for
differences between versions of one API: they set `member_id_required`, or turn GROUP_ID_NOT_FOUND into a code that an
older client knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tiered.errors import Code
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.reconciliation import CurrentAssignment
from tiered.groups.consumer.records import MemberMetadata
from tiered.groups.share.records import ShareMemberMetadata
from tiered.shard import ProducerIdAndEpoch
from tiered.value import value

NO_GENERATION = -1
"""Generation of a client that commits without being a member."""

NO_OFFSET = -1
"""Offset in a reply if nothing was committed."""

NO_RETENTION = -1
"""The request sets no retention time: the broker's setting holds."""


# -- membership -------------------------------------------------------------------------------------------------------


@value
class JoinGroup:
    """Parked until the rebalance completes; the reply is `JoinGroupReply`.

    `member_id_required` is set from v4 on (KIP-394), `supports_skip_assignment` from v9 on (KIP-814). v0 has no
    rebalance timeout: the handler sets it to the session timeout.
    """

    group: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    reason: str | None = None
    member_id_required: bool = True
    supports_skip_assignment: bool = True
    holder: str = ""
    """The holder that a new group counts for (`quotas.shares`)."""


class JoinedMember(NamedTuple):
    """A member as the leader of the group sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@value
class JoinGroupReply:
    """Reply to `JoinGroup`. Only the leader gets the `members`."""

    code: Code
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@value
class SyncGroup:
    """Parked until the leader's assignments arrive; the reply is `SyncGroupReply`.

    Protocol type and name are None below v5.
    """

    group: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@value
class SyncGroupReply:
    """Reply to `SyncGroup`: the bytes that the leader made for this member."""

    code: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@value
class Heartbeat:
    """The reply is `HeartbeatReply`."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None = None


@value
class HeartbeatReply:
    """Reply to `Heartbeat`. REBALANCE_IN_PROGRESS makes the member join again."""

    code: Code


class LeavingMember(NamedTuple):
    """A member that leaves. A static member may be named by its instance id alone."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@value
class LeaveGroup:
    """The reply is `LeaveGroupReply`. Below v3 there is one member, and its code is the code of the response."""

    group: str
    members: tuple[LeavingMember, ...]


@value
class LeaveGroupReply:
    """Reply to `LeaveGroup`: `codes` in the order of the request's members; empty when `code` is not NONE."""

    code: Code
    codes: tuple[Code, ...] = ()


# -- members of consumer groups (KIP-848) -----------------------------------------------------------------------------


@value
class ConsumerHeartbeat:
    """The reply is `ConsumerHeartbeatReply`. A field that is None says that nothing changed.

    `member_epoch` is 0 to join, -1 to leave, -2 if a static member leaves and will be back. `rebalance_timeout_ms` -1
    says that nothing changed. `owned` are the partitions that the member owns.
    """

    group: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Assignment | None = None
    client_id: str = ""
    client_host: str = ""
    holder: str = ""
    """The holder that a new group counts for (`quotas.shares`)."""
    may_describe: Callable[[str], bool] = lambda topic: True
    """True for a topic whose name the caller may know: a regular expression matches no others."""


@value
class ConsumerHeartbeatReply:
    """Reply to `ConsumerHeartbeat`. `assignment` is None if the member has it already. `message` says why a request is
    refused."""

    code: Code
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


# -- members of share groups (KIP-932) --------------------------------------------------------------------------------


@value
class ShareHeartbeat:
    """The reply is `ShareHeartbeatReply`. A field that is None says that nothing changed.

    `member_epoch` is 0 to join, -1 to leave.
    """

    group: str
    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topics: tuple[str, ...] | None = None
    client_id: str = ""
    client_host: str = ""
    holder: str = ""
    """The holder that a new group counts for (`quotas.shares`)."""


@value
class ShareHeartbeatReply:
    """Reply to `ShareHeartbeat`. `assignment` is None if the member has it already. `message` says why a request is
    refused."""

    code: Code
    message: str | None = None
    member_id: str = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None


@value
class SharePartitionsInitialized:
    """The share coordinator has begun the state of these partitions. No caller waits, so there is no reply."""

    group: str
    partitions: Assignment


# -- offsets ----------------------------------------------------------------------------------------------------------


class PartitionOffset(NamedTuple):
    """Offset of one partition, to commit or as committed. `topic_id` is "" if the client names topics, or if the offset
    was stored without one."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: str = ""


@value
class CommitOffsets:
    """The reply is `CommitOffsetsReply`. The handler refuses topics that do not exist. `retention_ms`: v2-4 only.

    A row whose topic id is not that of the topic with this name gets UNKNOWN_TOPIC_ID.

    Below v9 GROUP_ID_NOT_FOUND becomes ILLEGAL_GENERATION, and `knows_epochs` is False: members of consumer groups are
    refused then.
    """

    group: str
    offsets: tuple[PartitionOffset, ...]
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None
    retention_ms: int = NO_RETENTION
    knows_epochs: bool = True
    holder: str = ""
    """The holder that a new group counts for (`quotas.shares`)."""


@value
class CommitTransactionalOffsets:
    """Commits offsets as a part of the producer's transaction. The reply is `CommitOffsetsReply`.

    The handler refuses topics that do not exist. The carrier has checked that the transaction is open. Group members
    are fenced from v3 on (KIP-447).
    """

    group: str
    offsets: tuple[PartitionOffset, ...]
    producer: ProducerIdAndEpoch
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None
    holder: str = ""
    """The holder that a new group counts for (`quotas.shares`)."""


@value
class CommitOffsetsReply:
    """Reply to `CommitOffsets` and `CommitTransactionalOffsets`: one code for each row of the request, in its order."""

    codes: tuple[Code, ...]


@value
class FetchOffsets:
    """The reply is `FetchOffsetsReply`. `partitions` None means all that are committed.

    Member and epoch come with v9+; None and -1 mean that they are not checked.
    """

    group: str
    partitions: tuple[tuple[str, int], ...] | None
    member_id: str | None = None
    member_epoch: int = -1
    topic_ids: tuple[tuple[str, str], ...] = ()
    """(name, id) of topics requested by id. Others are requested as the topics that have their names now.

    An offset committed for another topic of that name does not count.
    """
    require_stable: bool = False
    """Refuses partitions for which a transaction has written an offset and is not over (KIP-447)."""


@value
class FetchOffsetsReply:
    """Reply to `FetchOffsets`: rows in the order of the request, or by topic and partition if it requested all.

    The offset is NO_OFFSET where nothing was committed. `unstable` are the partitions that were refused because a
    stable offset was required: they get UNSTABLE_OFFSET_COMMIT.
    """

    code: Code
    offsets: tuple[PartitionOffset, ...] = ()
    unstable: frozenset[tuple[str, int]] = frozenset()


@value
class DeleteOffsets:
    """The reply is `DeleteReply`, with one code for each partition."""

    group: str
    partitions: tuple[tuple[str, int], ...]


@value
class DeleteReply:
    """`codes` in the order of the request; empty when `code` is not NONE, and for a whole group."""

    code: Code
    codes: tuple[Code, ...] = ()


# -- what happens to the cluster --------------------------------------------------------------------------------------


@value
class TopicsDeleted:
    """Removes the offsets of these topics from every group of the shard. No caller waits, so there is no reply.

    Offsets of topics that have these names now stay.
    """

    topics: tuple[str, ...]


class LostOffset(NamedTuple):
    """A committed or pending offset of lost records: above `end`, and from before `leader_epoch`."""

    group: str
    topic: str
    partition: int
    end: int
    leader_epoch: int


@value
class LowerOffsets:
    """Lowers committed offsets to the first record that was lost (R5). No caller waits, so there is no reply."""

    offsets: tuple[LostOffset, ...]


# -- administration ---------------------------------------------------------------------------------------------------


@value
class DescribeGroup:
    """The reply is `DescribeGroupReply`. `any_state`: with metadata also while the group is not Stable, for the first
    protocol of each member. `with_progress`: with the state of its rebalance. `with_consumer_groups`: a consumer group
    is described as if it were a classic one."""

    group: str
    any_state: bool = False
    with_progress: bool = False
    with_consumer_groups: bool = False


class DescribedMember(NamedTuple):
    """A member as administrators see it. The metadata is empty if the group is not Stable, without `any_state`."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupProgress(NamedTuple):
    """A group since its last change of state: `awaited` are the members that its rebalance waits for, and `pending`
    counts ids that were given out and not used yet. Such members have `rebalance_timeout_ms`."""

    since_ms: int
    reason: str
    rebalance_timeout_ms: int
    awaited: tuple[str, ...] = ()
    pending: int = 0


@value
class DescribeGroupReply:
    """Reply to `DescribeGroup`. An unknown group is Dead with GROUP_ID_NOT_FOUND; below v6 the handler sends NONE.
    `type` is "classic" or "consumer"."""

    code: Code
    group: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()
    progress: GroupProgress | None = None
    type: str = "classic"


@value
class DescribeConsumerGroup:
    """The reply is `DescribeConsumerGroupReply`."""

    group: str


class DescribedConsumerMember(NamedTuple):
    """A member of a consumer group as administrators see it."""

    member_id: str
    metadata: MemberMetadata
    current: CurrentAssignment
    target: Assignment


@value
class DescribeConsumerGroupReply:
    """Reply to `DescribeConsumerGroup`."""

    code: Code
    group: str
    state: str = ""
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumerMember, ...] = ()
    message: str | None = None


@value
class DescribeShareGroup:
    """The reply is `DescribeShareGroupReply`."""

    group: str


class DescribedShareMember(NamedTuple):
    """A member of a share group as administrators see it."""

    member_id: str
    metadata: ShareMemberMetadata
    current: CurrentAssignment


@value
class DescribeShareGroupReply:
    """Reply to `DescribeShareGroup`."""

    code: Code
    group: str
    state: str = ""
    epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedShareMember, ...] = ()
    message: str | None = None


@value
class ListGroups:
    """Requests the groups of this shard. Empty filters let all pass; case does not count.

    The reply is `ListGroupsReply`.
    """

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class ListedGroup(NamedTuple):
    """One row of the list. `type` is "classic", "consumer" or "share"."""

    group: str
    protocol_type: str
    state: str
    type: str


@value
class ListGroupsReply:
    """Reply to `ListGroups`, in the order of the groups' names."""

    groups: tuple[ListedGroup, ...]


@value
class DeleteGroup:
    """The reply is `DeleteReply`."""

    group: str


Request = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | ConsumerHeartbeat
    | ShareHeartbeat
    | SharePartitionsInitialized
    | CommitOffsets
    | CommitTransactionalOffsets
    | FetchOffsets
    | DeleteOffsets
    | TopicsDeleted
    | LowerOffsets
    | DescribeGroup
    | DescribeConsumerGroup
    | DescribeShareGroup
    | ListGroups
    | DeleteGroup
)
Reply = (
    JoinGroupReply
    | SyncGroupReply
    | HeartbeatReply
    | LeaveGroupReply
    | ConsumerHeartbeatReply
    | ShareHeartbeatReply
    | CommitOffsetsReply
    | FetchOffsetsReply
    | DeleteReply
    | DescribeGroupReply
    | DescribeConsumerGroupReply
    | DescribeShareGroupReply
    | ListGroupsReply
)


# -- events -----------------------------------------------------------------------------------------------------------


class GenerationStarted(NamedTuple):
    """A generation starts with members, who wait for their assignments."""

    group: str
    generation: int
    members: int
    assignor: str | None


class TargetComputed(NamedTuple):
    """A consumer group or a share group has a new target for its members."""

    group: str
    epoch: int
    members: int
    assignor: str


class ShareStateWanted(NamedTuple):
    """Partitions of a share group need share state of this epoch. `SharePartitionsInitialized` is the reply."""

    group: str
    epoch: int
    partitions: Assignment


class OffsetLowered(NamedTuple):
    """A committed offset was lowered from `offset` to `end`."""

    group: str
    topic: str
    partition: int
    offset: int
    end: int


Event = GenerationStarted | TargetComputed | ShareStateWanted | OffsetLowered
