"""Members and topics of consumer groups, and what holds for each assignment."""

from __future__ import annotations

from collections.abc import Mapping

from tiered.groups.consumer.assignment import Assignment, AssignorMember

T, U, V = "AAAAAAAAAAAAAAAAAAAAEA", "AAAAAAAAAAAAAAAAAAAAEQ", "AAAAAAAAAAAAAAAAAAAAEg"
"""Ids of three topics."""


def partitions(**topics: set[int]) -> Assignment:
    """Returns an assignment: `t`, `u` and `v` are the topics T, U and V."""
    return {{"t": T, "u": U, "v": V}[name]: frozenset(each) for name, each in topics.items()}


def find_owners(assignments: Mapping[str, Assignment]) -> dict[tuple[str, int], str]:
    """Returns the owner of each partition. Fails if a partition has two."""
    owners: dict[tuple[str, int], str] = {}
    for member_id, assignment in assignments.items():
        for topic_id, numbers in assignment.items():
            assert numbers, f"{member_id} has an entry for no partitions"
            for number in numbers:
                assert (topic_id, number) not in owners, f"{topic_id}-{number} has two owners"
                owners[topic_id, number] = member_id
    return owners


def check_complete(
    members: Mapping[str, AssignorMember], partition_counts: Mapping[str, int], found: Mapping[str, Assignment]
) -> dict[tuple[str, int], str]:
    """Checks that each partition of a topic with a subscriber has one owner, which subscribes to it."""
    assert found.keys() == members.keys()
    owners = find_owners(found)
    wanted = {topic_id for each in members.values() for topic_id in each.topics}
    assert owners.keys() == {(topic_id, number) for topic_id in wanted for number in range(partition_counts[topic_id])}
    assert all(topic_id in members[member_id].topics for (topic_id, _), member_id in owners.items())
    return owners
