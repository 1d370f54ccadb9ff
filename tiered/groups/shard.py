"""The group coordinator of one partition of `__consumer_offsets`, as a pure shard.

Hard state (committed offsets, and each group as its last rebalance left it) changes only by `apply`; it is what the
log holds, and all that a reply promises for good. Joins under way, parked callers and deadlines are soft: `decide` and
`due` change them, and a coordinator that moved begins without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tiered.errors import Code
from tiered.groups import requests
from tiered.groups.admin import bury, delete_group, describe, list_groups
from tiered.groups.classic import ClassicGroup, State
from tiered.groups.decision import JOIN, MEMBER, SWEEP, SYNC, Live, Turn
from tiered.groups.expiry import expired
from tiered.groups.invariants import broken
from tiered.groups.join import join
from tiered.groups.limits import GroupSettings
from tiered.groups.log_state import LogState
from tiered.groups.member_requests import beat, leave, sync
from tiered.groups.offsets import commit, delete, delete_topics, fetch, tombstone
from tiered.groups.rebalance import join_is_due, member_is_due, prepare, sync_is_due
from tiered.groups.records import Record, read_group
from tiered.groups.requests import Now, Reply, Request

SWEEP_OFFSETS = 10_000
"""Offsets that are looked at in one turn of the sweep, or a few more: no turn takes long."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What to append, and whom to answer once that and all before it is committed."""

    changes: tuple[Record, ...] = ()
    replies: tuple[tuple[int, Reply], ...] = ()


class GroupShard:
    """The changes of an outcome are applied already when the carrier gets it: it appends them, in order, and gives the
    replies out once they are committed. When an append fails the shard is dropped and loaded anew. `draw` gives a fresh
    UUID in text form, `held_elsewhere` the bytes that other shards of the broker hold. `next_due_ms` (None: never) is
    on the monotonic clock; look at it after each call."""

    def __init__(
        self, settings: GroupSettings, draw: Callable[[], str], held_elsewhere: Callable[[], int] = lambda: 0
    ) -> None:
        self.live = Live(settings, draw, held_elsewhere=held_elsewhere)
        self._sweeping: list[str] = []

    # -- the log -------------------------------------------------------------------------------------------------------

    def load(self, records: Iterable[Record]) -> None:
        """From an image, then from the log, in order; records of other kinds and of other formats are passed over."""
        self.apply(records)

    def loaded(self, now: Now) -> None:
        """All is read: groups come alive, each member with a fresh session; one that is over the limit is to shrink."""
        turn = Turn(self.live, now)
        for name, raw in self.live.log.groups.items():
            group = self.live.groups[name] = ClassicGroup.from_value(name, read_group(raw), self.live.said)
            for member in group.members.values():
                turn.expect(group, member)
            if len(group.members) > self.live.settings.size_max:
                prepare(turn, group, f"the group has more than {self.live.settings.size_max} members")
        for name in self.live.log.offsets:
            if name not in self.live.groups:
                self.live.groups[name] = ClassicGroup(name, now.wall_ms, self.live.said)
        self._sweep_later(now)

    def apply(self, records: Iterable[Record]) -> None:
        """The only way in which hard state changes."""
        self.live.log.apply(records)

    def image(self) -> list[Record]:
        """The hard state, as the fewest records that give it."""
        return list(self.live.log.image())

    @property
    def hard(self) -> LogState:
        """What the log holds."""
        return self.live.log

    # -- decisions -----------------------------------------------------------------------------------------------------

    def decide(self, request: Request, now: Now, token: int) -> Outcome:
        """Answers `token` now or in a later outcome. Changes promise what the replies of this outcome say."""
        turn = Turn(self.live, now)
        match request:
            case requests.Heartbeat():
                turn.answer(token, beat(turn, request))
            case requests.CommitOffsets():
                turn.answer(token, commit(turn, request))
            case requests.FetchOffsets():
                turn.answer(token, fetch(self.live.log, request))
            case requests.JoinGroup():
                join(turn, request, token)
            case requests.SyncGroup():
                sync(turn, request, token)
            case requests.LeaveGroup():
                turn.answer(token, leave(turn, request))
            case requests.DeleteOffsets():
                turn.answer(token, delete(turn, request))
            case requests.TopicsDeleted():
                delete_topics(turn, request.topics)
                turn.answer(token, requests.Deleted(Code.NONE))
            case requests.DescribeGroup():
                turn.answer(token, describe(self.live.groups, request))
            case requests.ListGroups():
                turn.answer(token, list_groups(self.live.groups.values(), request))
            case requests.DeleteGroup():
                turn.answer(token, delete_group(turn, request))
        return Outcome(tuple(turn.changes), tuple(turn.replies))

    def due(self, now: Now) -> Outcome:
        """Does all whose time has come."""
        turn = Turn(self.live, now)
        for kind, name, member_id in self.live.deadlines.take(now.mono_ms):
            if kind == SWEEP:
                self._sweep(turn)
                continue
            group = self.live.groups[name]
            if kind == MEMBER:
                member_is_due(turn, group, member_id)
            elif kind == JOIN:
                join_is_due(turn, group)
            elif kind == SYNC:
                sync_is_due(turn, group)
        return Outcome(tuple(turn.changes), tuple(turn.replies))

    @property
    def next_due_ms(self) -> int | None:
        """When `due` has something to do."""
        return self.live.deadlines.next()

    def forget(self, token: int) -> None:
        """Whoever waits under this token is gone; a reply to it is not given any more. A new member that was never
        told its id cannot come back by it, so it does not hold up the others."""
        waiter = self.live.waiting.pop(token, None)
        if waiter is not None and waiter.member.is_new and not waiter.member.knows_id:
            self.live.deadlines.set((MEMBER, waiter.group, waiter.member.member_id), 0)

    def abandon(self) -> tuple[int, ...]:
        """The tokens that still wait (the shard is given up: the carrier refuses them)."""
        tokens = tuple(self.live.waiting)
        self.live.waiting.clear()
        return tokens

    def check(self) -> tuple[str, ...]:
        """What should hold and does not, in words."""
        return tuple(broken(self.live))

    # -- expiry --------------------------------------------------------------------------------------------------------

    def _sweep(self, turn: Turn) -> None:
        """Offsets whose time has come go, and with the last of them an empty group; a slice in each turn."""
        if not self._sweeping:
            self._sweeping = sorted(self.live.groups, reverse=True)
        looked_at = 0
        while self._sweeping and looked_at < SWEEP_OFFSETS:
            group = self.live.groups.get(self._sweeping.pop())
            if group is not None:
                looked_at += self._sweep_group(turn, group)
        if self._sweeping:
            self.live.deadlines.set((SWEEP, "", ""), turn.now.mono_ms + 1)
        else:
            self._sweep_later(turn.now)

    def _sweep_group(self, turn: Turn, group: ClassicGroup) -> int:
        log = self.live.log
        offsets = log.offsets.get(group.name, {})
        count = sum(map(len, offsets.values()))
        gone = list(expired(group, offsets, turn.now.wall_ms, self.live.settings.retention_ms))
        turn.write(*[tombstone(group.name, topic, partition) for topic, partition in gone])
        if group.state is State.EMPTY and not group.pending and group.name not in log.offsets:
            bury(turn, group)
        return count + 1

    def _sweep_later(self, now: Now) -> None:
        self.live.deadlines.set((SWEEP, "", ""), now.mono_ms + self.live.settings.retention_check_ms)
