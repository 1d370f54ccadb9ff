"""A group's way from one generation to the next: members gather, the leader assigns, all work.

    Empty or Stable -- prepare --> Preparing -- complete_join --> Completing -- assign --> Stable

What is promised to a member for good, its assignment, stands in the log before it is told. A generation that is only
being formed does not: a coordinator that moved goes on from the one before, and its members join again.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.errors import Code
from tiered.groups.classic import REASON_MAX, ClassicGroup, Gathering, State
from tiered.groups.decision import JOIN, MEMBER, SYNC, Turn
from tiered.groups.member import Member
from tiered.groups.records import group_record
from tiered.groups.requests import Joined, Synced

# -- gathering --------------------------------------------------------------------------------------------------------


def prepare_or_complete(turn: Turn, group: ClassicGroup, reason: str) -> None:
    """Something changed: a rebalance begins, or the one that gathers already may be complete."""
    if group.state is State.PREPARING:
        complete_if_all_joined(turn, group)
    else:
        prepare(turn, group, reason)


def prepare(turn: Turn, group: ClassicGroup, reason: str) -> None:
    """Members are to join again; those that wait for an assignment are told so."""
    if group.state is State.COMPLETING:
        give_up(turn, group, Code.REBALANCE_IN_PROGRESS)
    group.unsynced.clear()
    turn.live.deadlines.cancel((SYNC, group.name, ""))
    group.reason = reason[:REASON_MAX]
    first = group.state is State.EMPTY
    group.move(State.PREPARING, turn.now.wall_ms)
    timeout = group.rebalance_timeout_ms()
    if first:
        delay = turn.live.settings.initial_rebalance_delay_ms
        group.gathering = Gathering(delay, max(timeout - delay, 0))
        wait_for_joins(turn, group, delay)
    elif group.everyone_joined():
        complete_join(turn, group)
    else:
        wait_for_joins(turn, group, timeout)


def wait_for_joins(turn: Turn, group: ClassicGroup, for_ms: int) -> None:
    """Not longer than this."""
    turn.live.deadlines.set((JOIN, group.name, ""), turn.now.mono_ms + for_ms)


def complete_if_all_joined(turn: Turn, group: ClassicGroup) -> None:
    """The first rebalance waits its delay even then."""
    if group.state is State.PREPARING and group.gathering is None and group.everyone_joined():
        complete_join(turn, group)


def join_is_due(turn: Turn, group: ClassicGroup) -> None:
    """Enough waited; unless it is the first rebalance and somebody came in the meantime."""
    gathering = group.gathering
    if gathering is not None and gathering.joined and gathering.remaining_ms > 0:
        delay = min(turn.live.settings.initial_rebalance_delay_ms, gathering.remaining_ms)
        group.gathering = Gathering(delay, max(gathering.remaining_ms - gathering.delay_ms, 0))
        wait_for_joins(turn, group, delay)
    else:
        complete_join(turn, group)


def complete_join(turn: Turn, group: ClassicGroup) -> None:
    """Who has joined is in the next generation; static members stay in it while their session lasts."""
    for member in [each for each in group.members.values() if each.join_token is None and each.instance_id is None]:
        group.remove(member.member_id)
        turn.let_go(group, member.member_id)
    group.gathering = None
    turn.live.deadlines.cancel((JOIN, group.name, ""))
    if not group.members:
        become_empty(turn, group)
        return
    if group.leader is None or group.members[group.leader].join_token is None:
        heir = next((each.member_id for each in group.members.values() if each.join_token is not None), None)
        if heir is None:
            wait_for_joins(turn, group, group.rebalance_timeout_ms())
            return
        group.leader = heir
    group.generation += 1
    group.protocol = group.choose_protocol()
    group.topics = group.subscribed()
    group.move(State.COMPLETING, turn.now.wall_ms)
    group.unsynced = set(group.members)
    for member in group.members.values():
        answer_join(turn, group, member)
        member.is_new, member.knows_id = False, True
        turn.expect(group, member)
    turn.live.deadlines.set((SYNC, group.name, ""), turn.now.mono_ms + group.rebalance_timeout_ms())


def answer_join(turn: Turn, group: ClassicGroup, member: Member) -> None:
    """The member is in this generation; the leader is told who else is."""
    token = member.join_token
    if token is not None:
        group.await_join(member, None)
        turn.release(token, joined(group, member))


def joined(group: ClassicGroup, member: Member) -> Joined:
    """The answer to a member of the current generation."""
    leads = group.leader == member.member_id
    return Joined(
        Code.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        members=group.roster() if leads else (),
    )


def become_empty(turn: Turn, group: ClassicGroup) -> None:
    """Nobody is left: that is a generation of its own, and the log knows since when (offsets expire from then)."""
    group.generation += 1
    group.protocol = group.leader = None
    group.topics = group.subscribed()
    group.move(State.EMPTY, turn.now.wall_ms)
    turn.write(group_record(group.name, group.value()))


# -- assigning --------------------------------------------------------------------------------------------------------


def assign(turn: Turn, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
    """The leader has said who gets what: written down, then told to all that wait."""
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.move(State.STABLE, turn.now.wall_ms)
    record = group_record(group.name, group.value())
    if record.value is not None and len(record.value) > turn.live.settings.record_bytes_max:
        give_up(turn, group, Code.UNKNOWN_SERVER_ERROR)
        prepare(turn, group, f"the group takes {len(record.value)} bytes, too many for the log")
        return
    if not turn.live.has_room(len(record.value or b"") - len(turn.live.log.groups.get(group.name, b""))):
        give_up(turn, group, Code.COORDINATOR_NOT_AVAILABLE)
        prepare(turn, group, "the groups of this broker hold as much as they may")
        return
    turn.write(record)
    for member in group.members.values():
        answer_sync(turn, group, member, synced(group, member))


def give_up(turn: Turn, group: ClassicGroup, code: Code) -> None:
    """The generation comes to nothing: those that wait for an assignment hear why."""
    for member in group.members.values():
        member.assignment = b""
        answer_sync(turn, group, member, Synced(code))


def answer_sync(turn: Turn, group: ClassicGroup, member: Member, reply: Synced) -> None:
    """Whoever waited did not beat meanwhile: its session begins anew."""
    token, member.sync_token = member.sync_token, None
    if token is not None:
        turn.release(token, reply)
        turn.expect(group, member)


def synced(group: ClassicGroup, member: Member) -> Synced:
    """The answer to a member of a stable group."""
    return Synced(Code.NONE, group.protocol_type, group.protocol, member.assignment)


def sync_is_due(turn: Turn, group: ClassicGroup) -> None:
    """Members that never asked for their assignment are gone."""
    gone = [member_id for member_id in group.members if member_id in group.unsynced]
    for member_id in gone:
        group.remove(member_id)
        turn.let_go(group, member_id)
    prepare(turn, group, f"{len(gone)} members did not sync in time, {gone[0]} among them")


# -- members that go --------------------------------------------------------------------------------------------------


def remove(turn: Turn, group: ClassicGroup, member: Member) -> None:
    """Takes a member out; if it waits for something it may come back as a new one."""
    join, sync = member.join_token, member.sync_token
    group.remove(member.member_id)
    turn.let_go(group, member.member_id)
    member.join_token = member.sync_token = None
    if join is not None:
        turn.release(join, Joined(Code.UNKNOWN_MEMBER_ID))
    if sync is not None:
        turn.release(sync, Synced(Code.UNKNOWN_MEMBER_ID))


def member_is_due(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    """An id that nobody used, or a member without a heartbeat."""
    member = group.members.get(member_id)
    if member is None:
        group.pending.discard(member_id)
    elif member.waits:
        return
    else:
        remove(turn, group, member)
    if member is not None and group.state in (State.STABLE, State.COMPLETING):
        prepare(turn, group, f"member {member_id} showed no life for its session timeout")
    elif group.state is State.PREPARING and group.everyone_joined():
        complete_join(turn, group)
    drop_if_nothing(turn, group)


def drop_if_nothing(turn: Turn, group: ClassicGroup) -> None:
    """A group of which neither the log nor anybody alive knows anything."""
    live, name = turn.live, group.name
    if (
        group.state is State.EMPTY
        and not group.pending
        and name not in live.log.groups
        and name not in live.log.offsets
    ):
        drop(turn, group)


def drop(turn: Turn, group: ClassicGroup) -> None:
    """The group is gone; ids that were given out are worth nothing."""
    group.move(State.DEAD, turn.now.wall_ms)
    for member_id in group.pending:
        turn.live.deadlines.cancel((MEMBER, group.name, member_id))
    del turn.live.groups[group.name]
