"""Waiting partitions take turns by topic, and within a topic."""

from __future__ import annotations

from tiered.upkeep.topic_turns import TopicTurns
from tiered.value import value


@value
class Partition:
    topic: str
    number: int


A, B, C = ([Partition(topic, number) for number in range(3)] for topic in "abc")


def take_all(turns: TopicTurns[Partition]) -> list[Partition]:
    taken = []
    while (found := turns.find_next(())) is not None:
        turns.take(found)
        taken.append(found)
    return taken


def test_topics_take_turns_whatever_came_first() -> None:
    turns = TopicTurns[Partition]()
    for each in (*A, *B[:2], C[0]):
        turns.add(each)
    assert turns
    assert take_all(turns) == [A[0], B[0], C[0], A[1], B[1], A[2]]
    assert not turns


def test_partition_that_waits_already_keeps_its_place() -> None:
    turns = TopicTurns[Partition]()
    for each in (A[0], A[1], B[0], A[0]):
        turns.add(each)
    turns.remove(C[0])
    assert take_all(turns) == [A[0], B[0], A[1]]


def test_busy_and_removed_partitions_are_passed_over() -> None:
    turns = TopicTurns[Partition]()
    for each in (*A[:2], B[0]):
        turns.add(each)
    assert turns.find_next({A[0]}) == A[1]
    assert turns.find_next(set(A)) == B[0]
    turns.remove(A[0])
    turns.remove(A[1])
    assert turns.find_next(()) == B[0]
    assert turns.find_next({B[0]}) is None
