"""One decision under way: what it may look at, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.groups.classic import ClassicGroup, Said
from tiered.groups.deadlines import Deadlines
from tiered.groups.limits import GroupSettings
from tiered.groups.log_state import LogState
from tiered.groups.member import Member
from tiered.groups.records import Record
from tiered.groups.requests import Now, Reply

MEMBER, JOIN, SYNC, SWEEP = "member", "join", "sync", "sweep"
"""What can be due: a member shows no life; a rebalance waits no longer for joins; nor for syncs; offsets expire."""


class Waiter(NamedTuple):
    """Who waits for an answer."""

    group: str
    member: Member


@dataclass(slots=True)
class Live:
    """All that a shard is made of: the log's state, and the soft state beside it."""

    settings: GroupSettings
    draw: Callable[[], str]
    log: LogState = field(default_factory=LogState)
    groups: dict[str, ClassicGroup] = field(default_factory=dict)
    deadlines: Deadlines = field(default_factory=Deadlines)
    waiting: dict[int, Waiter] = field(default_factory=dict)
    said: Said = field(default_factory=Said)
    held_elsewhere: Callable[[], int] = lambda: 0
    """Bytes that the other shards of this broker hold."""
    given: dict[tuple[str, str], None] = field(default_factory=dict)
    """Group and member id of the ids given out last, oldest first; some are used or gone by now."""

    @property
    def held(self) -> int:
        """Bytes of memory that this shard holds, about: words of members, and what the log keeps."""
        return self.said.bytes + self.log.held

    def has_room(self, size: int) -> bool:
        """Whether the groups of this broker may hold so much more; they may always hold less."""
        return size <= 0 or self.held + self.held_elsewhere() + size <= self.settings.bytes_max


class Turn:
    """Collects changes, which hold for the rest of the decision already, and replies."""

    __slots__ = ("changes", "live", "now", "replies")

    def __init__(self, live: Live, now: Now) -> None:
        self.live = live
        self.now = now
        self.changes: list[Record] = []
        self.replies: list[tuple[int, Reply]] = []

    def write(self, *records: Record) -> None:
        """To the log."""
        self.changes += records
        self.live.log.apply(records)

    def answer(self, token: int, reply: Reply) -> None:
        """To the caller of this decision."""
        self.replies.append((token, reply))

    def release(self, token: int, reply: Reply) -> None:
        """To one who waited, unless it is gone."""
        if self.live.waiting.pop(token, None) is not None:
            self.replies.append((token, reply))

    def park(self, token: int, group: ClassicGroup, member: Member) -> None:
        """The answer comes later."""
        self.live.waiting[token] = Waiter(group.name, member)

    def expect(self, group: ClassicGroup, member: Member, timeout_ms: int | None = None) -> None:
        """The member shows life within its session timeout."""
        after = member.session_timeout_ms if timeout_ms is None else timeout_ms
        self.live.deadlines.set((MEMBER, group.name, member.member_id), self.now.mono_ms + after)

    def let_go(self, group: ClassicGroup, member_id: str) -> None:
        """Nobody waits for this member any more."""
        self.live.deadlines.cancel((MEMBER, group.name, member_id))
