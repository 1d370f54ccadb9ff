"""Description, listing and deletion of consumer groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tiered.errors import Code
from tiered.groups.consumer.assignment import NO_PARTITIONS
from tiered.groups.consumer.assignors import choose_assignor
from tiered.groups.consumer.epochs import ConsumerGroupState
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.consumer.sessions import cancel_deadlines
from tiered.groups.decision import Decision
from tiered.groups.requests import (
    DescribeConsumerGroup,
    DescribeConsumerGroupReply,
    DescribedConsumerMember,
    ListedGroup,
)
from tiered.groups.subscription import CONSUMER

CONSUMER_TYPE = "consumer"


def handle_describe_consumer_group(
    groups: Mapping[str, ConsumerGroup], request: DescribeConsumerGroup
) -> DescribeConsumerGroupReply:
    """Handles ConsumerGroupDescribe for one group."""
    group = groups.get(request.group)
    if group is None:
        why = f"Group {request.group} not found."
        return DescribeConsumerGroupReply(Code.GROUP_ID_NOT_FOUND, request.group, message=why)
    members = tuple(
        DescribedConsumerMember(member_id, member.metadata, member.current, group.targets.get(member_id, NO_PARTITIONS))
        for member_id, member in group.members.items()
    )
    assignor = choose_assignor(member.metadata.assignor for member in group.members.values())
    return DescribeConsumerGroupReply(
        Code.NONE, group.name, group.state.value, group.epoch, max(group.target_epoch, 0), assignor, members
    )


def list_consumer_groups(
    groups: Mapping[str, ConsumerGroup], states: Collection[str], types: Collection[str]
) -> Iterator[ListedGroup]:
    """Yields the groups that pass both filters, which are in lower case."""
    if types and CONSUMER_TYPE not in types:
        return
    for group in groups.values():
        state = group.state.value
        if not states or state.lower() in states:
            yield ListedGroup(group.name, CONSUMER, state, CONSUMER_TYPE)


def is_empty(group: ConsumerGroup) -> bool:
    """True if the group has no members."""
    return group.state is ConsumerGroupState.EMPTY


def drop_consumer_group(decision: Decision, group: ConsumerGroup) -> None:
    """Writes tombstones for all records of the group. Its offsets stay."""
    for member_id in group.members:
        cancel_deadlines(decision, group.name, member_id)
    decision.write(*list(group.tombstones()))
