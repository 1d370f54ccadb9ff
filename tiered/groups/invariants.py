"""Rules of a shard's state between any two decisions. Tests check them after each one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.consumer.invariants import find_consumer_violations
from tiered.groups.decision import (
    CONSUMER_REBALANCE,
    CONSUMER_SESSION,
    EXPIRY,
    JOIN,
    MEMBER,
    SHARE_SESSION,
    SYNC,
    GroupState,
)
from tiered.groups.records import read_group
from tiered.groups.share.invariants import find_share_violations


def find_violations(shard_state: GroupState) -> Iterator[str]:
    """Yields a sentence for each broken rule."""
    known = set(shard_state.log_state.groups) | set(shard_state.log_state.offsets)
    known |= set(shard_state.log_state.pending.groups())
    consumer_groups = shard_state.log_state.consumer_groups
    if not known <= {*shard_state.groups, *consumer_groups}:
        yield f"the log has groups that the shard lacks: {known - {*shard_state.groups, *consumer_groups}}"
    if not consumer_groups.keys().isdisjoint(shard_state.groups):
        yield f"groups of both protocols: {consumer_groups.keys() & shard_state.groups.keys()}"
    for consumer_group in consumer_groups.values():
        for what in find_consumer_violations(consumer_group, shard_state.deadlines):
            yield f"consumer group {consumer_group.name}: {what}"
    share_groups = shard_state.log_state.share_groups
    if not share_groups.keys().isdisjoint({*shard_state.groups, *consumer_groups}):
        yield f"share groups are groups of another type: {share_groups.keys()}"
    for share_group in share_groups.values():
        for what in find_share_violations(share_group, shard_state.deadlines):
            yield f"share group {share_group.name}: {what}"
    for name, group in shard_state.groups.items():
        for what in (*_check_members(group), *_check_state(group, shard_state), *_check_deadlines(group, shard_state)):
            yield f"group {name} in {group.state.value}: {what}"
    for kind, name, member_id in shard_state.deadlines:
        if kind in (CONSUMER_SESSION, CONSUMER_REBALANCE):
            if name not in consumer_groups or member_id not in consumer_groups[name].members:
                yield f"a deadline names {member_id}, which is no member of consumer group {name}"
            continue
        if kind == SHARE_SESSION:
            if name not in share_groups or member_id not in share_groups[name].members:
                yield f"a deadline names {member_id}, which is no member of share group {name}"
            continue
        found = shard_state.groups.get(name)
        if kind != EXPIRY and found is None:
            yield f"a deadline names {name}, which is no group"
        if kind == MEMBER and found is not None and member_id not in {*found.members, *found.pending_members}:
            yield f"a session deadline names {member_id}, which is no member of {name}"
    yield from shard_state.holders.find_violations({*shard_state.groups, *consumer_groups, *share_groups})
    tokens = Counter(
        token
        for group in shard_state.groups.values()
        for member in group.members.values()
        for token in (member.join_token, member.sync_token)
        if token is not None
    )
    if not set(shard_state.parked_requests) <= set(tokens) or any(count > 1 for count in tokens.values()):
        yield f"parked requests belong to no member or to two: {set(shard_state.parked_requests) - set(tokens)}"


def _check_members(group: ClassicGroup) -> Iterator[str]:
    members = group.members
    if any(member.member_id != member_id for member_id, member in members.items()):
        yield "a member is listed under another id"
    static = {member.instance_id: member.member_id for member in members.values() if member.instance_id is not None}
    if static != group.static_members:
        yield f"static members are listed as {group.static_members} but are {static}"
    if group.pending_members & set(members) or not group.pending_sync_members <= set(members):
        yield "a pending id is a member already, or a pending SyncGroup is of no member"
    if group.awaiting_join_count != sum(member.join_token is not None for member in members.values()):
        yield f"{group.awaiting_join_count} members are counted as joined"
    if (group.leader is None) == bool(members) or (members and group.leader not in members):
        yield f"leader {group.leader!r} is no member"


def _check_state(group: ClassicGroup, shard_state: GroupState) -> Iterator[str]:
    state, members = group.state, group.members.values()
    if state is ClassicGroupState.DEAD or (
        (state is ClassicGroupState.EMPTY) != (not members) and state is not ClassicGroupState.PREPARING
    ):
        yield f"{len(members)} members do not fit the state"
    if state is not ClassicGroupState.PREPARING and (group.awaiting_join_count or group.initial_delay is not None):
        yield "members wait for a rebalance that is not in progress"
    if state is not ClassicGroupState.COMPLETING and any(member.sync_token is not None for member in members):
        yield "members wait for an assignment outside of CompletingRebalance"
    if state is ClassicGroupState.COMPLETING and group.leader not in group.pending_sync_members:
        yield "the leader has sent SyncGroup, but the group did not become stable"
    if state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
        names = [{name for name, _ in member.protocols} for member in members]
        if not all(group.protocol in each for each in names):
            yield f"not all support protocol {group.protocol!r}"
    stored_value = shard_state.log_state.groups.get(group.name)
    is_stored = state is ClassicGroupState.STABLE or (state is ClassicGroupState.EMPTY and group.generation > 0)
    if is_stored and (stored_value is None or read_group(stored_value) != group.to_value()):
        yield "the log differs from the replies to members"


def _check_deadlines(group: ClassicGroup, shard_state: GroupState) -> Iterator[str]:
    deadlines, name = shard_state.deadlines, group.name
    if (group.state is ClassicGroupState.PREPARING) != ((JOIN, name, "") in deadlines):
        yield "a rebalance without a deadline, or a deadline without a rebalance"
    if (
        group.state in (ClassicGroupState.COMPLETING, ClassicGroupState.STABLE) and bool(group.pending_sync_members)
    ) != ((SYNC, name, "") in deadlines):
        yield "pending SyncGroups without a deadline, or a deadline without pending SyncGroups"
    for member in group.members.values():
        if not member.has_satisfied_heartbeat and (MEMBER, name, member.member_id) not in deadlines:
            yield f"member {member.member_id} has no session deadline"
    for member_id in group.pending_members:
        if (MEMBER, name, member_id) not in deadlines:
            yield f"unused id {member_id} has no deadline"
