"""A member's way from its present assignment to its target.

Keeps I17: a partition is given to a member only after the member before it has said that it no longer owns it, or has
left the group. A member first gives up what is not in its target, in its old epoch. Then it moves to the epoch of the
target and gets the partitions that are free. It waits for the others, and gets each of them once it is free.

    Stable -- target without some of its partitions --> UnrevokedPartitions -- it owns them no more --> Stable
    Stable -- partitions of others in its target --> UnreleasedPartitions -- others gave them up --> Stable
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tiered.groups.consumer.assignment import NO_PARTITIONS, Assignment


class MemberState(Enum):
    """State of a member, by Kafka's names and numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """A state that a later program wrote."""


class CurrentAssignment(NamedTuple):
    """The assignment that a member has: it may own `assigned`, and `revoking` until it says that it does not.

    `epoch` is the epoch that the member has to send, `previous_epoch` the one before, in case a reply was lost.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NO_PARTITIONS
    revoking: Assignment = NO_PARTITIONS


class Target(NamedTuple):
    """The target of a member. `is_free` is True for a partition that no member owns or revokes.

    `topics` are the ids of the topics that the member subscribes to now. They may be fewer than those of `assignment`,
    which was computed earlier.
    """

    epoch: int
    assignment: Assignment
    topics: frozenset[str]
    is_free: Callable[[str, int], bool]


def reconcile(
    current: CurrentAssignment, target: Target, owned: Assignment | None, is_subscription_new: bool = False
) -> CurrentAssignment | None:
    """Returns the next assignment of a member, `current` itself if it stays.

    `owned` is what the member says that it owns; None if it did not say. `is_subscription_new`: its request changed its
    subscription. Returns None if the member has to be fenced: its state is unknown, and it still owns partitions.
    """
    if current.state is MemberState.UNKNOWN:
        return _advance(current, target, owned, target.epoch) if owned is not None and not owned else None
    if current.state is MemberState.UNRELEASED_PARTITIONS:
        return _advance(current, target, owned, current.epoch)
    if current.state is MemberState.STABLE:
        if current.epoch != target.epoch:
            return _advance(current, target, owned, current.epoch)
    elif not owns_any(owned, current.revoking):
        return _advance(current, target, owned, min(current.epoch + 1, target.epoch))
    return _drop_unsubscribed(current, target.topics, owned) if is_subscription_new else current


def owns_any(owned: Assignment | None, partitions: Assignment) -> bool:
    """True if a member may own any of the partitions. It may own each of them if it did not say what it owns."""
    return owned is None or any(
        not owned[topic_id].isdisjoint(partitions[topic_id]) for topic_id in owned.keys() & partitions.keys()
    )


def _advance(current: CurrentAssignment, target: Target, owned: Assignment | None, epoch: int) -> CurrentAssignment:
    """Returns the next step to the target, from `epoch`."""
    kept: dict[str, frozenset[int]] = {}
    revoking: dict[str, frozenset[int]] = {}
    free: dict[str, frozenset[int]] = {}
    waits = False
    for topic_id in sorted(target.assignment.keys() | current.assigned.keys()):
        wanted = target.assignment.get(topic_id, frozenset()) if topic_id in target.topics else frozenset()
        had = current.assigned.get(topic_id, frozenset())
        own_revoking = current.revoking.get(topic_id, frozenset())
        missing = wanted - had
        now_free = frozenset(each for each in missing if each in own_revoking or target.is_free(topic_id, each))
        waits = waits or now_free != missing
        for found, partitions in ((kept, wanted & had), (revoking, had - wanted), (free, now_free)):
            if partitions:
                found[topic_id] = partitions
    if revoking and owns_any(owned, revoking):
        return CurrentAssignment(epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic_id, partitions in free.items():
        kept[topic_id] = kept.get(topic_id, frozenset()) | partitions
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return CurrentAssignment(target.epoch, current.epoch, state, kept)


def _drop_unsubscribed(
    current: CurrentAssignment, topics: frozenset[str], owned: Assignment | None
) -> CurrentAssignment:
    """Returns the assignment without topics that the member subscribes to no more, before there is a new target."""
    dropped = {topic_id: each for topic_id, each in current.assigned.items() if topic_id not in topics}
    if not dropped:
        return current
    kept = {topic_id: each for topic_id, each in current.assigned.items() if topic_id in topics}
    revoking = dict(current.revoking)
    for topic_id, partitions in dropped.items():
        revoking[topic_id] = revoking.get(topic_id, frozenset()) | partitions
    if not owns_any(owned, revoking):
        revoking, state = dict(current.revoking), current.state
    else:
        state = MemberState.UNREVOKED_PARTITIONS
    return CurrentAssignment(current.epoch, current.previous_epoch, state, kept, revoking)
