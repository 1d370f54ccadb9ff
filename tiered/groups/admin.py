"""Requests of administrators: DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.consumer.admin import drop_consumer_group, is_empty, list_consumer_groups
from tiered.groups.consumer.classic_view import describe_as_classic
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.decision import Decision, GroupState
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
    GroupProgress,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
)
from tiered.groups.share.admin import list_share_groups, remove_share_group
from tiered.shard import CoordinatorRecord

CLASSIC = "classic"


def handle_describe_group(state: GroupState, request: DescribeGroup) -> DescribeGroupReply:
    """Handles DescribeGroups for one group. The protocol is set only in a stable group, the metadata mostly so."""
    consumer_group = state.log_state.consumer_groups.get(request.group)
    if consumer_group is not None and request.with_consumer_groups:
        return describe_as_classic(consumer_group, state.find_topic)
    group = state.groups.get(request.group)
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
    return DescribeGroupReply(
        Code.NONE, group.name, group.state.value, group.protocol_type or "", protocol, members,
        _describe_progress(group) if request.with_progress else None,
    )  # fmt: skip


def _describe_progress(group: ClassicGroup) -> GroupProgress:
    """Returns since when a group is in its state, and which members its rebalance waits for."""
    awaited: tuple[str, ...] = ()
    if group.state is ClassicGroupState.PREPARING:
        awaited = tuple(each.member_id for each in group.members.values() if each.join_token is None)
    elif group.state is ClassicGroupState.COMPLETING:
        awaited = tuple(name for name in group.members if name in group.pending_sync_members)
    return GroupProgress(
        group.state_since_ms, group.reason, group.rebalance_timeout_ms(), awaited, len(group.pending_members)
    )


def _first_metadata(member: ClassicGroupMember) -> bytes:
    return next((metadata for _, metadata in member.protocols), b"")


def handle_list_groups(state: GroupState, request: ListGroups) -> ListGroupsReply:
    """Handles ListGroups: returns the groups that pass both filters."""
    states, types = ({each.lower() for each in filtered} for filtered in (request.states, request.types))
    found = list(list_consumer_groups(state.log_state.consumer_groups, states, types))
    found += list_share_groups(state.log_state.share_groups, states, types)
    if not types or CLASSIC in types:
        found += (
            ListedGroup(group.name, group.protocol_type or "", group.state.value, CLASSIC)
            for group in state.groups.values()
            if not states or group.state.value.lower() in states
        )
    return ListGroupsReply(tuple(sorted(found)))


def handle_delete_group(decision: Decision, request: DeleteGroup) -> DeleteReply:
    """Handles DeleteGroups for one group: removes an empty group with all its offsets."""
    consumer_group = decision.state.log_state.consumer_groups.get(request.group)
    if consumer_group is not None:
        if not is_empty(consumer_group):
            return DeleteReply(Code.NON_EMPTY_GROUP)
        remove_consumer_group(decision, consumer_group)
        return DeleteReply(Code.NONE)
    share_group = decision.state.log_state.share_groups.get(request.group)
    if share_group is not None:
        if share_group.members:
            return DeleteReply(Code.NON_EMPTY_GROUP)
        remove_share_group(decision, share_group)
        return DeleteReply(Code.NONE)
    group = decision.state.groups.get(request.group)
    if group is None:
        return DeleteReply(Code.GROUP_ID_NOT_FOUND)
    if group.state is not ClassicGroupState.EMPTY:
        return DeleteReply(Code.NON_EMPTY_GROUP)
    remove_group(decision, group)
    return DeleteReply(Code.NONE)


def remove_group(decision: Decision, group: ClassicGroup) -> None:
    """Writes tombstones for all that the log has of the group, and drops it."""
    _delete_offsets(decision, group.name)
    if group.name in decision.state.log_state.groups:
        decision.write(CoordinatorRecord(group_key(group.name), None))
    drop_group(decision, group)


def remove_consumer_group(decision: Decision, group: ConsumerGroup) -> None:
    """Writes tombstones for all that the log has of an empty consumer group."""
    _delete_offsets(decision, group.name)
    drop_consumer_group(decision, group)
    decision.state.holders.forget(group.name)


def _delete_offsets(decision: Decision, group: str) -> None:
    log_state = decision.state.log_state
    decision.write(*[offset_tombstone(group, *each) for each in log_state.offset_partitions(group)])
