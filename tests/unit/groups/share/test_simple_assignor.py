"""The assignor `simple`: complete, even, and with no more movement than that needs."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.groups.consumer.rig import T, U, partitions
from tiered.groups.consumer.assignment import Assignment, AssignorMember
from tiered.groups.share.simple_assignor import assign_simple

MEMBERS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.frozensets(st.sampled_from([T, U]), min_size=1), min_size=1, max_size=8
)
COUNTS = st.fixed_dictionaries({T: st.integers(0, 6), U: st.integers(0, 6)})


def assign(
    topics: dict[str, frozenset[str]], counts: dict[str, int], had: dict[str, Assignment]
) -> dict[str, Assignment]:
    members = {each: AssignorMember(names, had.get(each, {})) for each, names in topics.items()}
    return assign_simple(members, {topic: frozenset(range(count)) for topic, count in counts.items()})


def moved(before: dict[str, Assignment], after: dict[str, Assignment]) -> int:
    pairs = [
        {(each, topic, at) for each in found for topic in found[each] for at in found[each][topic]}
        for found in (before, after)
    ]
    return len(pairs[1] - pairs[0])


@given(MEMBERS, COUNTS, MEMBERS, COUNTS)
def test_every_partition_has_a_reader_and_every_member_has_work(
    topics: dict[str, frozenset[str]],
    counts: dict[str, int],
    later_topics: dict[str, frozenset[str]],
    later_counts: dict[str, int],
) -> None:
    had: dict[str, Assignment] = {}
    for names, sizes in ((topics, counts), (later_topics, later_counts)):
        had = assign(names, sizes, had)
        assert had.keys() == names.keys()
        readers = Counter((topic, at) for each in had.values() for topic in each for at in each[topic])
        wanted = {(topic, at) for topic in {*frozenset().union(*names.values())} for at in range(sizes[topic])}
        assert readers.keys() == wanted
        assert all(each in names[member] for member in names for each in had[member])
        assert all(had[member] for member in names if any(sizes[each] for each in names[member]))
        assert assign(names, sizes, had) == had, "nothing moves without a reason"


@given(st.integers(1, 9), st.integers(1, 9))
def test_members_of_one_subscription_differ_by_one_partition_at_most(members: int, count: int) -> None:
    found = assign({f"m{each}": frozenset([T]) for each in range(members)}, {T: count}, {})
    loads = [len(each.get(T, ())) for each in found.values()]
    readers = Counter(at for each in found.values() for at in each[T])
    assert max(loads) - min(loads) <= 1
    assert max(readers.values()) - min(readers.values()) <= 1
    assert sum(loads) == max(members, count)


def test_new_member_gets_no_more_than_its_part() -> None:
    topics = {"a": frozenset([T]), "b": frozenset([T])}
    before = assign(topics, {T: 6}, {})
    after = assign(topics | {"c": frozenset([T])}, {T: 6}, before)
    assert moved(before, after) == 2
    assert assign({"a": frozenset([T])}, {T: 2}, {"a": partitions(t={1}, u={0})}) == {"a": partitions(t={0, 1})}
