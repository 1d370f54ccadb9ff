"""SyncGroup, Heartbeat and LeaveGroup: requests of members between their JoinGroups."""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.classic import REASON_MAX, ClassicGroup, ClassicGroupState
from tiered.groups.consumer.classic_members import (
    beat_in_consumer_group,
    leave_consumer_group,
    sync_in_consumer_group,
)
from tiered.groups.decision import SYNC, Decision
from tiered.groups.rebalance import (
    apply_assignments,
    complete_join_if_all_joined,
    drop_group_if_unused,
    make_sync_reply,
    prepare_rebalance,
    remove_member,
    reply_to_sync,
)
from tiered.groups.requests import (
    Heartbeat,
    HeartbeatReply,
    LeaveGroup,
    LeaveGroupReply,
    LeavingMember,
    SyncGroup,
    SyncGroupReply,
)

# -- assignments ------------------------------------------------------------------------------------------------------


def handle_sync_group(decision: Decision, request: SyncGroup, token: int) -> None:
    """Handles SyncGroup. Replies with `SyncGroupReply`, now or when the leader has sent the assignments."""
    consumer_group = decision.state.log_state.consumer_groups.get(request.group)
    if consumer_group is not None:
        decision.reply(token, sync_in_consumer_group(decision, consumer_group, request))
        return
    group = decision.state.groups.get(request.group)
    code = _validate_sync(group, request)
    if group is None or code is not None:
        decision.reply(token, SyncGroupReply(code or Code.UNKNOWN_MEMBER_ID))
        return
    member = group.members[request.member_id]
    group.pending_sync_members.discard(member.member_id)
    if not group.pending_sync_members:
        decision.state.deadlines.cancel((SYNC, group.name, ""))
    if group.state is ClassicGroupState.STABLE:
        decision.reply(token, make_sync_reply(group, member))
        decision.schedule_heartbeat(group, member)
        return
    reply_to_sync(decision, group, member, SyncGroupReply(Code.REBALANCE_IN_PROGRESS))
    member.sync_token = token
    decision.park(token, group, member)
    if group.leader == member.member_id:
        apply_assignments(decision, group, dict(request.assignments))


def _validate_sync(group: ClassicGroup | None, request: SyncGroup) -> Code | None:
    if not request.group:
        return Code.INVALID_GROUP_ID
    if group is None or group.state is ClassicGroupState.EMPTY:
        return Code.UNKNOWN_MEMBER_ID
    code = group.validate_member(request.member_id, request.instance_id)
    if code is not None:
        return code
    if request.generation != group.generation:
        return Code.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
        return Code.INCONSISTENT_GROUP_PROTOCOL
    return Code.REBALANCE_IN_PROGRESS if group.state is ClassicGroupState.PREPARING else None


# -- heartbeats and leaving -------------------------------------------------------------------------------------------


def handle_heartbeat(decision: Decision, request: Heartbeat) -> HeartbeatReply:
    """Handles Heartbeat. Each one restarts the member's session, during a rebalance too."""
    if not request.group:
        return HeartbeatReply(Code.INVALID_GROUP_ID)
    consumer_group = decision.state.log_state.consumer_groups.get(request.group)
    if consumer_group is not None:
        return beat_in_consumer_group(decision, consumer_group, request)
    group = decision.state.groups.get(request.group)
    if group is None:
        return HeartbeatReply(Code.UNKNOWN_MEMBER_ID)
    code = group.validate_member(request.member_id, request.instance_id)
    if code is None and request.generation != group.generation:
        code = Code.ILLEGAL_GENERATION
    if code is not None:
        return HeartbeatReply(code)
    decision.schedule_heartbeat(group, group.members[request.member_id])
    return HeartbeatReply(Code.REBALANCE_IN_PROGRESS if group.state is ClassicGroupState.PREPARING else Code.NONE)


def handle_leave_group(decision: Decision, request: LeaveGroup) -> LeaveGroupReply:
    """Handles LeaveGroup. Each member gets its own code, and one rebalance follows for all of them."""
    if not request.group:
        return LeaveGroupReply(Code.INVALID_GROUP_ID)
    consumer_group = decision.state.log_state.consumer_groups.get(request.group)
    if consumer_group is not None:
        return leave_consumer_group(decision, consumer_group, request)
    group = decision.state.groups.get(request.group)
    if group is None:
        return LeaveGroupReply(Code.NONE, (Code.UNKNOWN_MEMBER_ID,) * len(request.members))
    codes = tuple(_remove_leaving_member(decision, group, leaver) for leaver in request.members)
    left_members = [leaver for leaver, code in zip(request.members, codes, strict=True) if code is Code.NONE]
    if left_members:
        if group.state in (ClassicGroupState.STABLE, ClassicGroupState.COMPLETING):
            first = left_members[0].instance_id or left_members[0].member_id
            why = (left_members[0].reason or "not provided")[:REASON_MAX]
            prepare_rebalance(
                decision, group, f"{len(left_members)} members left, {first} among them; client reason: {why}"
            )
        else:
            complete_join_if_all_joined(decision, group)
        drop_group_if_unused(decision, group)
    return LeaveGroupReply(Code.NONE, codes)


def _remove_leaving_member(decision: Decision, group: ClassicGroup, leaving: LeavingMember) -> Code:
    member_id = leaving.member_id
    if not member_id:
        current_id = group.static_members.get(leaving.instance_id or "")
        if current_id is None:
            return Code.UNKNOWN_MEMBER_ID
        member_id = current_id
    elif member_id in group.pending_members:
        group.remove(member_id)
        decision.cancel_heartbeat(group, member_id)
        return Code.NONE
    code = group.validate_member(member_id, leaving.instance_id)
    if code is None:
        remove_member(decision, group, group.members[member_id])
    return code or Code.NONE
