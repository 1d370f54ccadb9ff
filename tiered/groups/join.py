"""JoinGroup: who comes in, who comes back, and when that begins a rebalance.

An unknown dynamic member gets an id first and comes again with it (KIP-394). A static member that comes without its id
takes over its own place, and whoever held it is fenced (KIP-345); in a stable group that costs no rebalance. A member
that comes again in a stable group without news hears of the current generation; the leader, or news, begin a new one.
"""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.classic import ClassicGroup, State
from tiered.groups.decision import MEMBER, Turn
from tiered.groups.member import Member
from tiered.groups.rebalance import (
    answer_sync,
    complete_if_all_joined,
    drop_if_nothing,
    joined,
    prepare,
    prepare_or_complete,
)
from tiered.groups.records import group_record
from tiered.groups.requests import Joined, JoinGroup, Synced
from tiered.groups.words import fits

NEW_MEMBER_MS = 300_000
"""How long a new member may wait for its first rebalance without asking again: it cannot send heartbeats yet."""
ID_PREFIX_MAX = 1_000
"""Characters of a client's name that go into a member id."""
GIVEN_MAX = 5_000
"""Ids that are given out and not used yet, in all groups of a shard. Of one more the oldest is forgotten: a client
comes with its id at once, and whoever only asks for ids keeps nobody else from getting one."""
GROUP_BYTES_MAX = 16 << 20
"""What the members of a group may say in all: a coordinator keeps it in memory, and the log in one record."""


def join(turn: Turn, request: JoinGroup, token: int) -> None:
    """Answers `Joined`, now or when the rebalance completes."""
    code = _refusal(turn, request)
    if code is not None:
        turn.answer(token, Joined(code, request.member_id))
        return
    group = turn.live.groups.get(request.group)
    if group is None:
        if request.member_id:
            turn.answer(token, Joined(Code.UNKNOWN_MEMBER_ID, request.member_id))
            return
        group = turn.live.groups[request.group] = ClassicGroup(request.group, turn.now.wall_ms, turn.live.said)
    if not _has_room(turn, group, request.member_id):
        turn.live.deadlines.cancel((MEMBER, group.name, request.member_id))
        _turn_away(turn, group, request.member_id, token)
    elif not group.supports(request.protocol_type, request.protocols):
        turn.answer(token, Joined(Code.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
    elif not _fits(group, request):
        turn.answer(token, Joined(Code.GROUP_MAX_SIZE_REACHED, request.member_id))
    elif not turn.live.has_room(_growth(group, request)):  # clients try again
        turn.answer(token, Joined(Code.COORDINATOR_NOT_AVAILABLE, request.member_id))
    elif request.member_id:
        _join_known(turn, group, request, token)
    elif request.instance_id is not None:
        _join_static(turn, group, request, token)
    else:
        _join_dynamic(turn, group, request, token)
    drop_if_nothing(turn, group)


def _refusal(turn: Turn, request: JoinGroup) -> Code | None:
    settings = turn.live.settings
    if not request.group or not fits(request.group):
        return Code.INVALID_GROUP_ID
    if not settings.session_timeout_min_ms <= request.session_timeout_ms <= settings.session_timeout_max_ms:
        return Code.INVALID_SESSION_TIMEOUT
    names = (request.protocol_type, request.instance_id or "", *(name for name, _ in request.protocols))
    words = (request.member_id, request.client_id, request.client_host)
    return None if all(map(fits, names + words)) else Code.INVALID_REQUEST


def _has_room(turn: Turn, group: ClassicGroup, member_id: str) -> bool:
    """While members gather, those count that have come: the last ones to come again are turned away."""
    most = turn.live.settings.size_max
    member = group.members.get(member_id)
    if not member_id and len(group.pending) >= most:
        return False
    if group.state is State.PREPARING:
        return (member is not None and member.join_token is not None) or group.joined < most
    return group.state is State.EMPTY or member is not None or len(group.members) < most


def _fits(group: ClassicGroup, request: JoinGroup) -> bool:
    return group.said + _growth(group, request) <= GROUP_BYTES_MAX


def _growth(group: ClassicGroup, request: JoinGroup) -> int:
    """Bytes that the group holds more once it has the words of this request."""
    holder = request.member_id or group.static.get(request.instance_id or "", "")
    return group.bytes_with(holder, request.protocols) - group.said


def _turn_away(turn: Turn, group: ClassicGroup, member_id: str, token: int) -> None:
    group.remove(member_id)
    complete_if_all_joined(turn, group)
    turn.answer(token, Joined(Code.GROUP_MAX_SIZE_REACHED))


# -- new members ------------------------------------------------------------------------------------------------------


def _join_dynamic(turn: Turn, group: ClassicGroup, request: JoinGroup, token: int) -> None:
    member_id = f"{request.client_id[:ID_PREFIX_MAX]}-{turn.live.draw()}"
    if not request.member_id_required:
        _enter(turn, group, request, member_id, token)
        return
    group.pending.add(member_id)
    turn.live.deadlines.set((MEMBER, group.name, member_id), turn.now.mono_ms + request.session_timeout_ms)
    _give(turn, group, member_id)
    turn.answer(token, Joined(Code.MEMBER_ID_REQUIRED, member_id))


def _give(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    given = turn.live.given
    given[group.name, member_id] = None
    if len(given) > GIVEN_MAX:
        name, oldest = next(iter(given))
        del given[name, oldest]
        other = turn.live.groups.get(name)
        if other is not None and oldest in other.pending:
            turn.live.deadlines.set((MEMBER, name, oldest), turn.now.mono_ms)


def _join_static(turn: Turn, group: ClassicGroup, request: JoinGroup, token: int) -> None:
    assert request.instance_id is not None
    member_id = f"{request.instance_id[:ID_PREFIX_MAX]}-{turn.live.draw()}"
    holder = group.static.get(request.instance_id)
    if holder is None:
        _enter(turn, group, request, member_id, token)
    else:
        _take_over(turn, group, group.members[holder], request, member_id, token)


def _enter(turn: Turn, group: ClassicGroup, request: JoinGroup, member_id: str, token: int) -> None:
    """A member more."""
    member = Member(
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
    if group.gathering is not None:
        group.gathering.joined = True
    group.add(member)
    turn.park(token, group, member)
    turn.expect(group, member, NEW_MEMBER_MS)
    prepare_or_complete(turn, group, f"member {member_id} joins; {_why(request)}")


# -- static members that come back ------------------------------------------------------------------------------------


def _take_over(turn: Turn, group: ClassicGroup, member: Member, request: JoinGroup, member_id: str, token: int) -> None:
    """The same place under a new id; whoever held it hears that it is fenced."""
    old, led = member.member_id, group.leader
    turn.let_go(group, old)
    if member.join_token is not None:
        turn.release(member.join_token, Joined(Code.FENCED_INSTANCE_ID, old))
        group.await_join(member, None)
    if member.sync_token is not None:
        answer_sync(turn, group, member, Synced(Code.FENCED_INSTANCE_ID))
        turn.let_go(group, old)
    group.rename(member, member_id)
    member.is_new = False
    _restate(turn, group, member, request, token)
    turn.expect(group, member)
    if group.state is State.COMPLETING:
        prepare(turn, group, f"static member {request.instance_id} came back; {_why(request)}")
    elif group.state is State.PREPARING:
        complete_if_all_joined(turn, group)
    elif group.choose_protocol() != group.protocol:
        prepare(turn, group, f"static member {request.instance_id} changes the protocol; {_why(request)}")
    else:
        _keep_place(turn, group, member, request, led)


def _keep_place(turn: Turn, group: ClassicGroup, member: Member, request: JoinGroup, led: str | None) -> None:
    """No rebalance: the new id goes into the log. A leader must not assign anew: newer clients are told to skip it
    (KIP-814), older ones that the leader is somebody else."""
    turn.write(group_record(group.name, group.value()))
    token = member.join_token
    assert token is not None
    group.await_join(member, None)
    leads = group.leader == member.member_id
    reply = Joined(
        Code.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        (group.leader if request.skip_assignment_known else led) or "",
        skip_assignment=leads and request.skip_assignment_known,
        members=group.roster() if leads and request.skip_assignment_known else (),
    )
    turn.release(token, reply)


# -- members that join again ------------------------------------------------------------------------------------------


def _join_known(turn: Turn, group: ClassicGroup, request: JoinGroup, token: int) -> None:
    member_id = request.member_id
    if member_id in group.pending and request.instance_id is None:
        _enter(turn, group, request, member_id, token)
        return
    code = group.refusal(member_id, request.instance_id)
    if code is not None:
        turn.answer(token, Joined(code, member_id))
        return
    member = group.members[member_id]
    same = member.protocols == request.protocols
    if group.state is State.PREPARING:
        _rejoin(turn, group, member, request, token, "comes again")
    elif not same:
        _rejoin(turn, group, member, request, token, "says something else")
    elif group.state is State.STABLE and group.leader == member_id:
        _rejoin(turn, group, member, request, token, "leads and asks for a rebalance")
    else:
        turn.answer(token, joined(group, member))
        if not member.waits:
            turn.expect(group, member)  # it was heard just now, and has its place


def _rejoin(turn: Turn, group: ClassicGroup, member: Member, request: JoinGroup, token: int, what: str) -> None:
    _restate(turn, group, member, request, token)
    prepare_or_complete(turn, group, f"member {member.member_id} {what}; {_why(request)}")


def _restate(turn: Turn, group: ClassicGroup, member: Member, request: JoinGroup, token: int) -> None:
    """What the member says now holds; an older call of the same member hears that it has to ask again."""
    if member.join_token is not None:
        turn.release(member.join_token, Joined(Code.REBALANCE_IN_PROGRESS, member.member_id))
    group.restate(member, request.protocols)
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    group.await_join(member, token)
    turn.park(token, group, member)


def _why(request: JoinGroup) -> str:
    return f"client reason: {request.reason or 'not provided'}"
