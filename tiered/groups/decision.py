"""One decision in progress: the state that it reads and changes, and the records, replies and events that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.deadlines import Deadlines
from tiered.groups.classic import ClassicGroup
from tiered.groups.consumer.epochs import SubscribedTopic
from tiered.groups.holders import GroupBytes, GroupHolders
from tiered.groups.limits import MIGRATION_POLICIES, ConsumerTimeouts, GroupSettings, MigrationPolicy
from tiered.groups.log_state import LogState
from tiered.groups.member import ClassicGroupMember
from tiered.groups.records import NO_TIME, OffsetKey, OffsetValue, offset_key, offset_value
from tiered.groups.requests import Event, Reply
from tiered.quotas.shares import GROUP_BYTES, Holdings
from tiered.shard import CoordinatorRecord, CoordinatorResult, Now, ProducerIdAndEpoch

MEMBER, JOIN, SYNC, EXPIRY = "member", "join", "sync", "sweep"
"""Kinds of deadlines: a member's session, the wait for JoinGroup, the wait for SyncGroup, the next expiry of offsets.
"""
CONSUMER_SESSION, CONSUMER_REBALANCE = "consumer session", "consumer rebalance"
"""Kinds of deadlines of members of consumer groups: the session, and the wait until a member has revoked partitions."""
SHARE_SESSION = "share session"
"""Kind of deadline of members of share groups."""


class ParkedRequest(NamedTuple):
    """Group and member of a request that waits for its reply."""

    group: str
    member: ClassicGroupMember


@dataclass(slots=True)
class GroupState:
    """All state of a shard: the state of its log, and the soft state beside it."""

    settings: GroupSettings
    new_uuid: Callable[[], str]
    log_state: LogState = field(default_factory=LogState)
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    parked_requests: dict[int, ParkedRequest] = field(default_factory=dict)
    protocol_bytes: GroupBytes = field(default_factory=GroupBytes)
    holders: GroupHolders = field(init=False)
    holdings: Holdings = field(init=False)
    """The memory of all groups of the broker. By default this shard is the only one."""
    find_topic_id: Callable[[str], str] = lambda topic: ""
    """Returns the id of the topic that has a name now; "" if there is none."""
    find_topic: Callable[[str], SubscribedTopic | None] = lambda topic: None
    """Returns the topic that has a name now; None if there is none."""
    metadata_version: Callable[[], int] = lambda: 0
    """Returns the version of the cluster's metadata: `find_topic` returns the same while it stays."""
    match_topics: Callable[[str], frozenset[str]] | None = None
    """Returns the names of all topics that a regular expression matches as a whole. Raises `Refused` if it is none.
    None: there is no engine for regular expressions."""
    find_own_timeouts: Callable[[str], ConsumerTimeouts | None] = lambda group: None
    """Returns the timeouts of a group with settings of its own; None for a group without."""
    find_migration_policy: Callable[[], MigrationPolicy] = lambda: MIGRATION_POLICIES["bidirectional"]
    """Returns the policy in force now."""
    issued_member_ids: dict[tuple[str, str], None] = field(default_factory=dict)
    """(group, member id) of the ids given out last, oldest first. Some of them are used or removed by now."""

    def __post_init__(self) -> None:
        self.holders = GroupHolders(self.log_state.sizes, self.protocol_bytes)
        self.holdings = Holdings(
            GROUP_BYTES, lambda: self.settings.bytes_max, lambda: self.memory_bytes, lambda: (self.holders.by_holder,)
        )

    def find_timeouts(self, group: str) -> ConsumerTimeouts:
        """Returns the timeouts of the members of a consumer group, which may differ at each call."""
        settings = self.settings
        return self.find_own_timeouts(group) or ConsumerTimeouts(
            settings.consumer_session_timeout_ms, settings.consumer_heartbeat_interval_ms
        )

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory this shard takes: protocols of members, and the state of the log."""
        return self.protocol_bytes.total + self.log_state.memory_bytes

    def find_room(self, group: str) -> int:
        """Returns how many bytes more a group may take. Looks at all shards of the broker, once for a request."""
        return self.holdings.find_room(self.holders.find(group))

    def has_room(self, group: str, size: int) -> bool:
        """True if a group may take `size` bytes more, always for 0 or less. Reports a refusal."""
        if size <= 0 or size <= self.find_room(group):
            return True
        self.report_refusal(group, size)
        return False

    def report_refusal(self, group: str, size: int) -> None:
        """Reports that a group may not take `size` bytes more. The reply has a code alone."""
        self.holdings.refuse(self.holders.find(group), size)


class Decision:
    """Collects records, replies and events. Each record changes the state at once: the rest of the decision sees it."""

    __slots__ = ("events", "now", "records", "replies", "state")

    def __init__(self, state: GroupState, now: Now) -> None:
        self.state = state
        self.now = now
        self.records: list[CoordinatorRecord] = []
        self.replies: list[tuple[int, Reply]] = []
        self.events: tuple[Event, ...] = ()

    def result(self) -> CoordinatorResult[Reply, Event]:
        """Returns what was decided."""
        return CoordinatorResult(tuple(self.records), tuple(self.replies), self.events)

    def write(self, *records: CoordinatorRecord) -> None:
        """Adds records for the log, and applies them."""
        self.records += records
        self.state.log_state.apply(records)

    def write_offset(self, key: OffsetKey, value: OffsetValue, producer: ProducerIdAndEpoch | None = None) -> None:
        """Does the same for one offset, without decoding the record that it has just encoded: that is most of the work
        of a commit for ten thousand partitions."""
        record = CoordinatorRecord(offset_key(*key), offset_value(value), producer)
        self.records.append(record)
        if value.expire_ms == NO_TIME:
            self.state.log_state.apply_offset(key, value, producer)
        else:  # such a record does not hold all fields
            self.state.log_state.apply((record,))

    def report(self, event: Event) -> None:
        """Adds an event for logs and metrics."""
        self.events += (event,)

    def reply(self, token: int, reply: Reply) -> None:
        """Replies to the request that is decided."""
        self.replies.append((token, reply))

    def reply_to_parked(self, token: int, reply: Reply) -> None:
        """Replies to a parked request, unless its caller cancelled it."""
        if self.state.parked_requests.pop(token, None) is not None:
            self.replies.append((token, reply))

    def park(self, token: int, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """Parks the request under `token`: a later decision replies to it."""
        self.state.parked_requests[token] = ParkedRequest(group.name, member)

    def schedule_heartbeat(
        self, group: ClassicGroup, member: ClassicGroupMember, timeout_ms: int | None = None
    ) -> None:
        """Restarts the member's session: the next heartbeat is due in its session timeout, or in `timeout_ms`."""
        session_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.state.deadlines.set((MEMBER, group.name, member.member_id), self.now.mono_ms + session_ms)

    def cancel_heartbeat(self, group: ClassicGroup, member_id: str) -> None:
        """Removes the deadline of the member's session."""
        self.state.deadlines.cancel((MEMBER, group.name, member_id))
