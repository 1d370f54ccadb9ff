"""A group's way from one generation to the next: members gather, the leader assigns, all work.

    Empty or Stable -- prepare --> Preparing -- complete_join --> Completing -- assign --> Stable

What is promised to a member for good, its assignment, stands in the log before it is told. A generation that is only
being formed does not: a coordinator that moved goes on from the one before, and its members join again.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.errors import Code
from tiered.groups.classic import REASON_MAX, ClassicGroup, ClassicGroupState, InitialRebalanceDelay
from tiered.groups.decision import JOIN, MEMBER, SYNC, Decision
from tiered.groups.member import ClassicGroupMember
from tiered.groups.records import group_record
from tiered.groups.requests import JoinGroupReply, SyncGroupReply

# -- gathering --------------------------------------------------------------------------------------------------------


def prepare_or_complete_join(decision: Decision, group: ClassicGroup, reason: str) -> None:
    """Something changed: a rebalance begins, or the one that gathers already may be complete."""
    if group.state is ClassicGroupState.PREPARING:
        complete_join_if_all_joined(decision, group)
    else:
        prepare_rebalance(decision, group, reason)


def prepare_rebalance(decision: Decision, group: ClassicGroup, reason: str) -> None:
    """Members are to join again; those that wait for an assignment are told so."""
    if group.state is ClassicGroupState.COMPLETING:
        fail_pending_syncs(decision, group, Code.REBALANCE_IN_PROGRESS)
    group.pending_sync_members.clear()
    decision.state.deadlines.cancel((SYNC, group.name, ""))
    group.reason = reason[:REASON_MAX]
    first = group.state is ClassicGroupState.EMPTY
    group.transition_to(ClassicGroupState.PREPARING, decision.now.wall_ms)
    timeout = group.rebalance_timeout_ms()
    if first:
        delay = decision.state.settings.initial_rebalance_delay_ms
        group.initial_delay = InitialRebalanceDelay(delay, max(timeout - delay, 0))
        schedule_join_timeout(decision, group, delay)
    elif group.has_all_members_joined():
        complete_join(decision, group)
    else:
        schedule_join_timeout(decision, group, timeout)


def schedule_join_timeout(decision: Decision, group: ClassicGroup, timeout_ms: int) -> None:
    """Not longer than this."""
    decision.state.deadlines.set((JOIN, group.name, ""), decision.now.mono_ms + timeout_ms)


def complete_join_if_all_joined(decision: Decision, group: ClassicGroup) -> None:
    """The first rebalance waits its delay even then."""
    if group.state is ClassicGroupState.PREPARING and group.initial_delay is None and group.has_all_members_joined():
        complete_join(decision, group)


def on_join_timeout(decision: Decision, group: ClassicGroup) -> None:
    """Enough waited; unless it is the first rebalance and somebody came in the meantime."""
    initial_delay = group.initial_delay
    if initial_delay is not None and initial_delay.new_member_added and initial_delay.remaining_ms > 0:
        delay = min(decision.state.settings.initial_rebalance_delay_ms, initial_delay.remaining_ms)
        group.initial_delay = InitialRebalanceDelay(delay, max(initial_delay.remaining_ms - initial_delay.delay_ms, 0))
        schedule_join_timeout(decision, group, delay)
    else:
        complete_join(decision, group)


def complete_join(decision: Decision, group: ClassicGroup) -> None:
    """Who has joined is in the next generation; static members stay in it while their session lasts."""
    for member in [each for each in group.members.values() if each.join_token is None and each.instance_id is None]:
        group.remove(member.member_id)
        decision.cancel_heartbeat(group, member.member_id)
    group.initial_delay = None
    decision.state.deadlines.cancel((JOIN, group.name, ""))
    if not group.members:
        become_empty(decision, group)
        return
    if group.leader is None or group.members[group.leader].join_token is None:
        new_leader = next((each.member_id for each in group.members.values() if each.join_token is not None), None)
        if new_leader is None:
            schedule_join_timeout(decision, group, group.rebalance_timeout_ms())
            return
        group.leader = new_leader
    group.generation += 1
    group.protocol = group.select_protocol()
    group.subscribed_topics = group.compute_subscribed_topics()
    group.transition_to(ClassicGroupState.COMPLETING, decision.now.wall_ms)
    group.pending_sync_members = set(group.members)
    for member in group.members.values():
        reply_to_join(decision, group, member)
        member.is_new, member.knows_id = False, True
        decision.schedule_heartbeat(group, member)
    decision.state.deadlines.set((SYNC, group.name, ""), decision.now.mono_ms + group.rebalance_timeout_ms())


def reply_to_join(decision: Decision, group: ClassicGroup, member: ClassicGroupMember) -> None:
    """The member is in this generation; the leader is told who else is."""
    token = member.join_token
    if token is not None:
        group.set_join_token(member, None)
        decision.reply_to_parked(token, make_join_reply(group, member))


def make_join_reply(group: ClassicGroup, member: ClassicGroupMember) -> JoinGroupReply:
    """The answer to a member of the current generation."""
    leads = group.leader == member.member_id
    return JoinGroupReply(
        Code.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        members=group.members_for_leader() if leads else (),
    )


def become_empty(decision: Decision, group: ClassicGroup) -> None:
    """Nobody is left: that is a generation of its own, and the log knows since when (offsets expire from then)."""
    group.generation += 1
    group.protocol = group.leader = None
    group.subscribed_topics = group.compute_subscribed_topics()
    group.transition_to(ClassicGroupState.EMPTY, decision.now.wall_ms)
    decision.write(group_record(group.name, group.to_value()))


# -- assigning --------------------------------------------------------------------------------------------------------


def apply_assignments(decision: Decision, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
    """The leader has said who gets what: written down, then told to all that wait."""
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.transition_to(ClassicGroupState.STABLE, decision.now.wall_ms)
    record = group_record(group.name, group.to_value())
    if record.value is not None and len(record.value) > decision.state.settings.record_bytes_max:
        fail_pending_syncs(decision, group, Code.UNKNOWN_SERVER_ERROR)
        prepare_rebalance(decision, group, f"the group takes {len(record.value)} bytes, too many for the log")
        return
    if not decision.state.has_room(
        len(record.value or b"") - len(decision.state.log_state.groups.get(group.name, b""))
    ):
        fail_pending_syncs(decision, group, Code.COORDINATOR_NOT_AVAILABLE)
        prepare_rebalance(decision, group, "the groups of this broker hold as much as they may")
        return
    decision.write(record)
    for member in group.members.values():
        reply_to_sync(decision, group, member, make_sync_reply(group, member))


def fail_pending_syncs(decision: Decision, group: ClassicGroup, code: Code) -> None:
    """The generation comes to nothing: those that wait for an assignment hear why."""
    for member in group.members.values():
        member.assignment = b""
        reply_to_sync(decision, group, member, SyncGroupReply(code))


def reply_to_sync(decision: Decision, group: ClassicGroup, member: ClassicGroupMember, reply: SyncGroupReply) -> None:
    """Whoever waited did not beat meanwhile: its session begins anew."""
    token, member.sync_token = member.sync_token, None
    if token is not None:
        decision.reply_to_parked(token, reply)
        decision.schedule_heartbeat(group, member)


def make_sync_reply(group: ClassicGroup, member: ClassicGroupMember) -> SyncGroupReply:
    """The answer to a member of a stable group."""
    return SyncGroupReply(Code.NONE, group.protocol_type, group.protocol, member.assignment)


def on_sync_timeout(decision: Decision, group: ClassicGroup) -> None:
    """Members that never asked for their assignment are gone."""
    expired_ids = [member_id for member_id in group.members if member_id in group.pending_sync_members]
    for member_id in expired_ids:
        group.remove(member_id)
        decision.cancel_heartbeat(group, member_id)
    prepare_rebalance(decision, group, f"{len(expired_ids)} members did not sync in time, {expired_ids[0]} among them")


# -- members that go --------------------------------------------------------------------------------------------------


def remove_member(decision: Decision, group: ClassicGroup, member: ClassicGroupMember) -> None:
    """Takes a member out; if it waits for something it may come back as a new one."""
    join, sync = member.join_token, member.sync_token
    group.remove(member.member_id)
    decision.cancel_heartbeat(group, member.member_id)
    member.join_token = member.sync_token = None
    if join is not None:
        decision.reply_to_parked(join, JoinGroupReply(Code.UNKNOWN_MEMBER_ID))
    if sync is not None:
        decision.reply_to_parked(sync, SyncGroupReply(Code.UNKNOWN_MEMBER_ID))


def on_member_timeout(decision: Decision, group: ClassicGroup, member_id: str) -> None:
    """An id that nobody used, or a member without a heartbeat."""
    member = group.members.get(member_id)
    if member is None:
        group.pending_members.discard(member_id)
    elif member.has_satisfied_heartbeat:
        return
    else:
        remove_member(decision, group, member)
    if member is not None and group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
        prepare_rebalance(decision, group, f"member {member_id} showed no life for its session timeout")
    elif group.state is ClassicGroupState.PREPARING and group.has_all_members_joined():
        complete_join(decision, group)
    drop_group_if_unused(decision, group)


def drop_group_if_unused(decision: Decision, group: ClassicGroup) -> None:
    """A group of which neither the log nor anybody alive knows anything."""
    state, name = decision.state, group.name
    if (
        group.state is ClassicGroupState.EMPTY
        and not group.pending_members
        and name not in state.log_state.groups
        and name not in state.log_state.offsets
    ):
        drop_group(decision, group)


def drop_group(decision: Decision, group: ClassicGroup) -> None:
    """The group is gone; ids that were given out are worth nothing."""
    group.transition_to(ClassicGroupState.DEAD, decision.now.wall_ms)
    for member_id in group.pending_members:
        decision.state.deadlines.cancel((MEMBER, group.name, member_id))
    del decision.state.groups[group.name]
