"""What a group coordinator is asked, and what it answers: plain values, free of wire versions.

Replies carry a code where Kafka's carry one; the shard never raises for a caller's mistake. What differs between
versions of one API is the handler's: it says `member_id_required`, or turns GROUP_ID_NOT_FOUND into what an older
client knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tiered.errors import Code

NO_GENERATION = -1
"""The generation of whoever commits without being a member."""

NO_OFFSET = -1
"""The offset that stands for "nothing was committed"."""

NO_RETENTION = -1
"""The offset is kept as long as the broker's setting says."""


class Now(NamedTuple):
    """Both clocks at one instant: `mono_ms` (any origin) for deadlines, `wall_ms` for what goes into records."""

    mono_ms: int
    wall_ms: int


# -- membership -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """-> Joined, parked until the rebalance completes. `member_id_required`: JoinGroup v4+ (KIP-394);
    `skip_assignment_known`: v9+ (KIP-814). v0 has no rebalance timeout: its session timeout stands for it."""

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


class JoinedMember(NamedTuple):
    """A member as the leader of the group gets to see it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupReply:
    """Only the leader is told the `members`."""

    code: Code
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """-> Synced, parked until the leader's comes. Type and name are None below v5."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroupReply:
    """The bytes that the leader made for this member."""

    code: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """-> Beaten."""

    group: str
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """REBALANCE_IN_PROGRESS tells the member to join again."""

    code: Code


class LeavingMember(NamedTuple):
    """Who leaves: a static member may be named by its instance alone."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """-> Left. Below v3 there is one member, and its code is the answer's."""

    group: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class LeaveGroupReply:
    """`codes` in the order of the request's members; empty when `code` is not NONE."""

    code: Code
    codes: tuple[Code, ...] = ()


# -- offsets ----------------------------------------------------------------------------------------------------------


class PartitionOffset(NamedTuple):
    """One partition's offset, as it is to be kept. `topic_id`: "" when the client names topics."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """-> Committed. Topics that do not exist are the handler's to refuse. `retention_ms`: v2-4 only.
    GROUP_ID_NOT_FOUND reads ILLEGAL_GENERATION below v9."""

    group: str
    offsets: tuple[PartitionOffset, ...]
    generation: int = NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None
    retention_ms: int = NO_RETENTION


@dataclass(frozen=True, slots=True)
class CommitOffsetsReply:
    """One code for each row of the request, in its order."""

    codes: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class FetchOffsets:
    """-> Fetched. `partitions` None: all that are committed. Member and epoch: v9+ (-1 and None: not checked)."""

    group: str
    partitions: tuple[tuple[str, int], ...] | None
    member_id: str | None = None
    member_epoch: int = -1
    topic_ids: tuple[tuple[str, str], ...] = ()
    """(name, id) of topics asked by id: an offset that was committed for another topic of that name is none."""


@dataclass(frozen=True, slots=True)
class FetchOffsetsReply:
    """Rows in the order of the request (by topic and partition when all were asked); NO_OFFSET where there is none."""

    code: Code
    offsets: tuple[PartitionOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """-> Deleted, with one code for each partition."""

    group: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class DeleteReply:
    """`codes` in the order of the request; empty when `code` is not NONE, and for a whole group."""

    code: Code
    codes: tuple[Code, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """-> Deleted. An event of the cluster: the offsets of these topics go, in every group of the shard."""

    topics: tuple[str, ...]


# -- administration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DescribeGroup:
    """-> Described."""

    group: str


class DescribedMember(NamedTuple):
    """A member as administrators see it. The metadata is empty unless the group is Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribeGroupReply:
    """An unknown group is Dead with GROUP_ID_NOT_FOUND; below v6 the code reads NONE."""

    code: Code
    group: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class ListGroups:
    """-> Listed: the groups of this shard. Empty filters let all pass; case does not count."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class ListedGroup(NamedTuple):
    """One line of the list; `type` is "classic"."""

    group: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class ListGroupsReply:
    """In the order of their names."""

    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """-> Deleted."""

    group: str


Request = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | TopicsDeleted
    | DescribeGroup
    | ListGroups
    | DeleteGroup
)
Reply = (
    JoinGroupReply
    | SyncGroupReply
    | HeartbeatReply
    | LeaveGroupReply
    | CommitOffsetsReply
    | FetchOffsetsReply
    | DeleteReply
    | DescribeGroupReply
    | ListGroupsReply
)
