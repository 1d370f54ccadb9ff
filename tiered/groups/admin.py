"""Requests of administrators: DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from collections.abc import Iterable

from tiered.errors import Code
from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.decision import Decision
from tiered.groups.member import ClassicGroupMember
from tiered.groups.offsets import offset_tombstone
from tiered.groups.rebalance import drop_group
from tiered.groups.records import group_key
from tiered.groups.requests import (
    DeleteGroup,
    DeleteReply,
    DescribedMember,
    DescribeGroup,
    DescribeGroupReply,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
)
from tiered.shard import CoordinatorRecord

CLASSIC = "classic"


def handle_describe_group(groups: dict[str, ClassicGroup], request: DescribeGroup) -> DescribeGroupReply:
    """Handles DescribeGroups for one group. The protocol is set only in a stable group, the metadata mostly so."""
    group = groups.get(request.group)
    if group is None:
        return DescribeGroupReply(Code.GROUP_ID_NOT_FOUND, request.group, ClassicGroupState.DEAD.value)
    protocol = (group.protocol or "") if group.state is ClassicGroupState.STABLE else ""
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(protocol) if protocol else _first_metadata(member) if request.any_state else b"",
            member.assignment,
        )
        for member in group.members.values()
    )
    return DescribeGroupReply(Code.NONE, group.name, group.state.value, group.protocol_type or "", protocol, members)


def _first_metadata(member: ClassicGroupMember) -> bytes:
    return next((metadata for _, metadata in member.protocols), b"")


def handle_list_groups(groups: Iterable[ClassicGroup], request: ListGroups) -> ListGroupsReply:
    """Handles ListGroups: returns the groups that pass both filters."""
    states = {state.lower() for state in request.states}
    if request.types and CLASSIC not in {each.lower() for each in request.types}:
        return ListGroupsReply(())
    found = [
        ListedGroup(group.name, group.protocol_type or "", group.state.value, CLASSIC)
        for group in groups
        if not states or group.state.value.lower() in states
    ]
    return ListGroupsReply(tuple(sorted(found)))


def handle_delete_group(decision: Decision, request: DeleteGroup) -> DeleteReply:
    """Handles DeleteGroups for one group: removes an empty group with all its offsets."""
    group = decision.state.groups.get(request.group)
    if group is None:
        return DeleteReply(Code.GROUP_ID_NOT_FOUND)
    if group.state is not ClassicGroupState.EMPTY:
        return DeleteReply(Code.NON_EMPTY_GROUP)
    remove_group(decision, group)
    return DeleteReply(Code.NONE)


def remove_group(decision: Decision, group: ClassicGroup) -> None:
    """Writes tombstones for all that the log has of the group, and drops it."""
    log_state = decision.state.log_state
    decision.write(*[offset_tombstone(group.name, *each) for each in log_state.offset_partitions(group.name)])
    if group.name in log_state.groups:
        decision.write(CoordinatorRecord(group_key(group.name), None))
    drop_group(decision, group)
