"""One decision under way: what it may look at, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.groups.classic import ClassicGroup, ProtocolBytes
from tiered.groups.deadlines import Deadlines
from tiered.groups.limits import GroupSettings
from tiered.groups.log_state import LogState
from tiered.groups.member import ClassicGroupMember
from tiered.groups.records import CoordinatorRecord
from tiered.groups.requests import Now, Reply

MEMBER, JOIN, SYNC, EXPIRY = "member", "join", "sync", "sweep"
"""What can be due: a member shows no life; a rebalance waits no longer for joins; nor for syncs; offsets expire."""


class ParkedRequest(NamedTuple):
    """Who waits for an answer."""

    group: str
    member: ClassicGroupMember


@dataclass(slots=True)
class GroupState:
    """All that a shard is made of: the log's state, and the soft state beside it."""

    settings: GroupSettings
    new_uuid: Callable[[], str]
    log_state: LogState = field(default_factory=LogState)
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    parked_requests: dict[int, ParkedRequest] = field(default_factory=dict)
    protocol_bytes: ProtocolBytes = field(default_factory=ProtocolBytes)
    other_shards_bytes: Callable[[], int] = lambda: 0
    """Bytes that the other shards of this broker hold."""
    issued_member_ids: dict[tuple[str, str], None] = field(default_factory=dict)
    """Group and member id of the ids given out last, oldest first; some are used or gone by now."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that this shard holds, about: words of members, and what the log keeps."""
        return self.protocol_bytes.total + self.log_state.memory_bytes

    def has_room(self, size: int) -> bool:
        """Whether the groups of this broker may hold so much more; they may always hold less."""
        return size <= 0 or self.memory_bytes + self.other_shards_bytes() + size <= self.settings.bytes_max


class Decision:
    """Collects changes, which hold for the rest of the decision already, and replies."""

    __slots__ = ("now", "records", "replies", "state")

    def __init__(self, state: GroupState, now: Now) -> None:
        self.state = state
        self.now = now
        self.records: list[CoordinatorRecord] = []
        self.replies: list[tuple[int, Reply]] = []

    def write(self, *records: CoordinatorRecord) -> None:
        """To the log."""
        self.records += records
        self.state.log_state.apply(records)

    def reply(self, token: int, reply: Reply) -> None:
        """To the caller of this decision."""
        self.replies.append((token, reply))

    def reply_to_parked(self, token: int, reply: Reply) -> None:
        """To one who waited, unless it is gone."""
        if self.state.parked_requests.pop(token, None) is not None:
            self.replies.append((token, reply))

    def park(self, token: int, group: ClassicGroup, member: ClassicGroupMember) -> None:
        """The answer comes later."""
        self.state.parked_requests[token] = ParkedRequest(group.name, member)

    def schedule_heartbeat(
        self, group: ClassicGroup, member: ClassicGroupMember, timeout_ms: int | None = None
    ) -> None:
        """The member shows life within its session timeout."""
        session_ms = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.state.deadlines.set((MEMBER, group.name, member.member_id), self.now.mono_ms + session_ms)

    def cancel_heartbeat(self, group: ClassicGroup, member_id: str) -> None:
        """Nobody waits for this member any more."""
        self.state.deadlines.cancel((MEMBER, group.name, member_id))
