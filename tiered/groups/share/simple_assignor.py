"""The assignor `simple` of share groups: several members may read one partition.

With more partitions than members each partition has one member, else each member has one partition. In both cases the
numbers differ by one at most, among the members that subscribe to the same topics. A member keeps its
partitions as far as that permits. Kafka's assignor of this name gives some partitions to more members.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tiered.groups.consumer.assignment import Assignment, AssignorMember

Item = TypeVar("Item")
Taker = TypeVar("Taker")
TopicPartition = tuple[str, int]


def assign_simple(
    members: Mapping[str, AssignorMember], partitions: Mapping[str, frozenset[int]]
) -> dict[str, Assignment]:
    """Returns the target of each member. `partitions` are those of each topic that may be read."""
    subscribers: dict[str, list[str]] = defaultdict(list)
    for member_id in sorted(members):
        for topic_id in members[member_id].topics:
            subscribers[topic_id].append(member_id)
    topics_of: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for topic_id, found in subscribers.items():
        topics_of[tuple(found)].append(topic_id)
    targets: dict[str, dict[str, set[int]]] = {member_id: defaultdict(set) for member_id in members}
    for readers, topics in topics_of.items():
        readable = [(each, number) for each in sorted(topics) for number in sorted(partitions.get(each, ()))]
        for member_id, (topic_id, number) in _assign(readers, readable, members):
            targets[member_id][topic_id].add(number)
    return {
        member_id: {topic_id: frozenset(numbers) for topic_id, numbers in target.items()}
        for member_id, target in targets.items()
    }


def _assign(
    readers: Sequence[str], readable: Sequence[TopicPartition], members: Mapping[str, AssignorMember]
) -> Iterable[tuple[str, TopicPartition]]:
    """Yields pairs of a member and a partition, for members that subscribe to the same topics."""
    if not readable:
        return
    had = [(each, at) for each in readers for at in _partitions(members[each].target)]
    if len(readable) >= len(readers):
        owners = {at: member_id for member_id, at in reversed(had)}
        yield from ((member_id, at) for at, member_id in _spread(readable, readers, owners))
    else:
        known = set(readable)
        places = {member_id: at for member_id, at in reversed(had) if at in known}
        yield from _spread(readers, readable, places)


def _spread(items: Sequence[Item], takers: Sequence[Taker], had: Mapping[Item, Taker]) -> list[tuple[Item, Taker]]:
    """Gives each item to one taker, evenly. There are at least as many items as takers."""
    least, extra = divmod(len(items), len(takers))
    load = dict.fromkeys(takers, 0)
    found, left = [], []
    for item in items:
        taker = had.get(item)
        if taker is None or taker not in load or load[taker] > least or (load[taker] == least and not extra):
            left.append(item)
            continue
        extra -= load[taker] == least
        load[taker] += 1
        found.append((item, taker))
    free = [taker for taker in takers for _ in range(least - load[taker])]
    free += [taker for taker in takers if load[taker] <= least][:extra]
    return found + list(zip(left, free, strict=True))


def _partitions(assignment: Assignment) -> list[TopicPartition]:
    return sorted((topic_id, number) for topic_id, numbers in assignment.items() for number in numbers)
