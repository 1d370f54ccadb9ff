"""What members of a group do between rebalances: ask for their assignment, beat, leave."""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.classic import REASON_MAX, ClassicGroup, State
from tiered.groups.decision import SYNC, Turn
from tiered.groups.rebalance import (
    answer_sync,
    assign,
    complete_if_all_joined,
    drop_if_nothing,
    prepare,
    remove,
    synced,
)
from tiered.groups.requests import Beaten, Heartbeat, LeaveGroup, Leaver, Left, Synced, SyncGroup

# -- assignments ------------------------------------------------------------------------------------------------------


def sync(turn: Turn, request: SyncGroup, token: int) -> None:
    """Answers `Synced`, now or when the leader has assigned."""
    group = turn.live.groups.get(request.group)
    code = _refusal(group, request)
    if group is None or code is not None:
        turn.answer(token, Synced(code or Code.UNKNOWN_MEMBER_ID))
        return
    member = group.members[request.member_id]
    group.unsynced.discard(member.member_id)
    if not group.unsynced:
        turn.live.deadlines.cancel((SYNC, group.name, ""))
    if group.state is State.STABLE:
        turn.answer(token, synced(group, member))
        turn.expect(group, member)
        return
    answer_sync(turn, group, member, Synced(Code.REBALANCE_IN_PROGRESS))
    member.sync_token = token
    turn.park(token, group, member)
    if group.leader == member.member_id:
        assign(turn, group, dict(request.assignments))


def _refusal(group: ClassicGroup | None, request: SyncGroup) -> Code | None:
    if not request.group:
        return Code.INVALID_GROUP_ID
    if group is None or group.state is State.EMPTY:
        return Code.UNKNOWN_MEMBER_ID
    code = group.refusal(request.member_id, request.instance_id)
    if code is not None:
        return code
    if request.generation != group.generation:
        return Code.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or request.protocol not in (None, group.protocol):
        return Code.INCONSISTENT_GROUP_PROTOCOL
    return Code.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else None


# -- life -------------------------------------------------------------------------------------------------------------


def beat(turn: Turn, request: Heartbeat) -> Beaten:
    """Each beat begins the session anew, while members gather too."""
    if not request.group:
        return Beaten(Code.INVALID_GROUP_ID)
    group = turn.live.groups.get(request.group)
    if group is None:
        return Beaten(Code.UNKNOWN_MEMBER_ID)
    code = group.refusal(request.member_id, request.instance_id)
    if code is None and request.generation != group.generation:
        code = Code.ILLEGAL_GENERATION
    if code is not None:
        return Beaten(code)
    turn.expect(group, group.members[request.member_id])
    return Beaten(Code.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else Code.NONE)


def leave(turn: Turn, request: LeaveGroup) -> Left:
    """Each member for itself; one rebalance for all of them."""
    if not request.group:
        return Left(Code.INVALID_GROUP_ID)
    group = turn.live.groups.get(request.group)
    if group is None:
        return Left(Code.NONE, (Code.UNKNOWN_MEMBER_ID,) * len(request.members))
    codes = tuple(_leave(turn, group, leaver) for leaver in request.members)
    gone = [leaver for leaver, code in zip(request.members, codes, strict=True) if code is Code.NONE]
    if gone:
        if group.state in (State.STABLE, State.COMPLETING):
            first = gone[0].instance_id or gone[0].member_id
            why = (gone[0].reason or "not provided")[:REASON_MAX]
            prepare(turn, group, f"{len(gone)} members left, {first} among them; client reason: {why}")
        else:
            complete_if_all_joined(turn, group)
        drop_if_nothing(turn, group)
    return Left(Code.NONE, codes)


def _leave(turn: Turn, group: ClassicGroup, leaver: Leaver) -> Code:
    member_id = leaver.member_id
    if not member_id:
        known = group.static.get(leaver.instance_id or "")
        if known is None:
            return Code.UNKNOWN_MEMBER_ID
        member_id = known
    elif member_id in group.pending:
        group.remove(member_id)
        turn.let_go(group, member_id)
        return Code.NONE
    code = group.refusal(member_id, leaver.instance_id)
    if code is None:
        remove(turn, group, group.members[member_id])
    return code or Code.NONE
