"""What holds of a shard between any two decisions. Tests ask after each one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tiered.groups.classic import ClassicGroup, State
from tiered.groups.decision import JOIN, MEMBER, SWEEP, SYNC, Live
from tiered.groups.records import read_group


def broken(live: Live) -> Iterator[str]:
    """What does not hold, in words."""
    known = set(live.log.groups) | set(live.log.offsets)
    if not known <= set(live.groups):
        yield f"the log has groups that are not alive: {known - set(live.groups)}"
    for name, group in live.groups.items():
        for what in (*_members(group), *_state(group, live), *_deadlines(group, live)):
            yield f"group {name} in {group.state.value}: {what}"
    for kind, name, member_id in live.deadlines:
        found = live.groups.get(name)
        if kind != SWEEP and found is None:
            yield f"something of {name} is due, which is no group"
        if kind == MEMBER and found is not None and member_id not in {*found.members, *found.pending}:
            yield f"life is expected of {member_id}, who is no member of {name}"
    tokens = Counter(
        token
        for group in live.groups.values()
        for member in group.members.values()
        for token in (member.join_token, member.sync_token)
        if token is not None
    )
    if not set(live.waiting) <= set(tokens) or any(count > 1 for count in tokens.values()):
        yield f"callers wait for nothing: {set(live.waiting) - set(tokens)}, or twice"


def _members(group: ClassicGroup) -> Iterator[str]:
    members = group.members
    if any(member.member_id != member_id for member_id, member in members.items()):
        yield "a member stands under another id"
    static = {member.instance_id: member.member_id for member in members.values() if member.instance_id is not None}
    if static != group.static:
        yield f"static members {group.static} are {static}"
    if group.pending & set(members) or not group.unsynced <= set(members):
        yield "ids that wait are not those of members to be, or to sync"
    if group.joined != sum(member.join_token is not None for member in members.values()):
        yield f"{group.joined} are counted as joined"
    if (group.leader is None) == bool(members) or (members and group.leader not in members):
        yield f"leader {group.leader!r} is no member"


def _state(group: ClassicGroup, live: Live) -> Iterator[str]:
    state, members = group.state, group.members.values()
    if state is State.DEAD or ((state is State.EMPTY) != (not members) and state is not State.PREPARING):
        yield f"{len(members)} members"
    if state is not State.PREPARING and (group.joined or group.gathering is not None):
        yield "members wait for a rebalance that nobody prepares"
    if state is not State.COMPLETING and any(member.sync_token is not None for member in members):
        yield "members wait for an assignment that nobody makes"
    if state is State.COMPLETING and group.leader not in group.unsynced:
        yield "the leader has synced, and nothing came of it"
    if state in (State.STABLE, State.COMPLETING):
        names = [{name for name, _ in member.protocols} for member in members]
        if not all(group.protocol in each for each in names):
            yield f"not all support protocol {group.protocol!r}"
    kept = live.log.groups.get(group.name)
    settled = state is State.STABLE or (state is State.EMPTY and group.generation > 0)
    if settled and (kept is None or read_group(kept) != group.value()):
        yield "the log does not have what members were told"


def _deadlines(group: ClassicGroup, live: Live) -> Iterator[str]:
    due, name = live.deadlines, group.name
    if (group.state is State.PREPARING) != ((JOIN, name, "") in due):
        yield "a rebalance without an end, or an end without a rebalance"
    if (group.state in (State.COMPLETING, State.STABLE) and bool(group.unsynced)) != ((SYNC, name, "") in due):
        yield "syncs are awaited without an end, or not at all"
    for member in group.members.values():
        if not member.waits and (MEMBER, name, member.member_id) not in due:
            yield f"nobody would miss member {member.member_id}"
    for member_id in group.pending:
        if (MEMBER, name, member_id) not in due:
            yield f"id {member_id} is given out for ever"
