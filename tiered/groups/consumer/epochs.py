"""Epochs of a consumer group: they only grow.

- Group epoch: grows when a member joins, leaves or subscribes to other topics, and when these topics change.
- Target epoch: the group epoch for which the target of all members was computed.
- Member epoch: the target epoch that the member has reached. A member names it in each heartbeat and in each commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from tiered.errors import Code
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2
"""Member epochs of requests: a member joins, it leaves, a static member leaves and will be back."""

NO_HASH = 0


class ConsumerGroupState(Enum):
    """State of a group, by Kafka's names."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class SubscribedTopic(NamedTuple):
    """A topic that exists, as far as it matters for the assignment."""

    topic_id: str
    partition_count: int


def find_state(group_epoch: int, target_epoch: int, members: Iterable[CurrentAssignment]) -> ConsumerGroupState:
    """Returns the state of a group with these members. A group with a tombstone is Dead, and not here."""
    states = [each.state is MemberState.STABLE and each.epoch == target_epoch for each in members]
    if not states:
        return ConsumerGroupState.EMPTY
    if group_epoch > target_epoch:
        return ConsumerGroupState.ASSIGNING
    return ConsumerGroupState.STABLE if all(states) else ConsumerGroupState.RECONCILING


def next_group_epoch(group_epoch: int, is_subscription_new: bool, known_hash: int, topics_hash: int) -> int:
    """Returns the group epoch after a request: it grows if a subscription or the subscribed topics changed."""
    return group_epoch + (is_subscription_new or known_hash != topics_hash)


def check_member_epoch(epoch: int, current: CurrentAssignment, owned: Assignment | None) -> Code | None:
    """Returns FENCED_MEMBER_EPOCH for an epoch that is not the member's, else None.

    A member that joins again passes. So does the epoch before, if the member owns nothing else than it was assigned:
    the reply with the new epoch may have been lost.
    """
    if epoch in (JOINING, current.epoch):
        return None
    is_lost_reply = epoch < current.epoch and epoch == current.previous_epoch and _is_within(owned, current.assigned)
    return None if is_lost_reply else Code.FENCED_MEMBER_EPOCH


def _is_within(owned: Assignment | None, assigned: Assignment) -> bool:
    return owned is not None and all(
        partitions <= assigned.get(topic_id, frozenset()) for topic_id, partitions in owned.items()
    )


def hash_topics(topics: Mapping[str, SubscribedTopic]) -> int:
    """Returns a hash of the subscribed topics by name, which changes if their ids or partitions do; 0 for no topics.

    It stands where Kafka has its own. Kafka's hash has other values, and also covers racks, which no assignor looks at.
    """
    if not topics:
        return NO_HASH
    text = "\n".join(f"{name} {topics[name].topic_id} {topics[name].partition_count}" for name in sorted(topics))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
