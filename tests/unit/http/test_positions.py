"""Tests of the positions of REST consumers: a group of them that rebalances, restarts and dies at random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tests.seeds import first_seeds
from tiered.ids import TopicPartition
from tiered_api.http.consumers.positions import ConsumerPosition, ConsumerPositions

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PARTITIONS = [TopicPartition("t", number) for number in range(3)]


def at(offset: int, topic_id: str = "id") -> ConsumerPosition:
    return ConsumerPosition(topic_id, offset)


def test_reset_is_uncommitted_until_the_group_has_it() -> None:
    positions = ConsumerPositions()
    positions.begin(T0, at(7))
    positions.reset(T1, at(3))
    assert positions.uncommitted() == {T1: at(3)}
    assert positions.all() == {T0: at(7), T1: at(3)}
    positions.note_committed(T1, at(2))
    assert positions.uncommitted() == {T1: at(3)}
    positions.note_committed(T1, at(3))
    assert positions.uncommitted() == {}


def test_read_after_a_reset_is_the_position_to_commit() -> None:
    positions = ConsumerPositions()
    positions.reset(T0, at(3))
    positions.move({T0: at(5)})
    assert positions.uncommitted() == {T0: at(5)}
    positions.note_committed(T0, at(5))
    assert positions.uncommitted() == {}, "the group never goes back to the reset"


def test_reset_after_a_read_is_the_position_to_commit() -> None:
    positions = ConsumerPositions()
    positions.move({T0: at(70)})
    positions.reset(T0, at(3))
    assert positions.uncommitted() == positions.all() == {T0: at(3)}


def test_resets_are_not_lost_reads() -> None:
    positions = ConsumerPositions()
    positions.reset(T0, at(3))
    positions.move({T1: at(5)})
    assert positions.revoke() == {T0: at(3), T1: at(5)}
    assert positions.uncommitted() == positions.all() == {}
    assert positions.take_lost({"id"}) == [T1]
    assert positions.take_lost({"id"}) == []


@pytest.mark.parametrize(
    ("spot", "lost"), [(at(4), [T0]), (at(5), []), (at(6), []), (at(1, "id of the next topic"), [])]
)
def test_commit_settles_the_lost_reads_that_it_covers(spot: ConsumerPosition, lost: list[TopicPartition]) -> None:
    positions = ConsumerPositions()
    positions.move({T0: at(5)})
    positions.revoke()
    positions.note_committed(T0, spot)
    assert positions.take_lost({"id"}) == lost


def test_loss_of_less_does_not_hide_the_loss_of_more() -> None:
    positions = ConsumerPositions()
    for offset in (5, 3):
        positions.move({T0: at(offset)})
        positions.revoke()
    positions.note_committed(T0, at(4))
    assert positions.take_lost({"id"}) == [T0]


@dataclass
class Log:
    """One partition of the model. `first_read` is the end at the first read by any member of the group."""

    end: int = 0
    first_read: int = -1
    given: set[int] = field(default_factory=set)


class Member:
    """A consumer at `latest`. `claimed` are records that it read since its last commit or reported loss."""

    def __init__(self, by_hand: bool) -> None:
        self.by_hand = by_hand
        self.positions = ConsumerPositions()
        self.mine: set[TopicPartition] = set()
        self.claimed: dict[TopicPartition, int] = {}


class GroupModel:
    """A group whose members do what the REST consumers do with their positions."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.logs = {tp: Log() for tp in PARTITIONS}
        self.committed: dict[TopicPartition, int] = {}
        self.members = [self.new_member(), self.new_member()]

    def new_member(self) -> Member:
        return Member(self.rng.random() < 0.4)

    def commit(self, member: Member, positions: dict[TopicPartition, ConsumerPosition]) -> None:
        for tp, spot in positions.items():
            self.committed[tp] = spot.offset
            member.positions.note_committed(tp, spot)

    def rebalance(self) -> None:
        """Gives each partition to a member. A member commits at the revocation, unless the group refuses."""
        for member in self.members:
            left = member.positions.revoke()
            if not member.by_hand and self.rng.random() < 0.7:
                self.commit(member, left)
            member.mine = set()
        for tp in PARTITIONS:
            self.rng.choice(self.members).mine.add(tp)

    def read(self, member: Member) -> None:
        if not member.by_hand:
            self.commit(member, member.positions.uncommitted())
        found: dict[TopicPartition, ConsumerPosition] = {}
        for tp in sorted(member.mine):
            log = self.logs[tp]
            if member.positions.find(tp) is None:
                if tp in self.committed:
                    member.positions.begin(tp, at(self.committed[tp]))
                else:
                    member.positions.reset(tp, at(log.end))
            spot = member.positions.find(tp)
            assert spot is not None
            upto = self.rng.randint(spot.offset, log.end)
            if upto > spot.offset:
                found[tp] = at(upto)
        if not member.by_hand:
            self.commit(member, member.positions.uncommitted())
        for tp in member.mine:
            if self.logs[tp].first_read < 0 and tp in self.committed:
                self.logs[tp].first_read = self.committed[tp]
        if self.rng.random() < 0.2:
            return  # the client has gone before the reply
        for tp, spot in found.items():
            begin = member.positions.find(tp)
            assert begin is not None
            self.logs[tp].given.update(range(begin.offset, spot.offset))
            member.claimed[tp] = max(member.claimed.get(tp, 0), spot.offset)
        if self.rng.random() < 0.2:  # the assignment changes while the reply is written
            self.rebalance()
            member.positions.lose(found)
        else:
            member.positions.move(found)

    def commit_by_hand(self, member: Member) -> None:
        """A commit that says nothing of lost reads covers all that the client has read."""
        lost = set(member.positions.take_lost({"id"}))
        covered = {tp: upto for tp, upto in member.claimed.items() if self.committed.get(tp, 0) < upto}
        if not lost:
            self.commit(member, member.positions.all())
            assert not [tp for tp, upto in covered.items() if self.committed.get(tp, 0) < upto]
        member.claimed = {tp: upto for tp, upto in member.claimed.items() if tp not in lost} if lost else {}

    def kill(self) -> None:
        """Ends a member without a word."""
        self.members[self.rng.randrange(len(self.members))] = self.new_member()
        self.rebalance()

    def step(self) -> None:
        tp, member = self.rng.choice(PARTITIONS), self.rng.choice(self.members)
        match self.rng.randrange(10):
            case 0 | 1 | 2:
                self.logs[tp].end += self.rng.randint(1, 3)
            case 3 | 4 | 5 | 6:
                self.read(member)
            case 7:
                self.commit_by_hand(member)
            case 8:
                self.rebalance()
            case 9:
                self.kill()

    def finish(self) -> None:
        """Lets one member read all that is left."""
        self.members = [Member(by_hand=False)]
        self.rebalance()
        while any(
            (spot := self.members[0].positions.find(tp)) is None or spot.offset < self.logs[tp].end for tp in PARTITIONS
        ):
            self.read(self.members[0])
            if not self.members[0].mine:
                self.rebalance()


@pytest.mark.parametrize("seed", first_seeds(50, 200))
def test_each_record_after_the_first_read_reaches_a_member(seed: int) -> None:
    group = GroupModel(seed)
    group.rebalance()
    for _ in range(120):
        group.step()
    group.finish()
    for tp, log in group.logs.items():
        missing = set(range(log.first_read, log.end)) - log.given
        assert log.first_read >= 0 and not missing, (tp, log)
