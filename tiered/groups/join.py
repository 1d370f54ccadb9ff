"""JoinGroup: new members, members that come back, and the rebalances that they start.

A new dynamic member gets an id first and joins again with it (KIP-394). A static member without its id takes over its
own place, and the previous holder of the place is fenced (KIP-345). In a stable group no rebalance follows, unless the
chosen protocol changes.

A member of the current generation that joins again with the same protocols gets that generation. In a stable group the
leader starts a rebalance by joining again, and so does any member whose protocols changed.

A member owns partitions only in the generation that it joined (I17).
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.consumer.admin import drop_consumer_group, is_empty
from tiered.groups.consumer.classic_members import ID_PREFIX_MAX, join_consumer_group
from tiered.groups.decision import MEMBER, Decision
from tiered.groups.member import ClassicGroupMember
from tiered.groups.rebalance import (
    complete_join_if_all_joined,
    drop_group_if_unused,
    make_join_reply,
    prepare_or_complete_join,
    prepare_rebalance,
    reply_to_sync,
)
from tiered.groups.records import group_record
from tiered.groups.requests import JoinGroup, JoinGroupReply, SyncGroupReply
from tiered.groups.string_lengths import fits_in_record

NEW_MEMBER_MS = 300_000
"""Session of a new member until its first rebalance completes: it cannot send heartbeats before."""
ISSUED_IDS_MAX = 5_000
"""Ids given out last that a shard remembers, over all its groups. Beyond it the oldest one expires, unless it is used.

A client joins with its id at once, and a client that only requests ids keeps nobody else from getting one.
"""
GROUP_BYTES_MAX = 16 << 20
"""Bytes of the protocols of all members of a group: a coordinator keeps them in memory, and the log in one record."""


def handle_join_group(decision: Decision, request: JoinGroup, token: int) -> None:
    """Handles JoinGroup. Replies with `JoinGroupReply`, now or when the rebalance completes."""
    code = _validate_join(decision, request)
    if code is not None:
        decision.reply(token, JoinGroupReply(code, request.member_id))
        return
    if request.group in decision.state.log_state.share_groups:
        decision.reply(token, JoinGroupReply(Code.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        return
    consumer_group = decision.state.log_state.consumer_groups.get(request.group)
    if consumer_group is not None and not is_empty(consumer_group):
        reply = join_consumer_group(decision, consumer_group, request)
        if reply is not None:
            decision.reply(token, reply)
            return
        consumer_group = None
    group = decision.state.groups.get(request.group)
    if group is None:
        if request.member_id:
            decision.reply(token, JoinGroupReply(Code.UNKNOWN_MEMBER_ID, request.member_id))
            return
        group = decision.state.groups[request.group] = ClassicGroup(
            request.group, decision.now.wall_ms, decision.state.protocol_bytes
        )
    if consumer_group is not None:
        drop_consumer_group(decision, consumer_group)  # it is empty, and its offsets go on in the classic group
    decision.state.holders.claim(group.name, request.holder)
    if not _can_join(decision, group, request.member_id):
        decision.state.deadlines.cancel((MEMBER, group.name, request.member_id))
        _reject_join(decision, group, request.member_id, token)
    elif not group.supports_protocols(request.protocol_type, request.protocols):
        decision.reply(token, JoinGroupReply(Code.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
    elif not _fits_group_limit(group, request):
        decision.reply(token, JoinGroupReply(Code.GROUP_MAX_SIZE_REACHED, request.member_id))
    elif not decision.state.has_room(group.name, _added_bytes(group, request)):  # clients try again
        decision.reply(token, JoinGroupReply(Code.COORDINATOR_NOT_AVAILABLE, request.member_id))
    elif request.member_id:
        _join_existing_member(decision, group, request, token)
    elif request.instance_id is not None:
        _join_static_member(decision, group, request, token)
    else:
        _join_dynamic_member(decision, group, request, token)
    drop_group_if_unused(decision, group)


def _validate_join(decision: Decision, request: JoinGroup) -> Code | None:
    settings = decision.state.settings
    if not request.group or not fits_in_record(request.group):
        return Code.INVALID_GROUP_ID
    if not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
        return Code.INVALID_SESSION_TIMEOUT
    names = (request.protocol_type, request.instance_id or "", *(name for name, _ in request.protocols))
    words = (request.member_id, request.client_id, request.client_host)
    return None if all(map(fits_in_record, names + words)) else Code.INVALID_REQUEST


def _can_join(decision: Decision, group: ClassicGroup, member_id: str) -> bool:
    """True if the group has room for the member.

    While members gather, only those that have joined count: the last ones to join again are refused.
    """
    size_max = decision.state.settings.size_max
    member = group.members.get(member_id)
    if not member_id and len(group.pending_members) >= size_max:
        return False
    if group.state is ClassicGroupState.PREPARING:
        return (member is not None and member.join_token is not None) or group.awaiting_join_count < size_max
    return group.state is ClassicGroupState.EMPTY or member is not None or len(group.members) < size_max


def _fits_group_limit(group: ClassicGroup, request: JoinGroup) -> bool:
    return group.protocol_bytes + _added_bytes(group, request) <= GROUP_BYTES_MAX


def _added_bytes(group: ClassicGroup, request: JoinGroup) -> int:
    """Returns how many bytes the group's protocols grow by with this request."""
    holder = request.member_id or group.static_members.get(request.instance_id or "", "")
    return group.protocol_bytes_with(holder, request.protocols) - group.protocol_bytes


def _reject_join(decision: Decision, group: ClassicGroup, member_id: str, token: int) -> None:
    group.remove(member_id)
    complete_join_if_all_joined(decision, group)
    decision.reply(token, JoinGroupReply(Code.GROUP_MAX_SIZE_REACHED))


# -- new members ------------------------------------------------------------------------------------------------------


def _join_dynamic_member(decision: Decision, group: ClassicGroup, request: JoinGroup, token: int) -> None:
    member_id = f"{request.client_id[:ID_PREFIX_MAX]}-{decision.state.new_uuid()}"
    if not request.member_id_required:
        _add_member(decision, group, request, member_id, token)
        return
    group.pending_members.add(member_id)
    decision.state.deadlines.set((MEMBER, group.name, member_id), decision.now.mono_ms + request.session_timeout_ms)
    _remember_issued_id(decision, group, member_id)
    decision.reply(token, JoinGroupReply(Code.MEMBER_ID_REQUIRED, member_id))


def _remember_issued_id(decision: Decision, group: ClassicGroup, member_id: str) -> None:
    issued = decision.state.issued_member_ids
    issued[group.name, member_id] = None
    if len(issued) > ISSUED_IDS_MAX:
        name, oldest = next(iter(issued))
        del issued[name, oldest]
        other = decision.state.groups.get(name)
        if other is not None and oldest in other.pending_members:
            decision.state.deadlines.set((MEMBER, name, oldest), decision.now.mono_ms)


def _join_static_member(decision: Decision, group: ClassicGroup, request: JoinGroup, token: int) -> None:
    assert request.instance_id is not None
    member_id = f"{request.instance_id[:ID_PREFIX_MAX]}-{decision.state.new_uuid()}"
    holder = group.static_members.get(request.instance_id)
    if holder is None:
        _add_member(decision, group, request, member_id, token)
    else:
        _replace_static_member(decision, group, group.members[holder], request, member_id, token)


def _add_member(decision: Decision, group: ClassicGroup, request: JoinGroup, member_id: str, token: int) -> None:
    """Adds a new member to the group, and starts a rebalance if none is in progress."""
    member = ClassicGroupMember(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        join_token=token,
        is_new=True,
        knows_id=bool(request.member_id),
    )
    if not group.members:
        group.protocol_type = request.protocol_type
    if group.initial_delay is not None:
        group.initial_delay.new_member_added = True
    group.add(member)
    decision.park(token, group, member)
    decision.schedule_heartbeat(group, member, NEW_MEMBER_MS)
    prepare_or_complete_join(decision, group, f"member {member_id} joins; {_client_reason(request)}")


# -- static members that come back ------------------------------------------------------------------------------------


def _replace_static_member(
    decision: Decision, group: ClassicGroup, member: ClassicGroupMember, request: JoinGroup, member_id: str, token: int
) -> None:
    """Gives the static member's place to a new id. Parked requests of the old id get FENCED_INSTANCE_ID."""
    old_id, old_leader = member.member_id, group.leader
    decision.cancel_heartbeat(group, old_id)
    if member.join_token is not None:
        decision.reply_to_parked(member.join_token, JoinGroupReply(Code.FENCED_INSTANCE_ID, old_id))
        group.set_join_token(member, None)
    if member.sync_token is not None:
        reply_to_sync(decision, group, member, SyncGroupReply(Code.FENCED_INSTANCE_ID))
        decision.cancel_heartbeat(group, old_id)
    group.replace_static_member(member, member_id)
    member.is_new = False
    _update_member(decision, group, member, request, token)
    decision.schedule_heartbeat(group, member)
    if group.state is ClassicGroupState.COMPLETING:
        prepare_rebalance(decision, group, f"static member {request.instance_id} came back; {_client_reason(request)}")
    elif group.state is ClassicGroupState.PREPARING:
        complete_join_if_all_joined(decision, group)
    elif group.select_protocol() != group.protocol:
        prepare_rebalance(
            decision, group, f"static member {request.instance_id} changes the protocol; {_client_reason(request)}"
        )
    else:
        _reply_without_rebalance(decision, group, member, request, old_leader)


def _reply_without_rebalance(
    decision: Decision, group: ClassicGroup, member: ClassicGroupMember, request: JoinGroup, old_leader: str | None
) -> None:
    """Writes the new id to the log and replies without a rebalance.

    A leader that came back must not assign again. Newer clients get a flag to skip it (KIP-814). Older ones get the old
    leader's id, so that they do not act as leader.
    """
    decision.write(group_record(group.name, group.to_value()))
    token = member.join_token
    assert token is not None
    group.set_join_token(member, None)
    is_leader = group.leader == member.member_id
    reply = JoinGroupReply(
        Code.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        (group.leader if request.supports_skip_assignment else old_leader) or "",
        skip_assignment=is_leader and request.supports_skip_assignment,
        members=group.members_for_leader() if is_leader and request.supports_skip_assignment else (),
    )
    decision.reply_to_parked(token, reply)


# -- members that join again ------------------------------------------------------------------------------------------


def _join_existing_member(decision: Decision, group: ClassicGroup, request: JoinGroup, token: int) -> None:
    member_id = request.member_id
    if member_id in group.pending_members and request.instance_id is None:
        _add_member(decision, group, request, member_id, token)
        return
    code = group.validate_member(member_id, request.instance_id)
    if code is not None:
        decision.reply(token, JoinGroupReply(code, member_id))
        return
    member = group.members[member_id]
    same_protocols = member.protocols == request.protocols
    if group.state is ClassicGroupState.PREPARING:
        _rejoin(decision, group, member, request, token, "joins again")
    elif not same_protocols:
        _rejoin(decision, group, member, request, token, "supports other protocols")
    elif group.state is ClassicGroupState.STABLE and group.leader == member_id:
        _rejoin(decision, group, member, request, token, "is the leader and requests a rebalance")
    else:
        decision.reply(token, make_join_reply(group, member))
        if not member.has_satisfied_heartbeat:
            decision.schedule_heartbeat(group, member)  # this request shows that it is alive


def _rejoin(
    decision: Decision, group: ClassicGroup, member: ClassicGroupMember, request: JoinGroup, token: int, what: str
) -> None:
    _update_member(decision, group, member, request, token)
    prepare_or_complete_join(decision, group, f"member {member.member_id} {what}; {_client_reason(request)}")


def _update_member(
    decision: Decision, group: ClassicGroup, member: ClassicGroupMember, request: JoinGroup, token: int
) -> None:
    """Takes over the protocols and timeouts of the request.

    An older parked JoinGroup of the same member gets REBALANCE_IN_PROGRESS, so that its sender joins again.
    """
    if member.join_token is not None:
        decision.reply_to_parked(member.join_token, JoinGroupReply(Code.REBALANCE_IN_PROGRESS, member.member_id))
    group.update_protocols(member, request.protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    group.set_join_token(member, token)
    decision.park(token, group, member)


def _client_reason(request: JoinGroup) -> str:
    return f"client reason: {request.reason or 'not provided'}"
