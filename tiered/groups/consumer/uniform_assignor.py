"""The assignor `uniform`: members get equal numbers of partitions, and as few partitions as possible move.

If all members subscribe to the same topics, their numbers differ by one at most, and no balanced assignment moves fewer
partitions. Otherwise no partition can move to another subscriber that has two partitions less.

Partitions that nobody has go to the subscriber with the fewest. Then members with too many partitions give some away:
first those that they only just got, because these did not move.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from tiered.groups.consumer.assignment import Assignment, AssignorMember

MOVES_PER_PARTITION = 4
"""Bounds the moves of one assignment. Equal subscriptions need one at most. With others a partition may move on along
a chain of members; an assignment that reaches the bound is complete, but less balanced."""


class _Audience:
    """Topics with the same subscribers. `fewest` is a heap of (partitions, member); old entries stay until popped."""

    __slots__ = ("fewest", "members", "topics")

    def __init__(self, members: list[int]) -> None:
        self.members = members
        self.topics: list[str] = []
        self.fewest = [(0, member) for member in members]


def assign_uniformly(
    members: Mapping[str, AssignorMember], partition_counts: Mapping[str, int]
) -> dict[str, Assignment]:
    """Computes the target of each member."""
    return _Assigning(members, partition_counts).run()


class _Assigning:
    """One run. Members are numbers in the order of their ids.

    `kept` is what each member had and keeps, `added` what it only just got. Most members of a large group keep all that
    they had, and cost next to nothing: `left` has lists for the others alone.
    """

    def __init__(self, members: Mapping[str, AssignorMember], partition_counts: Mapping[str, int]) -> None:
        self._ids = sorted(members)
        self._members = [members[member_id] for member_id in self._ids]
        self._partition_counts = partition_counts
        self._audiences = self._find_audiences()
        self._audience_of = {
            topic_id: place for place, audience in enumerate(self._audiences) for topic_id in audience.topics
        }
        self._audiences_of: list[list[int]] = [[] for _ in self._ids]
        for place, audience in enumerate(self._audiences):
            for member in audience.members:
                self._audiences_of[member].append(place)
        self._kept: list[Assignment] = []
        self._added: dict[int, dict[int, list[tuple[str, int]]]] = {}
        """Partitions by member and audience."""
        self._left: dict[int, dict[int, list[tuple[str, int]]]] = {}
        """Kept partitions of members that gave some up, by member and audience: all but those."""
        self._count = [0] * len(self._ids)

    def run(self) -> dict[str, Assignment]:
        """Assigns all partitions."""
        unowned = self._keep_owned()
        for place, topic_id, partition in unowned:
            self._give(self._find_fewest(place), place, topic_id, partition)
        self._balance()
        return {member_id: self._result(member) for member, member_id in enumerate(self._ids)}

    def _find_audiences(self) -> list[_Audience]:
        """Returns the audiences: those with the most partitions for each subscriber first, then the small ones."""
        by_topics: dict[frozenset[str], list[int]] = {}
        for member, each in enumerate(self._members):
            by_topics.setdefault(each.topics, []).append(member)
        kinds: dict[str, list[int]] = {}
        for kind, topics in enumerate(by_topics):
            for topic_id in topics:
                kinds.setdefault(topic_id, []).append(kind)
        members_of = list(by_topics.values())
        found: dict[tuple[int, ...], _Audience] = {}
        for topic_id in sorted(kinds):
            key = tuple(kinds[topic_id])
            if key not in found:
                found[key] = _Audience(sorted(member for kind in key for member in members_of[kind]))
            found[key].topics.append(topic_id)
        return sorted(found.values(), key=lambda each: (-self._share(each), len(each.members), each.topics))

    def _share(self, audience: _Audience) -> float:
        return sum(self._partition_counts[topic_id] for topic_id in audience.topics) / len(audience.members)

    def _keep_owned(self) -> list[tuple[int, str, int]]:
        """Gives each member what it has already. Returns the partitions that nobody has, with their audience."""
        unowned = {topic_id: set(range(self._partition_counts[topic_id])) for topic_id in self._audience_of}
        for member, each in enumerate(self._members):
            kept: dict[str, frozenset[int]] = {}
            for topic_id in each.topics & each.target.keys():
                found = each.target[topic_id] & unowned[topic_id]
                if found:
                    kept[topic_id] = found
                    unowned[topic_id] -= found
            self._count[member] = sum(map(len, kept.values()))
            self._kept.append(each.target if kept == each.target else kept)
        for audience in self._audiences:
            audience.fewest = [(self._count[member], member) for member in audience.members]
            heapq.heapify(audience.fewest)
        return [
            (place, topic_id, partition)
            for place, audience in enumerate(self._audiences)
            for topic_id in audience.topics
            for partition in sorted(unowned[topic_id])
        ]

    def _give(self, member: int, place: int, topic_id: str, partition: int) -> None:
        self._added.setdefault(member, {}).setdefault(place, []).append((topic_id, partition))
        self._set_count(member, self._count[member] + 1)

    def _set_count(self, member: int, count: int) -> None:
        self._count[member] = count
        for place in self._audiences_of[member]:
            audience = self._audiences[place]
            heapq.heappush(audience.fewest, (count, member))
            if len(audience.fewest) > 8 * len(audience.members):  # most entries are old ones
                audience.fewest = [(self._count[each], each) for each in audience.members]
                heapq.heapify(audience.fewest)

    def _find_fewest(self, place: int) -> int:
        """Returns the subscriber with the fewest partitions, of equal ones that with the first id."""
        fewest = self._audiences[place].fewest
        while fewest[0][0] != self._count[fewest[0][1]]:
            heapq.heappop(fewest)
        return fewest[0][1]

    def _balance(self) -> None:
        """Moves partitions from members with many to subscribers with two less, until there are none."""
        moves_left = MOVES_PER_PARTITION * sum(self._count)
        has_moved = True
        while has_moved:
            has_moved = False
            most = self._find_givers()
            while most:
                count, member = heapq.heappop(most)
                if -count != self._count[member]:
                    continue
                taker, place = self._find_taker(member)
                if taker == member:
                    continue  # another member may be able to take from it once that has given; the next round sees
                if not moves_left:
                    return
                moves_left -= 1
                has_moved = True
                self._give(taker, place, *self._take(member, place))
                heapq.heappush(most, (-self._count[member], member))
                heapq.heappush(most, (-self._count[taker], taker))

    def _find_givers(self) -> list[tuple[int, int]]:
        """Returns a heap of the members that have two partitions more than a subscriber of one of their topics."""
        fewest = [self._count[self._find_fewest(place)] for place in range(len(self._audiences))]
        found = [
            (-count, member)
            for member, count in enumerate(self._count)
            if any(count - fewest[place] > 1 for place in self._audiences_of[member])
        ]
        heapq.heapify(found)
        return found

    def _find_taker(self, member: int) -> tuple[int, int]:
        """Returns the subscriber with the fewest partitions that can take one, and the audience; else `member`."""
        best = (self._count[member] - 1, member, 0)
        for place in self._audiences_of[member]:
            fewest = self._find_fewest(place)
            option = (self._count[fewest], fewest, place)
            if option < best and self._count[fewest] < self._count[member] - 1 and self._has_any(member, place):
                best = option
        return best[1:]

    def _has_any(self, member: int, place: int) -> bool:
        return bool(self._added.get(member, {}).get(place) or self._list_left(member, place))

    def _list_left(self, member: int, place: int) -> list[tuple[str, int]]:
        """Returns what is left of the kept partitions of a member in an audience."""
        left = self._left.setdefault(member, {})
        if place not in left:
            kept = self._kept[member]
            topics = [topic_id for topic_id in sorted(kept) if self._audience_of[topic_id] == place]
            left[place] = [(topic_id, partition) for topic_id in topics for partition in sorted(kept[topic_id])]
        return left[place]

    def _take(self, member: int, place: int) -> tuple[str, int]:
        """Takes a partition from a member: one that it only just got, else the last one that it had."""
        added = self._added.get(member, {}).get(place)
        taken = added.pop() if added else self._list_left(member, place).pop()
        self._set_count(member, self._count[member] - 1)
        return taken

    def _result(self, member: int) -> Assignment:
        if member not in self._added and member not in self._left:
            return self._kept[member]
        found: dict[str, set[int]] = {}
        left = self._left.get(member, {})
        for topic_id, partitions in self._kept[member].items():
            if self._audience_of[topic_id] not in left:
                found[topic_id] = set(partitions)
        for rows in (*left.values(), *self._added.get(member, {}).values()):
            for topic_id, partition in rows:
                found.setdefault(topic_id, set()).add(partition)
        return {topic_id: frozenset(found[topic_id]) for topic_id in sorted(found)}
