"""Description, listing and deletion of share groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tiered.errors import Code
from tiered.groups.decision import SHARE_SESSION, Decision
from tiered.groups.requests import (
    DescribedShareMember,
    DescribeShareGroup,
    DescribeShareGroupReply,
    ListedGroup,
)
from tiered.groups.share.group import ShareGroup
from tiered.groups.share.heartbeat import SIMPLE

SHARE = "share"


def handle_describe_share_group(
    groups: Mapping[str, ShareGroup], request: DescribeShareGroup
) -> DescribeShareGroupReply:
    """Handles ShareGroupDescribe for one group."""
    group = groups.get(request.group)
    if group is None:
        why = f"Group {request.group} not found."
        return DescribeShareGroupReply(Code.GROUP_ID_NOT_FOUND, request.group, message=why)
    members = tuple(
        DescribedShareMember(member_id, member.metadata, member.current) for member_id, member in group.members.items()
    )
    return DescribeShareGroupReply(
        Code.NONE, group.name, group.state.value, group.epoch, max(group.target_epoch, 0), SIMPLE, members
    )


def list_share_groups(
    groups: Mapping[str, ShareGroup], states: Collection[str], types: Collection[str]
) -> Iterator[ListedGroup]:
    """Yields the groups that pass both filters, which are in lower case."""
    if types and SHARE not in types:
        return
    for group in groups.values():
        state = group.state.value
        if not states or state.lower() in states:
            yield ListedGroup(group.name, SHARE, state, SHARE)


def remove_share_group(decision: Decision, group: ShareGroup) -> None:
    """Writes tombstones for all records of the group. The caller has removed its share state."""
    for member_id in group.members:
        decision.state.deadlines.cancel((SHARE_SESSION, group.name, member_id))
    decision.write(*list(group.tombstones()))
    decision.state.holders.forget(group.name)
