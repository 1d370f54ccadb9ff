"""The assignor `range`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.groups.consumer.rig import T, U, V, check_complete, partitions
from tiered.groups.consumer.assignment import AssignorMember
from tiered.groups.consumer.range_assignor import assign_ranges

BOTH = frozenset({T, U})
COUNTS = st.fixed_dictionaries({T: st.integers(0, 12), U: st.integers(0, 5), V: st.integers(0, 3)})
SUBSCRIPTIONS = st.dictionaries(st.sampled_from("abcdefg"), st.sets(st.sampled_from([T, U, V])).map(frozenset))


@given(SUBSCRIPTIONS, COUNTS)
def test_each_subscriber_gets_one_range_of_its_share(
    subscriptions: dict[str, frozenset[str]], counts: dict[str, int]
) -> None:
    members = {each: AssignorMember(topics) for each, topics in subscriptions.items()}
    found = assign_ranges(members, counts)
    check_complete(members, counts, found)
    for topic_id, count in counts.items():
        ranges = [
            found[each].get(topic_id, frozenset()) for each in sorted(members) if topic_id in members[each].topics
        ]
        assert [number for each in ranges for number in sorted(each)] == (list(range(count)) if ranges else [])
        assert [len(each) for each in ranges] == sorted(map(len, ranges), reverse=True)
        assert max(map(len, ranges), default=0) - min(map(len, ranges), default=0) <= 1


def test_topics_with_equal_partitions_are_assigned_alike() -> None:
    found = assign_ranges({"a": AssignorMember(BOTH), "b": AssignorMember(BOTH)}, {T: 3, U: 3})
    assert found == {"a": partitions(t={0, 1}, u={0, 1}), "b": partitions(t={2}, u={2})}


def test_static_members_keep_their_ranges_under_new_ids() -> None:
    before = assign_ranges(
        {"b": AssignorMember(BOTH, instance_id="i"), "a": AssignorMember(BOTH, instance_id="j")}, {T: 3, U: 2}
    )
    after = assign_ranges(
        {"c": AssignorMember(BOTH, instance_id="j"), "d": AssignorMember(BOTH, instance_id="i")}, {T: 3, U: 2}
    )
    assert (after["d"], after["c"]) == (before["b"], before["a"])
    assert before["b"] == partitions(t={0, 1}, u={0})


def test_static_members_come_before_others() -> None:
    found = assign_ranges({"a": AssignorMember(BOTH), "z": AssignorMember(BOTH, instance_id="z")}, {T: 1, U: 0})
    assert found == {"z": partitions(t={0}), "a": {}}
