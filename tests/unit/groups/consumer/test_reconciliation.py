"""The way of a member to its target: it gives up partitions before others get them (I17)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.groups.consumer.rig import T, U, find_owners, partitions
from tiered.groups.consumer.assignment import NO_PARTITIONS, Assignment, AssignorMember
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState, Target, owns_any, reconcile
from tiered.groups.consumer.uniform_assignor import assign_uniformly

STABLE, UNREVOKED, UNRELEASED, UNKNOWN = MemberState
BOTH = frozenset({T, U})


def step(
    current: CurrentAssignment,
    epoch: int,
    wanted: Assignment,
    owned: Assignment | None = None,
    *,
    topics: frozenset[str] = BOTH,
    taken: Assignment = NO_PARTITIONS,
    is_subscription_new: bool = False,
) -> CurrentAssignment | None:
    """Returns the next assignment. `taken` are the partitions that are not free."""
    target = Target(epoch, wanted, topics, lambda topic_id, number: number not in taken.get(topic_id, ()))
    return reconcile(current, target, owned, is_subscription_new)


def test_new_member_gets_free_partitions_at_once() -> None:
    found = step(CurrentAssignment(), 3, partitions(t={0, 1}), NO_PARTITIONS)
    assert found == CurrentAssignment(3, 0, STABLE, partitions(t={0, 1}))


def test_member_at_its_target_stays() -> None:
    current = CurrentAssignment(3, 2, STABLE, partitions(t={0}))
    assert step(current, 3, partitions(t={0})) is current


def test_member_keeps_its_epoch_while_it_revokes() -> None:
    current = CurrentAssignment(3, 2, STABLE, partitions(t={0, 1}, u={0}))
    found = step(current, 5, partitions(t={0, 7}))
    assert found == CurrentAssignment(3, 3, UNREVOKED, partitions(t={0}), partitions(t={1}, u={0}))


def test_member_that_still_owns_what_it_revokes_waits() -> None:
    current = CurrentAssignment(3, 3, UNREVOKED, partitions(t={0}), partitions(t={1}))
    assert step(current, 5, partitions(t={0}), partitions(t={0, 1})) is current
    assert step(current, 5, partitions(t={0}), None) is current, "it did not say what it owns"


def test_member_that_has_revoked_moves_to_the_target_epoch() -> None:
    current = CurrentAssignment(3, 3, UNREVOKED, partitions(t={0}), partitions(t={1}))
    found = step(current, 5, partitions(t={0, 2}), partitions(t={0}))
    assert found == CurrentAssignment(5, 3, STABLE, partitions(t={0, 2}))


def test_member_with_a_newer_target_revokes_again_one_epoch_on() -> None:
    current = CurrentAssignment(3, 3, UNREVOKED, partitions(t={0, 1}), partitions(t={2}))
    found = step(current, 6, partitions(t={0}), partitions(t={0, 1}))
    assert found == CurrentAssignment(4, 3, UNREVOKED, partitions(t={0}), partitions(t={1}))


def test_epoch_does_not_pass_the_target_after_a_new_subscription() -> None:
    current = CurrentAssignment(3, 2, UNREVOKED, NO_PARTITIONS, partitions(t={0}))
    found = step(current, 3, partitions(t={0}, u={1}), NO_PARTITIONS, topics=frozenset({U}))
    assert found == CurrentAssignment(3, 3, STABLE, partitions(u={1}))


def test_member_with_partitions_that_it_revoked_unasked_moves_on() -> None:
    current = CurrentAssignment(3, 2, STABLE, partitions(t={0, 1}))
    assert step(current, 5, partitions(t={0}), partitions(t={0})) == CurrentAssignment(5, 3, STABLE, partitions(t={0}))


def test_member_waits_for_partitions_of_others() -> None:
    current = CurrentAssignment(3, 2, STABLE, partitions(t={0}))
    waiting = step(current, 5, partitions(t={0, 1, 2}), taken=partitions(t={1}))
    assert waiting == CurrentAssignment(5, 3, UNRELEASED, partitions(t={0, 2}))
    assert step(waiting, 5, partitions(t={0, 1, 2}), taken=partitions(t={1})) == CurrentAssignment(
        5, 5, UNRELEASED, partitions(t={0, 2})
    )
    assert step(waiting, 5, partitions(t={0, 1, 2})) == CurrentAssignment(5, 5, STABLE, partitions(t={0, 1, 2}))


def test_member_gets_back_what_it_was_revoking() -> None:
    current = CurrentAssignment(3, 3, UNREVOKED, NO_PARTITIONS, partitions(t={0}))
    found = step(current, 4, partitions(t={0}), NO_PARTITIONS, taken=partitions(t={0}))
    assert found == CurrentAssignment(4, 3, STABLE, partitions(t={0}))


def test_topics_without_subscription_are_not_given() -> None:
    found = step(CurrentAssignment(), 3, partitions(t={0}, u={0}), NO_PARTITIONS, topics=frozenset({U}))
    assert found == CurrentAssignment(3, 0, STABLE, partitions(u={0}))


def test_new_subscription_takes_partitions_before_the_new_target() -> None:
    current = CurrentAssignment(3, 2, STABLE, partitions(t={0}, u={0}))
    found = step(current, 3, current.assigned, current.assigned, topics=frozenset({U}), is_subscription_new=True)
    assert found == CurrentAssignment(3, 2, UNREVOKED, partitions(u={0}), partitions(t={0}))
    gone = step(current, 3, current.assigned, partitions(u={0}), topics=frozenset({U}), is_subscription_new=True)
    assert gone == CurrentAssignment(3, 2, STABLE, partitions(u={0})), "it owns them no more"
    assert step(current, 3, current.assigned, topics=BOTH, is_subscription_new=True) is current


def test_new_subscription_adds_to_what_a_member_revokes() -> None:
    current = CurrentAssignment(3, 3, UNREVOKED, partitions(t={0}, u={0}), partitions(t={1}))
    found = step(current, 5, partitions(u={0}), None, topics=frozenset({U}), is_subscription_new=True)
    assert found == CurrentAssignment(3, 3, UNREVOKED, partitions(u={0}), partitions(t={0, 1}))


def test_member_in_an_unknown_state_is_fenced_unless_it_owns_nothing() -> None:
    current = CurrentAssignment(3, 2, UNKNOWN, partitions(t={0}))
    assert step(current, 5, partitions(t={1}), partitions(t={0})) is None
    assert step(current, 5, partitions(t={1}), None) is None
    assert step(current, 5, partitions(t={1}), NO_PARTITIONS) == CurrentAssignment(5, 3, STABLE, partitions(t={1}))


def test_owned_partitions_are_compared_by_topic() -> None:
    assert not owns_any(partitions(t={0}), partitions(u={0}))
    assert owns_any(partitions(t={0, 1}), partitions(t={1}))


class Members(RuleBasedStateMachine):
    """Members that join, leave, and follow their targets late, with lost replies. `owned` is what each client owns."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = 0
        self.counts = {T: 4, U: 2}
        self.current: dict[str, CurrentAssignment] = {}
        self.owned: dict[str, Assignment] = {}
        self.target: dict[str, Assignment] = {}
        self.topics: dict[str, frozenset[str]] = {}

    def assign(self) -> None:
        members = {each: AssignorMember(self.topics[each], self.target.get(each, {})) for each in self.current}
        self.target = assign_uniformly(members, self.counts)
        self.epoch += 1

    def is_free(self, topic_id: str, number: int) -> bool:
        return all(
            number not in partitions.get(topic_id, ())
            for each in self.current.values()
            for partitions in (each.assigned, each.revoking)
        )

    def pick(self, number: int) -> str | None:
        return sorted(self.current)[number % len(self.current)] if self.current else None

    @rule(member_id=st.sampled_from("abcde"), topics=st.sampled_from([BOTH, BOTH, frozenset({T})]))
    def join(self, member_id: str, topics: frozenset[str]) -> None:
        if member_id not in self.current:
            self.current[member_id], self.owned[member_id] = CurrentAssignment(), {}
        self.topics[member_id] = topics
        self.assign()

    @rule(number=st.integers(0, 4))
    def leave(self, number: int) -> None:
        member_id = self.pick(number)
        if member_id is not None:
            for each in (self.current, self.owned, self.topics, self.target):
                del each[member_id]
            self.assign()

    @rule(count=st.integers(1, 6))
    def change_partitions(self, count: int) -> None:
        self.counts[T] = count
        self.assign()

    @rule(number=st.integers(0, 4), is_lost=st.booleans(), is_silent=st.booleans())
    def heartbeat(self, number: int, is_lost: bool, is_silent: bool) -> None:
        """A member says what it owns. It gives up and takes what the reply says, unless the reply is lost."""
        member_id = self.pick(number)
        if member_id is None:
            return
        target = Target(self.epoch, self.target[member_id], self.topics[member_id], self.is_free)
        owned = None if is_silent else self.owned[member_id]
        found = reconcile(self.current[member_id], target, owned)
        assert found is not None
        assert found.epoch >= self.current[member_id].epoch
        self.current[member_id] = found
        if not is_lost:
            self.owned[member_id] = found.assigned

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        find_owners(self.owned)
        find_owners({each: current.assigned for each, current in self.current.items()})

    def teardown(self) -> None:
        """After two heartbeats of each member for each step of the way, all have their targets."""
        for _ in range(3):
            for number in range(len(self.current)):
                self.heartbeat(number, False, False)
                self.heartbeat(number, False, False)
        for member_id, current in self.current.items():
            assert (current.state, current.epoch) == (STABLE, self.epoch)
            assert current.assigned == self.owned[member_id] == self.target[member_id]


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=40, stateful_step_count=25)
