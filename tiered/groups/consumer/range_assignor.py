"""The assignor `range`: each subscriber of a topic gets one range of its partitions.

Topics with equal numbers of partitions and equal subscribers get equal ranges, so that a member can join them. The
order of members decides, and earlier targets do not. Static members come first, by instance id: they keep their ranges
under a new member id.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiered.groups.consumer.assignment import Assignment, AssignorMember


def assign_ranges(members: Mapping[str, AssignorMember], partition_counts: Mapping[str, int]) -> dict[str, Assignment]:
    """Computes the target of each member."""
    found: dict[str, dict[str, frozenset[int]]] = {member_id: {} for member_id in members}
    subscribers: dict[str, list[str]] = {}
    for member_id in sorted(members, key=lambda each: _order(each, members[each])):
        for topic_id in members[member_id].topics:
            subscribers.setdefault(topic_id, []).append(member_id)
    for topic_id, member_ids in subscribers.items():
        quota, extra = divmod(partition_counts[topic_id], len(member_ids))
        start = 0
        for place, member_id in enumerate(member_ids):
            end = start + quota + (place < extra)
            if end > start:
                found[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(found)


def _order(member_id: str, member: AssignorMember) -> tuple[bool, str]:
    return (True, member_id) if member.instance_id is None else (False, member.instance_id)
