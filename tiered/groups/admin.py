"""What administrators ask: which groups there are, what they are doing, and that one be deleted."""

from __future__ import annotations

from collections.abc import Iterable

from tiered.errors import Code
from tiered.groups.classic import ClassicGroup, State
from tiered.groups.decision import Turn
from tiered.groups.offsets import tombstone
from tiered.groups.rebalance import drop
from tiered.groups.records import Record, group_key
from tiered.groups.requests import (
    Deleted,
    DeleteGroup,
    Described,
    DescribedMember,
    DescribeGroup,
    Listed,
    ListedGroup,
    ListGroups,
)

CLASSIC = "classic"


def describe(groups: dict[str, ClassicGroup], request: DescribeGroup) -> Described:
    """The chosen protocol and what members said for it, once there is one that all agreed on."""
    group = groups.get(request.group)
    if group is None:
        return Described(Code.GROUP_ID_NOT_FOUND, request.group, State.DEAD.value)
    protocol = (group.protocol or "") if group.state is State.STABLE else ""
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(protocol) if protocol else b"",
            member.assignment,
        )
        for member in group.members.values()
    )
    return Described(Code.NONE, group.name, group.state.value, group.protocol_type or "", protocol, members)


def list_groups(groups: Iterable[ClassicGroup], request: ListGroups) -> Listed:
    """Those that pass both filters."""
    states = {state.lower() for state in request.states}
    if request.types and CLASSIC not in {each.lower() for each in request.types}:
        return Listed(())
    found = [
        ListedGroup(group.name, group.protocol_type or "", group.state.value, CLASSIC)
        for group in groups
        if not states or group.state.value.lower() in states
    ]
    return Listed(tuple(sorted(found)))


def delete_group(turn: Turn, request: DeleteGroup) -> Deleted:
    """Offsets and all."""
    group = turn.live.groups.get(request.group)
    if group is None:
        return Deleted(Code.GROUP_ID_NOT_FOUND)
    if group.state is not State.EMPTY:
        return Deleted(Code.NON_EMPTY_GROUP)
    bury(turn, group)
    return Deleted(Code.NONE)


def bury(turn: Turn, group: ClassicGroup) -> None:
    """Tombstones for all that the log has of it."""
    log = turn.live.log
    turn.write(*[tombstone(group.name, topic, partition) for topic, partition, _ in log.rows(group.name)])
    if group.name in log.groups:
        turn.write(Record(group_key(group.name), None))
    drop(turn, group)
