"""Epochs of group, target and member."""

from __future__ import annotations

import pytest

from tests.unit.groups.consumer.rig import T, U, partitions
from tiered.errors import Code
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import (
    ConsumerGroupState,
    SubscribedTopic,
    check_member_epoch,
    find_state,
    hash_topics,
    next_group_epoch,
)
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState

MEMBER = CurrentAssignment(5, 4, MemberState.STABLE, partitions(t={0, 1}))
TOPICS = {"t": SubscribedTopic(T, 3), "u": SubscribedTopic(U, 1)}


@pytest.mark.parametrize(
    ("epoch", "owned", "code"),
    [
        (5, None, None),
        (0, {}, None),
        (6, None, Code.FENCED_MEMBER_EPOCH),
        (4, partitions(t={1}), None),
        (4, {}, None),
        (4, None, Code.FENCED_MEMBER_EPOCH),
        (4, partitions(t={1, 2}), Code.FENCED_MEMBER_EPOCH),
        (4, partitions(u={0}), Code.FENCED_MEMBER_EPOCH),
        (3, {}, Code.FENCED_MEMBER_EPOCH),
        (2**31 - 1, {}, Code.FENCED_MEMBER_EPOCH),
    ],
)
def test_member_is_fenced_unless_its_epoch_fits(epoch: int, owned: Assignment | None, code: Code | None) -> None:
    assert check_member_epoch(epoch, MEMBER, owned) is code


def test_earlier_epoch_of_a_member_with_a_later_one_before_is_fenced() -> None:
    leaving = CurrentAssignment(-2, 5, MemberState.STABLE, partitions(t={0}))
    assert check_member_epoch(5, leaving, {}) is Code.FENCED_MEMBER_EPOCH


@pytest.mark.parametrize(
    ("group_epoch", "members", "state"),
    [
        (5, [], ConsumerGroupState.EMPTY),
        (6, [MEMBER], ConsumerGroupState.ASSIGNING),
        (5, [MEMBER, MEMBER], ConsumerGroupState.STABLE),
        (5, [MEMBER, CurrentAssignment(4, 4)], ConsumerGroupState.RECONCILING),
        (5, [CurrentAssignment(5, 4, MemberState.UNRELEASED_PARTITIONS)], ConsumerGroupState.RECONCILING),
    ],
)
def test_group_state_follows_from_epochs_and_members(
    group_epoch: int, members: list[CurrentAssignment], state: ConsumerGroupState
) -> None:
    assert find_state(group_epoch, 5, members) is state


def test_group_epoch_grows_with_each_change() -> None:
    assert next_group_epoch(5, False, 7, 7) == 5
    assert next_group_epoch(5, True, 7, 7) == 6
    assert next_group_epoch(5, False, 7, 8) == 6
    assert next_group_epoch(5, True, 7, 8) == 6


def test_hash_changes_with_topics_and_not_with_their_order() -> None:
    known = hash_topics(TOPICS)
    assert hash_topics(dict(reversed(TOPICS.items()))) == known
    others = [
        {"t": SubscribedTopic(T, 4), "u": SubscribedTopic(U, 1)},
        {"t": SubscribedTopic(U, 3), "u": SubscribedTopic(T, 1)},
        {"t": SubscribedTopic(T, 3)},
        {"t": SubscribedTopic(T, 3), "x": SubscribedTopic(U, 1)},
    ]
    assert len({known, *map(hash_topics, others)}) == 5
    assert hash_topics({}) == 0
