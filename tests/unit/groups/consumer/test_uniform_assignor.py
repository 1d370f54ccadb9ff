"""The assignor `uniform`: any history of joins, leaves and growths ends complete, disjoint and balanced, with few
moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.groups.consumer.rig import T, U, V, check_complete, partitions
from tiered.groups.consumer.assignment import Assignment, AssignorMember
from tiered.groups.consumer.uniform_assignor import assign_uniformly

MEMBER_IDS = st.sampled_from([f"m{number}" for number in range(7)])
COUNTS = st.fixed_dictionaries({T: st.integers(0, 12), U: st.integers(0, 5), V: st.integers(0, 3)})
TOPIC_IDS = st.sets(st.sampled_from([T, U, V]), min_size=1).map(frozenset)
EQUAL_STEPS = st.lists(st.tuples(st.sets(MEMBER_IDS, min_size=1), COUNTS, TOPIC_IDS), min_size=1, max_size=5)
MIXED_STEPS = st.lists(st.tuples(st.dictionaries(MEMBER_IDS, TOPIC_IDS, min_size=1), COUNTS), min_size=1, max_size=5)


def kept_owners(members: dict[str, AssignorMember], counts: dict[str, int]) -> dict[tuple[str, int], str]:
    """Returns the owners before that may stay."""
    return {
        (topic_id, number): member_id
        for member_id, each in members.items()
        for topic_id in each.topics & each.target.keys()
        for number in each.target[topic_id]
        if number < counts[topic_id]
    }


@given(EQUAL_STEPS)
def test_equal_subscriptions_are_balanced_with_the_fewest_moves(
    steps: list[tuple[set[str], dict[str, int], frozenset[str]]],
) -> None:
    found: dict[str, Assignment] = {}
    for member_ids, counts, topics in steps:
        members = {each: AssignorMember(topics, found.get(each, {})) for each in member_ids}
        before = kept_owners(members, counts)
        found = assign_uniformly(members, counts)
        owners = check_complete(members, counts, found)
        low, more = divmod(len(owners), len(members))
        loads = Counter(owners.values())
        assert {loads[each] for each in members} <= {low, low + 1}
        kept = Counter(before.values())
        above = sum(each > low for each in kept.values())
        fewest = sum(max(0, each - low - 1) for each in kept.values()) + max(0, above - more)
        assert sum(owners[partition] != member_id for partition, member_id in before.items()) == fewest


@given(MIXED_STEPS)
def test_no_partition_can_move_to_a_subscriber_with_two_less(
    steps: list[tuple[dict[str, frozenset[str]], dict[str, int]]],
) -> None:
    found: dict[str, Assignment] = {}
    for subscriptions, counts in steps:
        members = {each: AssignorMember(topics, found.get(each, {})) for each, topics in subscriptions.items()}
        found = assign_uniformly(members, counts)
        owners = check_complete(members, counts, found)
        loads = Counter(owners.values())
        for (topic_id, _), owner in owners.items():
            lowest = min(loads[each] for each, topics in subscriptions.items() if topic_id in topics)
            assert loads[owner] - lowest < 2, (topic_id, owner)


def test_new_member_takes_only_its_share() -> None:
    counts = {T: 6}
    members = {
        "a": AssignorMember(frozenset({T}), partitions(t={0, 1, 2})),
        "b": AssignorMember(frozenset({T}), partitions(t={3, 4, 5})),
        "c": AssignorMember(frozenset({T})),
    }
    assert assign_uniformly(members, counts) == {
        "a": partitions(t={0, 1}),
        "b": partitions(t={3, 4}),
        "c": partitions(t={2, 5}),
    }


def test_new_partitions_move_before_those_that_a_member_had() -> None:
    """The member `a` gets partition 7 first, and has too many once it also gets the other topic."""
    members = {
        "a": AssignorMember(frozenset({T, U}), partitions(t={0, 1, 2, 3})),
        "b": AssignorMember(frozenset({T, V}), partitions(t={4, 5, 6}, v={0})),
    }
    found = assign_uniformly(members, {T: 8, U: 2, V: 1})
    assert found == {"a": partitions(t={0, 1, 2, 3}, u={0, 1}), "b": partitions(t={4, 5, 6, 7}, v={0})}


def test_partition_of_two_targets_stays_with_one_member() -> None:
    members = {each: AssignorMember(frozenset({T}), partitions(t={0, 1, 9})) for each in ("a", "b")}
    assert assign_uniformly(members, {T: 2}) == {"a": partitions(t={0}), "b": partitions(t={1})}


def test_members_without_topics_and_groups_without_members_get_nothing() -> None:
    assert assign_uniformly({"a": AssignorMember(frozenset(), partitions(t={0}))}, {T: 1}) == {"a": {}}
    assert assign_uniformly({}, {T: 1}) == {}
