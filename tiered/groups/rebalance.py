"""Steps of a group from one generation to the next: members join, the leader assigns partitions, members work.

    Empty or Stable -- prepare_rebalance --> Preparing -- complete_join --> Completing -- apply_assignments --> Stable

An assignment is a lasting promise: no member gets it before it is committed to the log (I17). A generation that still
forms is not in the log. After the coordinator moves, the group goes on from the generation before, and its members join
again.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.errors import Code
from tiered.groups.classic import REASON_MAX, ClassicGroup, ClassicGroupState, InitialRebalanceDelay
from tiered.groups.decision import JOIN, MEMBER, SYNC, Decision
from tiered.groups.member import ClassicGroupMember
from tiered.groups.records import group_record
from tiered.groups.requests import GenerationStarted, JoinGroupReply, SyncGroupReply

FIRST_AFTER_LOAD = "; the first rebalance since the coordinator of the group moved or restarted"

# -- joining ----------------------------------------------------------------------------------------------------------


def prepare_or_complete_join(decision: Decision, group: ClassicGroup, reason: str) -> None:
    """Starts a rebalance after a change. If one gathers members already, completes it if all have joined."""
    if group.state is ClassicGroupState.PREPARING:
        complete_join_if_all_joined(decision, group)
    else:
        prepare_rebalance(decision, group, reason)


def prepare_rebalance(decision: Decision, group: ClassicGroup, reason: str) -> None:
    """Starts a rebalance, for which all members have to join again.

    Members that wait for an assignment get REBALANCE_IN_PROGRESS.
    """
    if group.state is ClassicGroupState.COMPLETING:
        fail_pending_syncs(decision, group, Code.REBALANCE_IN_PROGRESS)
    group.pending_sync_members.clear()
    decision.state.deadlines.cancel((SYNC, group.name, ""))
    group.reason = reason[:REASON_MAX] + (FIRST_AFTER_LOAD if group.is_taken_over else "")
    group.is_taken_over = False
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
    """Sets the time at which the rebalance stops waiting for members."""
    decision.state.deadlines.set((JOIN, group.name, ""), decision.now.mono_ms + timeout_ms)


def complete_join_if_all_joined(decision: Decision, group: ClassicGroup) -> None:
    """Completes the rebalance if all members have joined. The first rebalance waits for its delay even then."""
    if group.state is ClassicGroupState.PREPARING and group.initial_delay is None and group.has_all_members_joined():
        complete_join(decision, group)


def on_join_timeout(decision: Decision, group: ClassicGroup) -> None:
    """Completes the rebalance at the end of its wait.

    The first rebalance waits again if new members joined meanwhile and part of its time is left.
    """
    initial_delay = group.initial_delay
    if initial_delay is not None and initial_delay.new_member_added and initial_delay.remaining_ms > 0:
        delay = min(decision.state.settings.initial_rebalance_delay_ms, initial_delay.remaining_ms)
        group.initial_delay = InitialRebalanceDelay(delay, max(initial_delay.remaining_ms - initial_delay.delay_ms, 0))
        schedule_join_timeout(decision, group, delay)
    else:
        complete_join(decision, group)


def complete_join(decision: Decision, group: ClassicGroup) -> None:
    """Starts the next generation with the members that have joined.

    Static members stay in it while their session lasts. If only static members are left and none has joined, the
    rebalance waits again.
    """
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
    decision.report(GenerationStarted(group.name, group.generation, len(group.members), group.protocol))
    for member in group.members.values():
        reply_to_join(decision, group, member)
        member.is_new, member.knows_id = False, True
        decision.schedule_heartbeat(group, member)
    decision.state.deadlines.set((SYNC, group.name, ""), decision.now.mono_ms + group.rebalance_timeout_ms())


def reply_to_join(decision: Decision, group: ClassicGroup, member: ClassicGroupMember) -> None:
    """Replies to a member's parked JoinGroup."""
    token = member.join_token
    if token is not None:
        group.set_join_token(member, None)
        decision.reply_to_parked(token, make_join_reply(group, member))


def make_join_reply(group: ClassicGroup, member: ClassicGroupMember) -> JoinGroupReply:
    """Returns the reply to a member of the current generation. The leader's reply lists the members."""
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
    """Ends the rebalance without members: a generation of its own.

    The log records since when the group is empty, because its offsets expire from then.
    """
    group.generation += 1
    group.protocol = group.leader = None
    group.subscribed_topics = group.compute_subscribed_topics()
    group.transition_to(ClassicGroupState.EMPTY, decision.now.wall_ms)
    decision.write(group_record(group.name, group.to_value()))


# -- assigning --------------------------------------------------------------------------------------------------------


def apply_assignments(decision: Decision, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
    """Writes the leader's assignments to the log, and replies to all members that wait.

    A group that is too large for one record, or for the broker's memory, rebalances again instead.
    """
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.transition_to(ClassicGroupState.STABLE, decision.now.wall_ms)
    record = group_record(group.name, group.to_value())
    if record.value is not None and len(record.value) > decision.state.settings.record_bytes_max:
        fail_pending_syncs(decision, group, Code.UNKNOWN_SERVER_ERROR)
        prepare_rebalance(decision, group, f"the group takes {len(record.value)} bytes, too many for the log")
        return
    if not decision.state.has_room(
        group.name, len(record.value or b"") - len(decision.state.log_state.groups.get(group.name, b""))
    ):
        fail_pending_syncs(decision, group, Code.COORDINATOR_NOT_AVAILABLE)
        prepare_rebalance(decision, group, "the groups of this broker take all memory that they may")
        return
    decision.write(record)
    for member in group.members.values():
        reply_to_sync(decision, group, member, make_sync_reply(group, member))


def fail_pending_syncs(decision: Decision, group: ClassicGroup, code: Code) -> None:
    """Ends the generation without assignments. Members that wait get `code`."""
    for member in group.members.values():
        member.assignment = b""
        reply_to_sync(decision, group, member, SyncGroupReply(code))


def reply_to_sync(decision: Decision, group: ClassicGroup, member: ClassicGroupMember, reply: SyncGroupReply) -> None:
    """Replies to a member's parked SyncGroup, and restarts its session: a member that waits sends no heartbeats."""
    token, member.sync_token = member.sync_token, None
    if token is not None:
        decision.reply_to_parked(token, reply)
        decision.schedule_heartbeat(group, member)


def make_sync_reply(group: ClassicGroup, member: ClassicGroupMember) -> SyncGroupReply:
    """Returns the reply to a member of a stable group."""
    return SyncGroupReply(Code.NONE, group.protocol_type, group.protocol, member.assignment)


def on_sync_timeout(decision: Decision, group: ClassicGroup) -> None:
    """Removes members that did not send SyncGroup in time, and starts a rebalance."""
    expired_ids = [member_id for member_id in group.members if member_id in group.pending_sync_members]
    for member_id in expired_ids:
        group.remove(member_id)
        decision.cancel_heartbeat(group, member_id)
    prepare_rebalance(decision, group, f"{len(expired_ids)} members did not sync in time, {expired_ids[0]} among them")


# -- members that leave -----------------------------------------------------------------------------------------------


def remove_member(decision: Decision, group: ClassicGroup, member: ClassicGroupMember) -> None:
    """Removes a member. Its parked requests get UNKNOWN_MEMBER_ID, so that it can join again as a new one."""
    join, sync = member.join_token, member.sync_token
    group.remove(member.member_id)
    decision.cancel_heartbeat(group, member.member_id)
    member.join_token = member.sync_token = None
    if join is not None:
        decision.reply_to_parked(join, JoinGroupReply(Code.UNKNOWN_MEMBER_ID))
    if sync is not None:
        decision.reply_to_parked(sync, SyncGroupReply(Code.UNKNOWN_MEMBER_ID))


def on_member_timeout(decision: Decision, group: ClassicGroup, member_id: str) -> None:
    """Ends the session of a member without a heartbeat, or of an id that was not used."""
    member = group.members.get(member_id)
    if member is None:
        group.pending_members.discard(member_id)
    elif member.has_satisfied_heartbeat:
        return
    else:
        remove_member(decision, group, member)
    if member is not None and group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
        prepare_rebalance(decision, group, f"member {member_id} sent no heartbeat within its session timeout")
    elif group.state is ClassicGroupState.PREPARING and group.has_all_members_joined():
        complete_join(decision, group)
    drop_group_if_unused(decision, group)


def drop_group_if_unused(decision: Decision, group: ClassicGroup) -> None:
    """Drops an empty group that has nothing in the log and no ids that were given out."""
    state, name = decision.state, group.name
    if (
        group.state is ClassicGroupState.EMPTY
        and not group.pending_members
        and name not in state.log_state.groups
        and not state.log_state.has_offsets(name)
    ):
        drop_group(decision, group)


def drop_group(decision: Decision, group: ClassicGroup) -> None:
    """Drops the group from the shard. Ids that were given out become unknown."""
    group.transition_to(ClassicGroupState.DEAD, decision.now.wall_ms)
    for member_id in group.pending_members:
        decision.state.deadlines.cancel((MEMBER, group.name, member_id))
    del decision.state.groups[group.name]
    decision.state.holders.forget(group.name)
